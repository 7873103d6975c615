# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_forms.py

Casts, scalars, tails without padding, flattened dims and one value per stick: they come back as they were written.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ktir_kernels import (
    FP16,
    FP32,
    copy_kernel,
    lx_tensor,
    make_args,
    matmul_kernel,
    memory_tensor,
    operand,
    pointwise_kernel,
    reduce_kernel,
    tensor_bytes,
)
from test_sdsc_roundtrip import check, dsc, files_json

from torch_spyre import _card
from torch_spyre.backend.compile import compile_module
from torch_spyre.errors import InvalidProgram, NotExpressible
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import (
    Coord,
    Dim,
    Immediate,
    Input,
    Kernel,
    LaunchScalar,
    Operand,
    Space,
    Tensor,
    Term,
    TileLoop,
    TileOp,
)
from torch_spyre.ir.superdsc.canonical import canonical
from torch_spyre.ir.superdsc.unroll import without_loops
from torch_spyre.ir.superdsc.writer import scalars_as_tensors
from torch_spyre.optable import TopK
from torch_spyre.sdsc import bundle_files, read_bundle, read_kernel, read_sdsc

INT32 = "IEEE_INT32"


def kernel_of(op: str, dims: tuple[Dim, ...], inputs: tuple[Input, ...], output: Operand, **more: Any) -> Kernel:
    """One op; launch arguments are the memory tensors it names."""
    order = tuple(d.name for d in reversed(dims) if d.slices > 1)
    tensors = [x.tensor for x in (*inputs, output) if isinstance(x, Operand)]
    lx = max((t.base + tensor_bytes(t) for t in tensors if t.space is Space.LX), default=0)
    tile = TileOp(op, op, dims, inputs, output, core_order=order, **more)
    return Kernel(op, make_args(tensors, [output.tensor.arg]), (tile,), lx_scratch_base=lx)


def cast_kernel(op: str, *sizes: int, **splits: int) -> Kernel:
    narrow_first = op == "dl16tofp32"
    formats = (FP16, FP32) if narrow_first else (FP32, FP16)
    return pointwise_kernel(op, sizes, splits, inputs=1, format=formats[0], out_format=formats[1])


def sparse_cast() -> Kernel:
    """One value per stick on both sides: sticks of 32 and of 64 elements."""
    source, out = memory_tensor("a", (8, 1), 0, FP32), memory_tensor("b", (8, 1), 1)
    access = ("r", None)
    return kernel_of("fp32todl16", (Dim("r", 8, 4, 2),), (operand(source, access),), operand(out, access))


def sparse_copy(to_sticks: bool) -> Kernel:
    """Between one value per stick and full sticks, as between shapes (100, 1) and (100,)."""
    sparse, dense = memory_tensor("s", (100, 1), 1 - to_sticks), memory_tensor("d", (100,), int(to_sticks))
    sides = (operand(sparse, ("r", None)), operand(dense, ("r",)))
    source, out = sides if to_sticks else sides[::-1]
    return kernel_of("identity", (Dim("r", 100),), (source,), out)


def copy_into_lx() -> Kernel:
    """A restickify whose result stays in each core's scratchpad."""
    source, out = memory_tensor("a", (100, 128), 0), lx_tensor("t", (64, 100), 256)
    dims = (Dim("r", 100), Dim("c", 128, 2, 64))
    return kernel_of("identity", dims, (operand(source, ("r", "c")),), operand(out, ("c", "r")))


def cut_by_another_op(size: int, stick: bool, format: str) -> Kernel:
    """Slices of 64 elements, as a 16-bit producer cuts the dim, whatever this op's own sticks are."""
    dim = Dim("d0", size, -(-size // 64), 64)
    if stick:
        return kernel_of(
            "exp",
            (dim,),
            (operand(memory_tensor("a", (size,), 0, format), ("d0",)),),
            operand(memory_tensor("b", (size,), 1, format), ("d0",)),
        )
    a, b = memory_tensor("a", (size, 70), 0, format), memory_tensor("b", (size, 70), 1, format)
    names = ("d0", "d1")
    return kernel_of("exp", (dim, Dim("d1", 70)), (operand(a, names),), operand(b, names))


def flatten_kernel(outer: int = 1, inner: int = 1) -> Kernel:
    """[5, 10, 200] flattened plus [50, 200]: the device dim of 50 rows is counted by two dims."""
    dims = (Dim("o", 5, outer, 5 // outer), Dim("i", 10, inner, 10 // inner), Dim("c", 200))
    rows = Coord((Term("o", 10), Term("i")))
    stick, lane = Coord((Term("c", div=64),)), Coord((Term("c", mod=64),))
    a = operand(memory_tensor("a", (5, 10, 200), 0), ("o", "i", "c"))
    b = Operand(memory_tensor("b", (50, 200), 1), (stick, rows, lane))
    return kernel_of("add", dims, (a, b), Operand(memory_tensor("c", (50, 200), 2), b.coords))


def flat_sticks_kernel() -> Kernel:
    """[5, 10, 128] as [5, 1280]: ten runs of two sticks count the sticks of a row."""
    dims = (Dim("r", 5), Dim("o", 10, 5, 2), Dim("c", 128))
    sticks = Coord((Term("o", 2), Term("c", div=64)))
    a = operand(memory_tensor("a", (5, 10, 128), 0), ("r", "o", "c"))
    b = Operand(memory_tensor("b", (5, 1280), 1), (sticks, Coord((Term("r"),)), Coord((Term("c", mod=64),))))
    return kernel_of("exp", dims, (a,), b)


def flat_lx_kernel(outer: int, inner: int, rows: int) -> Kernel:
    """Rows 10 * o + i of a scratchpad tensor that holds a core's `rows` of them."""
    dims = (Dim("o", 4, outer, 4 // outer), Dim("i", 10, inner, 10 // inner), Dim("c", 100))
    local = Operand(
        Tensor("t", FP16, Space.LX, (2, rows, 64), 0),
        (Coord((Term("c", div=64),)), Coord((Term("o", 10), Term("i"))), Coord((Term("c", mod=64),))),
    )
    return kernel_of("neg", dims, (local,), operand(memory_tensor("out", (4, 10, 100), 0), ("o", "i", "c")))


def fill_kernel() -> Kernel:
    return kernel_of("identity", (Dim("d0", 100),), (Immediate(3.5),), operand(memory_tensor("o", (100,), 0), ("d0",)))


def scalar_first() -> Kernel:
    kernel = pointwise_kernel("sub", (5, 100), inputs=1, scalars=[Immediate(1)])
    op = kernel.ops[0]
    return replace(kernel, ops=(replace(op, inputs=op.inputs[::-1]),))


def select_scalars() -> Kernel:
    return pointwise_kernel("where3", (5, 100), inputs=1, scalars=[Immediate(-math.inf), Immediate(0.1)])


def fp32_select() -> Kernel:
    """A condition in 16 bits, values in 32."""
    names = ("d0", "d1")
    condition = operand(memory_tensor("m", (5, 70), 0), names)
    a, b, out = (operand(memory_tensor(n, (5, 70), i, FP32), names) for i, n in enumerate("abo", 1))
    return kernel_of("where3", (Dim("d0", 5), Dim("d1", 70)), (condition, a, b), out)


def fp32_softmax(rows: int = 64, cols: int = 1000, slices: int = 4) -> Kernel:
    """As it is planned: 16-bit operands, all steps in fp32 temporaries in LX."""
    dims = (Dim("r", rows, slices, rows // slices), Dim("c", cols))
    row, both = ("r", None), ("r", "c")
    wide = tensor_bytes(lx_tensor("t", (rows // slices, cols), 0, FP32))
    source, out = (operand(memory_tensor(n, (rows, cols), i), both) for i, n in enumerate(("in", "out")))
    a, b = (operand(lx_tensor(n, (rows // slices, cols), i * wide, FP32), both) for i, n in enumerate("ab"))
    peak = operand(lx_tensor("peak", (rows // slices, 1), 2 * wide, FP32), row)
    steps: list[tuple[str, tuple[Input, ...], Operand]] = [
        ("dl16tofp32", (source,), a),
        ("max", (a,), peak),
        ("sub", (a, peak), b),
        ("exp", (b,), a),
        ("sum", (a,), peak),
        ("realdiv", (a, peak), b),
        ("fp32todl16", (b,), out),
    ]
    ops = [TileOp(n, n, dims, i, o, ("c",) if n in ("max", "sum") else (), ("r",)) for n, i, o in steps]
    top = 2 * wide + tensor_bytes(peak.tensor)
    return Kernel("softmax", make_args([source.tensor, out.tensor], [1]), tuple(ops), lx_scratch_base=top)


def term(dim: str, scale: int = 1, div: int = 1, mod: int = 0, const: int = 0) -> Coord:
    return Coord((Term(dim, scale, div, mod),), const)


ROW, STICK, LANE = term("d0"), term("d1", div=64), term("d1", mod=64)


def with_view(device_size: tuple[int, ...], *coords: Coord, base: int = 0) -> Kernel:
    """add over (64, 256) in 4 slices whose first operand is the given access."""
    kernel = pointwise_kernel(splits={"d0": 4})
    op = kernel.ops[0]
    tensor = Tensor("view", FP16, Space.MEMORY, device_size, base, 0)
    return replace(kernel, ops=(replace(op, inputs=(Operand(tensor, coords), *op.inputs[1:])),))


def one_of_a_batch() -> Kernel:
    """The second of three row-interleaved matrices times a weight."""
    kernel = matmul_kernel(16, 64, 128, {"m": 2})
    op = kernel.ops[0]
    tensor = Tensor("batch", FP16, Space.MEMORY, (2, 16, 3, 64), 0, 0)
    view = Operand(tensor, (term("k", div=64), term("m"), Coord((), 1), term("k", mod=64)))
    return replace(kernel, ops=(replace(op, inputs=(view, op.inputs[1])),))


def replicated() -> Kernel:
    """Two groups of cores each keep a copy of the same rows in their scratchpads."""
    dims = (Dim("rep", 2, 2, 1), Dim("r", 8, 4, 2), Dim("c", 100))
    source, copy = memory_tensor("a", (8, 100), 0), lx_tensor("t", (2, 100), 0)
    return kernel_of("exp", dims, (operand(source, ("r", "c")),), operand(copy, ("r", "c")))


def with_scalars(op: str, *values: float) -> Kernel:
    return pointwise_kernel(op, (5, 100), inputs=1, scalars=[Immediate(v) for v in values])


def gather_kernel(count: int, rows: int, columns: int, slices: int) -> Kernel:
    """out[i, c] = table[index[i], c]."""
    index = operand(memory_tensor("index", (count,), 0, INT32), ("i",))
    tensor = memory_tensor("table", (rows, columns), 1)
    table = Operand(tensor, (term("c", div=64), Coord(index=1), term("c", mod=64)))
    dims = (Dim("i", count, slices, count // slices if slices > 1 else 0), Dim("c", columns))
    return kernel_of("gather", dims, (table, index), operand(memory_tensor("out", (count, columns), 2), ("i", "c")))


def topk_kernel(op: str, k: int, slices: int) -> Kernel:
    """The k largest of each of 128 columns of 100 rows."""
    source = operand(memory_tensor("a", (100, 128), 0), ("r", "c"))
    out = operand(memory_tensor("b", (k, 128), 1), ("r", "c"))
    dims = (Dim("r", 100), Dim("c", 128, slices, 128 // slices if slices > 1 else 0))
    return kernel_of(op, dims, (source,), out, along="r", top=TopK(k))


FP8 = "SEN143_FP8"

KERNELS = {
    "dl16tofp32": cast_kernel("dl16tofp32", 64, 256, d0=4),
    "dl16tofp32 of 70": cast_kernel("dl16tofp32", 5, 70),
    "dl16tofp32 of 70 in 2 slices": cast_kernel("dl16tofp32", 5, 70, d1=2),
    "dl16tofp32 of one column": cast_kernel("dl16tofp32", 7, 1),
    "fp32todl16": cast_kernel("fp32todl16", 3, 4, 5, 200),
    "fp32todl16 of one element": cast_kernel("fp32todl16", 1),
    "cast of one value per stick": sparse_cast(),
    "fp32 comparison": pointwise_kernel("greaterthan", (5, 70), format=FP32, out_format=FP16),
    "fp32 where3": fp32_select(),
    "softmax": fp32_softmax(),
    "softmax of 990": fp32_softmax(8, 990),
    "softmax of 7": fp32_softmax(4, 7, 1),
    "K of 100": matmul_kernel(8, 64, 100),
    "K of 100 in 2 slices": matmul_kernel(8, 64, 100, {"k": 2}),
    "K of 3, N of 7": matmul_kernel(5, 7, 3),
    "fp32 K of 100": matmul_kernel(30, 65, 100, format=FP32),
    "bmm with K of 65": matmul_kernel(30, 70, 65, {"b0": 2}, batch=(2, 3)),
    "restickify 100x130": copy_kernel("ReStickifyOpHBM", (100, 130)),
    "restickify 100x130 in 6 slices": copy_kernel("ReStickifyOpHBM", (100, 130), {"d0": 2, "d1": 3}),
    "restickify 1x70": copy_kernel("ReStickifyOpHBM", (1, 70)),
    "fp32 restickify 67x5": copy_kernel("ReStickifyOpHBM", (67, 5), format=FP32),
    "sparse to sticks": sparse_copy(True),
    "sticks to sparse": sparse_copy(False),
    "restickify into LX": copy_into_lx(),
    "200 columns in 2 slices": pointwise_kernel(sizes=(2, 200), splits={"d1": 2}),
    "fp32 sticks cut at 64": cut_by_another_op(70, True, FP32),
    "rows cut at 64": cut_by_another_op(65, False, FP16),
    "flatten": flatten_kernel(),
    "flatten, outer split": flatten_kernel(outer=5),
    "flatten, both split": flatten_kernel(outer=5, inner=2),
    "flat sticks": flat_sticks_kernel(),
    "flat LX, outer split": flat_lx_kernel(2, 1, 20),
    "flat LX, both split": flat_lx_kernel(4, 5, 2),
    "flat LX with gaps": flat_lx_kernel(2, 5, 20),
    "immediate": pointwise_kernel("mul", (5, 100), inputs=1, scalars=[Immediate(0.1)]),
    "immediate first": scalar_first(),
    "immediates of where3": select_scalars(),
    "int32 immediate": pointwise_kernel(sizes=(5, 100), inputs=1, format=INT32, scalars=[Immediate(-7, INT32)]),
    "16-bit immediate": pointwise_kernel(sizes=(5, 100), inputs=1, scalars=[Immediate(2.0, FP16)]),
    "fill": fill_kernel(),
    "uneven rows": pointwise_kernel(sizes=(67, 128), splits={"d0": 4}),
    "uneven sticks": pointwise_kernel(sizes=(4, 192), splits={"d1": 2}),
    "uneven K": matmul_kernel(8, 64, 320, {"k": 2}),
    "uneven sum": reduce_kernel("sum", (67, 320), splits={"d0": 4, "d1": 2}),
    "empty last slices": pointwise_kernel(sizes=(9, 70), splits={"d0": 8}),
    "offset rows": with_view((4, 67, 64), STICK, term("d0", const=3), LANE),
    "offset rows and sticks": with_view((7, 67, 64), term("d1", div=64, const=2), term("d0", const=3), LANE),
    "second of two": with_view((2, 4, 64, 64), Coord((), 1), STICK, ROW, LANE),
    "inner of three": with_view((4, 64, 3, 64), STICK, ROW, Coord((), 2), LANE),
    "every second row": with_view((4, 128, 64), STICK, term("d0", scale=2), LANE),
    "every second row from the first": with_view((4, 128, 64), STICK, term("d0", scale=2, const=1), LANE),
    "offset at the end of a pool": with_view((4, 67, 64), STICK, term("d0", const=3), LANE, base=128 * 77),
    "replicated in LX": replicated(),
    "one of a batch times a weight": one_of_a_batch(),
    "clip": with_scalars("clip", -0.5, 0.5),
    "softplus": with_scalars("softplus", 1.0, 20.0),
    "fp8 to fp16": pointwise_kernel("convert", (4, 256), inputs=1, format=FP8, out_format=FP16),
    "fp16 to fp8": pointwise_kernel("convert", (4, 256), {"d0": 2}, inputs=1, format=FP16, out_format=FP8),
    "gather": gather_kernel(128, 64, 256, 2),
    "gather of few from many": gather_kernel(3, 100, 70, 1),
    "gather of many from few": gather_kernel(100, 3, 70, 1),
    "topkvalue": topk_kernel("topkvalue", 3, 2),
    "topkindex of one": topk_kernel("topkindex", 1, 1),
    "dims of one element": pointwise_kernel(sizes=(1, 3, 1, 5)),
    "all dims of one element": pointwise_kernel(sizes=(1, 1, 1)),
    "sum to one value": reduce_kernel("sum", (5, 1), ("d0", "d1")),
}


@pytest.mark.parametrize("name", KERNELS)
def test_read_is_the_inverse_of_write(name: str) -> None:
    check(KERNELS[name])


def test_true_extents_stand_in_max_dim_sizes() -> None:
    body = dsc(matmul_kernel(8, 64, 100, {"k": 2}))
    assert (body["N_"]["in_"], body["coordinateMasking_"]) == (128, {"in": [[100, 28]]})
    nodes = body["scheduleTree_"]
    assert [(n["layoutDimOrder_"], n["maxDimSizes_"]) for n in nodes] == [
        (["mb", "in"], [-1, -1]),
        (["in", "out"], [100, -1]),
        (["mb", "out"], [-1, -1]),
    ]
    nodes = dsc(copy_kernel("ReStickifyOpHBM", (100, 130)))["scheduleTree_"]
    assert [(n["layoutDimOrder_"], n["maxDimSizes_"]) for n in nodes] == [
        (["mb", "out"], [100, -1]),
        (["out", "mb"], [130, -1]),
    ]


def test_strides_follow_the_true_extent() -> None:
    """The second stick of columns of a [100, 128] weight starts after 100 rows, not after the padded 128."""
    node = dsc(matmul_kernel(8, 128, 100, {"n": 2}))["scheduleTree_"][1]
    first, second = (int(v) for v in node["startAddressCoreCorelet_"]["data_"].values())
    assert second - first == 100 * 128


def test_cast_has_a_layout_label_per_stick_size() -> None:
    body = dsc(cast_kernel("dl16tofp32", 5, 70))
    assert [(p["stickDimOrder_"], p["stickSize_"]) for p in body["primaryDsInfo_"].values()] == [
        (["out"], [64]),
        (["out"], [32]),
    ]
    assert [t["dataFormat_"] for t in body["labeledDs_"]] == [FP16, FP32]
    assert body["computeOp_"][0]["attributes_"]["dataFormat_"] == FP16
    assert body["N_"]["out_"] == 128
    assert body["scheduleTree_"][1]["maxDimSizes_"] == [-1, 96]  # three fp32 sticks


def test_immediates_are_constants_with_their_position() -> None:
    body = dsc(select_scalars())
    constants = [(c["name_"], c["dataFormat_"], c["data_"]["data_"]) for c in body["constantInfo_"].values()]
    assert constants == [
        ("imm1", FP32, {"[0, 0, 0]": [0xFF800000]}),
        ("imm2", FP32, {"[0, 0, 0]": [0x3DCCCCCD]}),
    ]
    assert body["computeOp_"][0]["inputLabeledDs"] == ["Tensor0-idx0"]
    back = read_kernel(files_json(select_scalars())).ops[0]
    assert back.inputs[1:] == (Immediate(-math.inf), Immediate(0.10000000149011612))


def test_name_of_a_copy_says_what_it_does() -> None:
    """Whatever the plan calls it: ReStickifyOpHBM changes the stick dim from memory to memory."""
    restickify = "ReStickifyOpHBM"
    copies = {
        restickify: copy_kernel(restickify, (100, 130)),
        "identity": copy_kernel("identity", (100, 130)),
    }
    for name, kernel in copies.items():
        other = replace(kernel, ops=(replace(kernel.ops[0], op="identity" if name == restickify else restickify),))
        assert [*files_json(kernel)[0]] == [*files_json(other)[0]] == [f"0_{name}"]
    assert [*files_json(copy_into_lx())[0]] == ["0_identity"]


def test_flattened_dims_have_their_own_labels() -> None:
    nodes = dsc(flatten_kernel())["scheduleTree_"]
    assert [n["layoutDimOrder_"] for n in nodes] == [["mb", "out", "x"], ["x", "mb", "out"], ["x", "mb", "out"]]


def test_canonical_tells_extents_apart() -> None:
    """The normal form does not confuse a flattened tensor with one that is longer or in another order."""
    longer = memory_tensor("b", (60, 200), 1)
    swapped = Coord((Term("o"), Term("i", 5)))
    kernel = flatten_kernel()
    op = kernel.ops[0]
    b = op.inputs[1]
    assert isinstance(b, Operand)
    for other in (replace(b, tensor=longer), replace(b, coords=(b.coords[0], swapped, b.coords[2]))):
        changed = replace(kernel, ops=(replace(op, inputs=(op.inputs[0], other)),))
        assert canonical(changed) != canonical(kernel)
        check(changed)


@pytest.mark.parametrize(
    ("sizes", "detail"),
    [
        ([99, -1], "dim in: maxDimSizes_ 99, 100 of 128"),
        ([128, -1], "dim in: maxDimSizes_ 128"),
        ([100, 60], "dim out: maxDimSizes_ 60, 64 of 64"),
    ],
)
def test_wrong_true_extent_is_named(sizes: list[int], detail: str) -> None:
    (data,) = files_json(matmul_kernel(8, 64, 100))
    data["0_batchmatmul"]["dscs_"][0]["batchmatmul"]["scheduleTree_"][1]["maxDimSizes_"] = sizes
    with pytest.raises(InvalidProgram, match=rf"\[max-size\] Tensor1: {detail}"):
        read_sdsc(data)


def test_true_extent_inside_a_stick_is_refused() -> None:
    (data,) = files_json(cast_kernel("dl16tofp32", 5, 70))
    data["0_dl16tofp32"]["dscs_"][0]["dl16tofp32"]["scheduleTree_"][1]["maxDimSizes_"] = [-1, 80]
    with pytest.raises(InvalidProgram, match=r"\[max-size\] Tensor1: dim out: maxDimSizes_ 80"):
        read_sdsc(data)


def renamed_scalar(name: str) -> Any:
    """mul of a tensor and a scalar whose constant has another name."""
    (data,) = files_json(pointwise_kernel("mul", (5, 100), inputs=1, scalars=[Immediate(2.0)]))
    data["0_mul"]["dscs_"][0]["mul"]["constantInfo_"]["0"]["name_"] = name
    return data


def test_name_of_a_scalar_is_its_position() -> None:
    assert read_sdsc(renamed_scalar("imm0")).inputs[0] == Immediate(2.0)


@pytest.mark.parametrize(
    ("name", "message"), [("imm7", r"scalars at positions \[7\]"), ("imm", "1 inputs and 1 outputs")]
)
def test_wrong_scalar_is_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        read_sdsc(renamed_scalar(name))


def test_launch_scalars_are_tensors_of_no_dims() -> None:
    """A bundle has no scalars: scalar i is one more argument, of one value."""
    kernel = pointwise_kernel("mul", (5, 100), inputs=1, scalars=[LaunchScalar(0)])
    assert [len(x.args) for x in (kernel, scalars_as_tensors(kernel))] == [2, 3]
    check(scalars_as_tensors(kernel))
    assert canonical(read_kernel(files_json(kernel))) == canonical(scalars_as_tensors(kernel))
    assert dsc(kernel)["labeledDs_"][1]["scale_"] == [-2, -1]


def many_arguments() -> Kernel:
    """Nine arguments: more than there are segments."""
    names = ("d0", "d1")
    dims = (Dim("d0", 64, 4, 16), Dim("d1", 256))
    tensors = [memory_tensor(f"a{i}", (64, 256), i) for i in range(9)]
    ops = [
        TileOp(f"add{i}", "add", dims, (operand(tensors[i], names), operand(tensors[i + 1], names)), o, (), ("d0",))
        for i in range(7)
        for o in [operand(tensors[8], names)]
    ]
    return Kernel("many", make_args(tensors, [8]), tuple(ops))


@pytest.mark.parametrize("kernel", [many_arguments(), fp32_softmax(), matmul_kernel(8, 64, 192, {"k": 3})])
def test_symbolic_addresses_come_back(kernel: Kernel, tmp_path: Path) -> None:
    files = bundle_files(kernel, symbolic=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert canonical(read_bundle(tmp_path)) == canonical(kernel)
    assert "isStartAddrSymbolic_" in files["sdsc_0.json"] and "input_arg_extract" in files["bundle.mlir"]


def test_many_arguments_need_symbols() -> None:
    assert "input_arg<index>" in bundle_files(many_arguments())["bundle.mlir"]
    assert "input_arg<index>" not in bundle_files(fp32_softmax())["bundle.mlir"]


def loop_kernel(rows: int = 64, slices: int = 4, chunk: int = 4, columns: int = 100) -> Kernel:
    """exp in chunks of rows into LX, minus a whole slice that is in LX already, and back to memory."""
    tile = rows // slices
    dims = (Dim("r", rows, slices, tile, chunk), Dim("c", columns))
    plain = (Dim("r", rows, slices, tile), dims[1])
    both = ("r", "c")
    whole = operand(lx_tensor("whole", (tile, columns), 0), both)
    part = lx_tensor("part", (chunk, columns), tensor_bytes(whole.tensor))
    piece = operand(replace(part, chunked=True), both)
    source, out = (operand(memory_tensor(n, (rows, columns), i), both) for i, n in enumerate(("in", "out")))
    ops = (
        TileOp("neg", "neg", plain, (source,), whole, (), ("r",)),
        TileOp("exp", "exp", dims, (source,), piece, (), ("r",)),
        TileOp("sub", "sub", dims, (piece, whole), out, (), ("r",)),
    )
    args = make_args([source.tensor, out.tensor], [1])
    top = tensor_bytes(whole.tensor) + tensor_bytes(part)
    return Kernel("loop", args, ops, loops=(TileLoop(1, 3, -(-tile // chunk)),), lx_scratch_base=top)


def card_bytes(kernel: Kernel, sources: list[bytes]) -> list[bytes]:
    """What the arguments hold after a launch."""
    card, compiled = _card.Card(), compile_module(emit(kernel))
    places = []
    for data, arg in zip(sources, compiled.args, strict=True):
        size = max(len(data), arg.bytes)
        places.append((card.allocate(size), size))
        card.write(places[-1][0], data.ljust(size, b"\0"))
    card.launch(_card.Program.load(compiled.binary), places)
    card.synchronize()
    return [card.read(address, len(data)) for (address, _), data in zip(places, sources, strict=True)]


@pytest.mark.parametrize("chunk", [4, 5, 16])
def test_tile_loop_is_a_file_per_trip(chunk: int) -> None:
    kernel = loop_kernel(chunk=chunk)
    plain = without_loops(kernel)
    assert len(plain.ops) == 1 + 2 * -(-16 // chunk) and bundle_files(plain) == bundle_files(kernel)
    back = read_kernel(files_json(plain))
    assert canonical(back) == canonical(plain)
    sources = [np.random.default_rng(1).integers(0x3C00, 0x4000, 2 * 64 * 64, dtype=np.uint16).tobytes()] * 2
    assert card_bytes(kernel, sources) == card_bytes(back, sources)


def test_tile_loop_over_uneven_slices_says_so() -> None:
    kernel = loop_kernel()
    ops = [replace(op, dims=(replace(op.dims[0], size=63), op.dims[1])) for op in kernel.ops]
    with pytest.raises(NotExpressible, match="slices are not alike"):
        bundle_files(replace(kernel, ops=tuple(ops)))
