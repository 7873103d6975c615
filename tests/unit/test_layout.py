# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_layout.py

SpyreTensorLayout: the layout rule against recorded layouts, constructors, text, pickling and interning.
"""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from torch_spyre._C import DataFormats, ElementArrangement, SpyreTensorLayout, get_device_dtype, get_elem_in_stick

FP16 = torch.float16

# (host size, dim order or None for the identity, device_size, stride_map), all float16.
GOLDEN = [
    ([], None, [1, 64], [-1, -1]),
    ([1], None, [1, 64], [-1, -1]),
    ([2], None, [1, 64], [64, 1]),
    ([60], None, [1, 64], [64, 1]),
    ([64], None, [1, 64], [64, 1]),
    ([65], None, [2, 64], [64, 1]),
    ([120], None, [2, 64], [64, 1]),
    ([128], None, [2, 64], [64, 1]),
    ([131072], None, [2048, 64], [64, 1]),
    ([512], [0, -1], [1, 512, 64], [-1, 1, -1]),
    ([1, 64], None, [1, 1, 64], [64, -1, 1]),
    ([64, 1], None, [1, 64, 64], [-1, 1, -1]),
    ([4, 128], None, [2, 4, 64], [64, 128, 1]),
    ([512, 240], None, [4, 512, 64], [64, 240, 1]),
    ([512, 256], None, [4, 512, 64], [64, 256, 1]),
    ([512, 256], [1, 0], [8, 256, 64], [16384, 1, 256]),
    ([512, 256], [0, 1, -1], [256, 1, 512, 64], [1, -1, 256, -1]),
    ([3, 5], [1, 0, -1], [3, 1, 5, 64], [5, -1, 1, -1]),
    ([1000, 200], None, [4, 1000, 64], [64, 200, 1]),
    ([1024, 256], None, [4, 1024, 64], [64, 256, 1]),
    ([1024, 4096], [1, 0], [16, 4096, 64], [262144, 1, 4096]),
    ([128, 64], [1, 0], [2, 64, 64], [4096, 1, 64]),
    ([5, 100, 150], None, [100, 3, 5, 64], [150, 64, 15000, 1]),
    ([5, 100, 150], [1, 0, 2], [5, 3, 100, 64], [15000, 64, 150, 1]),
    ([5, 10, 200], None, [10, 4, 5, 64], [200, 64, 2000, 1]),
    ([50, 10, 200], None, [10, 4, 50, 64], [200, 64, 2000, 1]),
    ([128, 256, 512], None, [256, 8, 128, 64], [512, 64, 131072, 1]),
    ([512, 8, 240], None, [8, 4, 512, 64], [240, 64, 1920, 1]),
    ([512, 8, 256], None, [8, 4, 512, 64], [256, 64, 2048, 1]),
    ([512, 8, 256], [0, 2, 1], [256, 1, 512, 64], [1, 16384, 2048, 256]),
    ([512, 8, 256], [1, 0, 2], [512, 4, 8, 64], [2048, 64, 256, 1]),
    ([512, 8, 256], [1, 2, 0], [256, 8, 8, 64], [1, 131072, 256, 2048]),
    ([512, 8, 256], [2, 0, 1], [512, 1, 256, 64], [2048, 16384, 1, 256]),
    ([512, 8, 256], [2, 1, 0], [8, 8, 256, 64], [256, 131072, 1, 2048]),
    ([512, 256, 1], None, [256, 1, 512, 64], [1, -1, 256, -1]),
    ([512, 1, 256], None, [1, 4, 512, 64], [-1, 64, 256, 1]),
    ([3, 2, 2048], [1, 0, 2], [3, 32, 2, 64], [4096, 64, 2048, 1]),
    ([2, 4, 8], [0, 1, 2, -1], [4, 8, 1, 2, 64], [8, 1, -1, 32, -1]),
    ([2, 32, 256, 128], None, [32, 256, 2, 2, 64], [32768, 128, 64, 1048576, 1]),
    ([1, 32, 11, 128], None, [32, 11, 2, 1, 64], [1408, 128, 64, -1, 1]),
    ([2, 3, 4, 5, 6], None, [3, 4, 5, 1, 2, 64], [120, 30, 6, 64, 360, 1]),
    ([2, 3, 4, 5, 6, 7], None, [3, 4, 5, 6, 1, 2, 64], [840, 210, 42, 7, 64, 2520, 1]),
    ([0], None, [0, 64], [64, 1]),
    ([4, 0], None, [0, 4, 64], [64, 0, 1]),
    ([0, 4], None, [1, 0, 64], [64, 4, 1]),
]


def row_major(size: list[int]) -> list[int]:
    return [math.prod(size[i + 1 :]) for i in range(len(size))]


@pytest.mark.parametrize(("size", "order", "device_size", "stride_map"), GOLDEN)
def test_golden_layout(size: list[int], order: list[int] | None, device_size: list[int], stride_map: list[int]) -> None:
    """Each recorded layout follows from the rule."""
    if order is None:
        layout = SpyreTensorLayout(size, FP16)
        assert layout == SpyreTensorLayout(size, row_major(size), FP16, list(range(len(size))))
    else:
        layout = SpyreTensorLayout(size, row_major(size), FP16, order)
    assert layout.device_size == device_size
    assert layout.stride_map == stride_map
    assert layout.device_dtype == DataFormats.SEN169_FP16
    assert layout.device_bytes() == 128 * math.prod(device_size[:-1])


def test_golden_permuted_strides() -> None:
    layout = SpyreTensorLayout([256, 512], [1, 256], FP16, [0, 1])
    assert (layout.device_size, layout.stride_map) == ([8, 256, 64], [16384, 1, 256])


@pytest.mark.parametrize(
    ("size", "dtype", "device_size", "stride_map"),
    [
        ([512, 256], torch.float32, [8, 512, 32], [32, 256, 1]),
        ([64, 64], torch.int64, [2, 64, 32], [32, 64, 1]),
        ([64, 64], torch.int8, [1, 64, 128], [128, 64, 1]),
        ([64, 64], torch.float8_e4m3fn, [1, 64, 128], [128, 64, 1]),
    ],
)
def test_golden_other_dtypes(
    size: list[int], dtype: torch.dtype, device_size: list[int], stride_map: list[int]
) -> None:
    layout = SpyreTensorLayout(size, dtype)
    assert (layout.device_size, layout.stride_map) == (device_size, stride_map)


@pytest.mark.parametrize(("size", "order", "device_size", "stride_map"), [r for r in GOLDEN if r[1] is None])
def test_tensor_has_the_layout_of_its_size(
    size: list[int], order: None, device_size: list[int], stride_map: list[int]
) -> None:
    tensor = torch.empty(size, dtype=FP16, device="spyre")
    layout = torch.spyre.get_spyre_tensor_layout(tensor)
    assert (layout.device_size, layout.stride_map) == (device_size, stride_map)
    host_bytes = tensor.numel() * 2
    assert tensor.untyped_storage().nbytes() == max(layout.device_bytes(), host_bytes)


def test_keyword_constructors() -> None:
    by_host = SpyreTensorLayout(host_size=[4, 128], dtype=FP16)
    by_order = SpyreTensorLayout(host_size=[4, 128], host_strides=[128, 1], dtype=FP16, dim_order=[0, 1])
    verbatim = SpyreTensorLayout(
        device_size=[2, 4, 64],
        stride_map=[64, 128, 1],
        device_dtype=DataFormats.SEN169_FP16,
        element_arrangement=ElementArrangement.STANDARD,
    )
    assert by_host == by_order == verbatim
    assert by_host.elems_per_stick() == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([4, 128], [128, 1], FP16, [0]), "Incompatible host_size and dim_order"),
        (([4, 128], [128, 1], FP16, [0, 1, 0]), "Incompatible host_size and dim_order"),
        (([2] * 7, row_major([2] * 7), FP16, list(range(7))), "Unsupported tensor rank: 7"),
        (([4, 128], [128, 1], FP16, [0, 5]), "Invalid dim in dim_order: 5"),
        (([4, 128], torch.float64), "Spyre backend does not support dtype float64"),
    ],
)
def test_invalid_layouts_raise(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        SpyreTensorLayout(*arguments)


def test_repr_is_python() -> None:
    layout = SpyreTensorLayout([512, 256], FP16)
    text = "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], device_dtype=DataFormats.SEN169_FP16)"
    assert repr(layout) == str(layout) == text
    assert eval(text) == layout


def test_equal_layouts_are_one_value() -> None:
    a, b = SpyreTensorLayout([512, 256], FP16), SpyreTensorLayout([4, 512, 64], [64, 256, 1], DataFormats.SEN169_FP16)
    assert a == b and hash(a) == hash(b)
    assert a != SpyreTensorLayout([512, 256], torch.float32)
    assert a != a.with_element_arrangement(ElementArrangement.QFP8CH)
    assert a != "a layout"
    assert copy.deepcopy(a) == a == copy.copy(a)
    assert len({a, b}) == 1


def test_pickle() -> None:
    layout = SpyreTensorLayout([512, 256], FP16).with_element_arrangement(ElementArrangement.EXX2)
    assert pickle.loads(pickle.dumps(layout)) == layout
    size, strides = [4, 512, 64], [64, 256, 1]
    state = (3, size, strides, DataFormats.SEN169_FP16, ElementArrangement.EXX2)
    assert layout.__getstate__() == state


@pytest.mark.parametrize(
    "state",
    [
        (2, [4, 512, 64], [64, 256, 1], DataFormats.SEN169_FP16),
        (1, [4, 512, 64], [1, 0, 1], [64, 256, 1], DataFormats.SEN169_FP16),
    ],
)
def test_old_pickles(state: tuple[object, ...]) -> None:
    layout = SpyreTensorLayout.__new__(SpyreTensorLayout)
    layout.__setstate__(state)
    assert layout == SpyreTensorLayout([512, 256], FP16)


@pytest.mark.parametrize("state", [(4, [1], [1], DataFormats.INVALID), (3, [1]), ()])
def test_unknown_pickles_raise(state: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="pickle state"):
        SpyreTensorLayout.__new__(SpyreTensorLayout).__setstate__(state)


def test_data_formats() -> None:
    assert str(DataFormats.SEN169_FP16) == "DataFormats.SEN169_FP16"
    assert (DataFormats.SEN18F_FP24.name, DataFormats.SEN18F_FP24.value) == ("SEN18F_FP24", 18)
    assert int(DataFormats.IEEE_INT32) == 12
    assert [f.elems_per_stick() for f in (DataFormats.SEN169_FP16, DataFormats.SENINT8, DataFormats.BOOL)] == [
        64,
        128,
        0,
    ]
    assert pickle.loads(pickle.dumps(DataFormats.SENINT8)) == DataFormats.SENINT8


@pytest.mark.parametrize(
    ("dtype", "name", "elements"),
    [
        (torch.float16, "SEN169_FP16", 64),
        (torch.bfloat16, "SEN169_FP16", 64),
        (torch.bool, "SEN169_FP16", 64),
        (torch.float32, "IEEE_FP32", 32),
        (torch.int64, "IEEE_INT32", 32),
        (torch.int32, "IEEE_INT32", 32),
        (torch.int16, "SENINT16", 64),
        (torch.int8, "SENINT8", 128),
        (torch.uint8, "SENUINT32", 32),
        (torch.float8_e4m3fn, "SEN143_FP8", 128),
        (torch.float8_e5m2, "SEN152_FP8", 128),
        (torch.float8_e5m2fnuz, "SEN152_FP8", 128),
    ],
)
def test_device_dtype(dtype: torch.dtype, name: str, elements: int) -> None:
    assert get_device_dtype(dtype) == getattr(DataFormats, name)
    assert get_elem_in_stick(dtype) == elements


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float8_e4m3fnuz, torch.uint16])
def test_unsupported_dtypes_are_invalid(dtype: torch.dtype) -> None:
    assert get_device_dtype(dtype) == DataFormats.INVALID


def test_views_share_the_layout_of_the_storage() -> None:
    base = torch.empty(8, 4, 130, dtype=FP16, device="spyre")
    layout = torch.spyre.get_spyre_tensor_layout(base)
    views = {
        "view": base.view(32, 130),
        "slice": base[2:5, :, 3:70],
        "transpose": base.transpose(0, 2),
        "expand": base[:, :1].expand(8, 4, 130),
        "as_strided": base.as_strided((3, 3), (1, 7), 5),
        "detach": base.detach(),
        "alias": torch.ops.aten.alias(base),
        "unfold": base.unfold(2, 16, 8),
        "select": base[1],
        "unsqueeze": base.unsqueeze(0),
        "data": base.data,
        "chunk": base.chunk(2)[1],
        "parameter": torch.nn.Parameter(base),
    }
    for name, view in views.items():
        assert torch.spyre.get_spyre_tensor_layout(view) == layout, name
    with torch.inference_mode():
        assert torch.spyre.get_spyre_tensor_layout(base[1:]) == layout


def test_set_layout() -> None:
    tensor = torch.empty(512, 256, dtype=FP16, device="spyre")
    other = SpyreTensorLayout([512, 256], [256, 1], FP16, [1, 0])
    torch.spyre.set_spyre_tensor_layout(tensor, other)
    assert torch.spyre.get_spyre_tensor_layout(tensor.t()) == other
    with pytest.raises(RuntimeError, match=r"needs \d+ bytes"):
        torch.spyre.set_spyre_tensor_layout(tensor, SpyreTensorLayout([512, 512], FP16))


def test_layout_of_a_host_tensor_raises() -> None:
    with pytest.raises(RuntimeError, match="expected a tensor on spyre"):
        torch.spyre.get_spyre_tensor_layout(torch.empty(2))
