# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_windows.py: pooling and convolution in SuperDSC files give what PyTorch gives on the CPU.

Inputs are small integers, so that every sum is exact and results differ only if the wrong elements were taken.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sdsc_files import T, sdsc

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.superdsc.bundle import Bundle, lone
from torch_spyre.ir.superdsc.schema import SuperDSC, Window
from torch_spyre.sdsc.run import run

SHAPES = [(2, 2, 1, 1), (3, 2, 2, 1), (1, 3, 1, 2), (3, 3, 2, 2)]  # window, stride, dilation along both dims alike


def _total(results: int, window: int, stride: int, dilation: int) -> int:
    return (results - 1) * stride + (window - 1) * dilation + 1


def _windows(ki: int, kj: int, stride: int, dilation: int) -> dict[str, Window]:
    """Of 4 times 5 results; the image has an element more than its windows reach along one dim."""
    return {
        "i": Window("ki", stride, dilation, _total(4, ki, stride, dilation) + 1),
        "j": Window("kj", stride, dilation, _total(5, kj, stride, dilation)),
    }


def _bundle(made: SuperDSC) -> Bundle:
    return lone(json.loads(json.dumps(made.to_json())))


def _integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)


def _pool(shape: tuple[int, int, int, int], **more: object) -> SuperDSC:
    ki, kj, *_ = shape
    return sdsc(
        "avgpoolfwd",
        {"i": 4, "j": 5, "out": 128, "ki": ki, "kj": kj},
        [T("j i out", "out", 0, windows="i j"), T("i j out", "out", 1)],
        {"i": 2, "j": 5},
        windows=_windows(*shape),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_windows(shape: tuple[int, int, int, int]) -> None:
    """With nmap 1 a pooling is the sum of each window: a convolution with ones."""
    windows = _windows(*shape)
    x = _integers(windows["i"].total, windows["j"].total, 128)
    got = run(_bundle(_pool(shape, constants={"nmap": 1.0})), {"Tensor0": x}).outputs["Tensor1"]
    image = torch.from_numpy(x).permute(2, 0, 1)[None]
    ones = torch.ones(128, 1, shape[0], shape[1])
    want = F.conv2d(image, ones, stride=shape[2], dilation=shape[3], groups=128)[0].permute(1, 2, 0)
    assert np.array_equal(got, want.numpy()[:4, :5])


def test_means_of_windows() -> None:
    x = _integers(9, 10, 128) * 4
    made = _pool((2, 2, 2, 1))
    got = run(_bundle(made), {"Tensor0": x}).outputs["Tensor1"]
    want = F.avg_pool2d(torch.from_numpy(x).permute(2, 0, 1), 2).permute(1, 2, 0)
    assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution(shape: tuple[int, int, int, int]) -> None:
    ki, kj, stride, dilation = shape
    windows = _windows(*shape)
    made = sdsc(
        "conv2d",
        {"i": 4, "j": 5, "out": 128, "ki": ki, "kj": kj, "in": 64},
        [T("j i in", "in", 0, windows="i j"), T("in kj ki out", "out", 1), T("j i out", "out", 2)],
        {"i": 4, "out": 2},
        windows=windows,
        unit="pt",
    )
    x, w = _integers(windows["i"].total, windows["j"].total, 64), _integers(128, ki, kj, 64)
    got = run(_bundle(made), {"Tensor0": x, "Tensor1": w}).outputs["Tensor2"]
    image, weight = torch.from_numpy(x).permute(2, 0, 1)[None], torch.from_numpy(w).permute(0, 3, 1, 2)
    want = F.conv2d(image, weight, stride=stride, dilation=dilation)[0].permute(1, 2, 0).numpy()[:4, :5]
    assert np.abs(want).max() < 512 and np.array_equal(got, want)


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_per_channel(shape: tuple[int, int, int, int]) -> None:
    ki, kj, stride, dilation = shape
    windows = _windows(*shape)
    made = sdsc(
        "depthwiseconv2dnative",
        {"i": 4, "j": 5, "out": 128, "ki": ki, "kj": kj},
        [T("j i out", "out", 0, windows="i j"), T("kj ki out", "out", 1), T("j i out", "out", 2)],
        {"i": 4},
        windows=windows,
        unit="pt",
    )
    x, w = _integers(windows["i"].total, windows["j"].total, 128), _integers(128, ki, kj)
    got = run(_bundle(made), {"Tensor0": x, "Tensor1": w}).outputs["Tensor2"]
    image, weight = torch.from_numpy(x).permute(2, 0, 1)[None], torch.from_numpy(w)[:, None]
    want = F.conv2d(image, weight, stride=stride, dilation=dilation, groups=128)[0].permute(1, 2, 0)
    assert np.array_equal(got, want.numpy()[:4, :5])


def test_windows_that_are_not_known() -> None:
    data = json.loads(json.dumps(_pool((2, 2, 2, 1)).to_json()))
    sizes = data["0_avgpoolfwd"]["dscs_"][0]["avgpoolfwd"]["N_"]["paddingSizes_"]
    sizes["i"]["padFront_"] = 1
    with pytest.raises(UnsupportedOp, match=r"paddingSizes_\.i: 1 and 0 elements of padding"):
        lone(data)
    sizes["i"]["padFront_"] = 0
    sizes["i"]["totalSize_"] = 7
    with pytest.raises(InvalidProgram, match=r"\[window\] Tensor0: dim i: windows reach 8 elements, the operand has 7"):
        lone(data).verify()
    del sizes["i"]
    with pytest.raises(InvalidProgram, match=r"\[window\] Tensor0: padding_ of dim i, for which N_ has no window"):
        lone(data).verify()
