# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_rules.py: every rule of KTIR refuses what breaks it, by name, with sets and tile.

Delivery ops and their spellings, rules R1 to R14, functions, grids, tiles, and what the lenient mode accepts.
"""

from __future__ import annotations

import warnings

import pytest
from ktir_text import box, function, order, view

from torch_spyre import ktir
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.legality.module_rules import RULES

T = "tensor<8x4xf32>"
ALL = "affine_set<(i)[g] : (i >= 0)>"
ONE = "affine_set<(i)[g] : (i == 0)>"
PAIRS = "affine_set<(i)[g] : (i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>"
GROUP0 = "affine_set<(g) : (g == 0)>"
TWO_GROUPS = "affine_set<(g) : (g >= 0, 1 - g >= 0)>"
ADD = "%s = arith.addf %l, %r : tensor<8x4xf32>"


def exchange(
    op: str = "consume",
    *,
    producers: str = ONE,
    consumers: str = ALL,
    groups: str = GROUP0,
    keys: str = "",
    result: str = T,
    identity: str = "0.0",
    combine: str = ADD,
    yielded: str = "%s",
    partial: str = T,
    around: str = "{}",
) -> str:
    """A function on four tiles with one produce and one delivery op."""
    future = f"<({partial}), groups = {groups}>"
    folds = op.startswith("reduce")
    text = f"%zero = arith.constant dense<{identity}> : {partial}\n%id = ktdp.get_compute_tile_id : index\n"
    text += "%c1 = arith.constant 1 : index\n%c2 = arith.constant 2 : index\n"
    body = f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {producers} -> {future} {{\n^bb0(%g: index):\n"
    body += f"ktdp.yield_partial %zero : {partial}\n}}\n"
    body += f"%r0 = ktdp.inter_tile_{op}(%f) consumer_tiles_per_group = {consumers}{keys}"
    body += f", identity(%zero : {partial})" if folds else ""
    body += f" : {future} -> {result}"
    if folds:
        body += f" {{\n^bb0(%l: {partial}, %r: {partial}):\n{combine}\nktdp.yield_reduced {yielded} : {partial}\n}}"
    return function(text + around.format(body + "\n"), "", "[4]")


def refused(text: str, *parts: str, error: type[Exception] = InvalidProgram) -> None:
    with pytest.raises(error) as caught:
        ktir.load(text)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


LEGAL = {
    "multicast": exchange(),
    "pairs": exchange(producers="affine_set<(i)[g] : (i - 2 * g == 0)>", consumers=PAIRS, groups=TWO_GROUPS),
    "routing": exchange(
        producers=ALL, keys=", producer_dependency_per_consumer = affine_set<(p)[c] : (p + c - 3 == 0)>"
    ),
    "routing by group": exchange(
        producers=PAIRS,
        consumers=PAIRS,
        groups=TWO_GROUPS,
        keys=", producer_dependency_per_consumer = affine_set<(p)[c, g] : (p + c - 4 * g - 1 == 0)>",
    ),
    "reduce to one": exchange("reduce", producers=ALL, consumers=ONE),
    "reduce to all": exchange("reduce", producers=ALL),
    "maximum": exchange(
        "reduce", producers=ALL, identity="0xFF800000", combine="%s = arith.maximumf %l, %r : tensor<8x4xf32>"
    ),
    "gather": exchange("gather", producers=ALL, keys=", gather_dimensions = [1]", result="tensor<8x16xf32>"),
    "gather as array": exchange(
        "gather", producers=ALL, keys=", gather_dimensions = array<i64: 0>", result="tensor<32x4xf32>"
    ),
    "gather over two dims": exchange(
        "gather", producers=ALL, keys=", gather_dimensions = [0, 1]", result="tensor<16x8xf32>"
    ),
    "scatter": exchange("scatter", keys=", scatter_dimensions = [0]", result="tensor<2x4xf32>"),
    "scatter over two dims": exchange("scatter", keys=", scatter_dimensions = [0, 1]", result="tensor<4x2xf32>"),
    "all to all": exchange(
        "all_to_all",
        producers=ALL,
        keys=", split_dimensions = [0], concat_dimensions = [1]",
        result="tensor<2x16xf32>",
    ),
    "all to all on one dim": exchange(
        "all_to_all", producers=ALL, keys=", split_dimensions = [0], concat_dimensions = [0]", result=T
    ),
    "reduce and scatter": exchange(
        "reduce_scatter", producers=ALL, keys=", scatter_dimensions = [0]", result="tensor<2x4xf32>"
    ),
    "under a condition all meet": exchange(
        around="%cond = arith.cmpi slt, %id, %c2 : index\n%top = arith.cmpi sge, %id, %c2 : index\n"
        "%any = arith.ori %cond, %top : i1\nscf.if %any {{\n{}}}\n"
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_exchanges_pass_and_print(name: str) -> None:
    module = ktir.load(LEGAL[name])
    assert ktir.load(module.text).text == module.text


BROKEN = {
    "R1": (
        exchange(producers="affine_set<(i)[g] : (i - g >= 0, -i + g + 1 >= 0)>", groups=TWO_GROUPS),
        ["tile 1 produces in groups 0 and 1: {0, 1} and {1, 2}"],
    ),
    "R2": (
        LEGAL["multicast"].replace("return\n", "").rstrip("}\n")
        + "\n%q = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = "
        + f"{ALL} : <({T}), groups = {GROUP0}> -> {T}\nreturn\n}}\n",
        ["used exactly once"],
    ),
    "R3": (
        exchange(
            producers="affine_set<(i)[g] : (i - 1 >= 0)>",
            keys=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - c == 0)>",
        ),
        ["consumer 0 depends on tile 0, which does not produce in group 0", "producers {1, 2, 3}"],
    ),
    "R4": (
        exchange(
            producers=ALL,
            consumers="affine_set<(i)[g] : (i >= 0, 1 - i >= 0)>",
            keys=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - c == 0)>",
        ),
        ["nobody takes what tile 2 produces", "consumers {0, 1}"],
    ),
    "R5": (
        exchange(
            "gather",
            producers=ALL,
            consumers="affine_set<(i)[g] : (i >= 0, 2 - i >= 0)>",
            keys=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - c >= 0, c + 1 - p >= 0)>, "
            "gather_dimensions = [0]",
            result="tensor<16x4xf32>",
        ),
        ["consumers 0 and 1 both need tile 1", "{0, 1} and {1, 2}"],
    ),
    "R6": (
        exchange(
            "gather",
            producers=ALL,
            keys=", producer_dependency_per_consumer = affine_set<(p)[c] : (p - c >= 0)>, gather_dimensions = [0]",
            result="tensor<16x4xf32>",
        ),
        ["consumer 0: {0, 1, 2, 3}, consumer 1: {1, 2, 3}"],
    ),
    "R7": (
        exchange(
            "gather",
            producers="affine_set<(i)[g] : (i - 3 * g >= 0, -i + g + 2 >= 0)>",
            consumers=PAIRS,
            groups=TWO_GROUPS,
            keys=", gather_dimensions = [0]",
            result="tensor<24x4xf32>",
        ),
        ["group 0: {0, 1, 2}, group 1: {3}"],
    ),
    "R8": (exchange(producers=PAIRS, groups=TWO_GROUPS, consumers=PAIRS), ["sources {0, 1}", "routes them"]),
    "R8 scatter": (
        exchange("scatter", producers=ALL, keys=", scatter_dimensions = [0]", result="tensor<2x4xf32>"),
        ["consumer 0 of group 0 has the sources {0, 1, 2, 3}"],
    ),
    "R9": (
        exchange("scatter", keys=", scatter_dimensions = [0]", result="tensor<4x4xf32>"),
        ["the named dims change by 2, but there are 4 consumers"],
    ),
    "R9 in the type": (
        exchange("scatter", keys=", scatter_dimensions = [0]", result="tensor<3x4xf32>"),
        ["R9: a split dim divides the partial's; dim 0 goes from 8 to 3"],
    ),
    "R10": (
        exchange("reduce", producers=ALL, combine="%s = arith.addf %l, %r : tensor<8x4xf32>\n%x = "
                 "ktdp.construct_memory_view %c1, sizes: [1], strides: [1] {memory_space = "
                 "#ktdp.memory_space<global>} : memref<1xf32>"),
        ["it contains ktdp.construct_memory_view"],
    ),
    "R10 one side": (
        exchange("reduce", producers=ALL, combine="%s = arith.addf %r, %r : tensor<8x4xf32>"),
        ["it ignores the left side of partial 0"],
    ),
    "R10 order": (
        exchange("reduce", producers=ALL, combine="%s = arith.subf %l, %r : tensor<8x4xf32>"),
        ["arith.subf depends on the order of its operands"],
    ),
    "R11": (exchange("reduce", producers=ALL, identity="1.0"), ["arith.addf starts from 1"]),
    "R11 maximum": (
        exchange("reduce", producers=ALL, combine="%s = arith.maximumf %l, %r : tensor<8x4xf32>"),
        ["arith.maximumf starts from 0"],
    ),
    "R12": (
        exchange("gather", producers=ALL, keys=", gather_dimensions = [0]", result="tensor<16x4xf32>"),
        ["the named dims change by 2, but there are 4 producers"],
    ),
    "R12 in the type": (
        exchange("gather", producers=ALL, keys=", gather_dimensions = [0]", result="tensor<30x4xf32>"),
        ["R12: a concatenated dim is a multiple of the partial's"],
    ),
    "R13": (
        exchange(
            "reduce", producers="affine_set<(i)[g] : (i >= 0, 1 - i >= 0)>", consumers="affine_set<(i)[g] : (i == 3)>"
        ),
        ["tile 3 consumes in group 0 without producing", "producers {0, 1}", "consumers {3}"],
    ),
    "R14": (
        exchange("reduce", producers=ALL, consumers="affine_set<(i)[g] : (i >= 0, 1 - i >= 0)>"),
        ["producers {0, 1, 2, 3}, consumers {0, 1}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_named(name: str) -> None:
    text, parts = BROKEN[name]
    refused(text, name.split()[0], "<ktir>:", *parts)


def test_every_rule_has_a_case() -> None:
    assert {name.split()[0] for name in BROKEN} == set(RULES)


def test_members_of_a_group_must_all_reach_the_op() -> None:
    around = "%cond = arith.cmpi slt, %id, %c2 : index\nscf.if %cond {{\n{}}}\n"
    refused(
        exchange(around=around),
        "tiles {0, 1} of group 0 meet and tile 2 does not; all members of a group must reach it",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (exchange("gather", result="tensor<32x4xf32>"), "ktdp.inter_tile_gather needs gather_dimensions"),
        (exchange("consume", keys=", gather_dimensions = [0]"), "has no (further) attribute gather_dimensions"),
        (
            exchange("scatter", keys=f", producer_dependency_per_consumer = {ALL}, scatter_dimensions = [0]"),
            "ktdp.inter_tile_scatter has no (further) attribute producer_dependency_per_consumer",
        ),
        (exchange("gather", keys=", gather_dimensions = [2]", result="tensor<8x4xf32>"), "ascending dims"),
        (exchange("gather", keys=", gather_dimensions = [0]", result="tensor<32xf32>"), "never change"),
        (exchange("gather", keys=", gather_dimensions = [0]", result="tensor<8x8xf32>"), "keeps its size"),
        (exchange(result="tensor<4x4xf32>"), "a result must have the partial's type"),
        (exchange(producers="affine_set<(i) : (i >= 0)>"), "one dim (tile) and one symbol (group)"),
        (
            exchange(keys=", producer_dependency_per_consumer = affine_set<(p) : (p >= 0)>"),
            "must have one dim (producer) and symbols (consumer[, group])",
        ),
        (exchange("reduce", producers=ALL, yielded="%zero2"), "zero2"),
        (exchange(groups="affine_set<(g) : (g - 9 == 0)>"), "holds no id below 4"),
    ],
)
def test_delivery_ops_check_their_form(text: str, message: str) -> None:
    refused(text, message)


def test_several_partials() -> None:
    kinds = "tensor<4xf32>, tensor<4xi32>"
    future = f"<({kinds}), groups = {GROUP0}>"
    text = f"""
    %v = arith.constant dense<0.0> : tensor<4xf32>
    %low = arith.constant dense<0xFF800000> : tensor<4xf32>
    %n = arith.constant dense<0> : tensor<4xi32>
    %f = ktdp.inter_tile_produce producer_tiles_per_group = {ALL} -> {future} {{
    ^bb0(%g: index):
      ktdp.yield_partial %v, %n : {kinds}
    }}
    %a:2 = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = {ONE}, identity(%low, %n : {kinds})
      : {future} -> {kinds} {{
    ^bb0(%lv: tensor<4xf32>, %li: tensor<4xi32>, %rv: tensor<4xf32>, %ri: tensor<4xi32>):
      %c = arith.cmpf ogt, %lv, %rv : tensor<4xf32>
      %x = arith.select %c, %lv, %rv : tensor<4xi1>, tensor<4xf32>
      %y = arith.select %c, %li, %ri : tensor<4xi1>, tensor<4xi32>
      ktdp.yield_reduced %x, %y : {kinds}
    }}
    """
    module = ktir.load(function(text, "", "[4]"))
    assert ktir.load(module.text).text == module.text
    assert "%a, %a_1 = ktdp.inter_tile_reduce" in module.text or "%a:2" in module.text


# -- functions, grids, tiles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("[33]", "33 tiles; a card has 32 cores"),
        ("[0]", "at least one tile"),
        ("[2, 2, 2, 2]", "one to three axes"),
        ("[]", "one to three axes"),
        ('["a"]', "not a list of integers"),
    ],
)
def test_grids(grid: str, message: str) -> None:
    refused(function("", "", grid), message)


@pytest.mark.parametrize("grid", ["[4]", "[4 : i64]", "[4 : index]", "array<i64: 4>", "[2, 2]", "[2 : i32, 1, 2]"])
def test_grid_spellings(grid: str) -> None:
    assert ktir.load(function("", "", grid)).functions["k"].cores == 4


def test_functions() -> None:
    refused(function("", "%t: tensor<4xf32>"), "argument 0 of k has type tensor<4xf32>; arguments are scalars")
    refused("func.func @k() -> i32 {\n%a = arith.constant 1 : i32\nreturn %a : i32\n}\n", "k returns values")
    refused(function("", "") + function("", ""), "k")
    refused("%a = arith.constant 1 : i32\n", "stands outside a function")


def access(base: str, set_: str, order_: str, result: str) -> str:
    tile = (
        f"%t = ktdp.construct_access_tile %v[%i, 0] {{access_tile_set = {set_}, access_tile_order = {order_}}} "
        f": memref<{base}> -> <{result}>\n"
    )
    return function(view("v", "%x", (16, 32)) + "%i = arith.constant 0 : index\n" + tile, "%x: index")


def test_the_shape_of_a_tile_follows_its_set_and_order() -> None:
    ktir.load(access("16x32xf16", box((16, 32)), order(2, (1, 0)), "32x16xindex"))
    refused(access("16x32xf16", box((16, 32)), order(2), "32x16xindex"), "dim 0 of the tile has 32 elements", "has 16")
    refused(access("16x32xf16", box((16, 32)), order(2, (1, 0)), "16x32xindex"), "dim 0 of the tile has 16 elements")


def test_memory_spaces_name_tiles_of_the_grid() -> None:
    text = function(view("v", "%x", (16,), space="ct_local, ct_id = 4"), "%x: index", "[4]")
    refused(text, "names compute tile 4; the grid has tiles 0 to 3")


# -- names and spellings -----------------------------------------------------------------------------------------------


def test_old_and_unknown_names() -> None:
    refused(
        function("%a = ktdp.coreid : index\n", ""), "ktdp.coreid is not in the dialect; write ktdp.get_compute_tile_id"
    )
    refused(function("ktdp.transfer\n", ""), "inter_tile_consume")
    refused(function("%a = tt.get_program_id x : i32\n", ""), "tt.get_program_id is not an operation of KTIR", ":2:")
    refused(function("%a = ktdp.laod %b : index\n", ""), "did you mean ktdp.load")
    refused(function("%a = arith.addi %b %c : index\n", ""), "does not parse where marked (docs/ktir.md")
    refused(function("%a = math.erfc %b : f32\n", ""), "math.erfc is not supported", error=UnsupportedOp)


OLDER = {
    "no parentheses": lambda text: text.replace(f"<({T}), groups", f"!ktdp.tile_future<{T}, groups"),
    "partial before the future": lambda text: text.replace(" -> <(", f" : {T} -> <(", 1),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings_warn_or_are_refused(name: str) -> None:
    text = OLDER[name](LEGAL["reduce to all"])
    with pytest.warns(ktir.KtirWarning, match="A9"):
        module = ktir.load(text)
    assert module.warnings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ktir.load(module.text, strict=True).text == module.text
    with pytest.raises(InvalidProgram, match="is not the dialect; the lenient mode accepts it"):
        ktir.load(text, strict=True)


def test_left_out_attributes_are_filled_in_with_a_warning() -> None:
    text = """
    %v = ktdp.construct_memory_view %x, sizes: [8, 16], strides: [16, 1] : memref<8x16xf16>
    %i = ktdp.construct_memory_view %x, sizes: [4], strides: [1] {memory_space = #ktdp.spyre_memory_space<L0>}
      : memref<4xi32>
    %t = ktdp.construct_access_tile %v[0, 0] : memref<8x16xf16> -> <8x16xindex>
    %u = ktdp.construct_indirect_access_tile intermediate_variables(%a, %b) %v[%i[%a], (%b)]
      : memref<8x16xf16>, memref<4xi32> -> <4x16xindex>
    """
    text = function(text, "%x: index")
    with pytest.warns(ktir.KtirWarning) as caught:
        module = ktir.load(text)
    assert len(caught) == 6
    assert "%v[ind(%i[%a]), (%b)]" in module.text
    assert "memory_space = #ktdp.memory_space<global>" in module.text and "memory_space<ct_local>" in module.text
    ktir.load(module.text, strict=True)
    with pytest.raises(InvalidProgram, match="construct_memory_view without memory_space is not the dialect"):
        ktir.load(text, strict=True)


@pytest.mark.parametrize("inside", ["partial", "result"])
def test_a_reduction_that_drops_the_unit_dim(inside: str) -> None:
    """The combiner may be written for the partial's type or for the smaller one."""
    wide, small = "tensor<1x16xf32>", "tensor<16xf32>"
    kind = wide if inside == "partial" else small
    text = exchange("reduce", producers=ALL, partial=wide, result=small, combine=f"%s = arith.addf %l, %r : {kind}")
    head, tail = text.split("^bb0(%l: ")
    text = (
        head
        + "^bb0(%l: "
        + tail.replace(f"{wide}, %r: {wide}", f"{kind}, %r: {kind}").replace(
            f"yield_reduced %s : {wide}", f"yield_reduced %s : {kind}"
        )
    )
    with pytest.warns(ktir.KtirWarning, match="drops the leading unit dimension"):
        module = ktir.load(text)
    assert "tensor.collapse_shape" in module.text
    ktir.load(module.text, strict=True)
    with pytest.raises(InvalidProgram, match="a result must have the partial's type"):
        ktir.load(text, strict=True)
