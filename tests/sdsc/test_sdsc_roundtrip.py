# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_roundtrip.py

Reading a written bundle gives the kernel back; addresses in the files are those of the kernel's coordinates.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_kernels import (
    FP32,
    copy_kernel,
    lx_tensor,
    make_args,
    matmul_kernel,
    memory_tensor,
    operand,
    pointwise_kernel,
    reduce_kernel,
    softmax_kernel,
)

from torch_spyre.errors import NotExpressible
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Dim, Kernel, Operand, Space, Tensor, TileOp
from torch_spyre.ir.superdsc.canonical import canonical
from torch_spyre.ir.superdsc.constant_formats import decode, encode
from torch_spyre.sdsc import bundle_files, read_bundle, read_kernel, write_bundle

SEGMENT = 16 << 30


def files_json(kernel: Kernel) -> list[Any]:
    files = bundle_files(kernel)
    return [json.loads(files[f"sdsc_{i}.json"]) for i in range(len(files) - 1)]


def dsc(kernel: Kernel, index: int = 0) -> Any:
    """The inner object of one file."""
    body = next(iter(files_json(kernel)[index].values()))
    return next(iter(body["dscs_"][0].values()))


def core_start(op: TileOp, accessed: Operand, core: int) -> int:
    """Oracle: byte address of the first element of a core's slice, straight from the coordinates."""
    first, rest = {d.name: 0 for d in op.dims}, core
    for name in op.core_order:
        rest, slice_index = divmod(rest, op.dim(name).slices)
        first[name] = slice_index * op.dim(name).extent
    tensor, linear = accessed.tensor, 0
    if tensor.space is Space.LX:
        return tensor.base
    for size, coord in zip(tensor.device_size, accessed.coords, strict=True):
        index = coord.const
        for t in coord.terms:
            value = first[t.dim] // t.div
            index += t.scale * (value % t.mod if t.mod else value)
        linear = linear * size + index
    return tensor.arg * SEGMENT + tensor.base + linear * 128 // tensor.device_size[-1]


def check(kernel: Kernel) -> None:
    files = files_json(kernel)
    back = read_kernel(files)
    assert canonical(back) == canonical(kernel)
    assert bundle_files(back) == bundle_files(kernel)
    for op, file in zip(kernel.ops, files, strict=True):
        nodes = next(iter(next(iter(file.values()))["dscs_"][0].values()))["scheduleTree_"]
        tensors = [x for x in (*op.inputs, op.output) if isinstance(x, Operand)]
        if op.op == "gather":
            tensors = [*tensors[1:-1], tensors[0], tensors[-1]]  # index tensors come first
        for accessed, node in zip(tensors, nodes, strict=True):
            starts = node["startAddressCoreCorelet_"]["data_"]
            assert [int(v) for v in starts.values()] == [core_start(op, accessed, c) for c in range(op.cores)]


def lone_stick_kernel() -> Kernel:
    """neg of a tensor with one element per stick: no dim of the op fills sticks."""
    a, b = memory_tensor("a", (8, 1), 0), memory_tensor("b", (8, 1), 1)
    access = ("mb", None)
    tile = TileOp("neg", "neg", (Dim("mb", 8, 4, 2),), (operand(a, access),), operand(b, access), core_order=("mb",))
    return Kernel("lone", make_args([a, b], [1]), (tile,))


def gap_kernel(space: Space = Space.MEMORY) -> Kernel:
    """The first 8 of 10 rows and 2 of 3 sticks of a longer tensor."""
    big = Tensor("big", "SEN169_FP16", Space.MEMORY, (3, 10, 64), 256, 0)
    if space is Space.LX:
        big = Tensor("big", "SEN169_FP16", Space.LX, (3, 5, 64), 256)
    out = memory_tensor("out", (8, 100), 1 if space is Space.MEMORY else 0)
    dims = (Dim("d0", 8, 4, 2), Dim("d1", 100))
    both = ("d0", "d1")
    tile = TileOp("exp", "exp", dims, (operand(big, both),), operand(out, both), core_order=("d0",))
    args = make_args([big, out], [out.arg])
    return Kernel("gap", args, (tile,), lx_scratch_base=256 + 3 * 5 * 128 if space is Space.LX else 0)


def scalar_kernel() -> Kernel:
    """add of 0-d tensors: no iteration dims at all."""
    a, b = memory_tensor("a", (), 0), memory_tensor("b", (), 1)
    tile = TileOp("add", "add", (), (operand(a, ()), operand(a, ())), operand(b, ()))
    return Kernel("scalar", make_args([a, b], [1]), (tile,))


def padded_k_kernel() -> Kernel:
    """k of 100 in two slices: the weight has its rows padded to whole sticks."""
    kernel = matmul_kernel(8, 64, 100, {"k": 2})
    op = kernel.ops[0]
    op = replace(op, inputs=(op.inputs[0], operand(memory_tensor("b", (128, 64), 1), ("k", "n"))))
    return replace(kernel, ops=(op,))


def shared_weight_kernel() -> Kernel:
    """Batched rows times one weight: the second operand lacks the batch dim."""
    kernel = matmul_kernel(8, 128, 128, {"m": 4}, batch=(3,))
    weight = memory_tensor("b", (128, 128), 1)
    op = kernel.ops[0]
    op = replace(op, inputs=(op.inputs[0], operand(weight, ("k", "n"))))
    return replace(kernel, ops=(op,))


KERNELS = {
    "add": pointwise_kernel(),
    "rows split": pointwise_kernel(splits={"d0": 32}),
    "sticks split": pointwise_kernel(sizes=(8, 2048), splits={"d1": 32}),
    "tail": pointwise_kernel(sizes=(67, 100)),
    "tail in the last slice": pointwise_kernel(sizes=(67, 100), splits={"d1": 2}),
    "3-d": pointwise_kernel(sizes=(4, 8, 300), splits={"d0": 4, "d1": 4}),
    "outer dim fastest": pointwise_kernel(sizes=(4, 8, 64), splits={"d0": 4, "d1": 4}, core_order=("d0", "d1")),
    "column broadcast": pointwise_kernel(broadcast={1: ("d1",)}, splits={"d0": 4}),
    "row broadcast": pointwise_kernel(broadcast={1: ("d0",)}, splits={"d0": 4}),
    "0-d operand": pointwise_kernel(broadcast={1: ("d0", "d1")}),
    "where3": pointwise_kernel("where3", inputs=3),
    "relufwd": pointwise_kernel("relufwd", inputs=1),
    "1-d": pointwise_kernel(sizes=(5,)),
    "one element": pointwise_kernel(sizes=(1,)),
    "one column": pointwise_kernel(sizes=(7, 1)),
    "fp32": pointwise_kernel(format=FP32, sizes=(64, 100)),
    "one element per stick": lone_stick_kernel(),
    "longer tensor": gap_kernel(),
    "longer LX tensor": gap_kernel(Space.LX),
    "sum": reduce_kernel(),
    "max with tail": reduce_kernel("max", (67, 100)),
    "sum of rows": reduce_kernel("sum", (67, 100), ("d0",)),
    "min over two dims": reduce_kernel("min", (3, 5, 128), ("d0", "d2")),
    "split sum": reduce_kernel(splits={"d0": 4, "d1": 2}),
    "mean": reduce_kernel("mean", (4, 100), constants={"scaling_factor": 0.01}),
    "fp32 max with tail": reduce_kernel("max", (4, 100), format=FP32),
    "int32 min with tail": reduce_kernel("min", (4, 100), format="IEEE_INT32"),
    "matmul": matmul_kernel(),
    "matmul m4 n8": matmul_kernel(512, 1024, 256, {"m": 4, "n": 8}),
    "bmm with K split": matmul_kernel(64, 128, 576, {"m": 4, "n": 2, "k": 3}, batch=(32,)),
    "K split, m fastest": matmul_kernel(64, 100, 128, {"k": 2, "n": 2, "m": 4}, core_order=("m", "k", "n")),
    "matmul with N tail": matmul_kernel(5, 100, 128),
    "matmul of one column": matmul_kernel(8, 1, 64),
    "shared weight": shared_weight_kernel(),
    "matmul with K tail": padded_k_kernel(),
    "0-d": scalar_kernel(),
    "copy": copy_kernel(),
    "int32 copy": copy_kernel(format="IEEE_INT32"),
    "restickify": copy_kernel("ReStickifyOpHBM", (512, 512), {"d0": 8, "d1": 4}),
    "softmax in LX": softmax_kernel(),
    "softmax in LX with tail": softmax_kernel(64, 300),
    "softmax in a pool": softmax_kernel(space=Space.MEMORY),
}


@pytest.mark.parametrize("name", KERNELS)
def test_read_is_the_inverse_of_write(name: str) -> None:
    check(KERNELS[name])


# Tensors whose layout has a device dim of size 1 for a broadcast dim: it has no address, so it does not come back.
# And a part of a longer tensor: where in it the part starts, a file does not say.
UNIT_DIMS = {"row broadcast", "0-d operand", "sum of rows", "min over two dims", "longer tensor"}


@pytest.mark.parametrize("name", [n for n in KERNELS if n not in UNIT_DIMS])
def test_prints_the_same_ktir(name: str) -> None:
    kernel = KERNELS[name]
    assert ktir_text(read_kernel(files_json(kernel), kernel.name)) == ktir_text(kernel)


def ktir_text(kernel: Kernel) -> str:
    """KTIR with values numbered in order of appearance and without origins: names are not part of a bundle."""
    text = re.sub(r'origin = "[^"]*"', "", str(emit(kernel)))
    numbers: dict[str, str] = {}
    return re.sub(r"%\w+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text)


sizes = st.integers(1, 200)
splits = st.sampled_from([1, 2, 4])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["pointwise", "sum", "sum0", "matmul", "restickify", "cast"]),
    a=sizes,
    b=sizes,
    c=sizes,
    s=splits,
    t=splits,
)
def test_any_kernel_round_trips_or_says_why_not(kind: str, a: int, b: int, c: int, s: int, t: int) -> None:
    if kind == "pointwise":
        kernel = pointwise_kernel(sizes=(a, b, c), splits={"d1": s, "d2": t}, broadcast={1: ("d1",)})
    elif kind == "matmul":
        kernel = matmul_kernel(a, b, c, {"m": s, "k": t})
    elif kind == "restickify":
        kernel = copy_kernel("ReStickifyOpHBM", (a, b), {"d0": s, "d1": t})
    elif kind == "cast":
        kernel = pointwise_kernel("dl16tofp32", (a, b, c), {"d1": s, "d2": t}, inputs=1, out_format=FP32)
    else:
        reduced = ("d0",) if kind == "sum0" else ("d1",)
        kernel = reduce_kernel("sum", (a, b), reduced, {"d0": s, "d1": t})
    try:
        bundle_files(kernel)
    except NotExpressible:
        return
    check(kernel)


def test_bundle_text() -> None:
    assert bundle_files(pointwise_kernel())["bundle.mlir"] == (
        "module {\n"
        "\tfunc.func @sdsc_bundle() {\n"
        '\t\tsdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}\n'
        "\t\treturn\n"
        "\t}\n"
        "}\n"
    )


def test_directory(tmp_path: Path) -> None:
    kernel = softmax_kernel()
    write_bundle(kernel, tmp_path / "softmax")
    written = sorted(p.name for p in (tmp_path / "softmax").iterdir())
    assert written == ["bundle.mlir", *(f"sdsc_{i}.json" for i in range(5))]
    back = read_bundle(tmp_path / "softmax")
    assert canonical(back) == canonical(kernel)
    assert (back.name, back.cores, back.lx_scratch_base) == ("softmax", 32, kernel.lx_scratch_base)
    assert [(a.bytes, a.access) for a in back.args] == [(a.bytes, a.access) for a in kernel.args]


def test_same_bytes_seen_in_two_shapes_have_two_names() -> None:
    kernel = softmax_kernel()
    tensors = {o.tensor for op in read_kernel(files_json(kernel)).ops for o in (*op.inputs, op.output)}  # type: ignore[union-attr]
    assert len({t.name for t in tensors}) == len(tensors)
    flat = replace(kernel.ops[2], inputs=(operand(lx_tensor("flat", (16, 256), 0), ("r", "c")),))
    names = [op.inputs[0].tensor.name for op in read_kernel(files_json(replace(kernel, ops=(kernel.ops[1], flat)))).ops]  # type: ignore[union-attr]
    assert len(set(names)) == 2


def test_masked_reduction_names_its_mask_value_first() -> None:
    body = dsc(reduce_kernel("mean", (67, 100), constants={"scaling_factor": 0.01}))
    assert body["N_"] == {"name_": "n", "mb_": 67, "out_": 128}
    assert body["coordinateMasking_"] == {"out": [[100, 28]]}
    assert body["maskingConstId_"] == 0
    assert [c["name_"] for c in body["constantInfo_"].values()] == ["samv-maskvalue", "scaling_factor"]
    assert body["computeOp_"][0]["inputLabeledDs"] == ["Tensor0-idx0", "Tensor1-idx1"]  # the result accumulates
    assert body["labeledDs_"][1]["scale_"] == [1, -2]


def test_pointwise_tail_keeps_its_true_size_without_a_mask_value() -> None:
    body = dsc(pointwise_kernel(sizes=(67, 100)))
    assert body["coordinateMasking_"] == {"out": [[100, 28]]}
    assert (body["maskingConstId_"], body["constantInfo_"]) == (-1, "{}")


def test_reduction_of_an_outer_dim_is_nonstick() -> None:
    file = files_json(reduce_kernel("max", (67, 128), ("d0",)))[0]
    assert list(file) == ["0_maxnonstick"]
    assert dsc(reduce_kernel("max", (67, 128), ("d0",)))["labeledDs_"][1]["scale_"] == [-1, 1]


def test_broadcast_scales() -> None:
    scales = [t["scale_"] for t in dsc(pointwise_kernel(broadcast={0: ("d1",), 1: ("d0",)}))["labeledDs_"]]
    assert scales == [[1, -2], [-1, 1], [1, 1]]
    assert dsc(pointwise_kernel(broadcast={1: ("d0", "d1")}))["labeledDs_"][1]["scale_"] == [-1, -2]


def test_k_split_counts_k_fastest() -> None:
    file = files_json(matmul_kernel(64, 128, 192, {"m": 4, "k": 3}))[0]["0_batchmatmul"]
    assert file["numWkSlicesPerDim_"] == {"mb": 4, "out": 1, "in": 3}
    assert list(file["coreIdToWkSlice_"].values())[:4] == [
        {"in": 0, "mb": 0, "out": 0},
        {"in": 1, "mb": 0, "out": 0},
        {"in": 2, "mb": 0, "out": 0},
        {"in": 0, "mb": 1, "out": 0},
    ]
    assert file["dscs_"][0]["batchmatmul"]["computeOp_"][0]["exUnit"] == "pt"


def test_longer_tensor_has_a_back_gap() -> None:
    assert dsc(gap_kernel())["scheduleTree_"][0]["backGapCore_"] == {"mb": {"-1": "2"}, "out": {"-1": "64"}}


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3E00), (1 + 2**-10, 0x3E01), (-2.001953125, 0xC001), (0.1, 0x3733), (-10000.0, 0xD871), (2.0**-31, 0)],
)
def test_dl16_constants(value: float, bits: int) -> None:
    assert encode(value, "SEN169_FP16") == bits


def test_infinities_saturate_and_come_back() -> None:
    assert encode(float("-inf"), "SEN169_FP16") == 0xFFFE
    assert decode(0xFFFE, "SEN169_FP16") == float("-inf")
    assert encode(float("-inf"), "IEEE_INT32") == 0x80000000
