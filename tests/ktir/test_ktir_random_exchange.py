# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_random_exchange.py [-m slow]: random exchanges between tiles agree with NumPy.

Groups are blocks or combs of the flat ids, on one or two grid axes; every delivery op, with one or two partials, for
all members or one, routed by dependencies or not, once or in a loop.
"""

from __future__ import annotations

import random

import pytest
from ktir_text import function, load, shape, store, tile, view
from test_ktir_differential import compare_seeds

OPS = ("consume", "route", "reduce", "gather", "scatter", "all_to_all", "reduce_scatter")
COMBINERS = {"addf": "0.0", "maximumf": "0xFF800000", "minimumf": "0x7F800000"}


class Exchange:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.members = rng.choice((1, 2, 2, 3, 4))
        self.groups = rng.choice((1, 1, 2, 3))
        self.cores = self.members * self.groups
        self.comb = rng.random() < 0.5  # members are groups apart instead of neighbours
        self.op = rng.choice(OPS)
        self.sizes = [self.members * rng.randint(1, 3), self.members * rng.randint(1, 3)]
        self.partials = 2 if rng.random() < 0.25 and self.op not in ("reduce", "reduce_scatter") else 1
        self.combiner = rng.choice(list(COMBINERS))
        self.one = rng.random() < 0.4  # one consumer per group
        self.loop = rng.random() < 0.3
        self.grid = [2, self.cores // 2] if self.cores % 2 == 0 and rng.random() < 0.4 else [self.cores]

    def member(self, position: int) -> str:
        """The flat id of a member of group g."""
        return f"{self.groups * position} + g" if self.comb else f"{self.members} * g + {position}"

    def everybody(self) -> str:
        if self.comb:
            return f"affine_set<(i)[g] : ((i - g) mod {self.groups} == 0, i >= 0)>"
        return f"affine_set<(i)[g] : (i - {self.members} * g >= 0, {self.members} * g + {self.members - 1} - i >= 0)>"

    def single(self) -> str:
        return f"affine_set<(i)[g] : (i - ({self.member(self.rng.randrange(self.members))}) == 0)>"

    def text(self) -> str:
        names = [f"%id{i}" for i in range(len(self.grid))]
        flat = names[0] if len(names) == 1 else f"{names[0]} + 2 * {names[1]}"
        body = f"{', '.join(names)} = ktdp.get_compute_tile_id : {', '.join(['index'] * len(names))}\n"
        result, keys = self.result()
        whole, out = [self.cores * self.sizes[0], self.sizes[1]], [self.cores * result[0], result[1]]
        kinds = [f"tensor<{shape(self.sizes, 'f32')}>", f"tensor<{shape(result, 'f32')}>"]
        partials = ", ".join([kinds[0]] * self.partials)
        future = f"<({partials}), groups = affine_set<(g) : (g >= 0, {self.groups - 1} - g >= 0)>>"
        producers = self.single() if self.op in ("consume", "scatter") else self.everybody()
        consumers = self.everybody() if not self.may_be_one() else self.single()
        body += view("X", "%x", whole, "f32") + view("Y", "%y", out, "f32")
        body += tile("tx", "X", whole, (f"({flat}) * {self.sizes[0]}", "0"), self.sizes, "f32")
        body += tile("ty", "Y", out, (f"({flat}) * {result[0]}", "0"), result, "f32")
        body += load("v", "tx", self.sizes, "f32")
        body += f"%w = arith.addf %v, %v : {kinds[0]}\n"
        body += f"%zero = arith.constant dense<{COMBINERS[self.combiner]}> : {kinds[0]}\n"
        values = ", ".join(("%v", "%w")[: self.partials])
        inner = (
            f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {producers} -> {future} {{\n^bb0(%g: index):\n"
            f"ktdp.yield_partial {values} : {partials}\n}}\n"
            f"%r{':2' if self.partials == 2 else ''} = ktdp.inter_tile_{self.op.replace('route', 'consume')}(%f) "
            f"consumer_tiles_per_group = {consumers}{keys}"
        )
        folds = self.op.startswith("reduce")
        inner += f", identity(%zero : {kinds[0]})" if folds else ""
        inner += f" : {future} -> {', '.join([kinds[1]] * self.partials)}"
        if folds:
            inner += f" {{\n^bb0(%l: {kinds[0]}, %q: {kinds[0]}):\n%t = arith.{self.combiner} %l, %q : {kinds[0]}\n"
            inner += f"ktdp.yield_reduced %t : {kinds[0]}\n}}"
        inner += "\n" + self.write(consumers, result)
        if self.loop:
            body += "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n%c2 = arith.constant 2 : index\n"
            inner = "scf.for %k = %c0 to %c2 step %c1 {\n" + inner + "}\n"
        return function(body + inner, "%x: index, %y: index", str(self.grid))

    def may_be_one(self) -> bool:
        return self.one and self.op in ("consume", "reduce", "gather")

    def result(self) -> tuple[list[int], str]:
        """Type of what is delivered, and the keys of the op."""
        m, (rows, columns) = self.members, self.sizes
        dim = self.rng.randrange(2)
        grown = [rows * m, columns] if dim == 0 else [rows, columns * m]
        cut = [rows // m, columns] if dim == 0 else [rows, columns // m]
        if self.op == "gather":
            return grown, f", gather_dimensions = [{dim}]"
        if self.op in ("scatter", "reduce_scatter"):
            return cut, f", scatter_dimensions = [{dim}]"
        if self.op == "all_to_all":
            other = self.rng.choice((dim, 1 - dim))
            shape_ = list(cut)
            shape_[other] *= m
            return shape_, f", split_dimensions = [{dim}], concat_dimensions = [{other}]"
        if self.op == "route":
            last = f"2 * g + {self.groups * (m - 1)}" if self.comb else f"{m * 2} * g + {m - 1}"
            return self.sizes, f", producer_dependency_per_consumer = affine_set<(p)[c, g] : (p + c - ({last}) == 0)>"
        return self.sizes, ""

    def write(self, consumers: str, result: list[int]) -> str:
        """Only consumers have a result to write."""
        value = "r#0" if self.partials == 2 else "r"
        kind = f"tensor<{shape(result, 'f32')}>"
        other = "r#1" if self.partials == 2 else "r"
        text = f"%s = arith.addf %{value}, %{other} : {kind}\n" + store("s", "ty", result, "f32")
        if not self.may_be_one():
            return text
        step, first = position_of(consumers)
        lines = "%two = arith.constant 2 : index\n"
        if len(self.grid) == 2:
            lines += "%up = arith.muli %id1, %two : index\n%flat = arith.addi %id0, %up : index\n"
        else:
            lines += "%none = arith.constant 0 : index\n%flat = arith.addi %id0, %none : index\n"
        # A tile consumes if its id is step * g + first for some group g.
        lines += f"%first = arith.constant {first} : index\n%step = arith.constant {step} : index\n"
        lines += f"%groups = arith.constant {self.groups} : index\n%base = arith.subi %flat, %first : index\n"
        lines += "%zero0 = arith.constant 0 : index\n%high = arith.muli %groups, %step : index\n"
        lines += "%c_low = arith.cmpi sge, %base, %zero0 : index\n%c_high = arith.cmpi slt, %base, %high : index\n"
        lines += "%safe = arith.maxsi %base, %zero0 : index\n%rest = arith.remui %safe, %step : index\n"
        lines += "%c_rest = arith.cmpi eq, %rest, %zero0 : index\n%c_a = arith.andi %c_low, %c_high : i1\n"
        lines += "%c_b = arith.andi %c_a, %c_rest : i1\n"
        return lines + "scf.if %c_b {\n" + text + "}\n"


def position_of(consumers: str) -> tuple[int, int]:
    """Factor of g and constant of the one member that a set made by `single` holds."""
    text = consumers.split("(i - (")[1].split(") == 0")[0]
    if "* g" in text:
        factor, _, constant = text.partition(" * g + ")
        return int(factor), int(constant)
    return 1, int(text.split(" + ")[0])


def check(seeds: range) -> None:
    compare_seeds(lambda seed: Exchange(seed).text(), seeds, 0.6)


def test_random_exchanges() -> None:
    check(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_many_random_exchanges(part: int) -> None:
    check(range(1000 + 200 * part, 1200 + 200 * part))
