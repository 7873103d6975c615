# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_predict_timing.py

Timing-only mode: the clock of a functional run, no arithmetic, no committed memory, and guards around the results.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from processes import run_python

from torch_spyre import _C
from torch_spyre.errors import UninitializedRead
from torch_spyre.predict import timing_only

HALF = torch.float16


def printed_by(source: str, **environment: str) -> str:
    done = run_python(source, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_card(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=HALF).to("spyre")


def spent(action: object) -> int:
    start = _C.clock_ns()
    action()  # type: ignore[operator]
    torch.spyre.synchronize()
    return int(_C.clock_ns() - start)


def test_the_clock_does_not_notice() -> None:
    x, w = on_card(128, 256), on_card(256, 128)
    host = torch.randn(64, 64, dtype=HALF)

    def work() -> None:
        torch.softmax(x @ w, -1).cpu()
        host.to("spyre").neg_()

    work()
    functional = spent(work)
    with timing_only(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert spent(work) == functional
    assert spent(work) == functional


def test_results_are_zeros_and_a_warning_says_so() -> None:
    out = printed_by(
        """
        import warnings, torch
        from torch_spyre.predict import timing_only
        x = torch.ones(100, 70, dtype=torch.float16).to("spyre")
        with timing_only(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            y = (x + x).cpu()
            z = x.cpu()
        print(bool((y == 0).all()), bool((z == 0).all()), sum("timing-only" in str(w.message) for w in told))
        print(bool((x.cpu() == 1).all()))
        """
    )
    assert out.split() == ["True", "True", "1", "True"], "what was there before is there afterwards"


def test_undefined_values_do_not_leak() -> None:
    x = on_card(64, 64)
    with timing_only():
        y = x + x
        x2 = x.clone()
    with pytest.raises(UninitializedRead, match="timing-only"):
        y.cpu()
    with pytest.raises(UninitializedRead, match="timing-only"):
        y + x
    x2.copy_(torch.ones(64, 64, dtype=HALF))
    assert bool((x2.cpu() == 1).all()), "written again, it is a tensor like any other"
    assert torch.equal((x + x).cpu(), x.cpu() * 2)


def test_strided_results_are_cleared_too() -> None:
    x = on_card(64, 64)
    target = torch.ones(64, 128, dtype=HALF)
    with timing_only(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target[:, ::2].copy_(x)
    assert bool((target[:, ::2] == 0).all()) and bool((target[:, 1::2] == 1).all())


def test_no_memory_is_committed() -> None:
    out = printed_by(
        """
        import torch
        x = torch.empty(32768, 32768, dtype=torch.float16, device="spyre")
        y, z = x + 1, x * 2
        y.add_(x)
        torch.spyre.synchronize()
        pages = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
        print(pages // 1024, torch.spyre.memory_allocated() >> 30)
        """,
        SPYRE_TIMING_ONLY="1",
    )
    resident_mb, allocated_gb = map(int, out.split())
    assert allocated_gb == 6 and resident_mb < 2000


def test_modes_nest_and_errors_leave_them() -> None:
    with timing_only():
        with timing_only():
            assert _C._timing_only()
        assert _C._timing_only()
    assert not _C._timing_only()
    with pytest.raises(ZeroDivisionError), timing_only():
        raise ZeroDivisionError
    assert not _C._timing_only()
