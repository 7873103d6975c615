# SPDX-License-Identifier: Apache-2.0
"""KTIR text for tests, and running it on numpy arrays: memory is plain strided memory, one buffer per argument.

A `Writer` collects the body of one function. Arguments are declared with the numpy array that they hold; `run`
compiles, runs (reference interpreter and card, which must agree) and gives the arrays back as they are afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from program_interp import execute, round_sen169, run_on_card, sen169_decode, sen169_encode

from torch_spyre import ktir
from torch_spyre.backend.compile import CompiledProgram, compile_module
from torch_spyre.backend.options import Options

KINDS = {"f16": np.float32, "f32": np.float32, "i32": np.int32, "i8": np.int8}
GLOBAL = "#ktdp.memory_space<global>"


def f16(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers that the card's 16-bit format holds exactly."""
    return round_sen169(np.random.default_rng(seed).standard_normal(shape))


def encode(array: np.ndarray, kind: str) -> np.ndarray:
    data = sen169_encode(array.astype(np.float32)) if kind == "f16" else array.astype(KINDS[kind])
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).copy()


def decode(data: np.ndarray, kind: str, shape: Sequence[int]) -> np.ndarray:
    values = sen169_decode(data.view(np.uint16)) if kind == "f16" else data.view(KINDS[kind])
    return values.reshape(shape)


def box(*bounds: int | tuple[int, int], symbols: int = 0, uppers: Mapping[int, str] | None = None) -> str:
    """An affine set: each bound is a size (from 0 on) or (first, last); `uppers` replaces the last by a symbol."""
    names = [f"d{i}" for i in range(len(bounds))]
    rules = []
    for i, bound in enumerate(bounds):
        first, last = (0, bound - 1) if isinstance(bound, int) else bound
        end = (uppers or {}).get(i, str(last))
        rules += [f"d{i} - {first} >= 0" if first else f"d{i} >= 0", f"-d{i} + {end} >= 0"]
    brackets = f"[{', '.join(f's{i}' for i in range(symbols))}]" if symbols else ""
    return f"affine_set<({', '.join(names)}){brackets} : ({', '.join(rules)})>"


def permutation(order: Sequence[int]) -> str:
    names = [f"d{i}" for i in range(len(order))]
    return f"affine_map<({', '.join(names)}) -> ({', '.join(f'd{d}' for d in order)})>"


def shaped(shape: Sequence[int | str], kind: str) -> str:
    return "x".join([*map(str, shape), kind])


class Writer:
    def __init__(self, grid: Sequence[int] = (1,)) -> None:
        self.grid = tuple(grid)
        self.lines: list[str] = []
        self.arguments: list[str] = []
        self.arrays: dict[str, tuple[np.ndarray, str]] = {}
        self.scalars: list[float | int] = []
        self._count = 0
        self._constants: dict[int, str] = {}

    # -- text ------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def add(self, text: str) -> None:
        self.lines.append(text)

    def op(self, text: str) -> str:
        """An operation with one result; returns its name."""
        name = self.name()
        self.add(f"{name} = {text}")
        return name

    def index(self, value: int) -> str:
        """An index constant, defined at the top."""
        if value not in self._constants:
            self._constants[value] = f"%k{len(self._constants)}"
        return self._constants[value]

    def sum(self, *values: str | int) -> str:
        """A sum of indices; integers are constants."""
        names = [self.index(v) if isinstance(v, int) else v for v in values]
        total = names[0]
        for name in names[1:]:
            total = self.op(f"arith.addi {total}, {name} : index")
        return total

    def product(self, a: str, factor: int) -> str:
        return self.op(f"arith.muli {a}, {self.index(factor)} : index")

    def ids(self, count: int = 1) -> list[str]:
        names = [self.name() for _ in range(count)]
        self.add(f"{', '.join(names)} = ktdp.get_compute_tile_id : {', '.join(['index'] * count)}")
        return names

    def argument(self, name: str, array: np.ndarray, kind: str = "f16") -> str:
        self.arguments.append(f"%in_{name}: index")
        self.arrays[name] = (array, kind)
        return f"%in_{name}"

    def scalar(self, name: str, value: float | int, kind: str) -> str:
        self.arguments.append(f"%{name}: {kind}")
        self.scalars.append(value)
        return f"%{name}"

    def view(
        self,
        offset: str,
        shape: Sequence[int],
        kind: str = "f16",
        *,
        strides: Sequence[int] | None = None,
        domain: str | None = None,
        space: str = GLOBAL,
    ) -> str:
        if strides is None:
            strides = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
        return self.op(
            f"ktdp.construct_memory_view {offset}, sizes: [{', '.join(map(str, shape))}], "
            f"strides: [{', '.join(map(str, strides))}] {{coordinate_set = {domain or box(*shape)}, "
            f"memory_space = {space}}} : memref<{shaped(shape, kind)}>"
        )

    def array(self, name: str, array: np.ndarray, kind: str = "f16", **options: Any) -> str:
        """An argument and a view of all of it."""
        return self.view(self.argument(name, array, kind), array.shape, kind, **options)

    def tile(
        self,
        view: str,
        view_shape: Sequence[int],
        kind: str,
        at: Sequence[str],
        shape: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> tuple[str, list[int]]:
        """A direct tile; `shape` is that of the set, the result's follows the order."""
        order = list(order) if order is not None else list(range(len(shape)))
        result = [shape[d] for d in order]
        name = self.op(
            f"ktdp.construct_access_tile {view}[{', '.join(at)}] {{access_tile_set = {box(*shape)}, "
            f"access_tile_order = {permutation(order)}}} : memref<{shaped(view_shape, kind)}> -> "
            f"!ktdp.access_tile<{shaped(result, 'index')}>"
        )
        return name, result

    def load(self, tile: tuple[str, Sequence[int]], kind: str = "f16", attributes: str = "") -> str:
        name, shape = tile
        return self.op(
            f"ktdp.load {name} {attributes} : !ktdp.access_tile<{shaped(shape, 'index')}> -> "
            f"tensor<{shaped(shape, kind)}>"
        )

    def store(self, value: str, tile: tuple[str, Sequence[int]], kind: str = "f16", attributes: str = "") -> None:
        name, shape = tile
        self.add(
            f"ktdp.store {value}, {name} {attributes} : tensor<{shaped(shape, kind)}>, "
            f"!ktdp.access_tile<{shaped(shape, 'index')}>"
        )

    def whole(self, name: str, array: np.ndarray, kind: str = "f16") -> tuple[str, list[int]]:
        """A tile over all of a new argument."""
        view = self.array(name, array, kind)
        return self.tile(view, array.shape, kind, [self.index(0)] * array.ndim, array.shape)

    def input(self, name: str, array: np.ndarray, kind: str = "f16") -> str:
        return self.load(self.whole(name, array, kind), kind)

    def output(self, name: str, value: str, shape: Sequence[int], kind: str = "f16") -> None:
        self.store(value, self.whole(name, np.zeros(shape), kind), kind)

    @property
    def text(self) -> str:
        head = [f"{name} = arith.constant {value} : index" for value, name in self._constants.items()]
        body = "\n".join([*head, *self.lines])
        grid = ", ".join(map(str, self.grid))
        head_line = f"func.func @f({', '.join(self.arguments)}) attributes {{grid = [{grid}]}}"
        return f"module {{ {head_line} {{\n{body}\nreturn\n}} }}"

    # -- running ---------------------------------------------------------------------------------------------------

    def compile(self, options: Options | None = None, bind: Mapping[str | int, int] | None = None) -> CompiledProgram:
        return compile_module(ktir.parse(self.text), options=options or Options(), bind=bind)

    def run(
        self,
        *,
        exact: bool = True,
        options: Options | None = None,
        bind: Mapping[str | int, int] | None = None,
        memory: np.ndarray | None = None,
        card_only: bool = False,
    ) -> dict[str, np.ndarray]:
        """Arrays after the run, by argument name; `memory` is what literal addresses refer to, changed in place.

        `card_only` leaves the reference interpreter out, which is slow where small tiles run in many iterations.
        """
        program = self.compile(options, bind)
        names = [argument.split(":")[0].strip("% ").removeprefix("in_") for argument in self.arguments]
        held = [names[position] for position in program.buffers]
        buffers = {name: encode(*self.arrays[name]) for name in held}
        data = [buffers[name] for name in held]
        if program.memory_arg is not None:
            assert memory is not None
            data.append(memory)
        if card_only:
            data = run_on_card(program.binary, data, self.scalars)
            buffers = dict(zip(held, data, strict=False))
        else:
            execute(program.binary, data, self.scalars, exact)
        return {name: decode(b, self.arrays[name][1], self.arrays[name][0].shape) for name, b in buffers.items()}
