# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_text.py: KTIR parses in every spelling, prints in one, and broken modules say why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_spyre import ktir
from torch_spyre.errors import InvalidArgument, InvalidProgram

PRELUDE = """
#box = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
"""

VIEW = (
    "%v = ktdp.construct_memory_view %a, sizes: [64, 128], strides: [128, 1] "
    "{coordinate_set = #box, memory_space = #ktdp.memory_space<global>} : memref<64x128xf16>"
)


def in_function(body: str, args: str = "%a: index, %n: index") -> str:
    return f"{PRELUDE}\nfunc.func @k({args}) attributes {{grid = [4]}} {{\n{body}\nreturn\n}}\n"


def round_trip(text: str) -> str:
    """Print, parse again, print again: nothing changes."""
    module = ktir.parse(text)
    printed = ktir.print_module(module)
    again = ktir.parse(printed)
    assert ktir.print_module(again) == printed
    assert module.is_structurally_equivalent(again)
    return printed


def test_direct_tile_with_elided_types() -> None:
    printed = round_trip(
        in_function(
            f"""
            %id = ktdp.get_compute_tile_id : index
            %c16 = arith.constant 16 : index
            %off = arith.muli %id, %c16 : index
            {VIEW}
            %t = ktdp.construct_access_tile %v[2 * %off + %n, 0] {{access_tile_set = #tile, access_tile_order = #order}}
              : memref<64x128xf16> -> <16x128xindex>
            %x = ktdp.load %t : <16x128xindex> -> tensor<16x128xf16>
            ktdp.store %x, %t : tensor<16x128xf16>, <16x128xindex>
            """
        )
    )
    assert "%v[(%off * 2) + %n, 0]" in printed
    assert "ktdp.load %t : !ktdp.access_tile<16x128xindex> -> tensor<16x128xf16>" in printed


def test_older_memory_space_is_normalised() -> None:
    printed = round_trip(
        in_function(
            """
            %v = ktdp.construct_memory_view %a, sizes: [64], strides: [1] {memory_space = #ktdp.spyre_memory_space<HBM>}
              : memref<64xf16>
            %w = ktdp.construct_memory_view %a, sizes: [64], strides: [1]
              {memory_space = #ktdp.spyre_memory_space<LX, core = 3>}
              : memref<64xf16, #ktdp.spyre_memory_space<LX, core = 3>>
            """
        )
    )
    assert "memory_space = #ktdp.memory_space<global>" in printed
    assert "memref<64xf16, #ktdp.memory_space<ct_local, ct_id = 3>>" in printed
    assert "spyre_memory_space" not in printed


def test_missing_coordinate_set_is_the_full_box() -> None:
    text = in_function(
        "%v = ktdp.construct_memory_view %a, sizes: [%n, 8], strides: [8, 1] "
        "{memory_space = #ktdp.memory_space<ct_local>} : memref<?x8xf16>"
    )
    assert "affine_set<(d0, d1)[s0] : (d0 >= 0, ((d0 * -1) + (s0 + -1)) >= 0" in round_trip(text)


def test_indirect_tile_captures_in_order_of_first_use() -> None:
    printed = round_trip(
        in_function(
            f"""
            {VIEW}
            %i = ktdp.construct_memory_view %n, sizes: [64], strides: [1] {{memory_space = #ktdp.memory_space<global>}}
              : memref<64xi32>
            %t = ktdp.construct_indirect_access_tile intermediate_variables(%m, %k)
              %v[ind(%i[%n + %m]), ((%a + %k) mod 64)] symbols(%n)
              {{variables_space_set = affine_set<(d0, d1)[s0] : (d0 >= 0, s0 - d0 - 1 >= 0, d1 >= 0, -d1 + 127 >= 0)>,
                variables_space_order = #order}} : memref<64x128xf16>, memref<64xi32> -> <?x128xindex>
            %x = ktdp.load %t : <?x128xindex> -> tensor<?x128xf16>
            """
        )
    )
    assert "intermediate_variables(%m, %k) %v[ind(%i[%n + %m]), ((%a + %k) mod 64)] symbols(%n)" in printed


def test_indirect_tile_attributes() -> None:
    from torch_spyre.ir.ktir.dialect.context import ConstructIndirectAccessTileOp

    module = ktir.parse(
        in_function(
            f"""
            {VIEW}
            %t = ktdp.construct_indirect_access_tile intermediate_variables(%m, %k) %v[(%m), (%n + %k)]
              {{variables_space_set = #tile, variables_space_order = #order}} : memref<64x128xf16> -> <16x128xindex>
            """
        )
    )
    (tile,) = (op for op in module.walk() if isinstance(op, ConstructIndirectAccessTileOp))
    assert [v.name_hint for v in tile.captured] == ["n"]
    assert [v.name_hint for v in tile.variables] == ["m", "k"]
    assert tile.is_indirect == (False, False)
    # maps over captured ++ variables: (n, m, k)
    assert [m.data.eval([100, 20, 3], []) for m in tile.per_dim_subscript_maps.data] == [(20,), (103,)]


def test_tile_without_variables() -> None:
    round_trip(
        in_function(
            f"""
            {VIEW}
            %t = ktdp.construct_indirect_access_tile intermediate_variables() %v[(%n), (3)]
              {{variables_space_set = affine_set<() : ()>, variables_space_order = affine_map<() -> ()>}}
              : memref<64x128xf16> -> <index>
            %x = ktdp.load %t : <index> -> tensor<f16>
            """
        )
    )


PRODUCE_REDUCE = """
  %zero = arith.constant dense<0.0> : tensor<16xf32>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : ((i - g) mod 2 == 0)>
    {colon}-> {future} {{
  ^bb0(%g: index):
    ktdp.yield_partial %zero : tensor<16xf32>
  }}
  %r = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = affine_set<(i)[g] : (i - g == 0)>,{dependency}
    identity(%zero : tensor<16xf32>) : {future} -> tensor<16xf32> {{
  ^bb0(%x: tensor<16xf32>, %y: tensor<16xf32>):
    %s = arith.addf %x, %y : tensor<16xf32>
    ktdp.yield_reduced %s : tensor<16xf32>
  }}
"""


@pytest.mark.parametrize(
    ("colon", "future", "dependency"),
    [
        ("", "!ktdp.tile_future<(tensor<16xf32>), groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>", ""),
        ("", "<(tensor<16xf32>), groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>", ""),
        (": tensor<16xf32> ", "!ktdp.tile_future<tensor<16xf32>, groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>", ""),
        (
            "",
            "<(tensor<16xf32>), groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>",
            " producer_dependency_per_consumer = affine_set<(p)[c] : ((p - c) mod 2 == 0)>,",
        ),
    ],
)
def test_inter_tile_reduce(colon: str, future: str, dependency: str) -> None:
    printed = round_trip(in_function(PRODUCE_REDUCE.format(colon=colon, future=future, dependency=dependency)))
    assert "-> !ktdp.tile_future<(tensor<16xf32>), groups = " in printed
    assert ("producer_dependency_per_consumer" in printed) == bool(dependency)


def test_inter_tile_consume_and_distributed_view() -> None:
    round_trip(
        in_function(
            """
            %zero = arith.constant dense<0.0> : tensor<16xf16>
            %f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : (i == 0)>
              -> <(tensor<16xf16>), groups = affine_set<(g) : (g == 0)>> {
            ^bb0(%g: index):
              ktdp.yield_partial %zero : tensor<16xf16>
            }
            %x = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = affine_set<(i)[g] : (i >= 0, 3 - i >= 0)>
              : <(tensor<16xf16>), groups = affine_set<(g) : (g == 0)>> -> tensor<16xf16>
            %p = ktdp.construct_memory_view %a, sizes: [8], strides: [1]
              {coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 7 >= 0)>,
               memory_space = #ktdp.memory_space<ct_local, ct_id = 0>} : memref<8xf16>
            %q = ktdp.construct_memory_view %a, sizes: [8], strides: [1]
              {coordinate_set = affine_set<(d0) : (d0 - 8 >= 0, -d0 + 15 >= 0)>,
               memory_space = #ktdp.memory_space<ct_local, ct_id = 1>} : memref<8xf16>
            %d = ktdp.construct_distributed_memory_view (%p, %q : memref<8xf16>, memref<8xf16>) : memref<16xf16>
            """
        )
    )


def test_runtime_arg() -> None:
    printed = round_trip(
        in_function(
            """
            %n = ktdp.runtime_arg_extract value from %r : !ktdp.runtime_arg<i32, upperbound = 8, granularity = 2> -> i32
            %g = ktdp.runtime_arg_extract granularity from %r
              : !ktdp.runtime_arg<i32, upperbound = 8, granularity = 2> -> index
            """,
            args="%r: !ktdp.runtime_arg<i32, upperbound = 8, granularity = 2>",
        )
    )
    assert "!ktdp.runtime_arg<i32, granularity = 2, upperbound = 8>" in printed


def test_standard_ops_that_xdsl_lacks() -> None:
    printed = round_trip(
        in_function(
            """
            %x = tensor.empty() : tensor<4x8xf16>
            %y = tensor.empty() : tensor<8x2xf16>
            %c = arith.constant dense<0.0> : tensor<4x2xf32>
            %m = linalg.matmul ins(%x, %y : tensor<4x8xf16>, tensor<8x2xf16>)
              outs(%c : tensor<4x2xf32>) -> tensor<4x2xf32>
            %bx = tensor.empty() : tensor<3x4x8xf16>
            %by = tensor.empty() : tensor<3x8x2xf16>
            %bc = tensor.empty() : tensor<3x4x2xf32>
            %bm = linalg.batch_matmul ins(%bx, %by : tensor<3x4x8xf16>, tensor<3x8x2xf16>)
              outs(%bc : tensor<3x4x2xf32>) -> tensor<3x4x2xf32>
            %low = arith.constant dense<0xFF800000> : tensor<4xf32>
            %s = linalg.reduce { arith.maximumf } ins(%m : tensor<4x2xf32>) outs(%low : tensor<4xf32>) dimensions = [1]
            %l = linalg.reduce ins(%m : tensor<4x2xf32>) outs(%low : tensor<4xf32>) dimensions = [1]
              (%in: f32, %out: f32) {
                %e = math.exp %in : f32
                %t = arith.addf %e, %out : f32
                linalg.yield %t : f32
              }
            %truth = arith.cmpf ogt, %s, %l : tensor<4xf32>
            %number = arith.uitofp %truth : tensor<4xi1> to tensor<4xf16>
            %chosen = arith.select %truth, %s, %l : tensor<4xi1>, tensor<4xf32>
            %zero = arith.constant 0 : index
            %one = arith.constant 1 : index
            %sum = scf.for %i = %zero to %n step %one iter_args(%acc = %s) -> tensor<4xf32> {
              %next = arith.addf %acc, %l : tensor<4xf32>
              scf.yield %next : tensor<4xf32>
            }
            %out16 = tensor.empty() : tensor<4xf16>
            %sig = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                                   iterator_types = ["parallel"]}
              ins(%number : tensor<4xf16>) outs(%out16 : tensor<4xf16>) {
            ^bb0(%in: f16, %o: f16):
              %v = spyreop.sigmoid %in : f16
              linalg.yield %v : f16
            } -> tensor<4xf16>
            """
        )
    )
    assert "dense<0xff800000> : tensor<4xf32>" in printed  # minus infinity, by its bits
    assert "linalg.reduce { arith.maximumf } ins(%m" in printed


def test_aliases_after_use_and_locations() -> None:
    text = """
    module {
      func.func @k(%a: index loc("k.py":1:2)) attributes {grid = [4 : index]} {
        %v = ktdp.construct_memory_view %a, sizes: [64], strides: [1]
          {coordinate_set = #set, memory_space = #ktdp.memory_space<global>} : memref<64xf16> loc(#loc1)
        return loc(#loc)
      } loc(#loc)
    } loc(#loc)
#set = affine_set<(d0) : (d0 >= 0, 63 - d0 >= 0)>
#loc = loc("k.py":0:0)
#loc1 = loc("view (first)"(#loc))
"""
    assert "loc(" not in round_trip(text)


BROKEN = [
    (VIEW.replace("strides: [128, 1]", "strides: [1]"), "2 sizes and 1 strides for a view of rank 2"),
    (VIEW.replace("sizes: [64, 128]", "sizes: [64, 64]"), "size of dim 1 is 64, the view says 128"),
    (VIEW.replace("<global>", "<global, ct_id = 1>"), "ct_id is only allowed together with ct_local"),
    (VIEW.replace("<global>", "<nowhere>"), "memory space must be one of global, ct_local"),
    (
        f"{VIEW}\n%t = ktdp.construct_access_tile %v[%n] {{access_tile_set = #tile, access_tile_order = #order}} "
        ": memref<64x128xf16> -> <16x128xindex>",
        "1 subscripts but access_tile_set has 2 dims",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_access_tile %v[%n, 0] symbols(%n) "
        "{access_tile_set = #tile, access_tile_order = #order} : memref<64x128xf16> -> <16x128xindex>",
        "access_tile_set has 0 symbols but there are 1 symbol operands",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_access_tile %v[%n, 0] {{access_tile_set = #tile, access_tile_order = #order}} "
        ": memref<64x128xf16> -> <16x128xi32>",
        "the element type must be index",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_access_tile %v[%n, 0] {{access_tile_set = #tile, access_tile_order = #order}} "
        ": memref<64x128xf16> -> <16x128xindex>\n%x = ktdp.load %t : <16x128xindex> -> tensor<16x64xf16>",
        "differ in shape",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_access_tile %v[%n, 0] {{access_tile_set = #tile, access_tile_order = #order}} "
        ": memref<64x128xf16> -> <16x128xindex>\n%x = ktdp.load %t : <16x128xindex> -> tensor<16x128xf32>",
        "the view holds f16, the tensor f32",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_indirect_access_tile intermediate_variables(%m) %v[(%m), (%n)] "
        "{variables_space_set = #tile, variables_space_order = #order} : memref<64x128xf16> -> <16x128xindex>",
        "variables_space_set has 2 dims for 1 intermediate variables",
    ),
    (
        f"{VIEW}\n%t = ktdp.construct_indirect_access_tile intermediate_variables(%m, %k) %v[(%m)] "
        "{variables_space_set = #tile, variables_space_order = #order} : memref<64x128xf16> -> <16x128xindex>",
        "1 subscripts for a base of rank 2",
    ),
    (
        PRODUCE_REDUCE.format(
            colon="", dependency="", future="<(tensor<8xf32>), groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>"
        ),
        "yield_partial gives tensor<16xf32>, expected tensor<8xf32>",
    ),
    (
        PRODUCE_REDUCE.format(
            colon="", dependency="", future="<(tensor<16xf32>), groups = affine_set<(g)[s] : (g - s >= 0)>>"
        ),
        "groups must have one dim and no symbols",
    ),
    (
        PRODUCE_REDUCE.split("%r =")[0].format(
            colon="", future="<(tensor<16xf32>), groups = affine_set<(g) : (g == 0)>>"
        ),
        "used exactly once (R2)",
    ),
    (
        "%x = tensor.empty() : tensor<4x8xf16>\n%c = tensor.empty() : tensor<4x4xf32>\n%m = linalg.matmul "
        "ins(%x, %x : tensor<4x8xf16>, tensor<4x8xf16>) outs(%c : tensor<4x4xf32>) -> tensor<4x4xf32>",
        "do not agree",
    ),
]


@pytest.mark.parametrize(("body", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_broken_modules_name_the_rule(body: str, message: str) -> None:
    with pytest.raises(InvalidProgram) as error:
        ktir.parse(in_function(body))
    assert message in str(error.value)


def test_importing_the_package_does_not_import_xdsl() -> None:
    code = (
        "import sys, torch_spyre.ktir; from torch_spyre.ir.plan import barriers, tileops; import torch_spyre.optable; "
        "sys.exit(any(m.startswith('xdsl') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=1500).returncode == 0


# Text of any depth and files of any kind


def nested_loops(depth: int) -> str:
    heads = "".join(f"scf.for %i{i} = %c0 to %c2 step %c1 {{\n" for i in range(depth))
    constants = "".join(f"%c{i} = arith.constant {i} : index\n" for i in range(3))
    return in_function(constants + heads + "}\n" * depth)


def long_scalar(steps: int) -> str:
    sums = "".join(f"%s{i + 1} = arith.addi %s{i}, %n : index\n" for i in range(steps))
    view = VIEW.replace("%v =", "%w =").replace("%a", f"%s{steps}")
    return in_function(f"%s0 = arith.constant 0 : index\n{sums}{view}")


DEEP = {
    "loops": nested_loops(5000),
    "loops that parse": nested_loops(80),
    "scalar": long_scalar(3000),
    "parentheses": f"#m = affine_map<(d0) -> ({'(' * 3000}d0{')' * 3000})>\n{in_function(VIEW)}",
    "attribute": in_function(VIEW).replace("grid = [4]", f"grid = [4], x = {'[' * 5000}{']' * 5000}"),
    "type": in_function(VIEW).replace("%n: index", f"%n: {'tuple<' * 4000}index{'>' * 4000}"),
    "aliases": "".join(f"#a{i} = [#a{i + 1}]\n" for i in range(3000))
    + f"#a3000 = 1 : i32\n{in_function(VIEW).replace('grid = [4]', 'grid = [4], x = #a0')}",
}


@pytest.mark.parametrize("kind", DEEP)
def test_depth_has_a_named_end(kind: str) -> None:
    with pytest.raises(InvalidProgram):
        ktir.load(DEEP[kind]).compile()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.mlir")
    for path in (tmp_path / "fifo.mlir", Path("/dev/zero"), tmp_path):
        with pytest.raises(InvalidArgument, match="cannot read KTIR file"):
            ktir.load(path)


def test_runtime_arg_without_the_name_of_its_type() -> None:
    """As MLIR's own printer writes it: the op implies the type."""
    kind = "!ktdp.runtime_arg<index, granularity = 3>"
    printed = round_trip(
        in_function("%n = ktdp.runtime_arg_extract value from %M : <index, granularity=3> -> index", args=f"%M: {kind}")
    )
    assert f": {kind} -> index" in printed


def test_a_size_that_is_a_constant_of_the_program() -> None:
    def text(constant: str) -> str:
        return in_function(
            f"%a = arith.constant 0 : index\n{constant}\n"
            "%p = ktdp.construct_memory_view %a, sizes: [%n, 8], strides: [8, 1] "
            "{memory_space = #ktdp.memory_space<global>} : memref<64x8xf32>",
            args="%m: index",
        )

    assert "sizes: [64, 8]" in round_trip(text("%n = arith.constant 64 : index"))
    with pytest.raises(InvalidProgram, match="size of dim 0 is 63, the view says 64"):
        round_trip(text("%n = arith.constant 63 : index"))
    with pytest.raises(InvalidProgram, match="size of dim 0 is a value that is not a constant, the view says 64"):
        round_trip(text("%n = arith.addi %m, %m : index"))
