# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_dialect.py: all forms of standard dialects that KTIR files use parse and print."""

from __future__ import annotations

import pytest

from torch_spyre import ktir

HEAD = """
func.func @k(%a: index, %n: index, %i: i32, %j: i32, %f: f32) attributes {grid = [4 : i64]} {
%tf = tensor.empty() : tensor<4x8xf32>
%tii = tensor.empty() : tensor<4x8xi32>
%ti = tensor.empty() : tensor<4xi32>
%t4 = tensor.empty() : tensor<4xf32>
%t3 = tensor.empty() : tensor<2x4x4xf16>
%t3f = tensor.empty() : tensor<2x4x4xf32>
%sq = tensor.empty() : tensor<4x4xf16>
%sqf = tensor.empty() : tensor<4x4xf32>
%tb = arith.constant dense<true> : tensor<4xi1>
"""

FORMS = {
    "divsi": """
        %r = arith.divsi %i, %j : i32
        %s = arith.remsi %i, %j : i32
        %u=arith.remui %n,%n : index
    """,
    "remf": """
        %r = arith.remf %tf, %tf : tensor<4x8xf32>
        %q = arith.remf %f, %f : f32
    """,
    "maxnumf": """
        %r = arith.maxnumf %tf, %tf : tensor<4x8xf32>
        %q = arith.minnumf %f, %f : f32
    """,
    "bitcast": """
        %r = arith.bitcast %tf : tensor<4x8xf32> to tensor<4x8xi32>
        %q = arith.bitcast %f : f32 to i32
    """,
    "castui": """
        %r = arith.index_castui %n : index to i32
        %s = arith.index_cast %ti : tensor<4xi32> to tensor<4xindex>
    """,
    "tensor_arith": """
        %r = arith.addi %ti, %ti : tensor<4xi32>
        %s = arith.shli %ti, %ti : tensor<4xi32>
        %t = arith.andi %ti, %ti : tensor<4xi32>
        %u = arith.xori %ti, %ti : tensor<4xi32>
    """,
    "cmp": """
        %r = arith.cmpi slt, %ti, %ti : tensor<4xi32>
        %s = arith.cmpf oeq, %tf, %tf fastmath<fast> : tensor<4x8xf32>
        %t = arith.select %r, %ti, %ti : tensor<4xi1>, tensor<4xi32>
    """,
    "select_scalar": """
        %c = arith.cmpi eq, %i, %j : i32
        %t = arith.select %c, %tf, %tf : tensor<4x8xf32>
        %u = arith.select %c, %i, %j : i32
    """,
    "fastmath": """
        %r = arith.addf %tf, %tf fastmath<fast> : tensor<4x8xf32>
        %s = math.exp %tf fastmath<fast> : tensor<4x8xf32>
        %o = arith.addi %i, %j overflow<nsw> : i32
    """,
    "math": "\n".join(
        f"%r{name} = math.{name} %tf : tensor<4x8xf32>"
        for name in (
            "absf acos acosh asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 floor log log10 log1p log2 "
            "round roundeven rsqrt sin sinh sqrt tan tanh trunc"
        ).split()
    ),
    "math2": """
        %a2 = math.atan2 %tf, %tf : tensor<4x8xf32>
        %p = math.powf %tf, %tf : tensor<4x8xf32>
        %q = math.fma %tf, %tf, %tf : tensor<4x8xf32>
        %c = math.copysign %tf, %tf : tensor<4x8xf32>
        %pp = math.fpowi %tf, %tii : tensor<4x8xf32>, tensor<4x8xi32>
        %ab = math.absi %ti : tensor<4xi32>
    """,
    "forall": """
        scf.forall (%x, %y) in (4, 8) {
        %z = arith.addi %x, %y : index
        }
    """,
    "forall2": """
        scf.forall (%x, %y) = (0, 0) to (%n, 8) step (1, 2) {
        %z = arith.addi %x, %y : index
        scf.forall.in_parallel {}
        }
    """,
    "forall3": """
        %r = scf.forall (%x) in (4) shared_outs(%o = %tf) -> (tensor<4x8xf32>) {
        %s = tensor.extract_slice %o[%x, 0][1, 8][1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
        scf.forall.in_parallel {
        tensor.parallel_insert_slice %s into %o[%x, 0][1, 8][1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
        }
        }
    """,
    "parallel": """
        scf.parallel (%x, %y) = (%n, %n) to (%n, %n) step (%n, %n) {
        %z = arith.addi %x, %y : index
        scf.reduce
        }
    """,
    "parallel0": """
        scf.parallel (%x) = (%n) to (%n) step (%n) {
        %z = arith.addi %x, %x : index
        }
    """,
    "parallel_red": """
        %r = scf.parallel (%x) = (%n) to (%n) step (%n) init (%f) -> f32 {
        scf.reduce(%f : f32) {
        ^bb0(%lhs: f32, %rhs: f32):
        %s = arith.addf %lhs, %rhs : f32
        scf.reduce.return %s : f32
        }
        }
    """,
    "parallel_red2": """
        %r = scf.parallel (%x) = (%n) to (%n) step (%n) init (%tf) -> tensor<4x8xf32> {
        scf.reduce(%tf : tensor<4x8xf32>) {
        ^bb0(%lhs: tensor<4x8xf32>, %rhs: tensor<4x8xf32>):
        %s = arith.addf %lhs, %rhs : tensor<4x8xf32>
        scf.reduce.return %s : tensor<4x8xf32>
        }
        }
    """,
    "if": """
        %c = arith.cmpi eq, %i, %j : i32
        %t = scf.if %c -> (tensor<4x8xf32>) {
        scf.yield %tf : tensor<4x8xf32>
        } else {
        scf.yield %tf : tensor<4x8xf32>
        }
    """,
    "if2": """
        %c = arith.cmpi eq, %i, %j : i32
        %t = scf.if %c -> tensor<4x8xf32> {
        scf.yield %tf : tensor<4x8xf32>
        } else {
        scf.yield %tf : tensor<4x8xf32>
        }
    """,
    "if3": """
        %c = arith.cmpi eq, %i, %j : i32
        scf.if %c {
        %z = arith.addi %i, %i : i32
        }
    """,
    "for_i32": """
        scf.for %x = %i to %j step %i : i32 {
        %z = arith.addi %x, %x : i32
        }
    """,
    "for_i32_iter": """
        %r = scf.for %x = %i to %j step %i iter_args(%a0 = %tf) -> (tensor<4x8xf32>) : i32 {
        scf.yield %a0 : tensor<4x8xf32>
        }
    """,
    "for_iter": """
        %r:2 = scf.for %x = %n to %n step %n iter_args(%a0 = %tf, %b0 = %f) -> (tensor<4x8xf32>, f32) {
        scf.yield %a0, %b0 : tensor<4x8xf32>, f32
        }
    """,
    "for_attr": """
        scf.for %x = %n to %n step %n {
        %z = arith.addi %x, %x : index
        } {tt.num_stages = 2 : i32}
    """,
    "reduce_short": """
        %r = linalg.reduce { arith.addf } ins(%tf : tensor<4x8xf32>) outs(%t4 : tensor<4xf32>) dimensions = [1]
    """,
    "reduce_short_t": """
        %r = linalg.reduce { arith.addf } ins(%tf : tensor<4x8xf32>) outs(%t4 : tensor<4xf32>) dimensions = [1]
          -> tensor<4xf32>
    """,
    "reduce_short_c": """
        %r = linalg.reduce { arith.addf } ins(%tf : tensor<4x8xf32>) outs(%t4 : tensor<4xf32>) dimensions = [1]
          : tensor<4xf32>
    """,
    "reduce_multi": """
        %r:2 = linalg.reduce ins(%tf, %tii : tensor<4x8xf32>, tensor<4x8xi32>) outs(%t4, %ti : tensor<4xf32>,
          tensor<4xi32>) dimensions = [1]
        (%a0: f32, %a1: i32, %b0: f32, %b1: i32) {
        %c = arith.cmpf ogt, %a0, %b0 : f32
        %x = arith.select %c, %a0, %b0 : f32
        %y = arith.select %c, %a1, %b1 : i32
        linalg.yield %x, %y : f32, i32
        }
    """,
    "reduce_multi_paren": """
        %r:2 = linalg.reduce ins(%tf, %tii : tensor<4x8xf32>, tensor<4x8xi32>) outs(%t4, %ti : tensor<4xf32>,
          tensor<4xi32>) dimensions = [1]
        (%a0: f32, %a1: i32, %b0: f32, %b1: i32) {
        linalg.yield %a0, %a1 : f32, i32
        }
        -> (tensor<4xf32>, tensor<4xi32>)
    """,
    "reduce_attr": """
        %r = linalg.reduce ins(%tf : tensor<4x8xf32>) outs(%t4 : tensor<4xf32>) dimensions = [1] {origin = "x"}
          (%a0: f32, %b0: f32) {
        linalg.yield %a0 : f32
        }
    """,
    "reduce_fm": """
        %r = linalg.reduce { arith.addf {fastmath = #arith.fastmath<fast>} } ins(%tf : tensor<4x8xf32>)
          outs(%t4 : tensor<4xf32>) dimensions = [1]
    """,
    "bmm": """
        %r = linalg.batch_matmul ins(%t3, %t3 : tensor<2x4x4xf16>, tensor<2x4x4xf16>) outs(%t3f :
          tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
    """,
    "mm_attr": """
        %r = linalg.matmul {cast = #linalg.type_fn<cast_signed>} ins(%sq, %sq : tensor<4x4xf16>,
          tensor<4x4xf16>) outs(%sqf : tensor<4x4xf32>) -> tensor<4x4xf32>
    """,
    "mm_maps": """
        %r = linalg.matmul indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) ->
          (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>] ins(%sq, %sq : tensor<4x4xf16>, tensor<4x4xf16>)
          outs(%sqf : tensor<4x4xf32>) -> tensor<4x4xf32>
    """,
    "mm_tb": """
        %r = linalg.matmul_transpose_b ins(%sq, %sq : tensor<4x4xf16>, tensor<4x4xf16>) outs(%sqf :
          tensor<4x4xf32>) -> tensor<4x4xf32>
    """,
    "mm_ta": """
        %r = linalg.matmul_transpose_a ins(%sq, %sq : tensor<4x4xf16>, tensor<4x4xf16>) outs(%sqf :
          tensor<4x4xf32>) -> tensor<4x4xf32>
    """,
    "bmm_tb": """
        %r = linalg.batch_matmul_transpose_b ins(%t3, %t3 : tensor<2x4x4xf16>, tensor<2x4x4xf16>) outs(%t3f :
          tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
    """,
    "matvec": """
        %r = linalg.matvec ins(%sqf, %t4 : tensor<4x4xf32>, tensor<4xf32>) outs(%t4 : tensor<4xf32>) ->
          tensor<4xf32>
    """,
    "vecmat": """
        %r = linalg.vecmat ins(%t4, %sqf : tensor<4xf32>, tensor<4x4xf32>) outs(%t4 : tensor<4xf32>) ->
          tensor<4xf32>
    """,
    "dot": """
        %e = tensor.empty() : tensor<f32>
        %r = linalg.dot ins(%t4, %t4 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<f32>) -> tensor<f32>
    """,
    "named": "\n".join(
        f"%r{name} = linalg.{name} ins(%tf, %tf : tensor<4x8xf32>, tensor<4x8xf32>) "
        "outs(%tf : tensor<4x8xf32>) -> tensor<4x8xf32>"
        for name in "add sub mul div max min powf".split()
    ),
    "named_u": """
        %r = linalg.div_unsigned ins(%ti, %ti : tensor<4xi32>, tensor<4xi32>) outs(%ti : tensor<4xi32>) ->
          tensor<4xi32>
    """,
    "named1": "\n".join(
        f"%r{name} = linalg.{name} ins(%tf : tensor<4x8xf32>) outs(%tf : tensor<4x8xf32>) -> tensor<4x8xf32>"
        for name in "exp log abs ceil floor negf reciprocal round sqrt rsqrt square tanh erf".split()
    ),
    "named3": """
        %c = arith.cmpf ogt, %tf, %tf : tensor<4x8xf32>
        %r = linalg.select ins(%c, %tf, %tf : tensor<4x8xi1>, tensor<4x8xf32>, tensor<4x8xf32>) outs(%tf :
          tensor<4x8xf32>) -> tensor<4x8xf32>
    """,
    "copy": """
        %r = linalg.copy ins(%tf : tensor<4x8xf32>) outs(%tf : tensor<4x8xf32>) -> tensor<4x8xf32>
    """,
    "fill": """
        %r = linalg.fill ins(%f : f32) outs(%tf : tensor<4x8xf32>) -> tensor<4x8xf32>
    """,
    "broadcast": """
        %r = linalg.broadcast ins(%t4 : tensor<4xf32>) outs(%tf : tensor<4x8xf32>) dimensions = [1]
    """,
    "transpose": """
        %e = tensor.empty() : tensor<8x4xf32>
        %r = linalg.transpose ins(%tf : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
    """,
    "map": """
        %r = linalg.map { arith.addf } ins(%tf, %tf : tensor<4x8xf32>, tensor<4x8xf32>) outs(%tf :
          tensor<4x8xf32>)
    """,
    "map2": """
        %r = linalg.map ins(%tf, %tf : tensor<4x8xf32>, tensor<4x8xf32>) outs(%tf : tensor<4x8xf32>)
        (%a0: f32, %b0: f32) {
        %s = arith.addf %a0, %b0 : f32
        linalg.yield %s : f32
        }
    """,
    "map3": """
        %r = linalg.map ins(%tf, %tf : tensor<4x8xf32>, tensor<4x8xf32>) outs(%tf : tensor<4x8xf32>)
        (%a0: f32, %b0: f32, %o: f32) {
        %s = arith.addf %a0, %b0 : f32
        linalg.yield %s : f32
        }
    """,
    "generic": """
        %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0,
          d1)>], iterator_types = ["parallel", "parallel"]} ins(%tf : tensor<4x8xf32>) outs(%tf :
          tensor<4x8xf32>) {
        ^bb0(%a0: f32, %b0: f32):
        %x = linalg.index 0 : index
        %y = arith.index_cast %x : index to i32
        %z = arith.sitofp %y : i32 to f32
        linalg.yield %z : f32
        } -> tensor<4x8xf32>
    """,
    "generic_noin": """
        %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel",
          "parallel"]} outs(%tf : tensor<4x8xf32>) {
        ^bb0(%b0: f32):
        linalg.yield %b0 : f32
        } -> tensor<4x8xf32>
    """,
    "generic_attrs": """
        %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel",
          "parallel"]} outs(%tf : tensor<4x8xf32>) attrs = {origin = "x"} {
        ^bb0(%b0: f32):
        linalg.yield %b0 : f32
        } -> tensor<4x8xf32>
    """,
    "treshape": """
        %sh = arith.constant dense<[8, 4]> : tensor<2xi64>
        %r = tensor.reshape %tf(%sh) : (tensor<4x8xf32>, tensor<2xi64>) -> tensor<8x4xf32>
    """,
    "treshape32": """
        %sh = arith.constant dense<[8, 4]> : tensor<2xi32>
        %r = tensor.reshape %tf(%sh) : (tensor<4x8xf32>, tensor<2xi32>) -> tensor<8x4xf32>
    """,
    "treshapeix": """
        %sh = arith.constant dense<[8, 4]> : tensor<2xindex>
        %r = tensor.reshape %tf(%sh) : (tensor<4x8xf32>, tensor<2xindex>) -> tensor<8x4xf32>
    """,
    "insert_slice": """
        %s = tensor.empty() : tensor<1x8xf32>
        %r = tensor.insert_slice %s into %tf[%n, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    """,
    "extract_slice": """
        %r = tensor.extract_slice %tf[%n, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
        %s = tensor.extract_slice %tf[1, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<8xf32>
        %t = tensor.extract_slice %tf[1, 0] [%n, 8] [1, 1] : tensor<4x8xf32> to tensor<?x8xf32>
    """,
    "generate": """
        %r = tensor.generate {
        ^bb0(%x: index, %y: index):
        tensor.yield %f : f32
        } : tensor<4x8xf32>
    """,
    "generate_dyn": """
        %r = tensor.generate %n {
        ^bb0(%x: index, %y: index):
        tensor.yield %f : f32
        } : tensor<?x8xf32>
    """,
    "expand": """
        %r = tensor.expand_shape %tf [[0, 1], [2]] output_shape [2, 2, 8] : tensor<4x8xf32> into
          tensor<2x2x8xf32>
    """,
    "expand_old": """
        %r = tensor.expand_shape %tf [[0, 1], [2]] : tensor<4x8xf32> into tensor<2x2x8xf32>
    """,
    "collapse": """
        %r = tensor.collapse_shape %tf [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>
        %one = tensor.empty() : tensor<1xf32>
        %s = tensor.collapse_shape %one [] : tensor<1xf32> into tensor<f32>
        %t = tensor.expand_shape %s [] output_shape [1, 1] : tensor<f32> into tensor<1x1xf32>
    """,
    "extract": """
        %r = tensor.extract %tf[%n, %n] : tensor<4x8xf32>
        %e = tensor.empty() : tensor<f32>
        %s = tensor.extract %e[] : tensor<f32>
    """,
    "insert": """
        %r = tensor.insert %f into %tf[%n, %n] : tensor<4x8xf32>
    """,
    "splat": """
        %r = tensor.splat %f : tensor<4x8xf32>
        %s = tensor.splat %f[%n] : tensor<?x8xf32>
    """,
    "from_elements": """
        %r = tensor.from_elements %f, %f : tensor<2xf32>
        %s = tensor.from_elements %f : tensor<f32>
    """,
    "tcast": """
        %r = tensor.cast %tf : tensor<4x8xf32> to tensor<?x8xf32>
    """,
    "tdim": """
        %d = tensor.dim %tf, %n : tensor<4x8xf32>
    """,
    "concat": """
        %r = tensor.concat dim(0) %tf, %tf : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    """,
    "pad": """
        %r = tensor.pad %tf low[0, 0] high[1, %n] {
        ^bb0(%x: index, %y: index):
        tensor.yield %f : f32
        } : tensor<4x8xf32> to tensor<5x?xf32>
    """,
    "empty_dyn": """
        %r = tensor.empty(%n) : tensor<?x8xf32>
    """,
    "si32view": """
        %v = ktdp.construct_memory_view %n, sizes: [4], strides: [1] {memory_space =
          #ktdp.memory_space<global>} : memref<4xsi32>
        %t = ktdp.construct_access_tile %v[0] {access_tile_set = affine_set<(d0) : (d0 >= 0, 3 - d0 >= 0)>,
          access_tile_order = affine_map<(d0) -> (d0)>} : memref<4xsi32> -> <4xindex>
        %x = ktdp.load %t : <4xindex> -> tensor<4xi32>
    """,
    "subview": """
        %v = ktdp.construct_memory_view %n, sizes: [4, 8], strides: [8, 1] {memory_space =
          #ktdp.memory_space<global>} : memref<4x8xf16>
        %s = memref.subview %v[1, 0] [2, 8] [1, 1] : memref<4x8xf16> to memref<2x8xf16, strided<[8, 1], offset:
          8>>
    """,
    "subview_dyn": """
        %v = ktdp.construct_memory_view %n, sizes: [4, 8], strides: [8, 1] {memory_space =
          #ktdp.memory_space<global>} : memref<4x8xf16>
        %s = memref.subview %v[%n, 0] [2, 8] [1, 1] : memref<4x8xf16> to memref<2x8xf16, strided<[8, 1],
          offset: ?>>
    """,
    "densehex": """
        %c = arith.constant dense<0xFF800000> : tensor<4xf32>
        %d = arith.constant 0xFF800000 : f32
        %e = arith.constant 0x7C00 : f16
        %g = arith.constant dense<[1.0, -2.5]> : tensor<2xf16>
        %h = arith.constant dense<true> : tensor<4xi1>
        %k = arith.constant true
        %m = arith.constant -1 : i32
        %o = arith.constant dense<"0x0000803F0000803F"> : tensor<2xf32>
    """,
    "constint": """
        %c = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>
        %d = arith.constant 5 : i64
        %e = arith.constant 1.5 : bf16
    """,
    "spyreop": """
        %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
          iterator_types = ["parallel"]} ins(%t4 : tensor<4xf32>) outs(%t4 : tensor<4xf32>) {
        ^bb0(%a0: f32, %b0: f32):
        %x = spyreop.gelu %a0 : f32
        linalg.yield %x : f32
        } -> tensor<4xf32>
    """,
    "spyreop as a function": """
        %e = arith.constant 1.0 : f16
        %x = spyreop.realdiv %e, %e : (f16, f16) -> f16
        %y = spyreop.exp %e : (f16) -> f16
        %z = spyreop.addi32toi32 %i, %j : i32, i32 -> i32
    """,
    "spyre_df16": """
        %e = tensor.empty() : tensor<4x!spyreop.df16>
    """,
    "scan": """
        %r = spyreop.scan %tf {dimension = 1 : i64, kind = "sum"} : tensor<4x8xf32> -> tensor<4x8xf32>
    """,
    "argred": """
        %i0, %v0 = spyreop.arg_reduce %tf {dimension = 1 : i64, kind = "max"} : tensor<4x8xf32> ->
          (tensor<4xi32>, tensor<4xf32>)
    """,
    "sort": """
        %v0, %i0 = spyreop.sort %tf {dimension = 1 : i64, descending = true, stable = false, k = 3 : i64} :
          tensor<4x8xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
    """,
    "store_acc": """
        %v = ktdp.construct_memory_view %n, sizes: [4], strides: [1] {memory_space =
          #ktdp.memory_space<global>} : memref<4xf32>
        %t = ktdp.construct_access_tile %v[0] {access_tile_set = affine_set<(d0) : (d0 >= 0, 3 - d0 >= 0)>,
          access_tile_order = affine_map<(d0) -> (d0)>} : memref<4xf32> -> <4xindex>
        ktdp.store %t4, %t {accumulate} : tensor<4xf32>, <4xindex>
    """,
    "trunc": """
        %a1 = arith.truncf %tf : tensor<4x8xf32> to tensor<4x8xf16>
        %b = arith.extf %a1 : tensor<4x8xf16> to tensor<4x8xf32>
        %c = arith.fptosi %tf : tensor<4x8xf32> to tensor<4x8xi32>
        %d = arith.sitofp %c : tensor<4x8xi32> to tensor<4x8xf16>
        %e = arith.extui %tb : tensor<4xi1> to tensor<4xi32>
        %g = arith.trunci %c : tensor<4x8xi32> to tensor<4x8xi8>
        %h = arith.extsi %c : tensor<4x8xi32> to tensor<4x8xi64>
        %z = arith.truncf %f to_nearest_even : f32 to f16
    """,
    "scan64": """
        %g, %h = arith.mulsi_extended %i, %j : i32
        %cd = arith.ceildivsi %n, %n : index
        %k = arith.shrsi %i, %j : i32
        %kk=arith.shrui %i, %j : i32
    """,
    "assert_etc": """
        %p = arith.negf %tf : tensor<4x8xf32>
        %q = arith.minimumf %tf, %tf : tensor<4x8xf32>
        %s = arith.mulf %tf, %tf : tensor<4x8xf32>
    """,
    "memref_dim": """
        %v = ktdp.construct_memory_view %n, sizes: [4], strides: [1] {memory_space =
          #ktdp.memory_space<global>} : memref<4xf32>
        %d = memref.dim %v, %n : memref<4xf32>
    """,
    "empty_like": """
        %x = tensor.empty() {a = 1 : i64} : tensor<4xf32>
    """,
}


def round_trip(body: str) -> str:
    """Print, parse again, print again: nothing changes."""
    module = ktir.parse(f"{HEAD}{body}\nreturn\n}}\n")
    printed = ktir.print_module(module)
    again = ktir.parse(printed)
    assert module.is_structurally_equivalent(again)
    assert ktir.print_module(again) == printed
    return printed


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    round_trip(FORMS[name])
