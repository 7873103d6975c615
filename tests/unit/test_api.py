# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_api.py

torch.spyre and torch.accelerator: every name answers, questions start no card, a wrong device is named.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

from torch_spyre.errors import InvalidArgument


def in_child(code: str, **env: str) -> str:
    """Output of a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=1500
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


QUESTIONS = """
import torch
s = torch.spyre
assert s.is_available() and s.device_count() == 2 and s.current_device() == 0
assert s.get_device_properties(1).index == 1 and s.get_device_name() and s.get_device_capability("spyre:1")
s.get_amp_supported_dtype(), s.is_bf16_supported(), s.can_device_access_peer(0, 1)
s.memory_allocated(), s.memory_stats(), s.memory_summary(), s.mem_get_info(1), s.max_memory_reserved()
s.manual_seed(1), s.initial_seed(), s.get_rng_state_all()
assert not hasattr(s, "no_such_name")
with s.device(1):
    assert s.current_device() == 1
assert s.current_device() == 0
s.reset()
assert not s.is_initialized()
s.init()
assert s.is_initialized()
"""


def test_questions_start_no_card() -> None:
    in_child(QUESTIONS, AIU_WORLD_SIZE="2")


def test_import_prints_nothing() -> None:
    assert in_child("import torch") == ""


def test_every_public_name_exists() -> None:
    for name in torch.spyre.__all__:
        assert getattr(torch.spyre, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch.spyre.no_such_name


def test_properties() -> None:
    p = torch.spyre.get_device_properties("spyre:0")
    assert (p.cores, p.multi_processor_count, p.lx_bytes) == (32, 32, 2 << 20)
    assert (p.total_memory, p.type, p.index) == (112 << 30, "dd2", 0)
    assert torch.spyre.get_device_name() == p.name
    assert torch.spyre.get_device_capability() == (2, 0)
    assert torch.spyre.is_bf16_supported() and not torch.spyre.is_bf16_supported(including_emulation=False)
    assert torch.spyre.can_device_access_peer(0, "spyre:0")


@pytest.mark.parametrize("device", [7, "spyre:7", torch.device("spyre", 7)])
def test_index_out_of_range(device: Any) -> None:
    for call in (torch.spyre.get_device_properties, torch.spyre.set_device, torch.spyre.memory_allocated):
        with pytest.raises(InvalidArgument, match=r"Device index 7 out of range \[0, 1\); AIU_WORLD_SIZE"):
            call(device)


def test_wrong_device_type() -> None:
    with pytest.raises(InvalidArgument, match="cpu"):
        torch.spyre.set_device("cpu")


@pytest.mark.parametrize("device", [None, 0, "spyre", "spyre:0", torch.device("spyre")])
def test_synchronize(device: Any) -> None:
    x = torch.ones(64, device="spyre")
    y = x + x
    torch.spyre.synchronize(device)
    assert torch.equal(y.cpu(), torch.full((64,), 2.0))


def test_device_context() -> None:
    x = torch.ones(2, device="spyre")
    for context in (
        torch.spyre.device(0),
        torch.spyre.device(-1),
        torch.spyre.device(None),
        torch.spyre.device_of(x),
        torch.spyre.device_of(torch.ones(1)),
    ):
        with context:
            assert torch.spyre.current_device() == 0


def test_streams() -> None:
    s = torch.spyre.Stream()
    before = torch.spyre.current_stream()
    with torch.spyre.stream(s):
        assert torch.spyre.current_stream() == s
    torch.spyre.set_stream(s)
    try:
        assert torch.spyre.current_stream() == s
    finally:
        torch.spyre.set_stream(before)
    torch.spyre.set_stream(None)
    assert torch.spyre.current_stream() == before
    assert torch.spyre.default_stream().id == 0


def test_seeds() -> None:
    def draw() -> torch.Tensor:
        return torch.rand(16, device="spyre").cpu()

    torch.spyre.manual_seed(5)
    assert torch.spyre.initial_seed() == 5
    first = draw()
    state = torch.spyre.get_rng_state()
    second = draw()
    torch.spyre.set_rng_state(state)
    assert torch.equal(draw(), second)
    torch.spyre.manual_seed_all(5)
    assert torch.equal(draw(), first)
    states = torch.spyre.get_rng_state_all()
    third = draw()
    torch.spyre.set_rng_state_all(states)
    assert torch.equal(draw(), third)
    torch.spyre.seed()
    a = torch.spyre.initial_seed()
    torch.spyre.seed_all()
    assert torch.spyre.initial_seed() != a


def test_reset_leaves_tensors() -> None:
    x = torch.arange(4.0).to("spyre")
    torch.spyre.reset()
    torch.spyre.reset("spyre:0")
    assert torch.equal(x.cpu(), torch.arange(4.0))


def _can_be_made(dtypes: set[torch.dtype]) -> bool:
    return torch.float16 in dtypes and all(torch.empty(3, dtype=d, device="spyre").dtype == d for d in dtypes)


ACCELERATOR: dict[str, Any] = {
    "current_accelerator": lambda f: f() == torch.device("spyre"),
    "current_device_idx": lambda f: f() == 0,
    "current_device_index": lambda f: f() == 0,
    "get_device_capability": lambda f: _can_be_made(f()["supported_dtypes"]),
    "current_stream": lambda f: f().device == torch.device("spyre", 0),
    "device_count": lambda f: f() == torch.spyre.device_count(),
    "device_index": lambda f: f(0).__enter__() is None,
    "empty_cache": lambda f: f() is None,
    "empty_host_cache": lambda f: f() is None,
    "get_memory_info": lambda f: f()[1] == 112 << 30,
    "is_available": lambda f: f() is True,
    "max_memory_allocated": lambda f: f() >= 0,
    "max_memory_reserved": lambda f: f() >= 0,
    "memory_allocated": lambda f: f() == torch.spyre.memory_allocated(),
    "memory_reserved": lambda f: f() >= 0,
    "memory_stats": lambda f: "allocated_bytes.all.current" in f(),
    "reset_accumulated_memory_stats": lambda f: f() is None,
    "reset_peak_memory_stats": lambda f: f() is None,
    "set_device_idx": lambda f: f(0) is None,
    "set_device_index": lambda f: f(0) is None,
    "set_stream": lambda f: f(torch.accelerator.current_stream()) is None,
    "synchronize": lambda f: f() is None,
}


@pytest.mark.parametrize("name", [n for n in torch.accelerator.__all__ if n != "Graph"])
def test_accelerator(name: str) -> None:
    """Every function of the installed torch.accelerator; a new one fails here until somebody looks at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the two names ending in _idx
        assert ACCELERATOR[name](getattr(torch.accelerator, name))


def test_graph_capture_says_no() -> None:
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: spyre"):
        torch.accelerator.Graph()


def test_generic_names_reach_the_device() -> None:
    assert torch.get_device_module("spyre") is torch.spyre
    assert torch.accelerator.current_accelerator().type == "spyre"
    torch.manual_seed(3)
    assert torch.spyre.initial_seed() == 3


def test_signatures_of_what_is_wrapped_can_be_read() -> None:
    for function in (torch.Tensor.to, torch.empty):
        assert "device_layout" in inspect.signature(function).parameters
    assert "tensor" in inspect.signature(torch.to_dlpack).parameters
