# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_random.py. Random tensor programs with aliasing memory have numpy's bits.

Every step is simulated with the rounding of its element type; numbers are small integers, so that sums are exact in any
order. Loads, stores and the values between them may overlap in memory: a fold that somebody could notice shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, shaped
from program_interp import round_sen169

ROWS, COLUMNS = 8, 12
KINDS = ("f16", "f32")


def rounded(array: np.ndarray, kind: str) -> np.ndarray:
    array = array.astype(np.float32)
    return round_sen169(array) if kind == "f16" else array


@dataclass
class Value:
    name: str
    data: np.ndarray
    kind: str

    @property
    def type(self) -> str:
        return f"tensor<{shaped(self.data.shape, self.kind)}>"


@dataclass
class Program:
    """A program under construction, and the state that it should leave."""

    data: st.DataObject
    w: Writer = field(default_factory=Writer)
    values: list[Value] = field(default_factory=list)
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    views: dict[str, tuple[str, str]] = field(default_factory=dict)

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def pick(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def begin(self) -> None:
        rng = np.random.default_rng(self.draw(0, 99))
        for name in ("a", "b", "lx"):
            kind = str(self.pick(*KINDS))
            content = rng.integers(-8, 9, (ROWS, COLUMNS)).astype(np.float32)
            if name == "lx":
                view = self.w.view(self.w.index(64), [ROWS, COLUMNS], kind, space="#ktdp.memory_space<ct_local>")
                content = np.zeros_like(content)
                self.views[name] = (view, kind)
                zero = self.w.op(f"arith.constant dense<0.0> : tensor<{ROWS}x{COLUMNS}x{kind}>")
                self.w.store(zero, self.tile(name, (0, 0), (ROWS, COLUMNS)), kind)
            else:
                self.views[name] = (self.w.array(name, content.copy(), kind), kind)
            self.memory[name] = content

    def tile(self, name: str, at: tuple[int, int], shape: tuple[int, int]) -> tuple[str, list[int]]:
        view, kind = self.views[name]
        return self.w.tile(view, [ROWS, COLUMNS], kind, [self.w.index(i) for i in at], list(shape))

    def add(self, text: str, data: np.ndarray, kind: str) -> None:
        self.values.append(Value(self.w.op(text), rounded(data, kind), kind))

    def any(self, rank: int | None = None) -> Value | None:
        fitting = [v for v in self.values if (rank is None or v.data.ndim == rank) and v.data.size]
        return self.data.draw(st.sampled_from(fitting)) if fitting else None

    # -- steps -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        name = str(self.pick("a", "b", "lx"))
        shape = (self.draw(1, ROWS), self.draw(1, COLUMNS))
        at = (self.draw(0, ROWS - shape[0]), self.draw(0, COLUMNS - shape[1]))
        kind = self.views[name][1]
        found = self.memory[name][at[0] : at[0] + shape[0], at[1] : at[1] + shape[1]].copy()
        self.values.append(Value(self.w.load(self.tile(name, at, shape), kind), found, kind))

    def store(self) -> None:
        name = str(self.pick("a", "b", "lx"))
        kind = self.views[name][1]
        fitting = [v for v in self.values if v.kind == kind and v.data.ndim == 2]
        fitting = [v for v in fitting if v.data.shape[0] <= ROWS and v.data.shape[1] <= COLUMNS]
        if not fitting:
            return
        value = self.data.draw(st.sampled_from(fitting))
        rows, columns = value.data.shape
        at = (self.draw(0, ROWS - rows), self.draw(0, COLUMNS - columns))
        self.w.store(value.name, self.tile(name, at, (rows, columns)), kind)
        self.memory[name][at[0] : at[0] + rows, at[1] : at[1] + columns] = value.data

    def unary(self) -> None:
        x = self.any()
        assert x is not None
        name, function = self.pick(("arith.negf", np.negative), ("math.absf", np.abs), ("math.floor", np.floor))
        self.add(f"{name} {x.name} : {x.type}", function(x.data), x.kind)

    def binary(self) -> None:
        x = self.any()
        assert x is not None
        others = [v for v in self.values if v.data.shape == x.data.shape and v.kind == x.kind]
        y = self.data.draw(st.sampled_from(others))
        names = {"addf": np.add, "subf": np.subtract, "maximumf": np.maximum, "minimumf": np.minimum}
        name = str(self.pick(*names))
        self.add(f"arith.{name} {x.name}, {y.name} : {x.type}", names[name](x.data, y.data), x.kind)

    def convert(self) -> None:
        x = self.any()
        assert x is not None
        kind = "f32" if x.kind == "f16" else "f16"
        op = "extf" if kind == "f32" else "truncf"
        self.add(f"arith.{op} {x.name} : {x.type} to tensor<{shaped(x.data.shape, kind)}>", x.data, kind)

    def select(self) -> None:
        x = self.any()
        assert x is not None
        zero = self.w.op(f"arith.constant dense<0.0> : {x.type}")
        c = self.w.op(f"arith.cmpf ogt, {x.name}, {zero} : {x.type}")
        truth = f"tensor<{shaped(x.data.shape, 'i1')}>"
        self.add(f"arith.select {c}, {x.name}, {zero} : {truth}, {x.type}", np.where(x.data > 0, x.data, 0), x.kind)

    def transpose(self) -> None:
        x = self.any(2)
        if x is not None:
            kind = f"tensor<{shaped(x.data.shape[::-1], x.kind)}>"
            e = self.w.op(f"tensor.empty() : {kind}")
            text = f"linalg.transpose ins({x.name} : {x.type}) outs({e} : {kind}) permutation = [1, 0]"
            self.add(text, x.data.T, x.kind)

    def reduce(self) -> None:
        x = self.any(2)
        if x is None:
            return
        dim = self.draw(0, 1)
        kind = f"tensor<{shaped([x.data.shape[1 - dim]], x.kind)}>"
        name, function = self.pick(("addf", np.sum), ("maximumf", np.max))
        e = self.w.op(f"tensor.empty() : {kind}")
        text = f"linalg.reduce {{ arith.{name} }} ins({x.name} : {x.type}) outs({e} : {kind}) dimensions = [{dim}]"
        self.add(text, function(x.data.astype(np.float64), axis=dim), x.kind)

    def broadcast(self) -> None:
        x = self.any(1)
        if x is None:
            return
        dim, size = self.draw(0, 1), self.draw(1, 6)
        data = np.repeat(np.expand_dims(x.data, dim), size, dim)
        kind = f"tensor<{shaped(data.shape, x.kind)}>"
        e = self.w.op(f"tensor.empty() : {kind}")
        self.add(f"linalg.broadcast ins({x.name} : {x.type}) outs({e} : {kind}) dimensions = [{dim}]", data, x.kind)

    def collapse(self) -> None:
        x = self.any(2)
        if x is not None:
            kind = f"tensor<{shaped([x.data.size], x.kind)}>"
            self.add(f"tensor.collapse_shape {x.name} [[0, 1]] : {x.type} into {kind}", x.data.reshape(-1), x.kind)

    def expand(self) -> None:
        x = self.any(1)
        if x is None:
            return
        ways = [n for n in range(1, x.data.size + 1) if x.data.size % n == 0]
        rows = self.data.draw(st.sampled_from(ways))
        shape = [rows, x.data.size // rows]
        kind = f"tensor<{shaped(shape, x.kind)}>"
        text = f"tensor.expand_shape {x.name} [[0, 1]] output_shape [{shape[0]}, {shape[1]}] : {x.type} into {kind}"
        self.add(text, x.data.reshape(shape), x.kind)

    def part(self) -> None:
        x = self.any(2)
        if x is None:
            return
        size = [self.draw(1, n) for n in x.data.shape]
        at = [self.draw(0, n - s) for n, s in zip(x.data.shape, size, strict=True)]
        kind = f"tensor<{shaped(size, x.kind)}>"
        text = f"tensor.extract_slice {x.name}[{at[0]}, {at[1]}] [{size[0]}, {size[1]}] [1, 1] : {x.type} to {kind}"
        self.add(text, x.data[at[0] : at[0] + size[0], at[1] : at[1] + size[1]], x.kind)

    def insert(self) -> None:
        x, y = self.any(2), self.any(2)
        if x is None or y is None or x.kind != y.kind:
            return
        if any(s > n for s, n in zip(y.data.shape, x.data.shape, strict=True)):
            return
        at = [self.draw(0, n - s) for n, s in zip(x.data.shape, y.data.shape, strict=True)]
        size = y.data.shape
        data = x.data.copy()
        data[at[0] : at[0] + size[0], at[1] : at[1] + size[1]] = y.data
        text = f"tensor.insert_slice {y.name} into {x.name}[{at[0]}, {at[1]}] [{size[0]}, {size[1]}] [1, 1] : "
        self.add(text + f"{y.type} into {x.type}", data, x.kind)

    # -- loops -----------------------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Row tiles that move with the counter, loaded, combined and stored in any order; simulated step by step."""
        trips, height, width = self.draw(1, 4), self.draw(1, 3), self.draw(1, COLUMNS)
        w = self.w
        w.add(f"scf.for %r{len(w.lines)} = {w.index(0)} to {w.index(trips)} step {w.index(1)} {{")
        counter = w.lines[-1].split()[1]
        events: list[tuple] = []
        kinds: list[str] = []
        names: list[str] = []
        for _ in range(self.draw(2, 6)):
            event = str(self.pick("load", "store", "add", "neg"))
            if event == "load" or not names:
                name = str(self.pick("a", "b", "lx"))
                first, step = self._rows(trips, height)
                names.append(w.load(self._moving(name, counter, first, step, height, width), self.views[name][1]))
                kinds.append(self.views[name][1])
                events.append(("load", name, first, step))
            elif event == "store":
                value = self.draw(0, len(names) - 1)
                targets = [n for n, (_, kind) in self.views.items() if kind == kinds[value]]
                name = str(self.pick(*targets))
                first, step = self._rows(trips, height)
                tile = self._moving(name, counter, first, step, height, width)
                w.store(names[value], tile, kinds[value])
                events.append(("store", name, first, step, value))
            else:
                x = self.draw(0, len(names) - 1)
                y = self.data.draw(st.sampled_from([i for i, k in enumerate(kinds) if k == kinds[x]]))
                kind = f"tensor<{height}x{width}x{kinds[x]}>"
                text = f"arith.addf {names[x]}, {names[y]}" if event == "add" else f"arith.negf {names[x]}"
                names.append(w.op(f"{text} : {kind}"))
                kinds.append(kinds[x])
                events.append((event, x, y))
        w.add("}")
        for r in range(trips):
            self._iterate(r, events, kinds, height, width)

    def _rows(self, trips: int, height: int) -> tuple[int, int]:
        step = self.draw(0, (ROWS - height) // max(trips - 1, 1))
        return self.draw(0, ROWS - height - step * (trips - 1)), step

    def _moving(self, name: str, counter: str, first: int, step: int, height: int, width: int) -> tuple[str, list[int]]:
        view, kind = self.views[name]
        row = self.w.sum(self.w.product(counter, step), first)
        return self.w.tile(view, [ROWS, COLUMNS], kind, [row, self.w.index(0)], [height, width])

    def _iterate(self, r: int, events: list[tuple], kinds: list[str], height: int, width: int) -> None:
        values: list[np.ndarray] = []
        for event in events:
            if event[0] == "load":
                _, name, first, step = event
                row = first + step * r
                values.append(self.memory[name][row : row + height, :width].copy())
            elif event[0] == "store":
                _, name, first, step, value = event
                row = first + step * r
                self.memory[name][row : row + height, :width] = values[value]
            else:
                result = values[event[1]] + values[event[2]] if event[0] == "add" else -values[event[1]]
                values.append(rounded(result, kinds[len(values)]))


STEPS = [
    "load",
    "load",
    "loop",
    "loop",
    "store",
    "store",
    "unary",
    "binary",
    "binary",
    "convert",
    "select",
    "transpose",
    "reduce",
]
STEPS += ["broadcast", "collapse", "expand", "part", "insert"]


def check(data: st.DataObject, most: int) -> None:
    p = Program(data)
    p.begin()
    p.load()
    for _ in range(data.draw(st.integers(3, most))):
        getattr(p, str(p.pick(*STEPS)))()
    p.store()
    out = p.w.run(card_only=True)
    for name in ("a", "b"):
        np.testing.assert_array_equal(out[name], p.memory[name], p.w.text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    check(data, 12)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_random_programs_at_length(data: st.DataObject) -> None:
    check(data, 30)
