# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_reasons.py

A kernel outside the vocabulary is refused with its reason, and nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ktir_kernels import (
    FP16,
    FP32,
    copy_kernel,
    matmul_kernel,
    memory_tensor,
    operand,
    pointwise_kernel,
    reduce_kernel,
)

from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import (
    Coord,
    Dim,
    Immediate,
    Input,
    Kernel,
    LinearOperand,
    Operand,
    Space,
    Tensor,
    Term,
    TileOp,
)
from torch_spyre.sdsc import bundle_files, write_bundle


def with_input(kernel: Kernel, first: Input) -> Kernel:
    op = kernel.ops[0]
    return replace(kernel, ops=(replace(op, inputs=(first, *op.inputs[1:])),))


def view(device_size: tuple[int, ...], *coords: Coord) -> Kernel:
    """add over (64, 256) whose first operand is the given access."""
    tensor = Tensor("view", "SEN169_FP16", Space.MEMORY, device_size, 0, 0)
    return with_input(pointwise_kernel(), Operand(tensor, coords))


def term(dim: str, scale: int = 1, div: int = 1, mod: int = 0, const: int = 0) -> Coord:
    return Coord((Term(dim, scale, div, mod),), const)


ROW, STICK, LANE = term("d0"), term("d1", div=64), term("d1", mod=64)
ZERO = Coord()


def ragged_in_lx() -> Kernel:
    """Rows 2 * m.1 + m.0, m.0 split: each core has rows 0, 2 and 4 of a scratchpad tensor of 5."""
    rows = Coord((Term("m.1", 2), Term("m.0")))
    dims = (Dim("m.1", 9, 3, 3), Dim("m.0", 2, 2, 1), Dim("c", 100))
    tensor = Tensor("t", "SEN169_FP16", Space.LX, (2, 5, 64), 0)
    accessed = Operand(tensor, (term("c", div=64), rows, term("c", mod=64)))
    op = TileOp("neg", "neg", dims, (accessed,), accessed, core_order=("m.0", "m.1"))
    return Kernel("ragged", (), (op,))


def many_arguments() -> Kernel:
    kernel = pointwise_kernel()
    return replace(kernel, args=kernel.args * 22)


def two_split_reductions() -> Kernel:
    return reduce_kernel("sum", (4, 4, 128), ("d0", "d2"), {"d0": 2, "d2": 2})


def nine_dims() -> Kernel:
    names = [f"d{i}" for i in range(9)]
    source, out = memory_tensor("in0", (2,) * 9, 0), memory_tensor("out", (2,) * 9, 1)
    op = TileOp("neg", "neg", tuple(Dim(n, 2) for n in names), (operand(source, names),), operand(out, names))
    return Kernel("nine", (), (op,))


def far_argument() -> Kernel:
    return with_input(pointwise_kernel(), operand(memory_tensor("far", (64, 256), 99), ("d0", "d1")))


def unaligned() -> Kernel:
    return with_input(pointwise_kernel(), operand(memory_tensor("odd", (64, 256), 0, base=64), ("d0", "d1")))


def wide_constant() -> Kernel:
    return reduce_kernel("mean", constants={"scaling_factor": 1e39})


REASONS = {
    "66 arguments; a bundle has at most 64": many_arguments(),
    "tensor far is in argument 99": far_argument(),
    "constant imm1 = 1e": pointwise_kernel(inputs=1, scalars=[Immediate(1e39)]),
    "constant imm1 = 2.5 is not an int32": pointwise_kernel(inputs=1, scalars=[Immediate(2.5, "IEEE_INT32")]),
    "constant imm1 = 4294967296 is not": pointwise_kernel(inputs=1, scalars=[Immediate(1 << 32, "IEEE_INT32")]),
    "constant imm0 has the name of a scalar operand": reduce_kernel("mean", constants={"imm0": 1.0}),
    "a stick starts at lane 3": view((4, 64, 64), STICK, ROW, term("d1", mod=64, const=3)),
    "opfunc 'sin' is not among those": pointwise_kernel("sin", inputs=1),
    "no opfunc converts IEEE_INT32 to SEN169_FP16": pointwise_kernel(
        "convert", inputs=1, format="IEEE_INT32", out_format=FP16
    ),
    "constant scaling_factor = 1e": wide_constant(),
    "mixes dims d0, d1, which do not tile its 16384": view((16384, 64), Coord((Term("d0", 128), Term("d1"))), ZERO),
    "mixes dims d0, d1, which do not tile its 319": view((319, 64), Coord((Term("d0"), Term("d1"))), ZERO),
    "mixes dims m.1, m.0, which do not tile its 5": ragged_in_lx(),
    "the lane of tensor view mixes dims d0, d1": view((64, 64), ROW, Coord((Term("d0"), Term("d1", mod=8)))),
    "uses d1 % 64 without d1 // 64": view((64, 64), ROW, LANE),
    "there are plain dims and a stick pair": view((4, 8, 8, 64), STICK, term("d0", div=8), term("d0", mod=8), LANE),
    "only dim % 64 fills sticks": view((8, 64, 64), term("d1", div=32), ROW, term("d1", mod=32)),
    "it must end in a stick of 64": view((64, 256), ROW, term("d1")),
    "tensors stick on different dims": view((1, 256, 64), term("d0", div=64), term("d1"), term("d0", mod=64)),
    "has dim d1 outside its sticks": view((64, 256, 64), ROW, term("d1"), ZERO),
    "touched at linear host offsets": with_input(
        copy_kernel(),
        LinearOperand(memory_tensor("lin", (64, 256), 0), Coord((Term("d0", 256), Term("d1")), 7), (64, 256, 1)),
    ),
    "tensors of formats SEN169_FP16, IEEE_FP32 in one op": pointwise_kernel(out_format=FP32),
    "dl16tofp32 between tensors of formats IEEE_FP32 and SEN169": pointwise_kernel(
        "dl16tofp32", inputs=1, format=FP32, out_format=FP16
    ),
    "opfunc 'gelu' is not known": pointwise_kernel("gelu", inputs=1),
    "of a batchmatmul must stick on k, not m": with_input(
        matmul_kernel(64, 64, 64), operand(memory_tensor("at", (64, 64), 0), ("k", "m"))
    ),
    "reduced dims d0, d2 are all split": two_split_reductions(),
    "9 iteration dims": nine_dims(),
    "[alignment] Tensor0, core 0": unaligned(),
    "[span] Tensor0": pointwise_kernel(sizes=(1 << 14, 1 << 14)),
    "an empty iteration space": pointwise_kernel(sizes=(0, 64)),
    "64 cores; a card has 32": pointwise_kernel(splits={"d0": 64}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_reason(reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotExpressible) as caught:
        write_bundle(REASONS[reason], tmp_path / "bundle")
    assert reason in str(caught.value)
    assert REASONS[reason].name in str(caught.value)
    assert not (tmp_path / "bundle").exists()


def test_kernels_next_to_a_limit_are_expressible() -> None:
    """The stated limits are the real ones: their nearest neighbours inside can be written."""
    bundle_files(pointwise_kernel(sizes=(68, 128), splits={"d0": 4}))
    bundle_files(pointwise_kernel(inputs=1, scalars=[Immediate(-(1 << 31), "IEEE_INT32")]))
    bundle_files(view((1, 4, 64, 64), ZERO, STICK, ROW, LANE))
    bundle_files(pointwise_kernel(sizes=(1 << 14, 1 << 14), splits={"d1": 4}))
