# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_launches.py
"""Launches: tensors of any layout, views of one storage, programs in the caches, the clock, tuning, bad arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import feature_kernels as kernels
import pytest
import torch
import triton
import triton.language as tl

from torch_spyre import _C
from torch_spyre.errors import InvalidArgument


def on_card(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("spyre")


# -- memory -----------------------------------------------------------------------------------------------------------


def test_result_is_in_the_tensor_itself() -> None:
    x, out = on_card(torch.randn(50, 70)), torch.zeros(50, 70, device="spyre")
    kernels.strided[(2, 3)](x, out, 50, 70, *x.stride(), *out.stride(), BM=32, BN=32)
    assert torch.equal(out.cpu(), x.cpu() * 2)


def test_views_with_gaps_and_offsets() -> None:
    host = torch.randn(40, 60)
    source, target = on_card(host), torch.zeros(40, 60, device="spyre")
    x, out = source[3:, 1::2], target[1:38, 5:35]
    kernels.strided[(2, 1)](x, out, 37, 30, *x.stride(), *out.stride(), BM=32, BN=32)
    expected = torch.zeros(40, 60)
    expected[1:38, 5:35] = host[3:, 1::2] * 2
    assert torch.equal(target.cpu(), expected)


def test_a_kernel_reaches_beyond_its_tensor() -> None:
    """A view of the first row, whose strides lead to all others."""
    host = torch.randn(8, 64)
    out = torch.zeros(8, 64, device="spyre")
    kernels.strided[(1, 2)](on_card(host)[0], out, 8, 64, 64, 1, 64, 1, BM=8, BN=32)
    assert torch.equal(out.cpu(), host * 2)


@pytest.mark.parametrize("shape, order", [((5, 7, 33), (2, 0, 1)), ((20, 30), (1, 0))])
def test_permuted_tensors(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    host = torch.randn(shape)
    x = on_card(host).permute(order)
    out, n = torch.empty_like(x), x.numel()
    kernels.add[(triton.cdiv(n, 64),)](x, x, out, n, BLOCK=64)
    assert out.stride() == x.stride() and torch.equal(out.cpu(), x.cpu() * 2)


def test_one_tensor_twice() -> None:
    """The second store must not see what the first one wrote."""
    host = torch.randn(200)
    x = on_card(host)
    kernels.in_place[(4,)](x, x, 200, BLOCK=64)
    assert torch.equal(x.cpu(), host * 2)


def test_overlapping_views() -> None:
    """x[0:100] and x[50:150] are written by one program, in the order of the kernel."""
    host = torch.randn(150)
    x = on_card(host)
    kernels.in_place[(1,)](x[:100], x[50:], 100, BLOCK=128)
    expected = host.clone()
    value = expected[:100].clone()
    expected[:100] = value + 1
    expected[50:150] = value * 2
    assert torch.equal(x.cpu(), expected)


def test_views_of_one_storage_that_do_not_overlap() -> None:
    host = torch.randn(3, 100)
    packed = on_card(host)
    kernels.add[(2,)](packed[0], packed[1], packed[2], 100, BLOCK=64)
    assert torch.equal(packed.cpu(), torch.stack([host[0], host[1], host[0] + host[1]]))


def test_empty_tensors() -> None:
    x = torch.zeros(0, device="spyre")
    kernels.add[(1,)](x, x, torch.zeros(0, device="spyre"), 0, BLOCK=64)


def test_wide_integers() -> None:
    x, y = torch.randint(-(2**30), 2**30, (2, 300))
    out = torch.zeros(300, dtype=torch.int64, device="spyre")
    kernels.add[(5,)](on_card(x), on_card(y), out, 300, BLOCK=64)
    assert torch.equal(out.cpu(), x + y)


# -- arguments --------------------------------------------------------------------------------------------------------


def test_tensors_of_the_host_are_refused() -> None:
    x = torch.zeros(64, device="spyre")
    with pytest.raises(InvalidArgument, match="argument y is on cpu"):
        kernels.add[(1,)](x, torch.zeros(64), x, 64, BLOCK=64)


@triton.jit
def scaled(x, out, factor, flag, pair, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place) * factor + pair[0] * pair[1]
    tl.store(out + place, tl.where(flag != 0, value, 0.0))


def test_floats_truth_values_and_tuples() -> None:
    x, out = on_card(torch.randn(64)), torch.zeros(64, device="spyre")
    for flag in (True, False):
        scaled[(1,)](x, out, 0.5, flag, (3, 4), BLOCK=64)
        assert torch.equal(out.cpu(), (x.cpu() * 0.5 + 12) * flag)


# -- caches -----------------------------------------------------------------------------------------------------------

_SECOND = """
import sys, torch
sys.path[:0] = {path!r}
import feature_kernels as kernels
x = torch.arange(200.0).to("spyre")
out = torch.zeros(200, device="spyre")
kernels.add[(4,)](x, x, out, 200, BLOCK=64)
assert torch.equal(out.cpu(), torch.arange(200.0) * 2)
print("compiled" if "xdsl" in sys.modules else "found")
"""


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    folders = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "SPYRE_CACHE_DIR": str(tmp_path / "programs")}
    environment = dict(os.environ, **folders)
    command = [sys.executable, "-c", _SECOND.format(path=[str(Path(__file__).parent)])]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()[-1]
        for _ in range(2)
    ]
    assert said == ["compiled", "found"]


def test_sizes_have_programs_of_their_own() -> None:
    for n in (64, 100, 64, 3):
        x, out = on_card(torch.randn(n)), torch.zeros(n, device="spyre")
        kernels.add[(triton.cdiv(n, 64),)](x, x, out, n, BLOCK=64)
        assert torch.equal(out.cpu(), x.cpu() * 2)


def test_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_caches: Path) -> None:
    monkeypatch.setenv("SPYRE_DUMP", str(tmp_path))
    x = torch.zeros(96, device="spyre")
    kernels.add[(3,)](x, x, x, 96, BLOCK=32)
    (folder,) = tmp_path.glob("triton_add_*")
    names = sorted(file.name for file in folder.iterdir())
    assert names[0] == "00-ttir.mlir" and "kernel.ttir" in names and "program.txt" in names
    assert "ktdp.store" in (folder / names[-3]).read_text()


# -- time -------------------------------------------------------------------------------------------------------------


def test_launches_take_time_on_the_card() -> None:
    x, out = on_card(torch.randn(4096)), torch.zeros(4096, device="spyre")
    kernels.add[(32,)](x, x, out, 4096, BLOCK=128)
    torch.spyre.synchronize()
    before = _C.clock_ns(0)
    kernels.add[(32,)](x, x, out, 4096, BLOCK=128)
    torch.spyre.synchronize()
    assert _C.clock_ns(0) > before


def test_profiler_names_the_kernel() -> None:
    from torch.profiler import ProfilerActivity, profile

    x, out = on_card(torch.randn(4096)), torch.zeros(4096, device="spyre")
    with profile(activities=[ProfilerActivity.PrivateUse1]) as recorded:
        kernels.add[(32,)](x, x, out, 4096, BLOCK=128)
        torch.spyre.synchronize()
    assert any("add" in event.name for event in recorded.events())


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (64, 1024, 1 << 20)], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + place, mask=place < n, other=1.0)
    tl.store(out + place, tl.exp(a) / tl.sum(a, axis=0) + tl.where(place < 5, a, tl.sin(a)), mask=place < n)


def test_autotune_measures_on_the_cards_clock() -> None:
    """A block beyond the scratchpad is passed over; the rest is chosen by the clock, the same each time."""
    chosen = set()
    x = on_card(torch.rand(2048))
    for _ in range(2):
        tuned.cache.clear()
        tuned[lambda meta: (triton.cdiv(2048, meta["BLOCK"]),)](x, torch.zeros(2048, device="spyre"), 2048)
        chosen.add(tuned.best_config.kwargs["BLOCK"])
    assert len(chosen) == 1 and chosen <= {64, 1024}


@triton.heuristics({"BLOCK": lambda values: triton.next_power_of_2(values["n"])})
@triton.jit
def one_block(x, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n) + 1.0, mask=place < n)


def test_heuristics() -> None:
    x, out = on_card(torch.rand(100)), torch.zeros(100, device="spyre")
    one_block[(1,)](x, out, 100)
    assert torch.equal(out.cpu(), x.cpu() + 1)


# -- other ways to run a kernel ----------------------------------------------------------------------------------------

_CHECKED = """
import sys, torch
sys.path[:0] = {path!r}
import feature_kernels as kernels
x = torch.arange(200.0).to("spyre")
out = torch.zeros(200, device="spyre")
kernels.add[(4,)](x, x, out, 200, BLOCK=64)
assert torch.equal(out.cpu(), torch.arange(200.0) * 2)
"""


@pytest.mark.parametrize("variable", ["TRITON_INTERPRET", "SPYRE_SANITIZE"])
def test_checked_runs(variable: str) -> None:
    command = [sys.executable, "-c", _CHECKED.format(path=[str(Path(__file__).parent)])]
    subprocess.run(command, check=True, env=dict(os.environ, **{variable: "1"}))


def test_layouts_change_between_launches() -> None:
    """One kernel, the same integers: tensors in rows, in sticks, with a gap before them, with shared memory."""

    def launched(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        kernels.add[(4,)](x, x, out, 256, BLOCK=64)
        return out.cpu()

    values = torch.randn(4, 64)
    expected = values * 2
    flat = values.flatten().to("spyre")
    wide = torch.zeros(512)
    wide[128:384] = values.flatten()
    for _ in range(2):
        assert torch.equal(launched(flat, torch.zeros(256, device="spyre")), expected.flatten())
        assert torch.equal(launched(flat.view(4, 64), torch.zeros(256, device="spyre")), expected.flatten())
        assert torch.equal(launched(values.to("spyre"), torch.zeros(4, 64, device="spyre")), expected)
        assert torch.equal(launched(wide.to("spyre")[128:384], torch.zeros(256, device="spyre")), expected.flatten())
        same = flat.clone()
        assert torch.equal(launched(same, same), expected.flatten())
        with pytest.raises(InvalidArgument, match=r"is on cpu"):
            launched(flat, torch.zeros(256))


def test_truth_values_and_floats_between_launches() -> None:
    x = torch.ones(64, device="spyre")
    for flag in (True, False, True):
        for factor in (2.0, 3.0):
            out = torch.zeros(64, device="spyre")
            scaled[(1,)](x, out, factor, flag, (0, 5), BLOCK=64)
            assert out.cpu().tolist() == [factor * flag] * 64
