# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_refused_dtypes.py
"""What PyTorch refuses for the dtypes of its tensors the card refuses with the same words, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

F = torch.nn.functional


def bools(device: str) -> torch.Tensor:
    return torch.tensor([[True, False, True]], device=device)


def whole(device: str) -> torch.Tensor:
    return torch.tensor([[3, -1, 2]], device=device)


REFUSED: dict[str, Callable[[str], object]] = {
    "abs": lambda d: bools(d).abs(),
    "abs_": lambda d: bools(d).abs_(),
    "mul_ by a number": lambda d: bools(d).mul_(2),
    "mul_ by a float": lambda d: whole(d).mul_(0.5),
    "add_ with alpha": lambda d: bools(d).add_(whole(d)),
    "floor": lambda d: bools(d).floor(),
    "fmod": lambda d: bools(d).fmod(bools(d)),
    "pow": lambda d: bools(d).pow(bools(d)),
    "shift": lambda d: torch.bitwise_left_shift(bools(d), bools(d)),
    "shift of bools by bools": lambda d: bools(d) << bools(d),
    "shift of bools in place": lambda d: bools(d).__ilshift__(1),
    "max_pool1d of int64": lambda d: F.max_pool1d(whole(d), 2),
    "max_pool1d of bools": lambda d: F.max_pool1d(bools(d), 2),
    "relu": lambda d: F.relu(bools(d)),
    "frac": lambda d: whole(d).frac(),
    "logaddexp": lambda d: torch.logaddexp(whole(d), whole(d)),
    "softmax": lambda d: whole(d).softmax(-1),
    "var": lambda d: whole(d).var(),
    "mm": lambda d: bools(d).mm(bools(d).T),
    "median": lambda d: bools(d).median(),
    "topk beyond one": lambda d: bools(d).topk(3),
    "argmax": lambda d: bools(d).argmax(),
    "max_pool2d": lambda d: F.max_pool2d(bools(d).reshape(1, 1, 3), (1, 2)),
}
TAKEN: dict[str, Callable[[str], torch.Tensor]] = {
    "mul_": lambda d: bools(d).mul_(bools(d)),
    "mul_ by a bool": lambda d: bools(d).mul_(True),
    "mul": lambda d: bools(d) * 2,
    "shift of bools": lambda d: bools(d) << 1,
    "right shift of bools": lambda d: bools(d) >> 1,
    "shift by bools": lambda d: whole(d).int() << bools(d),
    "right shift of bools by a tensor": lambda d: bools(d) >> whole(d).int().abs(),
    "shift of a number by bools": lambda d: 1 << bools(d),
    "max_pool1d of int64 with places": lambda d: F.max_pool1d(whole(d), 2, return_indices=True)[0],
    "max_pool2d of int64": lambda d: F.max_pool2d(whole(d).reshape(1, 1, 3), (1, 2)),
    "sum": lambda d: bools(d).sum(),
    "topk of int64": lambda d: whole(d).topk(3).values,
    "clamp": lambda d: whole(d).clamp(0, 2),
    "where": lambda d: torch.where(bools(d), whole(d).half(), 0.5),
    "masked_fill": lambda d: whole(d).half().masked_fill(bools(d), 1),
    "true division": lambda d: whole(d) / 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as expected:
        REFUSED[name]("cpu")
    with pytest.raises(type(expected.value)) as actual:
        REFUSED[name]("spyre")
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_on_the_cpu(name: str) -> None:
    expected, actual = TAKEN[name]("cpu"), TAKEN[name]("spyre")
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.cpu(), expected)


LARGE: dict[str, Callable[[torch.Tensor], object]] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 3),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "glu": lambda x: F.glu(x, -1),
    "hardswish": F.hardswish,
    "huber_loss": lambda x: F.huber_loss(x, x),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "prelu": lambda x: F.prelu(x, x.flatten()[:1]),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "unfold": lambda x: F.unfold(x, 3),
}


@pytest.mark.parametrize("name", LARGE)
def test_integers_of_large_tensors(name: str) -> None:
    """More elements than a question to the CPU computes with: a few of them tell."""
    for device in ("cpu", "spyre"):
        with pytest.raises(NotImplementedError, match=r"not implemented for 'Long'"):
            LARGE[name](torch.ones(1, 8, 40, 40, dtype=torch.int64, device=device))


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d, F.avg_pool3d, F.max_pool3d])
def test_bools_of_large_tensors(pool: Callable[..., torch.Tensor]) -> None:
    for device in ("cpu", "spyre"):
        with pytest.raises(NotImplementedError, match=r"not implemented for 'Bool'"):
            pool(torch.ones(1, 8, 40, 40, dtype=torch.bool, device=device), 2)


def test_weights_of_a_loss_have_the_dtype_of_its_input() -> None:
    for device in ("cpu", "spyre"):
        x, target = torch.ones(3, 5, device=device), torch.zeros(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
            F.nll_loss(x, target, weight=torch.ones(5, dtype=torch.float16, device=device))
    for shape in ((3, 5), (3, 5, 1, 1)):
        half = torch.ones(shape, dtype=torch.float16, device="spyre")
        places = target.reshape(3, *shape[2:])
        assert F.nll_loss(half, places, weight=torch.ones(5, dtype=torch.float16, device="spyre")).item() == -1
