# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_passes.py
"""Each pass on its own: TTIR before, the module after. With EXPECTTEST_ACCEPT=1 expecttest rewrites the texts."""

# ruff: noqa: E501  The printed IR is as long as it is.

from __future__ import annotations

from collections.abc import Sequence

import pytest
from expecttest import assert_expected_inline

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.text import print_module
from torch_spyre.triton.lowering import pipeline, ttir_text


def after(last: str, text: str, arguments: Sequence[object] = (), grid: tuple[int, int, int] = (4, 1, 1)) -> str:
    """The module after the pass `last`."""
    module = ttir_text.read(text, "<test>")
    for name, run in pipeline.passes(arguments, grid, ()):
        run(module)
        if name == last:
            return print_module(module)
    raise AssertionError(f"there is no pass {last}")


def test_known_integers() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>, %n: i32) {
      %c = arith.constant 63 : i32
      %programs = tt.get_num_programs x : i32
      %a = arith.addi %n, %c : i32
      %b = arith.divsi %a, %programs : i32
      %s = tt.splat %b : i32 -> tensor<4xi32>
      tt.return
    }"""
    assert_expected_inline(
        after("fold", text, [None, 100]),
        """\
builtin.module {
  func.func public @f(%p: !tt.ptr<f32>, %n: i32) {
    %n_1 = arith.constant 100 : i32
    %c = arith.constant 63 : i32
    %programs = arith.constant 4 : i32
    %a = arith.constant 163 : i32
    %b = arith.constant 40 : i32
    %s = tt.splat %b : (i32) -> tensor<4xi32>
    func.return
  }
}
""",
    )


def test_early_returns() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>) {
      %id = tt.get_program_id x : i32
      %two = arith.constant 2 : i32
      %late = arith.cmpi sge, %id, %two : i32
      cf.cond_br %late, ^bb1, ^bb2
    ^bb1:
      tt.return
    ^bb2:
      %x = arith.constant 1.0 : f32
      tt.store %p, %x : !tt.ptr<f32>
      tt.return
    }"""
    assert_expected_inline(
        after("early-returns", text, [None]),
        """\
builtin.module {
  func.func public @f(%p: !tt.ptr<f32>) {
    %id = tt.get_program_id  {axis = "x", programs = 4 : i64} : () -> i32
    %two = arith.constant 2 : i32
    %late = arith.cmpi sge, %id, %two : i32
    scf.if %late {
    } else {
      %x = arith.constant 1.000000e+00 : f32
      tt.store %p, %x : (!tt.ptr<f32>, f32) -> ()
    }
    func.return
  }
}
""",
    )


def test_carried_steps() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>) {
      %zero = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %five = arith.constant 5 : i32
      %step = arith.constant 64 : i32
      %end = scf.for %i = %zero to %five step %one iter_args(%q = %p) -> (!tt.ptr<f32>) : i32 {
        %x = arith.constant 1.0 : f32
        tt.store %q, %x : !tt.ptr<f32>
        %next = tt.addptr %q, %step : !tt.ptr<f32>, i32
        scf.yield %next : !tt.ptr<f32>
      }
      tt.return
    }"""
    assert_expected_inline(
        after("carried-steps", text, [None]),
        """\
builtin.module {
  func.func public @f(%p: !tt.ptr<f32>) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %five = arith.constant 5 : i32
    %step = arith.constant 64 : i32
    scf.for %i = %zero to %five step %one : i32 {
      %step_1 = arith.constant 64 : i32
      %0 = arith.muli %step_1, %i : i32
      %q = tt.addptr %p, %0 : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
      %x = arith.constant 1.000000e+00 : f32
      tt.store %q, %x : (!tt.ptr<f32>, f32) -> ()
      %next = tt.addptr %q, %step : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
    }
    func.return
  }
}
""",
    )


def test_programs() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>, %n: i32) {
      %x = tt.get_program_id x : i32
      %y = tt.get_program_id y : i32
      %place = arith.addi %x, %y : i32
      %q = tt.addptr %p, %place : !tt.ptr<f32>, i32
      %v = arith.constant 1.0 : f32
      tt.store %q, %v : !tt.ptr<f32>
      tt.return
    }"""
    assert_expected_inline(
        after("programs", text, [None, 3], (10, 7, 1)),
        """\
builtin.module {
  func.func @f(%p: index) attributes {grid = [32 : i64]} {
    %core = ktdp.get_compute_tile_id : index
    %total = arith.constant 70 : index
    %step = arith.constant 32 : index
    scf.for %program = %core to %total step %step {
      %p_1 = tt.base %p {start = 0 : i64} : (index) -> !tt.ptr<f32>
      %n = arith.constant 3 : i32
      %size = arith.constant 10 : index
      %rest = arith.remsi %program, %size : index
      %id = arith.index_cast %rest : index to i32
      %below = arith.constant 10 : index
      %row = arith.divsi %program, %below : index
      %id_1 = arith.index_cast %row : index to i32
      %place = arith.addi %id, %id_1 : i32
      %q = tt.addptr %p_1, %place : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
      %v = arith.constant 1.000000e+00 : f32
      tt.store %q, %v : (!tt.ptr<f32>, f32) -> ()
    }
    func.return
  }
}
""",
    )


BLOCK = """
    tt.func public @f(%p: !tt.ptr<f16>, %q: !tt.ptr<f16>, %n: i32) {
      %size = arith.constant 64 : i32
      %id = tt.get_program_id x : i32
      %start = arith.muli %id, %size : i32
      %range = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
      %starts = tt.splat %start : i32 -> tensor<64xi32>
      %place = arith.addi %starts, %range : tensor<64xi32>
      %ends = tt.splat %n : i32 -> tensor<64xi32>
      %mask = arith.cmpi slt, %place, %ends : tensor<64xi32>
      %ps = tt.splat %p : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>>
      %from = tt.addptr %ps, %place : tensor<64x!tt.ptr<f16>>, tensor<64xi32>
      %value = tt.load %from, %mask : tensor<64x!tt.ptr<f16>>
      %qs = tt.splat %q : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>>
      %to = tt.addptr %qs, %place : tensor<64x!tt.ptr<f16>>, tensor<64xi32>
      tt.store %to, %value, %mask : tensor<64x!tt.ptr<f16>>
      tt.return
    }"""


def test_accesses_of_a_masked_block() -> None:
    """The view is the whole vector; the program's place is the tile's."""
    assert_expected_inline(
        after("unused", BLOCK, [None, None, 200]),
        """\
builtin.module {
  func.func @f(%p: index, %q: index) attributes {grid = [4 : i64]} {
    %core = ktdp.get_compute_tile_id : index
    %t1 = arith.constant 64 : index
    %t2 = arith.muli %core, %t1 : index
    %t3 = ktdp.construct_memory_view %p, sizes: [200], strides: [1] {coordinate_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 199) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<200xf16>
    %t4 = ktdp.construct_access_tile %t3[%t2] {access_tile_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 63) >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<200xf16> -> !ktdp.access_tile<64xindex>
    %t5 = ktdp.load %t4 {origin = "tt.load at <test>:13:7"} : !ktdp.access_tile<64xindex> -> tensor<64xf16>
    %t1_1 = arith.constant 64 : index
    %t2_1 = arith.muli %core, %t1_1 : index
    %t3_1 = ktdp.construct_memory_view %q, sizes: [200], strides: [1] {coordinate_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 199) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<200xf16>
    %t4_1 = ktdp.construct_access_tile %t3_1[%t2_1] {access_tile_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 63) >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<200xf16> -> !ktdp.access_tile<64xindex>
    ktdp.store %t5, %t4_1 {origin = "tt.store at <test>:16:7"} : tensor<64xf16>, !ktdp.access_tile<64xindex>
    func.return
  }
}
""",
    )


def test_remainders_are_a_dim_of_the_view() -> None:
    text = BLOCK.replace("%mask = arith.cmpi slt, %place, %ends", "%wrapped = arith.remsi %place, %ends")
    text = text.replace("%ps, %place", "%ps, %wrapped").replace("%from, %mask", "%from")
    text = text.replace("%value, %mask", "%value")
    assert_expected_inline(
        after("unused", text, [None, None, 200]),
        """\
builtin.module {
  func.func @f(%p: index, %q: index) attributes {grid = [4 : i64]} {
    %core = ktdp.get_compute_tile_id : index
    %t1 = arith.constant 64 : index
    %t2 = arith.muli %core, %t1 : index
    %t3 = ktdp.construct_memory_view %p, sizes: [200], strides: [1] {coordinate_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 199) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<200xf16>
    %t4 = ktdp.construct_indirect_access_tile intermediate_variables(%p0) %t3[((%t2 + %p0) mod 200)] {variables_space_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 63) >= 0)>, variables_space_order = affine_map<(d0) -> (d0)>} : memref<200xf16> -> !ktdp.access_tile<64xindex>
    %t5 = ktdp.load %t4 {origin = "tt.load at <test>:13:7"} : !ktdp.access_tile<64xindex> -> tensor<64xf16>
    %t1_1 = arith.constant 64 : index
    %t2_1 = arith.muli %core, %t1_1 : index
    %t3_1 = arith.constant 0 : index
    %t4_1 = arith.addi %q, %t2_1 : index
    %t5_1 = ktdp.construct_memory_view %t4_1, sizes: [64], strides: [1] {coordinate_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 63) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<64xf16>
    %t6 = ktdp.construct_access_tile %t5_1[%t3_1] {access_tile_set = affine_set<(d0) : (d0 >= 0, ((d0 * -1) + 63) >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<64xf16> -> !ktdp.access_tile<64xindex>
    ktdp.store %t5, %t6 {origin = "tt.store at <test>:16:7"} : tensor<64xf16>, !ktdp.access_tile<64xindex>
    func.return
  }
}
""",
    )


def test_reductions_and_products() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>, %a: f32) {
      %x = tt.splat %a : f32 -> tensor<16x16xf32>
      %y = tt.dot %x, %x, %x, inputPrecision = tf32 : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>
      %rows = "tt.reduce"(%y) <{axis = 1 : i32}> ({
      ^bb0(%l: f32, %r: f32):
        %s = arith.addf %l, %r : f32
        tt.reduce.return %s : f32
      }) : (tensor<16x16xf32>) -> tensor<16xf32>
      %peak = "tt.reduce"(%rows) <{axis = 0 : i32}> ({
      ^bb0(%l: f32, %r: f32):
        %s = arith.maxnumf %l, %r : f32
        tt.reduce.return %s : f32
      }) : (tensor<16xf32>) -> f32
      tt.store %p, %peak : !tt.ptr<f32>
      tt.return
    }"""
    assert_expected_inline(
        after("combined-elements", text, [None, None], (1, 1, 1)),
        """\
builtin.module {
  func.func @f(%p: index, %a: f32) attributes {grid = [1 : i64]} {
    %x = tt.splat %a : (f32) -> tensor<16x16xf32>
    %r = linalg.matmul ins(%x, %x : tensor<16x16xf32>, tensor<16x16xf32>) outs(%x : tensor<16x16xf32>) -> tensor<16x16xf32>
    %n = arith.constant 0.000000e+00 : f32
    %i = tensor.splat %n : tensor<16xf32>
    %rows = linalg.reduce ins(%r : tensor<16x16xf32>) outs(%i : tensor<16xf32>) dimensions = [1] (%r_1: f32, %l: f32) {
      %s = arith.addf %l, %r_1 : f32
      linalg.yield %s : f32
    }
    %n_1 = arith.constant 0xff800000 : f32
    %i_1 = tensor.splat %n_1 : tensor<f32>
    %r_2 = linalg.reduce ins(%rows : tensor<16xf32>) outs(%i_1 : tensor<f32>) dimensions = [0] (%r_3: f32, %l_1: f32) {
      %s_1 = arith.maxnumf %l_1, %r_3 : f32
      linalg.yield %s_1 : f32
    }
    %x_1 = tensor.extract %r_2[] : tensor<f32>
    %t1 = arith.constant 0 : index
    %t2 = ktdp.construct_memory_view %p, sizes: [1], strides: [0] {coordinate_set = affine_set<(d0) : (d0 >= 0, (d0 * -1) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<1xf32>
    %t3 = ktdp.construct_access_tile %t2[%t1] {access_tile_set = affine_set<(d0) : (d0 >= 0, (d0 * -1) >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<1xf32> -> !ktdp.access_tile<1xindex>
    %t4 = tensor.splat %x_1 : tensor<1xf32>
    ktdp.store %t4, %t3 {origin = "tt.store at <test>:15:7"} : tensor<1xf32>, !ktdp.access_tile<1xindex>
    func.return
  }
}
""",
    )


def test_functions_and_positions() -> None:
    text = """
    tt.func public @f(%p: !tt.ptr<f32>, %low: f32) {
      %r = tt.make_range {end = 8 : i32, start = 2 : i32} : tensor<6xi32>
      %x = arith.sitofp %r : tensor<6xi32> to tensor<6xf32>
      %l = tt.splat %low : f32 -> tensor<6xf32>
      %c = tt.clampf %x, %l, %x, propagateNan = none : tensor<6xf32>
      %d = tt.expand_dims %c {axis = 1 : i32} : tensor<6xf32> -> tensor<6x1xf32>
      %b = tt.broadcast %d : tensor<6x1xf32> -> tensor<6x4xf32>
      %t = tt.trans %b {order = array<i32: 1, 0>} : tensor<6x4xf32> -> tensor<4x6xf32>
      %v = "tt.reduce"(%t) <{axis = 0 : i32}> ({
      ^bb0(%e: f32, %f: f32):
        %s = arith.addf %e, %f : f32
        tt.reduce.return %s : f32
      }) : (tensor<4x6xf32>) -> tensor<6xf32>
      %u = "tt.reduce"(%v) <{axis = 0 : i32}> ({
      ^bb0(%e: f32, %f: f32):
        %s = arith.addf %e, %f : f32
        tt.reduce.return %s : f32
      }) : (tensor<6xf32>) -> f32
      tt.store %p, %u : !tt.ptr<f32>
      tt.return
    }"""
    assert_expected_inline(
        after("moved-positions", text, [None, None], (1, 1, 1)),
        """\
builtin.module {
  func.func @f(%p: index, %low: f32) attributes {grid = [1 : i64]} {
    %r = tensor.generate {
    ^bb0(%i: index):
      %first = arith.constant 2 : index
      %j = arith.addi %i, %first : index
      %k = arith.index_cast %j : index to i32
      tensor.yield %k : i32
    } : tensor<6xi32>
    %x = arith.sitofp %r : tensor<6xi32> to tensor<6xf32>
    %r_1 = tensor.splat %low : tensor<6xf32>
    %l = arith.maxnumf %x, %r_1 : tensor<6xf32>
    %r_2 = arith.minnumf %l, %x : tensor<6xf32>
    %r_3 = tensor.expand_shape %r_2 [[0 : i64, 1 : i64]] output_shape [6, 1] : tensor<6xf32> into tensor<6x1xf32>
    %c = tensor.collapse_shape %r_3 [[0 : i64, 1 : i64]] : tensor<6x1xf32> into tensor<6xf32>
    %e = tensor.empty() : tensor<6x4xf32>
    %r_4 = linalg.broadcast ins(%c:tensor<6xf32>) outs(%e:tensor<6x4xf32>) dimensions = [1]
    %e_1 = tensor.empty() : tensor<4x6xf32>
    %r_5 = linalg.transpose ins(%r_4:tensor<6x4xf32>) outs(%e_1:tensor<4x6xf32>) permutation = [1, 0]
    %n = arith.constant 0.000000e+00 : f32
    %i_1 = tensor.splat %n : tensor<6xf32>
    %v = linalg.reduce ins(%r_5 : tensor<4x6xf32>) outs(%i_1 : tensor<6xf32>) dimensions = [0] (%f: f32, %e_2: f32) {
      %s = arith.addf %e_2, %f : f32
      linalg.yield %s : f32
    }
    %n_1 = arith.constant 0.000000e+00 : f32
    %i_2 = tensor.splat %n_1 : tensor<f32>
    %r_6 = linalg.reduce ins(%v : tensor<6xf32>) outs(%i_2 : tensor<f32>) dimensions = [0] (%f_1: f32, %e_3: f32) {
      %s_1 = arith.addf %e_3, %f_1 : f32
      linalg.yield %s_1 : f32
    }
    %x_1 = tensor.extract %r_6[] : tensor<f32>
    %t1 = arith.constant 0 : index
    %t2 = ktdp.construct_memory_view %p, sizes: [1], strides: [0] {coordinate_set = affine_set<(d0) : (d0 >= 0, (d0 * -1) >= 0)>, memory_space = #ktdp.memory_space<global>} : memref<1xf32>
    %t3 = ktdp.construct_access_tile %t2[%t1] {access_tile_set = affine_set<(d0) : (d0 >= 0, (d0 * -1) >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<1xf32> -> !ktdp.access_tile<1xindex>
    %t4 = tensor.splat %x_1 : tensor<1xf32>
    ktdp.store %t4, %t3 {origin = "tt.store at <test>:20:7"} : tensor<1xf32>, !ktdp.access_tile<1xindex>
    func.return
  }
}
""",
    )


def test_places_of_the_user() -> None:
    """Locations through names, calls and fused places; Triton's own library is not the user's file."""
    text = """#loc = loc("kernel.py":3:0)
tt.func public @f(%p: !tt.ptr<f32> loc("p"(#loc))) {
  %x = arith.constant 1.0 : f32 loc(#loc4)
  tt.store %p, %x : !tt.ptr<f32> loc(#loc3)
  tt.return loc(#loc)
} loc(#loc)
#loc1 = loc("/site-packages/triton/language/standard.py":9:2)
#loc2 = loc("kernel.py":7:5)
#loc3 = loc(callsite(#loc1 at #loc2))
#loc4 = loc("x"(#loc2))
"""
    ops = list(ttir_text.read(text, "<test>").walk())
    lines = {op.name: op.location.line.data for op in ops if op.name != "builtin.module"}  # type: ignore[attr-defined]
    assert lines["tt.store"] == 7 and lines["arith.constant"] == 7 and lines["func.return"] == 3


def test_unknown_operations_name_the_line() -> None:
    text = """tt.func public @f(%p: !tt.ptr<f32>) {
  %x = tt.unheard_of %p : !tt.ptr<f32> -> f32 loc("kernel.py":12:4)
  tt.return
}"""
    with pytest.raises(UnsupportedOp, match=r"^kernel.py:12:4: tt.unheard_of"):
        ttir_text.read(text, "<test>")
