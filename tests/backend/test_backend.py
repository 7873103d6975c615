# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend.py. Which instructions a kernel becomes, and hand-written KTIR that runs."""

from __future__ import annotations

import dataclasses

import ktir_kernels as kernels
import numpy as np
import pytest
from effort import python_calls
from program_interp import execute, round_sen169, sen169_decode, sen169_encode

from torch_spyre import ktir
from torch_spyre.backend.compile import CompiledProgram, compile_module
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent
from torch_spyre.backend.program.decoder import decode
from torch_spyre.backend.program.isa import IEEE_FP32, SEN169_FP16, VOP_NAMES, Access, Space
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Coord, Immediate, Kernel, LinearOperand, Term


def compiled(kernel: Kernel) -> CompiledProgram:
    program = compile_module(emit(kernel))
    assert decode(program.binary).instructions == list(program.instructions)
    return program


def names(program: CompiledProgram) -> list[str]:
    """Instructions without scalar operations, vector operations by their name."""
    return [
        VOP_NAMES[i.op] if isinstance(i, asm.VopInst) else type(i).__name__.removesuffix("Inst").upper()
        for i in program.instructions
        if not isinstance(i, asm.SopInst)
    ]


# -- planned kernels ---------------------------------------------------------------------------------------------------


def test_one_op_is_one_instruction_with_loads_and_store_folded() -> None:
    program = compiled(kernels.pointwise_kernel("add", (64, 256), {"d0": 8, "d1": 4}))
    assert names(program) == ["add", "END"]
    (add,) = (i for i in program.instructions if isinstance(i, asm.VopInst))
    assert add.dims == (Extent.of(8), Extent.of(64))
    assert [o.space for o in (add.out, *add.inputs)] == [Space.MEM] * 3
    assert add.out.maps == (DimMap(128), DimMap(2))  # 64 columns are one stick: no stick map needed
    assert [arg.access for arg in program.args] == [Access.READ, Access.READ, Access.WRITE]
    assert {arg.bytes for arg in program.args} == {64 * 256 * 2}
    assert program.lx_bytes == 0 and program.cores == 32


def test_stick_dims_and_uneven_slices() -> None:
    program = compiled(kernels.pointwise_kernel("add", (67, 200), {"d0": 4}))
    (add,) = (i for i in program.instructions if isinstance(i, asm.VopInst))
    assert add.out.maps == (DimMap(128), DimMap(2, 64, 67 * 128))
    rows, columns = add.dims
    assert (rows.cap, columns) == (17, Extent.of(200))
    assert not rows.is_const


def test_broadcast_dims_do_not_move() -> None:
    program = compiled(kernels.pointwise_kernel("add", (8, 64), broadcast={1: ["d0"]}))
    (add,) = (i for i in program.instructions if isinstance(i, asm.VopInst))
    assert add.inputs[1].maps == (DimMap(0), DimMap(2))


def test_registers_are_shared_between_ops() -> None:
    one, five = (
        compiled(dataclasses.replace(kernel, ops=kernel.ops[:n]))
        for kernel in [kernels.softmax_kernel(64, 256, 4)]
        for n in (1, 5)
    )
    assert one.program.registers == five.program.registers == 2
    assert names(five).count("IF") == 1


def test_softmax_keeps_intermediates_where_the_plan_puts_them() -> None:
    program = compiled(kernels.softmax_kernel(64, 256, 32))
    assert names(program) == ["REDUCE", "sub", "exp", "REDUCE", "div", "END"]
    spaces = [i.out.space for i in program.instructions if isinstance(i, asm.VopInst | asm.ReduceInst)]
    assert spaces == [Space.LX] * 4 + [Space.MEM]


def test_k_split_is_a_partial_a_barrier_and_a_ring_sum() -> None:
    program = compiled(kernels.matmul_kernel(64, 128, 256, {"k": 4, "m": 8}))
    assert names(program) == ["MATMUL", "BARRIER", "IF", "RINGSUM", "ENDIF", "END"]
    (partial,) = (i for i in program.instructions if isinstance(i, asm.MatmulInst))
    (ring,) = (i for i in program.instructions if isinstance(i, asm.RingSumInst))
    assert partial.c.space is Space.LX and partial.c.format == IEEE_FP32
    assert (ring.count, ring.step, ring.out.format) == (4, 1, SEN169_FP16)
    assert program.lx_bytes == 8 * 128 * 4


def test_guarded_ops_close_their_guard_around_a_barrier() -> None:
    program = compiled(kernels.matmul_kernel(64, 128, 256, {"k": 4, "m": 2}))
    assert names(program) == ["IF", "MATMUL", "ENDIF", "BARRIER", "IF", "IF", "RINGSUM", "ENDIF", "ENDIF", "END"]


def test_split_maximum_is_folded_over_the_ring() -> None:
    program = compiled(kernels.reduce_kernel("max", (64, 128), ("d1",), {"d0": 16, "d1": 2}))
    assert names(program) == ["REDUCE", "BARRIER", "IF", "COPY", "COPY", "maximum", "ENDIF", "END"]


def test_constants_are_immediates() -> None:
    program = compiled(kernels.pointwise_kernel("mul", (8, 64), inputs=1, scalars=[Immediate(0.1)]))
    (mul,) = (i for i in program.instructions if isinstance(i, asm.VopInst))
    assert mul.inputs[1] == asm.Operand(Space.IMM, IEEE_FP32, bits=0x3DCCCCCD)
    assert (mul.inputs[0].format, mul.out.format) == (SEN169_FP16, SEN169_FP16)


def test_origin_names_kernel_op_and_source() -> None:
    program = compiled(kernels.pointwise_kernel("add"))
    (add,) = (i for i in program.instructions if isinstance(i, asm.VopInst))
    assert add.origin == "add_kernel: add: aten.add"


def test_barriers_between_memory_ops_that_other_cores_read() -> None:
    kernel = kernels.softmax_kernel(64, 256, 32)
    program = compiled(kernel)
    assert "BARRIER" not in names(program)


def linear_copy() -> Kernel:
    """Host [5, 100] read as [6, 50] from its element 7 on."""
    kernel = kernels.copy_kernel("identity", (6, 50), {"d0": 2}, cores=4)
    source = kernels.memory_tensor("in0", (5, 100), 0)
    offset = Coord((Term("d0", 50), Term("d1")), 7)
    op = dataclasses.replace(kernel.ops[0], inputs=(LinearOperand(source, offset, (64, 100, 1)),))
    return dataclasses.replace(kernel, ops=(op,))


def test_copies_of_linear_offsets_use_layout_maps() -> None:
    program = compiled(linear_copy())
    (copy,) = (i for i in program.instructions if isinstance(i, asm.CopyInst))
    layout = copy.input.maps
    assert isinstance(layout, asm.LayoutMap)
    assert layout.strides == (50, 1) and layout.offset.const == 7
    assert [(host, stride) for host, _, stride in layout.dims] == [(100, 128), (64, 640), (1, 2)]
    host = round_sen169(np.arange(500.0)).reshape(5, 100)
    device = np.zeros((2, 5, 64), np.uint16)
    device[0] = sen169_encode(host[:, :64])
    device[1, :, :36] = sen169_encode(host[:, 64:])
    out = np.zeros(6 * 128, np.uint8)
    execute(program.binary, [device.reshape(-1).view(np.uint8), out])
    result = sen169_decode(out.view(np.uint16)).reshape(6, 64)[:, :50]
    np.testing.assert_array_equal(result, host.reshape(-1)[7:307].reshape(6, 50))


def test_compiling_grows_with_the_ops_and_not_faster() -> None:
    kernel = kernels.softmax_kernel(64, 256, 4)
    few, many = (emit(dataclasses.replace(kernel, ops=kernel.ops * repeat)) for repeat in (2, 20))
    assert python_calls(lambda: compile_module(many)) < 15 * python_calls(lambda: compile_module(few))


# -- KTIR written by hand ----------------------------------------------------------------------------------------------

VIEW = (
    "ktdp.construct_memory_view {}, sizes: [{}, 64], strides: [64, 1] {{ memory_space = #ktdp.memory_space<global> }}"
)
ROWS = "affine_set<(d0, d1) : (d0 >= 0, -d0 + {} >= 0, d1 >= 0, -d1 + 63 >= 0)>"
ORDER = "affine_map<(d0, d1) -> (d0, d1)>"


def view(name: str, arg: str, rows: int, kind: str = "f16") -> str:
    return f"{name} = {VIEW.format(arg, rows)} : memref<{rows}x64x{kind}>\n"


def tile(name: str, base: str, row: str, rows: int, total: int, kind: str = "f16", order: str = ORDER) -> str:
    return (
        f"{name} = ktdp.construct_access_tile {base}[{row}, 0] {{ access_tile_set = {ROWS.format(rows - 1)}, "
        f"access_tile_order = {order} }} : memref<{total}x64x{kind}> -> !ktdp.access_tile<{rows}x64xindex>\n"
    )


def function(body: str, args: str, grid: str = "[1]") -> str:
    return f"module {{ func.func @f({args}) attributes {{grid = {grid}}} {{\n{body}\nfunc.return\n}} }}"


def run_text(
    text: str, *hosts: np.ndarray, scalars: tuple[float, ...] = (), exact: bool = True
) -> tuple[list[np.ndarray], CompiledProgram]:
    """Runs KTIR on row-major f16 arrays of 64 columns; returns all of them afterwards."""
    program = compile_module(ktir.parse(text))
    buffers = [sen169_encode(h).reshape(-1).view(np.uint8).copy() for h in hosts]
    execute(program.binary, buffers, scalars, exact)
    results = [sen169_decode(b.view(np.uint16)).reshape(h.shape) for b, h in zip(buffers, hosts, strict=True)]
    return results, program


def rand(rows: int, seed: int = 0) -> np.ndarray:
    return round_sen169(np.random.default_rng(seed).standard_normal((rows, 64)))


def load(name: str, tile_name: str, rows: int) -> str:
    return f"{name} = ktdp.load {tile_name} : !ktdp.access_tile<{rows}x64xindex> -> tensor<{rows}x64xf16>\n"


def store(value: str, tile_name: str, rows: int) -> str:
    return f"ktdp.store {value}, {tile_name} : tensor<{rows}x64xf16>, !ktdp.access_tile<{rows}x64xindex>\n"


HEAD = "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"


def test_a_chain_rounds_every_value() -> None:
    """(a + b) * b through an f16 value: not the fp32 chain rounded once."""
    body = HEAD + view("%va", "%a", 4) + view("%vb", "%b", 4) + view("%vo", "%o", 4)
    body += tile("%ta", "%va", "%c0", 4, 4) + tile("%tb", "%vb", "%c0", 4, 4) + tile("%to", "%vo", "%c0", 4, 4)
    body += load("%x", "%ta", 4) + load("%y", "%tb", 4)
    body += "%s = arith.addf %x, %y : tensor<4x64xf16>\n%p = arith.mulf %s, %y : tensor<4x64xf16>\n"
    body += store("%p", "%to", 4)
    a, b = rand(4), rand(4, 1)
    (_, _, out), program = run_text(function(body, "%a: index, %b: index, %o: index"), a, b, np.zeros((4, 64)))
    assert names(program) == ["add", "mul", "END"]
    np.testing.assert_array_equal(out, round_sen169(round_sen169(a + b) * b))
    assert (out != round_sen169((a + b) * b)).any()


def test_loop_over_row_tiles_with_a_two_dimensional_grid() -> None:
    """Core (i, j) of a 2x2 grid takes rows 8*(i + 2j) … in steps of two rows."""
    body = HEAD + "%i, %j = ktdp.get_compute_tile_id : index, index\n"
    body += "%c2 = arith.constant 2 : index\n%c8 = arith.constant 8 : index\n"
    body += "%jj = arith.muli %j, %c2 : index\n%flat = arith.addi %i, %jj : index\n"
    body += "%first = arith.muli %flat, %c8 : index\n%last = arith.addi %first, %c8 : index\n"
    body += view("%va", "%a", 32) + view("%vo", "%o", 32)
    body += "scf.for %r = %first to %last step %c2 {\n"
    body += tile("%ta", "%va", "%r", 2, 32) + tile("%to", "%vo", "%r", 2, 32) + load("%x", "%ta", 2)
    body += "%y = math.exp %x : tensor<2x64xf16>\n" + store("%y", "%to", 2) + "}\n"
    a = rand(32)
    (_, out), program = run_text(function(body, "%a: index, %o: index", "[2, 2]"), a, np.zeros((32, 64)), exact=False)
    assert names(program) == ["exp", "END"]  # the loop has become a dim
    np.testing.assert_allclose(out, np.exp(a.astype(np.float64)), rtol=2**-9)


def test_loop_carries_an_accumulator() -> None:
    body = HEAD + "%c8 = arith.constant 8 : index\n" + view("%va", "%a", 8) + view("%vo", "%o", 1)
    body += "%z = arith.constant dense<0.0> : tensor<1x64xf16>\n"
    body += "%sum = scf.for %r = %c0 to %c8 step %c1 iter_args(%acc = %z) -> (tensor<1x64xf16>) {\n"
    body += tile("%ta", "%va", "%r", 1, 8) + load("%x", "%ta", 1)
    body += "%n = arith.addf %acc, %x : tensor<1x64xf16>\nscf.yield %n : tensor<1x64xf16>\n}\n"
    body += tile("%to", "%vo", "%c0", 1, 1) + store("%sum", "%to", 1)
    a = rand(8)
    (_, out), _ = run_text(function(body, "%a: index, %o: index"), a, np.zeros((1, 64)))
    expected = np.zeros(64, np.float32)
    for row in a:
        expected = round_sen169(expected + row)
    np.testing.assert_array_equal(out[0], expected)


def test_a_load_is_copied_when_its_bytes_change_before_use() -> None:
    """x = load a; store b to a; store x to o: o gets the old a."""
    body = HEAD + view("%va", "%a", 2) + view("%vb", "%b", 2) + view("%vo", "%o", 2)
    body += tile("%ta", "%va", "%c0", 2, 2) + tile("%tb", "%vb", "%c0", 2, 2) + tile("%to", "%vo", "%c0", 2, 2)
    body += load("%x", "%ta", 2) + load("%y", "%tb", 2) + store("%y", "%ta", 2) + store("%x", "%to", 2)
    a, b = rand(2), rand(2, 1)
    (new_a, _, out), program = run_text(function(body, "%a: index, %b: index, %o: index"), a, b, np.zeros((2, 64)))
    np.testing.assert_array_equal(out, a)
    np.testing.assert_array_equal(new_a, b)
    assert program.lx_bytes == 256


def test_overlapping_in_place_shift_goes_through_scratch() -> None:
    """Rows 1..3 of a become the negated rows 0..2: element order must not matter."""
    body = HEAD + view("%va", "%a", 4) + tile("%src", "%va", "%c0", 3, 4) + tile("%dst", "%va", "%c1", 3, 4)
    body += load("%x", "%src", 3) + "%y = arith.negf %x : tensor<3x64xf16>\n" + store("%y", "%dst", 3)
    a = rand(4)
    (out,), program = run_text(function(body, "%a: index"), a)
    assert names(program) == ["neg", "COPY", "END"]
    np.testing.assert_array_equal(out, np.concatenate([a[:1], -a[:3]]))


def test_in_place_on_the_same_elements_needs_no_scratch() -> None:
    body = HEAD + view("%va", "%a", 4) + tile("%t", "%va", "%c0", 4, 4)
    body += load("%x", "%t", 4) + "%y = arith.negf %x : tensor<4x64xf16>\n" + store("%y", "%t", 4)
    a = rand(4)
    (out,), program = run_text(function(body, "%a: index"), a)
    assert names(program) == ["neg", "END"]
    assert program.args[0].access == Access.READ | Access.WRITE
    np.testing.assert_array_equal(out, -a)


def test_both_branches_of_a_condition() -> None:
    body = HEAD + "%id = ktdp.get_compute_tile_id : index\n%p = arith.cmpi eq, %id, %c1 : index\n"
    body += view("%va", "%a", 3) + view("%vo", "%o", 3)
    body += tile("%ta", "%va", "%id", 1, 3) + tile("%to", "%vo", "%id", 1, 3) + load("%x", "%ta", 1)
    body += "scf.if %p {\n%y = arith.negf %x : tensor<1x64xf16>\n" + store("%y", "%to", 1)
    body += "} else {\n" + store("%x", "%to", 1) + "}\n"
    a = rand(3)
    (_, out), _ = run_text(function(body, "%a: index, %o: index", "[3]"), a, np.zeros((3, 64)))
    np.testing.assert_array_equal(out, [a[0], -a[1], a[2]])


def test_consume_broadcasts_over_the_ring() -> None:
    """Core 2 gives its row to all four cores."""
    body = HEAD + "%id = ktdp.get_compute_tile_id : index\n" + view("%va", "%a", 4) + view("%vo", "%o", 4)
    body += tile("%ta", "%va", "%id", 1, 4) + tile("%to", "%vo", "%id", 1, 4) + load("%x", "%ta", 1)
    future = "!ktdp.tile_future<(tensor<1x64xf16>), groups = affine_set<(g) : (g == 0)>>"
    body += (
        f"%f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : (i - 2 == 0)> -> {future} {{\n"
    )
    body += "^bb0(%g: index):\nktdp.yield_partial %x : tensor<1x64xf16>\n}\n"
    everyone = "affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>"
    body += f"%y = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = {everyone} : {future} -> tensor<1x64xf16>\n"
    body += store("%y", "%to", 1)
    a = rand(4)
    (_, out), _ = run_text(function(body, "%a: index, %o: index", "[4]"), a, np.zeros((4, 64)))
    np.testing.assert_array_equal(out, a[[2, 2, 2, 2]])


def test_all_reduce_in_a_loop_waits_before_partials_are_overwritten() -> None:
    """Every iteration all cores sum their rows and everybody stores the sum."""
    body = (
        HEAD
        + "%id = ktdp.get_compute_tile_id : index\n%c3 = arith.constant 3 : index\n%c4 = arith.constant 4 : index\n"
    )
    body += view("%va", "%a", 12) + view("%vo", "%o", 12) + "%z = arith.constant dense<0.0> : tensor<1x64xf16>\n"
    body += "scf.for %k = %c0 to %c3 step %c1 {\n%b = arith.muli %k, %c4 : index\n%r = arith.addi %b, %id : index\n"
    body += tile("%ta", "%va", "%r", 1, 12) + tile("%to", "%vo", "%r", 1, 12) + load("%x", "%ta", 1)
    future = "!ktdp.tile_future<(tensor<1x64xf16>), groups = affine_set<(g) : (g == 0)>>"
    everyone = "affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>"
    body += f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {everyone} -> {future} {{\n"
    body += "^bb0(%g: index):\nktdp.yield_partial %x : tensor<1x64xf16>\n}\n"
    body += f"%y = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = {everyone}, identity(%z : tensor<1x64xf16>)"
    body += f" : {future} -> tensor<1x64xf16> {{\n^bb0(%l: tensor<1x64xf16>, %h: tensor<1x64xf16>):\n"
    body += "%t = arith.addf %l, %h : tensor<1x64xf16>\nktdp.yield_reduced %t : tensor<1x64xf16>\n}\n"
    body += store("%y", "%to", 1) + "}\n"
    a = rand(12)
    (_, out), program = run_text(function(body, "%a: index, %o: index", "[4]"), a, np.zeros((12, 64)))
    assert names(program) == ["LOOP", "COPY", "BARRIER", "RINGSUM", "BARRIER", "ENDLOOP", "END"]
    sums = a.reshape(3, 4, 64).astype(np.float64).sum(1).repeat(4, 0)
    np.testing.assert_allclose(out, sums, rtol=2**-9, atol=1e-6)


def test_launch_scalars_are_rounded_where_they_become_f16() -> None:
    body = HEAD + view("%va", "%a", 2) + tile("%t", "%va", "%c0", 2, 2) + load("%x", "%t", 2)
    body += "%s = tensor.splat %k : tensor<2x64xf16>\n%y = arith.mulf %x, %s : tensor<2x64xf16>\n" + store(
        "%y", "%t", 2
    )
    a = rand(2)
    (out,), _ = run_text(function(body, "%a: index, %k: f16"), a, scalars=(0.3,))
    np.testing.assert_array_equal(out, round_sen169(a * round_sen169(np.float32(0.3))))


def test_integer_launch_scalars_are_registers() -> None:
    """The row to negate is known at launch."""
    body = HEAD + view("%va", "%a", 4) + tile("%t", "%va", "%row", 1, 4) + load("%x", "%t", 1)
    body += "%y = arith.negf %x : tensor<1x64xf16>\n" + store("%y", "%t", 1)
    a = rand(4)
    text = function(body, "%a: index, %row: index")
    (out,), program = run_text(text, a, scalars=(2,))
    assert len(program.scalars) == 1
    np.testing.assert_array_equal(out, [a[0], a[1], -a[2], a[3]])
    (out,), _ = run_text(text, a, scalars=(4,))  # outside the view: nothing is loaded, nothing is stored
    np.testing.assert_array_equal(out, a)
    assert names(compile_module(ktir.parse(text), bind={"row": 2})) == ["neg", "END"]


def test_compute_on_a_slice_that_starts_inside_a_stick() -> None:
    """o[i, j] = a[i, 10 + j] + a[i, j] of a [2, 100] tensor in sticks: the shifted input is copied to scratch first."""
    box = "affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 79 >= 0)>"
    sticks = (
        "sizes: [2, 2, 64], strides: [128, 64, 1] { memory_space = #ktdp.memory_space<global> } : memref<2x2x64xf16>"
    )

    def access(name: str, base: str, shift: int) -> str:
        column = f"(%v1 + {shift})"
        return (
            f"{name} = ktdp.construct_indirect_access_tile intermediate_variables(%v0, %v1) "
            f"{base}[({column} floordiv 64), (%v0), ({column} mod 64)] {{ variables_space_set = {box}, "
            f"variables_space_order = {ORDER} }} : memref<2x2x64xf16> -> !ktdp.access_tile<2x80xindex>\n"
        )

    body = f"%va = ktdp.construct_memory_view %a, {sticks}\n%vo = ktdp.construct_memory_view %o, {sticks}\n"
    body += access("%t0", "%va", 10) + access("%t1", "%va", 0) + access("%to", "%vo", 0)
    for value, source in (("%x", "%t0"), ("%y", "%t1")):
        body += f"{value} = ktdp.load {source} : !ktdp.access_tile<2x80xindex> -> tensor<2x80xf16>\n"
    body += "%s = arith.addf %x, %y : tensor<2x80xf16>\n"
    body += "ktdp.store %s, %to : tensor<2x80xf16>, !ktdp.access_tile<2x80xindex>\n"
    a = rand(4)
    (_, out), program = run_text(function(body, "%a: index, %o: index"), a, np.zeros((4, 64)))
    assert names(program) == ["COPY", "add", "END"]
    host, result = (x.reshape(2, 2, 64).transpose(1, 0, 2).reshape(2, 128) for x in (a, out))
    np.testing.assert_array_equal(result[:, :80], round_sen169(host[:, 10:90] + host[:, :80]))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_unsupported_operations_are_named() -> None:
    body = HEAD + view("%va", "%a", 2) + tile("%t", "%va", "%c0", 2, 2) + load("%x", "%t", 2)
    body += "%i = arith.fptosi %x : tensor<2x64xf16> to tensor<2x64xi32>\n%n = math.ctpop %i : tensor<2x64xi32>\n"
    body += "%y = arith.sitofp %n : tensor<2x64xi32> to tensor<2x64xf16>\n" + store("%y", "%t", 2)
    with pytest.raises(UnsupportedOp, match=r"math\.ctpop in kernel f"):
        compile_module(ktir.parse(function(body, "%a: index")))


def test_a_module_needs_one_function() -> None:
    with pytest.raises(InvalidProgram, match="one function"):
        compile_module(ktir.parse("module { }"))


def test_too_much_scratch_is_refused() -> None:
    """One row that does not fit, wanted whole by a reduction after it."""
    body = HEAD + view("%va", "%a", 40000) + tile("%t", "%va", "%c0", 40000, 40000) + load("%x", "%t", 40000)
    kind = "tensor<40000x64xf16>"
    body += f"%y = arith.negf %x : {kind}\n%e = tensor.empty() : tensor<f16>\n"
    body += f"%s = linalg.reduce {{ arith.addf }} ins(%y : {kind}) outs(%e : tensor<f16>) dimensions = [0, 1]\n"
    body += f"%i = tensor.empty() : {kind}\n"
    body += f"%b = linalg.broadcast ins(%s : tensor<f16>) outs(%i : {kind}) dimensions = [0, 1]\n"
    body += f"%z = arith.addf %y, %b : {kind}\n" + store("%z", "%t", 40000)
    with pytest.raises(InvalidProgram, match="bytes of LX"):
        compile_module(ktir.parse(function(body, "%a: index")))


def test_chains_that_do_not_fit_are_streamed() -> None:
    """exp(-x) of 5 MB through a temporary: strips in a loop, the same bits as in one go."""
    body = HEAD + view("%va", "%a", 40000) + tile("%t", "%va", "%c0", 40000, 40000) + load("%x", "%t", 40000)
    kind = "tensor<40000x64xf16>"
    body += f"%y = arith.negf %x : {kind}\n%w = math.absf %y : {kind}\n%z = arith.addf %y, %w : {kind}\n"
    body += store("%z", "%t", 40000)
    a = rand(40000)
    (out,), program = run_text(function(body, "%a: index"), a)
    assert names(program) == ["LOOP", "neg", "abs", "add", "ENDLOOP", "END"]
    assert program.lx_bytes <= 2 << 20
    np.testing.assert_array_equal(out, round_sen169(-a + np.abs(a)))
