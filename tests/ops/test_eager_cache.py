# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ops/test_eager_cache.py: an op that a process has lowered is found again by the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_spyre import _C, knobs
from torch_spyre.ops import eager
from torch_spyre.ops.reuse import lowered_calls

RUN = """
import sys, torch
x = torch.arange(210, dtype=torch.float16).reshape(3, 70).to("spyre")
out = torch.empty(0, device="spyre", dtype=torch.float16)
torch.neg(x, out=out)
print((x * 3).sum().item(), torch.softmax(x, -1)[0, 69].item(), out[0, 2].item())
print("torch_spyre._inductor.planning.planner" in sys.modules, "torch._inductor.graph" in sys.modules, file=sys.stderr)
"""


def _run() -> tuple[str, list[str]]:
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", RUN], capture_output=True, text=True, timeout=1500)
    assert made.returncode == 0, made.stderr
    return made.stdout, made.stderr.split()


def test_a_second_process_lowers_nothing(fresh_caches: Path) -> None:
    first, _ = _run()
    entries = list((fresh_caches / "eager").rglob("*.json"))
    assert entries
    again, imported = _run()
    assert again == first
    assert imported == ["False", "False"], "neither the planner nor Inductor's lowering"
    for entry in entries:
        entry.write_text(entry.read_text().replace('"sha256": "', '"sha256": "0'))
    assert _run()[0] == first, "damaged entries are made again"


def test_numbers_are_not_part_of_an_entry() -> None:
    x = torch.ones(2, 64, dtype=torch.float16).to("spyre")
    mul = torch.ops.aten.mul.Tensor
    two, three = torch.tensor(2.0), torch.tensor(3.0)
    assert lowered_calls.key(mul, (x, two), {}) == lowered_calls.key(mul, (x, three), {})
    assert lowered_calls.key(mul, (x, two), {}) != lowered_calls.key(mul, (x, two.int()), {})
    assert (x * 2).cpu().unique().tolist() == [2.0] and (x * 3).cpu().unique().tolist() == [3.0]


def test_layout_is_and_offset_is_not() -> None:
    x = torch.ones(2, 64, dtype=torch.float16).to("spyre")
    neg = torch.ops.aten.neg.default
    keys = {lowered_calls.key(neg, (y,), {}) for y in (x, x.T, x[1:], x[:1], x.float())}
    assert len(keys) == 4 and None not in keys
    assert lowered_calls.key(neg, (x[1:],), {}) == lowered_calls.key(neg, (x[:1],), {})
    assert lowered_calls.key(neg, (torch.ones(2),), {}) is None, "a host tensor that is no number"


def test_a_recalled_op_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(5, 64, dtype=torch.float16).to("spyre")
    eager.compile_op(torch.ops.aten.neg.default, (x,), {})
    monkeypatch.setattr(eager, "_compile", None)
    eager.compile_op(torch.ops.aten.neg.default, (x,), {})


def test_a_recalled_op_takes_numbers_at_launch() -> None:
    x = torch.ones(5, 64, dtype=torch.float16).to("spyre")
    calls = (lambda: torch.lerp(x, x * 3, 0.25), lambda: torch.add(x, x, alpha=0.5), lambda: torch.addcmul(x, x, x))
    first = [call().cpu() for call in calls]
    _C.clear_eager_cache()
    for call, want in zip(calls, first, strict=True):
        assert torch.equal(call().cpu(), want)


def test_the_cache_stays_where_it_is_when_inductor_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPYRE_CACHE_DIR")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = knobs.get("cache_dir")
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    assert knobs.get("cache_dir") == before
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert knobs.get("cache_dir") == "/elsewhere/spyre"
