# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_storage_bounds.py
"""Sizes and strides at which arithmetic goes wrong, writes through views, and layouts in damaged files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import pytest
import torch

from torch_spyre._C import SpyreTensorLayout
from torch_spyre.errors import InvalidArgument

HUGE = 1 << 62


def on_itself(x: torch.Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return x.set_(x.untyped_storage(), offset, size, stride)


# Calls that the CPU refuses: the card says the same.
REFUSED: dict[str, Callable[[str], object]] = {
    "a sum that wraps": lambda d: torch.empty_strided((2, 1088), (HUGE - 1024, 1), device=d),
    "a product that wraps": lambda d: torch.empty_strided((3,), (1 << 61,), device=d),
    "ranks that differ": lambda d: torch.empty_strided((1,), (), device=d),
    "a negative stride": lambda d: torch.empty_strided((2,), (-1,), device=d),
    "a negative size": lambda d: torch.empty(-3, device=d),
    "a size": lambda d: torch.empty(HUGE, device=d),
    "sizes": lambda d: torch.empty(1 << 40, 1 << 40, device=d),
    "a number of elements": lambda d: torch.empty_strided((HUGE, HUGE), (0, 0), device=d),
    "of another tensor": lambda d: torch.empty(1, device=d).new_empty_strided((2,), (-1,)),
    "resize_": lambda d: torch.zeros(4, device=d).resize_(HUGE),
    "as_strided": lambda d: torch.zeros(4, device=d).as_strided((3,), (1 << 61,)),
    "as_strided past the end": lambda d: torch.zeros(5, device=d).as_strided((8,), (1,)),
    "as_strided_ past the end": lambda d: torch.zeros(5, device=d).as_strided_((8,), (1,)),
    "set_": lambda d: on_itself(torch.zeros(4, device=d), 0, (3,), (1 << 61,)),
    "set_ of two ranks": lambda d: on_itself(torch.zeros(4, device=d), 0, (2, 2), (1,)),
    "an offset": lambda d: on_itself(torch.zeros(4, device=d), -1, (2,), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_no_storage_has(name: str) -> None:
    for device in ("cpu", "spyre"):
        with pytest.raises(RuntimeError, match=r"overflow|dimension|out of bounds|length|offset"):
            REFUSED[name](device)
    assert (torch.ones(3, device="spyre") + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("device", ["cpu", "spyre"])
def test_as_strided_in_place_with_a_size_too_few(device: str) -> None:
    with pytest.raises(RuntimeError, match="mismatch in length of strides and shape"):
        torch.zeros(5, device=device).as_strided_((1,), ())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bool, torch.uint8, torch.int64, torch.int8])
@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (4, 4, 70)])
def test_all_that_a_storage_says_it_holds(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Code of PyTorch copies inputs as all elements that fit into `untyped_storage().size()`, whole sticks here."""
    host = torch.arange(torch.Size(shape).numel()).remainder(100).to(dtype).reshape(shape)
    x = host.to("spyre")
    count = x.untyped_storage().size() // x.element_size()
    every = x.as_strided((count,), (1,), 0)
    copy = every.clone().as_strided(x.size(), x.stride(), x.storage_offset())
    assert torch.equal(copy.cpu(), host) and torch.equal(x.cpu(), host)
    assert not every[host.numel() :].cpu().any()
    assert every[-1].item() == (host.flatten()[-1].item() if count == host.numel() else 0)
    assert x.untyped_storage().size() // x.element_size() == count
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided((count + 1,), (1,), 0)


def test_the_bytes_of_a_storage_as_a_list() -> None:
    for dtype in (torch.uint8, torch.bool, torch.int8):
        held = torch.ones(2, dtype=dtype, device="spyre").untyped_storage()
        assert held.tolist() == [1, 1] + [0] * (held.size() - 2)


EMPTY: dict[str, Callable[[str], torch.Tensor]] = {
    "empty": lambda d: torch.empty(2, 5, 1 << 60, 0, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 5, 1 << 60, 0), (8, 3, 8, 8), dtype=torch.bool, device=d),
    "resize_": lambda d: torch.empty(0, device=d).resize_(2, 5, 1 << 60, 0),
    "set_": lambda d: on_itself(torch.empty(0, device=d), 0, (2, 5, 1 << 60, 0), (1, 1, 1, 1)),
    "copy": lambda d: torch.empty_strided((2, 5, 1 << 60, 0), (1, 1, 1, 1), device=d).cpu(),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_elements_although_other_sizes_are_large(name: str) -> None:
    card, host = (EMPTY[name](device) for device in ("spyre", "cpu"))
    assert (card.shape, card.stride(), card.numel()) == (host.shape, host.stride(), 0)


def test_a_refused_resize_changes_nothing() -> None:
    x = torch.arange(6.0).to("spyre").reshape(2, 3)
    for size in ((HUGE,), (1 << 40, 1 << 40), (1 << 35,)):
        with pytest.raises(RuntimeError):
            x.resize_(size)
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


# What a call writes, and what it leaves alone: (a view of 3 x 4, what is done to it).
WRITES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], object]]] = {
    "zeros": (lambda x: x[:, 1:3], lambda y: torch.zeros(3, 2, out=y)),
    "ones": (lambda x: x[:, 1:3], lambda y: torch.ones(3, 2, out=y)),
    "full": (lambda x: x[::2, 1:], lambda y: torch.full((2, 3), 9.0, out=y)),
    "resize_as_": (lambda x: x[:, 1:3], lambda y: y.resize_as_(torch.empty(3, 2, device=y.device)).zero_()),
    "transposed": (lambda x: x.t(), lambda y: y.resize_(4, 3).fill_(torch.tensor(2.0))),
    "longer": (lambda x: x[:, 1:3], lambda y: torch.zeros(4, 3, out=y)),
    "arange": (lambda x: x[:, 1:3], lambda y: torch.arange(6, out=y)),
    "range": (lambda x: x.t(), lambda y: torch.range(1, 12, out=y)),
    "linspace": (lambda x: x[:, 1:3], lambda y: torch.linspace(0, 5, 6, out=y)),
    "logspace": (lambda x: x[:, 1:3], lambda y: torch.logspace(0, 5, 6, base=2, out=y)),
    "arange of a vector": (lambda x: x[:, 1], lambda y: torch.arange(3, out=y)),
    "arange of another length": (lambda x: x[1:], lambda y: torch.arange(4, out=y)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITES)
def test_writes_stay_inside_a_view(name: str) -> None:
    view, write = WRITES[name]
    results = []
    for device in ("cpu", "spyre"):
        base = (torch.arange(12.0) + 100).reshape(3, 4).to(device)
        part = view(base)
        write(part)
        results.append((part.shape, part.stride(), part.storage_offset(), part.tolist(), base.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("draw", [torch.rand, torch.randn, lambda size, out: torch.randint(5, size, out=out)])
def test_random_numbers_stay_inside_a_view(draw: Callable[..., torch.Tensor]) -> None:
    base = torch.full((3, 4), 100.0, device="spyre")
    draw((3, 2), out=base[:, 1:3])
    assert base[:, ::3].eq(100).all() and base[:, 1:3].lt(100).all()


def test_a_layout_with_the_preserved_format() -> None:
    layout = SpyreTensorLayout([40, 60], [60, 1], torch.float16, [1, 0])
    options = {"dtype": torch.float16, "device": "spyre", "device_layout": layout}
    made = torch.empty(40, 60, **options, memory_format=torch.preserve_format)
    assert made.device_tensor_layout() == layout and made.is_contiguous()
    with pytest.raises(InvalidArgument, match="does not store"):
        torch.empty(40, 60, dtype=torch.float32, device="spyre", device_layout=layout)


# Files: the text of the layout is spyre_layout_v1;device_size;stride_map;format,arrangement;sizes;strides;
GOOD = b"1,3,32;32,4,1;1,0;3,4;4,1;"


def with_layout(text: bytes) -> io.BytesIO:
    """A file whose tensor of 3 x 4 has this layout; its zip archive is sound."""
    file, made = io.BytesIO(), io.BytesIO()
    torch.save(torch.arange(12.0).reshape(3, 4).to("spyre"), file)
    mark = b"spyre_layout_v1;"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if mark + GOOD in data:
                begin = data.index(mark)
                length = (len(mark) + len(text)).to_bytes(4, "little")
                data = data[: begin - 4] + length + mark + text + data[begin + len(mark + GOOD) :]
            new.writestr(name, data)
    made.seek(0)
    return made


def test_a_good_file() -> None:
    loaded = torch.load(with_layout(GOOD), weights_only=True)
    assert loaded.tolist() == torch.arange(12.0).reshape(3, 4).tolist()


@pytest.mark.parametrize(
    "text",
    [
        b"1,3,32;32,4,1;1,0;2,1088;4611686018427386880,1;",  # host strides whose sum wraps
        b"1,3,32;32,4,1;1,0;3;2305843009213693952;",
        b"1,3,32;32,4,1;1,0;3,4;-4,1;",
        b"1,3,32;32,4,1;1,0;-3,4;4,1;",
        b"1,3,32;32,4,1;1,0;3,4;64,1;",  # bytes of the file that the shape leaves out
        b"1,3,32;32,4,1;1,0;2,4;4,1;",
        b"1,3,32;32,4611686018427387904,1;1,0;3,4;4,1;",
        b"1,3,32;32,-9,1;1,0;3,4;4,1;",
        b"9223372036854775807,3,32;32,4,1;1,0;3,4;4,1;",
        b"1073741824,3,32;32,4,1;1,0;3,4;4,1;",  # terabytes for 48 bytes
        b"0,3,32;32,4,1;1,0;3,4;4,1;",
        b"1,3,32;32,4,1;200,0;3,4;4,1;",
        b"1,3,32;32,4,1;1,9;3,4;4,1;",
        b"1,3,32;32,4,1;1,0;3,4;99999999999999999999,1;",
        b"1,3,32;32,4,1;1,0;3,x;4,1;",
        b"1,3,32;32,4,1;1,0;3,4;",
        b"",
        b";;;;;",
        GOOD + b"1;",
    ],
)
def test_a_damaged_layout_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"torch\.load: the saved layout 'spyre_layout_v1"):
        torch.load(with_layout(text), weights_only=True)
    on_host = torch.load(with_layout(text), weights_only=True, map_location="cpu")
    assert on_host.tolist() == torch.arange(12.0).reshape(3, 4).tolist()


MADE: dict[str, Callable[[torch.dtype, str], torch.Tensor]] = {
    "empty": lambda t, d: torch.empty(10, 9, dtype=t, device=d),
    "out": lambda t, d: torch.empty(10, 9, out=torch.zeros(1, dtype=t, device=d)),
    "like": lambda t, d: torch.empty_like(
        torch.zeros(2, 3, 4, 5, dtype=t, device=d), memory_format=torch.channels_last
    ),
    "strided": lambda t, d: torch.empty_strided((10, 9), (1, 12), dtype=t, device=d),
    "permuted": lambda t, d: torch.empty_permuted((2, 3, 5), (1, 0, 2), dtype=t, device=d),
    "none": lambda t, d: torch.empty(3, 0, dtype=t, device=d),
    "resize_": lambda t, d: torch.zeros(2, 3, dtype=t, device=d).resize_(3, 70),
}


@pytest.mark.parametrize("name", MADE)
def test_new_memory_of_deterministic_programs(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        dtypes = (
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float8_e4m3fn,
            torch.bool,
            torch.uint8,
            torch.int8,
        )
        for dtype in (*dtypes, torch.int16, torch.int32):
            got, want = (MADE[name](dtype, device).cpu().float() for device in ("spyre", "cpu"))
            assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(), want.nan_to_num()), dtype
        assert name in ("none", "resize_") or (MADE[name](torch.int64, "spyre").cpu() == 2**31 - 1).all()
    finally:
        torch.use_deterministic_algorithms(False)
