# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries on the card. They live in an environment of their own, which `make test-ecosystem` makes;
where one is missing nothing of this folder is collected."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

LIBRARIES = (
    "accelerate",
    "datasets",
    "diffusers",
    "lightning",
    "peft",
    "sentence_transformers",
    "timm",
    "torchmetrics",
    "torchvision",
    "transformers",
    "trl",
)
if not all(importlib.util.find_spec(name) for name in LIBRARIES):
    collect_ignore_glob = ["test_*.py"]

# Set before a library is imported: there is no model hub, and no server that wants to know about this run.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    """accelerate keeps the device that it once chose for the whole process."""
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def host_ops() -> Iterator[set[str]]:
    """The operations that may run on the host in a test: it adds them to the set, and no other one may."""
    import torch_spyre
    from torch_spyre.ops import fallbacks

    fallbacks.reset()
    expected: set[str] = set()
    yield expected
    found = {row.op.removeprefix("aten.").removesuffix(".default") for row in torch_spyre.report()}
    assert found <= expected
