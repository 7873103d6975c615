# SPDX-License-Identifier: Apache-2.0
"""Kernels whose sizes are symbols: what a compiled artefact stores instead of a TileGraph.

A `Recipe` holds each buffer's body as Inductor played it to an ops handler, with its symbolic sizes, strides and
indices. Played again for given sizes it gives the same TileGraph as a compilation for those sizes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy import functions

from torch_spyre._inductor.tilegraph.build import Computed, Outside
from torch_spyre._inductor.tilegraph.carried import Draw, Running
from torch_spyre._inductor.tilegraph.expr import dtype_name
from torch_spyre._inductor.tilegraph.tracing import symbol
from torch_spyre.errors import UnsupportedOp

_INDIRECT = "%"  # first letter of the names of symbols that stand for index values
_PARTS = {"argmax_with_value": 2, "argmin_with_value": 2, "welford_reduce": 3, "welford_combine": 3}

# Expressions as plain data: a number, the name of a symbol, or [function, arguments].


def encode_expr(expr: Any) -> Any:
    sizes = V.graph.sizevars
    expr = sizes.shape_env.replace(sympy.sympify(expr))
    for larger in expr.atoms(functions.Max):  # strides are made with max(1, size)
        for one in larger.args:
            if all(sizes.statically_known_geq(one, other) for other in larger.args):
                expr = expr.xreplace({larger: one})
    return plain(expr)


def plain(expr: sympy.Basic) -> Any:
    if expr.is_Symbol:
        return expr.name
    if expr.is_Integer:
        return int(expr)
    if expr.is_Rational:
        return ["Rational", int(expr.p), int(expr.q)]
    if expr.is_Float or expr.is_infinite:
        return ["Float", str(expr)]
    if isinstance(expr, (sympy.logic.boolalg.BooleanTrue, sympy.logic.boolalg.BooleanFalse)):
        return ["true" if expr else "false"]
    return [type(expr).__name__, *(plain(a) for a in expr.args)]


def decode_expr(code: Any, values: Mapping[str, Any]) -> Any:
    """The expression with `values` in place of the symbols they name."""
    if isinstance(code, str):
        return values[code] if code in values else symbol(code)
    if not isinstance(code, list):
        return sympy.Integer(code)
    name, *args = code
    if name in ("true", "false"):
        return sympy.true if name == "true" else sympy.false
    if name == "Rational":
        return sympy.Rational(*args)
    if name == "Float":
        return sympy.Float(args[0])
    return _function(name)(*(decode_expr(a, values) for a in args))


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(functions, name, None) or getattr(sympy, name, None)
    if found is None:
        raise UnsupportedOp(f"a size computed with {name} is not known to dynamic shapes")
    return found


def names_in(code: Any) -> set[str]:
    """The symbols of an encoded expression."""
    if isinstance(code, list):
        return set() if code[0] == "Float" else set().union(*(names_in(a) for a in code[1:]))
    return {code} if isinstance(code, str) else set()


# Bodies


@dataclass(frozen=True)
class _Ref:
    """The result of an operation of a body."""

    number: int


class Recorder(DefaultHandler):
    """The ops handler that writes down what it is told to do.

    `ops` are [number, name, arguments, named arguments] in order; a masked one holds the ops of its own body.
    """

    def __init__(self) -> None:
        self.ops: list[Any] = []
        self.count = 0
        self.loaded: list[str] = []

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "load" and args[0] not in self.loaded:
            self.loaded.append(args[0])
        draw = Draw.parse(kwargs.get("asm", ""))
        if draw is not None:
            self.loaded += draw.keys
        self.count += 1
        self.ops.append([self.count, name, _encode(args), {k: _encode(v) for k, v in kwargs.items()}])
        return _Ref(self.count)

    def _items(self, whole: _Ref, count: int) -> tuple[_Ref, ...]:
        return tuple(self._default("item", (whole, i), {}) for i in range(count))

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        result = self._default("reduction", (dtype, src_dtype, reduction_type, value), {})
        return self._items(result, _PARTS[reduction_type]) if reduction_type in _PARTS else result

    def scan(self, dtypes: tuple[torch.dtype, ...], combine_fn: Any, values: tuple[Any, ...]) -> tuple[_Ref, ...]:
        if not isinstance(combine_fn, Running):
            raise UnsupportedOp("a scan with a combining function of its own has no device operation")
        return self._items(self._default("scan", (dtypes, combine_fn.op, values), {}), len(dtypes))

    def indirect_indexing(self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Expr:
        if isinstance(x, sympy.Expr):
            return x
        place = self._default("indirect_indexing", (x, sympy.sympify(size), check, wrap_neg), {})
        return symbol(f"{_INDIRECT}{place.number}")

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        outer, self.ops = self.ops, []
        result = body()
        inner, self.ops = self.ops, outer
        self.count += 1
        self.ops.append([self.count, "masked", _encode((mask, other)), {"body": inner, "result": _encode(result)}])
        return _Ref(self.count)


def _encode(value: Any) -> Any:
    if isinstance(value, OpsValue):
        return _encode(value.value)
    if isinstance(value, _Ref):
        return {"v": value.number}
    if isinstance(value, torch.dtype):
        return {"t": dtype_name(value)}
    if isinstance(value, sympy.Basic):
        return {"e": encode_expr(value)}
    if isinstance(value, (tuple, list)):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedOp(f"{value!r} in a body cannot be kept for other sizes")


class Player:
    """Plays a recorded body to an ops handler; `values` gives the size symbols."""

    def __init__(self, ops: list[Any], values: Mapping[str, Any]) -> None:
        self.ops = ops
        self.names: dict[str, Any] = dict(values)
        self.results: dict[int, Any] = {}

    def __call__(self, handler: Any) -> None:
        self.results.clear()
        self._play(self.ops, handler)

    def _play(self, ops: list[Any], handler: Any) -> None:
        for number, name, args, named in ops:
            self.results[number] = self._one(number, name, args, named, handler)

    def _one(self, number: int, name: str, args: list[Any], named: dict[str, Any], handler: Any) -> Any:
        if name == "masked":
            mask, other = self._decode(args)

            def body() -> Any:
                self._play(named["body"], handler)
                return self._decode(named["result"])

            return handler.masked(mask, body, other)
        plain = self._decode(args)
        if name == "item":
            return plain[0][plain[1]]
        if name == "scan":
            return handler.scan(plain[0], Running(plain[1]), plain[2])
        result = getattr(handler, name)(*plain, **{k: self._decode(v) for k, v in named.items()})
        if name == "indirect_indexing":
            self.names[f"{_INDIRECT}{number}"] = result
        return result

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self._decode(v) for v in value)
        if not isinstance(value, dict):
            return value
        kind, content = next(iter(value.items()))
        if kind == "v":
            return self.results[content]
        return getattr(torch, content) if kind == "t" else decode_expr(content, self.names)


@dataclass
class Step:
    """A `Computed` as plain data, with its body."""

    name: str
    kind: str
    ranges: list[Any]
    reduction_ranges: list[Any]
    dtype: str
    size: list[Any]
    stride: list[Any]
    target: str | None
    origin: str
    hints: dict[str, dict[str, int]]
    ops: list[Any]


@dataclass
class KernelInput:
    """A buffer that each call passes to the kernel."""

    name: str
    dtype: str
    size: list[Any]
    stride: list[Any]
    scalar: bool


@dataclass
class Recipe:
    """A kernel for any sizes. Calls pass the `given` buffers, then the value of each of `symbols` (least values)."""

    name: str
    symbols: dict[str, int]
    given: list[KernelInput]
    steps: list[Step]
    outputs: list[str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Recipe:
        plain = json.loads(text)
        plain["given"] = [KernelInput(**g) for g in plain["given"]]
        plain["steps"] = [Step(**s) for s in plain["steps"]]
        return Recipe(**plain)


def record(
    name: str, computed: Sequence[Computed], outputs: Sequence[str], resolve: Callable[[str], Outside]
) -> Recipe | None:
    """The recipe of a kernel, or None if nothing in it depends on a symbol."""
    steps, given, made = [], {}, {c.name for c in computed}
    for c in computed:
        recorder = Recorder()
        c.run(recorder)
        for outside in [*recorder.loaded, *([c.target] if c.target else [])]:
            if outside not in made and outside not in given:
                dtype, size, stride, scalar = resolve(outside)
                given[outside] = KernelInput(outside, dtype_name(dtype), _codes(size), _codes(stride), scalar)
        codes = (_codes(c.ranges), _codes(c.reduction_ranges))
        place = (_codes(c.size), _codes(c.stride))
        steps.append(Step(c.name, c.kind.value, *codes, c.dtype, *place, c.target, c.origin, c.hints, recorder.ops))
    symbols = {s: _least(s) for s in sorted(_symbols(steps, given.values()))}
    return Recipe(name, symbols, list(given.values()), steps, list(outputs)) if symbols else None


def _least(name: str) -> int:
    ranges = {str(s): r for s, r in V.graph.sizevars.shape_env.var_to_range.items()}
    lower: Any = ranges[name].lower if name in ranges else sympy.Integer(0)
    return max(int(lower), 0) if lower.is_Integer else 0


def _codes(sizes: Iterable[Any]) -> list[Any]:
    return [encode_expr(s) for s in sizes]


def _symbols(steps: Iterable[Step], given: Iterable[KernelInput]) -> set[str]:
    found: set[str] = set()
    for s in steps:
        for code in (*s.ranges, *s.reduction_ranges, *s.size, *s.stride):
            found |= names_in(code)
        own = {f"d{i}" for i in range(len(s.ranges))} | {f"r{i}" for i in range(len(s.reduction_ranges))}
        found |= {n for n in _in_body(s.ops) if n not in own and not n.startswith(_INDIRECT)}
    for g in given:
        for code in (*g.size, *g.stride):
            found |= names_in(code)
    return found


def _in_body(value: Any) -> set[str]:
    if isinstance(value, dict):
        if "e" in value:
            return names_in(value["e"])
        return set().union(*(_in_body(v) for v in value.values()))
    return set().union(*(_in_body(v) for v in value)) if isinstance(value, list) else set()
