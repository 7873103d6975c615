# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_views.py

Views of device tensors: same sizes, strides, offsets and values as on the host, for reading and for writing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

FP16 = torch.float16

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "as_strided": lambda x: x.as_strided((3, 5), (7, 2), 11),
    "expand": lambda x: x[:, 2:3, 5:].expand(4, 9, 65),
    "broadcast_to": lambda x: x[1].broadcast_to(2, 6, 70),
    "unfold": lambda x: x.unfold(2, 5, 3),
    "select": lambda x: x.select(1, 2),
    "slice": lambda x: x[1:, ::2, 3::5],
    "narrow": lambda x: x.narrow(2, 60, 9),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "mT": lambda x: x.mT,
    "T": lambda x: x[1].T,
    "split": lambda x: x.split(4, 1),
    "tensor_split": lambda x: x.tensor_split([1, 3], 1),
    "chunk": lambda x: x.chunk(3, 2),
    "unbind": lambda x: x.unbind(1),
    "squeeze": lambda x: x[:, 1:2].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "view": lambda x: x.view(24, 70),
    "reshape": lambda x: x.reshape(2, 2, -1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (7, 10)),
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "real": lambda x: x.real,
    "view_as": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "of a view": lambda x: x[1:3].permute(2, 1, 0)[5:60:4, 1:],
}


def host_tensor(dtype: torch.dtype = FP16) -> torch.Tensor:
    """Distinct small integers, exact in every format."""
    return (torch.arange(4 * 6 * 70).reshape(4, 6, 70) % 251 - (100 if dtype.is_signed else 0)).to(dtype)


def parts(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def metadata(x: torch.Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.storage_offset()


@pytest.mark.parametrize("name", VIEWS)
def test_reads(name: str) -> None:
    host = host_tensor()
    card = host.to("spyre")
    for expected, got in zip(parts(VIEWS[name](host)), parts(VIEWS[name](card)), strict=True):
        assert got.device.type == "spyre" and metadata(got) == metadata(expected)
        assert got.untyped_storage().data_ptr() == card.untyped_storage().data_ptr(), "a view shares the storage"
        assert torch.equal(got.cpu(), expected)
        assert torch.equal(got.clone().cpu(), expected), "an operation on the card reads the same elements"


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("expand", "broadcast_to", "unfold")])
def test_writes(name: str) -> None:
    """Writing through a view changes its elements and nothing else, from the host and on the card."""
    for move in (lambda x: x, lambda x: x.to("spyre")):
        host = host_tensor()
        card = host.to("spyre")
        for target, on_card in zip(parts(VIEWS[name](host)), parts(VIEWS[name](card)), strict=True):
            values = torch.arange(target.numel(), dtype=FP16).reshape(target.shape) % 199
            target.copy_(values)
            on_card.copy_(move(values))
        assert torch.equal(card.cpu(), host)


def assign(index: Any, value: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], None]:
    return lambda x: x.__setitem__(index, value(x))


ASSIGNMENTS: dict[str, Callable[[torch.Tensor], None]] = {
    "number": assign((slice(1, 3), slice(None), slice(5, 60, 3)), lambda x: 7),
    "element": assign((1, 2, 3), lambda x: 5.5),
    "tensor": assign((slice(1, 3), slice(None, None, 2)), lambda x: x[2:4, 1::2].clone()),
    "broadcast": assign((slice(None), slice(2, 5), slice(None, None, 3)), lambda x: x[0, 0, :24].clone()),
    "scalar tensor": assign((Ellipsis, 0), lambda x: torch.tensor(3.0, device=x.device)),
    "column": assign((Ellipsis, 0), lambda x: x[..., 1]),
    "other dtype": assign(0, lambda x: x[1].float()),
    "host value": assign((2, 3), lambda x: torch.ones(70)),
    "everything": assign(slice(None), lambda x: 2),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_slice_assignment(name: str) -> None:
    host = host_tensor()
    card = host.to("spyre")
    ASSIGNMENTS[name](host)
    ASSIGNMENTS[name](card)
    assert torch.equal(card.cpu(), host)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8],
    ids=str,
)
def test_every_dtype_clones_through_views(dtype: torch.dtype) -> None:
    host = host_tensor(dtype)
    for view in (lambda x: x[1:, ::2, 3::5], lambda x: x.permute(2, 0, 1), lambda x: x[:, :3, :50].mT):
        assert torch.equal(view(host.to("spyre")).clone().cpu(), view(host))


def test_many_dims() -> None:
    """The layout rule covers six dims; a tensor of more lies flat."""
    host = torch.arange(256.0).reshape([2] * 8)
    card = host.to("spyre")
    order = list(range(7, -1, -1))
    assert torch.equal(card.permute(order).contiguous().cpu(), host.permute(order))


def test_views_in_place() -> None:
    host, card = host_tensor(), host_tensor().to("spyre")
    for change in (
        lambda x: x.transpose_(0, 1),
        lambda x: x.unsqueeze_(0),
        lambda x: x.squeeze_(0),
        lambda x: x.as_strided_((3, 5), (7, 2), 11),
    ):
        change(host)
        change(card)
        assert metadata(card) == metadata(host) and torch.equal(card.cpu(), host)


def test_resize() -> None:
    host, card = host_tensor(), host_tensor().to("spyre")
    for size in ((3, 7), (2, 2, 2), (100,)):
        host.resize_(size)
        card.resize_(size)
        assert metadata(card) == metadata(host) and torch.equal(card.cpu(), host)
    assert torch.equal(host_tensor().to("spyre")[1].resize_(2, 3).cpu(), host_tensor()[1].resize_(2, 3))
    grown = torch.arange(6.0).to("spyre").resize_(3, 50)
    assert grown.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert card.resize_as_(torch.empty(4, 5)).shape == (4, 5)


def test_set() -> None:
    """Each overload points the tensor at another storage."""
    host = host_tensor()
    card = host.to("spyre")
    for make in (
        lambda x: x.new_empty(0).set_(x[1:, 3]),
        lambda x: x.new_empty(0).set_(x.untyped_storage(), 3, (4, 5), (9, 1)),
        lambda x: x.new_empty(0).set_(x, 3, (4, 5), (9, 1)),
        lambda x: x.clone().set_(),
    ):
        expected, got = make(host), make(card)
        assert metadata(got) == metadata(expected) and torch.equal(got.cpu(), expected)
    whole = card.new_empty(0).set_(card.untyped_storage())
    assert whole.dim() == 1 and whole.untyped_storage().data_ptr() == card.untyped_storage().data_ptr()
    card.data = torch.ones(2, 2, dtype=FP16, device="spyre")
    assert card.tolist() == [[1, 1], [1, 1]]


def test_scalars() -> None:
    """.item() reads one element at the view's own offset."""
    for dtype in (FP16, torch.float32, torch.int64, torch.int8, torch.uint8, torch.bool):
        host = host_tensor(dtype)
        card = host.to("spyre")
        assert card[3, 1:, 7::9][2, 4].item() == host[3, 1:, 7::9][2, 4].item()
        assert type(card[0, 0, 0].item()) is type(host[0, 0, 0].item())
    with pytest.raises(RuntimeError, match="converted to Scalar"):
        host_tensor().to("spyre").item()


def test_overlapping_copy_raises_as_on_the_host() -> None:
    for device in ("cpu", "spyre"):
        x = torch.arange(500.0).to(device)
        with pytest.raises(RuntimeError, match="clone"):
            x[10:].copy_(x[:490])
