# SPDX-License-Identifier: Apache-2.0
"""vLLM on the card. It lives in an environment of its own, which `make test-serving` makes; elsewhere nothing of this
folder is collected."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

sys.path.insert(0, str(Path(__file__).parent))

# Set before vLLM is imported. The engine in this process: what a test looks at is there.
os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING"
)


@pytest.fixture(scope="session", autouse=True)
def groups_stay() -> None:
    """An engine that ends, or that Python collects, takes vLLM's process groups along. Here other engines of the same
    process still use them."""
    from vllm.v1.engine import core

    core.cleanup_dist_env_and_memory = lambda *args, **kwargs: None


@pytest.fixture
def own_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM makes process groups with the first engine of a process, and one of experts only if that one has experts."""
    from vllm.distributed import parallel_state

    for name, value in list(vars(parallel_state).items()):
        if isinstance(value, parallel_state.GroupCoordinator) and name != "_WORLD":
            monkeypatch.setattr(parallel_state, name, None)


@pytest.fixture(scope="session")
def smollm2() -> str:
    from torch_spyre.models.smollm2 import checkpoint

    return str(checkpoint())


@pytest.fixture(scope="session")
def engine(smollm2: str) -> Iterator[Any]:
    """SmolLM2 for the tests that look at what it says: chunks of 64 tokens, four sequences at once."""
    from vllm import LLM

    yield LLM(
        smollm2, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, kv_cache_memory_bytes=64 << 20, seed=0
    )
