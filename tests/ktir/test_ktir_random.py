# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_random.py [-m slow]: random kernels agree with the interpreter of ktir_reference.py.

Views with gaps, turned and repeated dims, domains smaller than the view, tiles that start anywhere and come in any
order, direct or with subscripts and index views, over loops and one to three grid axes.
"""

from __future__ import annotations

import math
import random

import pytest
from ktir_text import box, function, load, order, shape, store, strides_of, tile, view
from test_ktir_differential import compare_seeds


class Kernel:
    """Draws one kernel: y[own part] = f(x[anywhere], w[anywhere])."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.element = self.rng.choice(("f16", "f32", "f32", "i32"))
        self.rank = self.rng.randint(1, 3)
        self.grid = [self.rng.randint(1, 4) for _ in range(self.rng.randint(1, 3))]
        self.tile = [self.rng.randint(1, 7) for _ in range(self.rank)]
        self.trips = self.rng.randint(1, 3)
        self.body = ""

    def text(self) -> str:
        names = [f"%id{i}" for i in range(len(self.grid))]
        self.body += f"{', '.join(names)} = ktdp.get_compute_tile_id : {', '.join(['index'] * len(names))}\n"
        for name, value in (("c0", 0), ("c1", 1), ("n", self.trips)):
            self.body += f"%{name} = arith.constant {value} : index\n"
        flat, below = [], 1
        for name, size in zip(names, self.grid, strict=True):
            flat.append(f"{below} * {name}")
            below *= size
        self.own = f"({' + '.join(flat)}) * {self.trips} + %i"
        inner = self.read("x") + (self.read("w") if self.rng.random() < 0.5 else "%w0 = arith.addf %x0, %x0 : T\n")
        inner += self.compute() + self.write()
        kind = f"tensor<{shape(self.tile, self.element)}>"
        inner = inner.replace(": T\n", f": {kind}\n").replace("addf", "addi" if self.element == "i32" else "addf")
        body = self.body + "scf.for %i = %c0 to %n step %c1 {\n" + inner + "}\n"
        return function(body, "%x: index, %w: index, %k: index, %y: index", str(self.grid))

    def expression(self, size: int) -> str:
        """A coordinate in about the range of a dim, from ids and the loop counter."""
        pick = self.rng.random()
        if pick < 0.3:
            return str(self.rng.randint(0, max(0, size - 1)))
        name = self.rng.choice([f"%id{i}" for i in range(len(self.grid))] + ["%i"])
        if pick < 0.6:
            return f"{self.rng.randint(1, 3)} * {name} + {self.rng.randint(0, 3)}"
        if pick < 0.8:
            return f"({name} + {self.rng.randint(0, 5)}) mod {self.rng.randint(1, 4)}"
        return f"({name} + {self.rng.randint(0, 9)}) floordiv {self.rng.randint(1, 4)}"

    def read(self, name: str) -> str:
        sizes = [t + self.rng.randint(0, 8) for t in self.tile]
        permutation = self.rng.sample(range(self.rank), self.rank)
        strides, step = [0] * self.rank, self.rng.randint(1, 3)
        for dim in self.rng.sample(range(self.rank), self.rank):
            strides[dim] = 0 if self.rng.random() < 0.1 else step
            step = step * sizes[dim] + self.rng.randint(0, 4)
        kept = [max(1, s - self.rng.choice((0, 0, 0, 1, 3))) for s in sizes]
        self.body += view(f"V{name}", f"%{name}", sizes, self.element, strides=strides, domain=box(kept))
        source = [0] * self.rank
        for position, dim in enumerate(permutation):
            source[dim] = self.tile[position]
        at = [self.expression(s) for s in sizes]
        if self.rng.random() < 0.35:
            return self.subscripts(name, sizes, at, source, permutation) + load(
                f"{name}0", f"t{name}", self.tile, self.element
            )
        text = tile(f"t{name}", f"V{name}", sizes, at, source, self.element, permutation=permutation)
        return text + load(f"{name}0", f"t{name}", self.tile, self.element)

    def subscripts(self, name: str, sizes: list[int], at: list[str], source: list[int], permutation: list[int]) -> str:
        """The same tile by an indirect access tile, some of whose dims go through an index view of small numbers."""
        variables = [f"%v{name}{d}" for d in range(self.rank)]
        subscripts, views = [], []
        for dim in range(self.rank):
            if sizes[dim] >= 4 and self.rng.random() < 0.5:
                if not views:
                    length = max(source)
                    self.body += view(f"I{name}", "%k", (length,), "i32")
                views.append(f"memref<{max(source)}xi32>")
                subscripts.append(f"ind(%I{name}[{variables[dim]}])")
            else:
                subscripts.append(f"({at[dim]} + {variables[dim]})")
        kinds = ", ".join([f"memref<{shape(sizes, self.element)}>", *views])
        return (
            f"%t{name} = ktdp.construct_indirect_access_tile intermediate_variables({', '.join(variables)}) "
            f"%V{name}[{', '.join(subscripts)}] {{variables_space_set = {box(source)}, "
            f"variables_space_order = {order(self.rank, permutation)}}} : {kinds} -> <{shape(self.tile, 'index')}>\n"
        )

    def compute(self) -> str:
        if self.element == "i32" or self.rng.random() < 0.4:
            return "%r = arith.addf %x0, %w0 : T\n"
        dim = self.rng.randrange(self.rank)
        kept = [s for d, s in enumerate(self.tile) if d != dim]
        small = f"tensor<{shape(kept, self.element)}>"
        kind = f"tensor<{shape(self.tile, self.element)}>"
        combine = self.rng.choice(("addf", "maximumf", "minimumf"))
        return (
            f"%e = tensor.empty() : {small}\n%f = tensor.empty() : {kind}\n"
            f"%s = linalg.reduce {{ arith.{combine} }} ins(%w0 : {kind}) outs(%e : {small}) dimensions = [{dim}]\n"
            f"%b = linalg.broadcast ins(%s : {small}) outs(%f : {kind}) dimensions = [{dim}]\n"
            "%r = arith.addf %x0, %b : T\n"
        )

    def write(self) -> str:
        """Every tile and trip has its own slab of y, which the domain may cut off."""
        sizes = [math.prod(self.grid) * self.trips * self.tile[0], *self.tile[1:]]
        kept = [max(1, s - self.rng.choice((0, 0, 1, 2))) for s in sizes]
        self.body += view("Vy", "%y", sizes, self.element, strides=strides_of(sizes), domain=box(kept))
        at = [f"({self.own}) * {self.tile[0]}"] + ["0"] * (self.rank - 1)
        return tile("ty", "Vy", sizes, at, self.tile, self.element) + store("r", "ty", self.tile, self.element)


def check(seeds: range) -> None:
    compare_seeds(lambda seed: Kernel(seed).text(), seeds, 0.5)


def test_random_kernels() -> None:
    check(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_kernels(part: int) -> None:
    check(range(1000 + 200 * part, 1200 + 200 * part))
