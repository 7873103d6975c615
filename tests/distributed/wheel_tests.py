# SPDX-License-Identifier: Apache-2.0
"""PyTorch's `distributed_test`, which comes with its wheel, for spyreccl.

The suite knows its backends by name. Its form for Gloo makes CPU tensors by default and asks for every collective; with
the card as default device the same calls reach spyreccl. Cases for CUDA alone, and those that look for Gloo by name,
skip or are told apart by `reason`.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

FILE = "torch/testing/_internal/distributed/distributed_test.py"
RANKS = 4
# Groups that a test makes for Gloo are groups of the card.
MIXED = "cpu:gloo,spyre:spyreccl"


def load() -> ModuleType:
    """A module with one class, TestDistributed."""
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    with mock.patch.dict(os.environ, BACKEND="gloo", WORLD_SIZE=str(RANKS)), torch.device("spyre"):
        suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    class TestDistributed(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        world_size = RANKS

        def _barrier(self, *_: Any, **__: Any) -> None:
            dist.barrier()

    module = ModuleType("wheel_tests_for_spyre")
    TestDistributed.__module__ = module.__name__
    module.TestDistributed = TestDistributed  # type: ignore[attr-defined]
    suite.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(world_size)}
    sys.modules[module.__name__] = module
    return module


def prepare(meeting: str, rank: int, size: int) -> None:
    """What the suite's own processes do before a test."""
    torch.set_default_device(torch.device("spyre", torch.spyre.current_device()))
    for name in ("barrier", "test_dir", "init_dir"):  # as the suite's launcher makes them
        Path(meeting).with_name(name).mkdir(exist_ok=True)
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(size), TEMP_DIR=str(Path(meeting).parent))
    make = dist.new_group

    def new_group(*args: Any, **named: Any) -> Any:
        if named.get("backend") == "gloo":
            named["backend"] = MIXED
        return make(*args, **named)

    dist.new_group = new_group
    dist.init_process_group(MIXED, store=dist.FileStore(meeting, size), rank=rank, world_size=size)
