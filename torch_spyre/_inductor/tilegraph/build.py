# SPDX-License-Identifier: Apache-2.0
"""Inductor's realised buffers -> TileGraph.

Each buffer's body is traced symbolically into an expression; every operation of it becomes one node, so that a node
is one device operation with tensor operands. Equal expressions over equal accesses are computed once, whether
Inductor realised them or inlined them twice. Intermediates are contiguous temporaries over the dims they depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_spyre._inductor import hints
from torch_spyre._inductor.debug import provenance
from torch_spyre._inductor.tilegraph.carried import UNDEFINED, Assertion, Ranking, Windows
from torch_spyre._inductor.tilegraph.expr import Expr, cast, const, decoded_by_products, dtype_name, held_as, is_float
from torch_spyre._inductor.tilegraph.forward import forward_copies
from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Graph, Load, Node, Position, Value
from torch_spyre._inductor.tilegraph.index import BASE, Index
from torch_spyre._inductor.tilegraph.sizes import static
from torch_spyre._inductor.tilegraph.tracing import INDIRECT, Stored, Tracer, symbol
from torch_spyre.errors import UnsupportedOp, check_text, located
from torch_spyre.ir.plan.tileops import Term
from torch_spyre.optable import OPS, Gives, Kind, TopK

# (dtype, size, stride, is a launch scalar)
Outside = tuple[torch.dtype, Sequence[Any], Sequence[Any], bool]
Dims = Sequence[tuple[str, int]]
_ALONG = "r"


@dataclass(frozen=True)
class Root:
    """What a buffer's body computes: its dims, its reduced dims, where the result goes, where it came from."""

    dims: list[tuple[str, int]]
    rdims: list[tuple[str, int]]
    output: Load
    origin: str


@dataclass(frozen=True)
class Computed:
    """One of Inductor's realised buffers: how it is computed, by a body that `run` plays to an ops handler.

    Sizes may be symbolic; `target` names the buffer that it mutates, if it does.
    """

    name: str
    kind: Kind  # of its body: pointwise, reduction or scan
    ranges: Sequence[Any]
    reduction_ranges: Sequence[Any]
    dtype: str
    size: Sequence[Any]
    stride: Sequence[Any]
    target: str | None
    origin: str
    hints: dict[str, dict[str, int]]
    run: Callable[[Any], None]


_KINDS = {ir.Pointwise: Kind.POINTWISE, ir.Reduction: Kind.REDUCTION, ir.Scan: Kind.SCAN}


def describe(buf: ir.ComputedBuffer) -> Computed:
    data = buf.data
    kind = next((kind for body, kind in _KINDS.items() if isinstance(data, body)), None)
    if kind is None:
        raise UnsupportedOp(f"{type(data).__name__} buffer {buf.get_name()} has no device operation yet")
    assert isinstance(data, (ir.Pointwise, ir.Reduction, ir.Scan))
    buf.decide_layout()
    layout, target = buf.layout, None
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        target = layout.get_buffer().get_name()
    fixed = layout.as_fixed()
    ranges, reduction_ranges = list(data.ranges), list(data.get_reduction_size())

    def run(handler: Any) -> None:
        index = [symbol(f"d{i}") for i in range(len(ranges))]
        rindex = [symbol(f"r{i}") for i in range(len(reduction_ranges))]
        with V.set_ops_handler(handler):
            store = buf.get_store_function()
            if rindex or kind is not Kind.POINTWISE:
                store(index, rindex)
            else:
                store(index)

    return Computed(
        buf.get_name(),
        kind,
        ranges,
        reduction_ranges,
        dtype_name(buf.get_dtype()),
        fixed.size,
        fixed.stride,
        target,
        provenance.origin(buf.get_origins()),
        hints.collect(sorted(buf.get_origins(), key=lambda n: n.name)),
        run,
    )


class Builder:
    """Collects nodes; `graph()` returns the result."""

    tracer = Tracer

    def __init__(self, name: str, resolve: Callable[[str], Outside]) -> None:
        self.name = name
        self.resolve = resolve  # describes a buffer that this graph reads but does not compute
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.alias: dict[str, str] = {}
        self.source: dict[str, str] = {}  # input that is passed under another buffer's name
        self.version: dict[str, int] = {}
        self.seen: dict[tuple[Any, ...], tuple[Load, int]] = {}  # expression -> place, version
        self.done: dict[int, tuple[Expr, Value]] = {}  # of the present body, by identity: bodies share subexpressions
        self.hints: dict[str, dict[str, int]] = {}
        self.checks: set[str] = set()  # buffers that are computed for their errors alone

    # Buffers

    def buffer(self, name: str) -> Buffer:
        """A buffer by Inductor's name; one that is not computed here becomes an input."""
        name = self.alias.get(name, name)
        if name not in self.buffers:
            dtype, size, stride, scalar = self.resolve(name)
            kind = "scalar" if scalar else "input"
            self.buffers[name] = Buffer(name, dtype_name(dtype), _ints(size), _ints(stride), kind)
            self.inputs.append(name)
        return self.buffers[name]

    def arguments(self, graph: Graph) -> list[str]:
        """What a call passes for each input of the finished graph."""
        return [self.source.get(name, name) for name in graph.inputs]

    def random_key(self, name: str) -> Expr:
        """A word of the key of a draw: a launch scalar that the caller asks the device's generator for."""
        return Expr("load", "int32", leaf=Load(self.buffer(name).name, Index()))

    def temp(self, dims: Sequence[tuple[str, int]], dtype: str) -> Load:
        size = tuple(s for _, s in dims)
        strides = _contiguous(size)
        name = f"t{len(self.buffers)}"
        self.buffers[name] = Buffer(name, dtype, size, strides)
        return Load(name, Index(tuple(Term(d, s) for (d, n), s in zip(dims, strides, strict=True) if n > 1)))

    def flattened(self, buffer: Buffer, whole: Index, dims: dict[str, int], position: Index, origin: str) -> Load:
        """A load whose index has digits of a sum of dims: of a copy that holds all values of the sum side by side."""
        sizes = tuple(dims.items())
        source: tuple[Value, ...] = (Load(buffer.name, whole),)
        copy = self._recall("identity", sizes, source, buffer.dtype)
        if copy is None:
            copy = self.temp(sizes, buffer.dtype)
            self._node("identity", sizes, source, copy, origin=origin)
            self._remember("identity", sizes, source, copy)
        outer = tuple(t for t in copy.index.terms if t.dim != BASE)
        return Load(copy.buffer, Index((*position.terms, *outer), position.const))

    # Operations

    def add_computed(self, buf: ir.ComputedBuffer) -> None:
        """One realised buffer: traces its body and adds its nodes."""
        self.add(describe(buf))

    def add(self, made: Computed) -> None:
        with located(lambda: made.origin):
            self._add(made)

    def _add(self, made: Computed) -> None:
        dims = [(f"d{i}", n) for i, n in enumerate(_ints(made.ranges))]
        rdims = [(f"r{i}", n) for i, n in enumerate(_ints(made.reduction_ranges))]
        self.hints = made.hints
        self.done = {}
        tracer = self.tracer(self, dict([*dims, *rdims]), made.origin or made.name)
        made.run(tracer)
        assert tracer.stored is not None
        stored = tracer.stored
        target = self._target(made)
        root = Root(dims, rdims, Load(target, stored.index), made.origin)
        if 0 in [n for _, n in dims]:  # nothing to compute: the empty result only has to exist
            pass
        elif made.kind is Kind.SCAN:
            if 0 not in [n for _, n in rdims]:
                self._add_scan(stored.value, root)
        elif made.kind is Kind.REDUCTION:
            self._add_reduction(stored.value, root)
        elif stored.places:
            self._add_scatter(stored, root)
        else:
            self._add_root(stored.value, root)
        if made.target:
            self.version[target] = self.version.get(target, 0) + 1
            self.alias[made.name] = target

    def _target(self, made: Computed) -> str:
        """Name of the buffer that the store writes: its own, or the one it mutates."""
        if made.target:
            return self.buffer(made.target).name
        self.buffers[made.name] = Buffer(made.name, made.dtype, _ints(made.size), _ints(made.stride))
        return made.name

    def _add_root(self, expr: Expr | None, root: Root) -> None:
        live = _live(root.dims)
        if expr is None or expr.op == UNDEFINED:  # others will write the buffer
            return
        if isinstance(expr.form, Assertion):
            self._assert(expr.args[0], expr.form, live, root.origin)
            return
        expr = self.cast(expr, self.buffers[root.output.buffer].dtype)
        if expr.kind is Kind.GATHER:
            self._gather(expr, live, root.output, root.origin)
            return
        if expr.is_leaf:
            assert expr.leaf is not None
            self._node("identity", live, (expr.leaf,), root.output, origin=root.origin)
            return
        inputs = tuple(self._operand(a, live, root.origin) for a in expr.args)
        self._node(expr.op, live, inputs, root.output, origin=root.origin)
        self._remember(expr.op, live, inputs, root.output)

    def _assert(self, condition: Expr, assertion: Assertion, live: Dims, origin: str) -> None:
        """Where the condition does not hold, a gather meets an index that fails the launch."""
        origin = f"{origin}{check_text(assertion.message)}"
        table = self._copy(Const(0, "int32"), (), origin, (("t", 64),), "int32")
        place = Expr("where3", "int32", (cast(condition, "bool"), const(0, "int32"), const(1, "int32")))
        there = Load(table.buffer, Index((Term(f"{INDIRECT}0"),)))
        self.checks.add(self._gather(Expr("gather", "int32", (place,), there, (1,)), live, None, origin).buffer)

    def _add_scatter(self, stored: Stored, root: Root) -> None:
        """Writes into (a mutated) table at places given by values."""
        live, target = _live(root.dims), self.buffers[root.output.buffer]
        value = self._operand(self.cast(stored.value, target.dtype), live, root.origin)
        if isinstance(value, Load) and value.buffer == target.name:  # what it reads must not change under it
            value = self._copy(value, live, root.origin)
        places = tuple(self._stored(p, live, root.origin) for p in stored.places)
        limits = tuple(min(n, target.span) for n in stored.limits)
        inputs = (value, *places)
        if stored.mode is None:
            self._node("scatter", live, inputs, root.output, origin=root.origin, limits=limits)
        elif target.dtype not in ("float16", "bfloat16"):
            self._node("scatter_add", live, inputs, root.output, origin=root.origin, limits=limits)
        else:  # sums in fp32, rounded once
            dims = _live((f"t{i}", n) for i, n in enumerate(target.size))
            strides = {f"t{i}": s for i, s in enumerate(target.stride)}
            place = Index(tuple(Term(d, strides[d]) for d, _ in dims))
            wide = f"t{len(self.buffers)}"
            self.buffers[wide] = Buffer(wide, "float32", target.size, target.stride)
            here, there = Load(target.name, place), Load(wide, place)
            self._node("dl16tofp32", dims, (here,), there, origin=root.origin)
            output = Load(wide, root.output.index)
            self._node("scatter_add", live, inputs, output, origin=root.origin, limits=limits)
            self._node("fp32todl16", dims, (there,), here, origin=root.origin)

    def _add_scan(self, expr: Expr, root: Root) -> None:
        live, along = _live(root.dims + root.rdims), _live(root.rdims)
        value = self._stored(self.cast(expr.args[0], expr.dtype), live, root.origin, whole=True)
        if not along:
            self._node("identity", live, (value,), root.output, origin=root.origin)
            return
        self._node(expr.op, live, (value,), root.output, origin=root.origin, along=along[0][0])

    def _add_reduction(self, expr: Expr, root: Root) -> None:
        dtype = self.buffers[root.output.buffer].dtype
        if expr.kind is Kind.MATMUL:
            self._add_matmul(expr, root)
        elif 0 in [n for _, n in root.rdims]:
            self._add_empty_reduction(expr, root)
        elif expr.kind is Kind.SELECTION:
            self._add_selection(expr, root)
        elif expr.dtype != dtype:
            temp = self.temp(_live(root.dims), expr.dtype)
            self._add_reduction(expr, replace(root, output=temp))
            self._add_root(Expr("load", expr.dtype, leaf=temp), root)
        else:
            live, reduced = _live(root.dims + root.rdims), _live(root.rdims)
            value = self._operand(expr.args[0], live, root.origin)
            op = expr.op if reduced else "identity"
            self._node(op, live, (value,), root.output, reduced=tuple(d for d, _ in reduced), origin=root.origin)

    def _add_empty_reduction(self, expr: Expr, root: Root) -> None:
        """Over nothing: the neutral element, where PyTorch defines one."""
        neutral = {"sum": 0, "prod": 1, "max": 0 if expr.dtype == "bool" else None}.get(expr.op)
        if neutral is None:
            raise UnsupportedOp(f"{expr.op} over a dim of size 0 ({root.origin})")
        self._add_root(const(neutral, expr.dtype), root)

    def _add_matmul(self, expr: Expr, root: Root) -> None:
        dims, rdims = root.dims, root.rdims
        if expr.dtype != self.buffers[root.output.buffer].dtype:
            raise UnsupportedOp(f"matmul of {expr.dtype} into another dtype ({root.origin})")
        windows = expr.form if isinstance(expr.form, Windows) else None
        kept = windows.names(len(dims)) if windows else [*(f"b{i}" for i in range(len(dims) - 2)), "m", "n"]
        names = [*kept, *(f"k{i}" for i in range(len(rdims) - 1)), "k"]
        rename = {old: new for (old, _), new in zip(dims + rdims, names, strict=True)}
        loads = []
        for arg in decoded_by_products(expr.args):
            leaf = self._stored(arg, tuple(dims + rdims), root.origin)
            loads.append(Load(leaf.buffer, leaf.index.rename(rename)))
        sizes = {rename[d]: n for d, n in dims + rdims}
        outer = [d for d in kept if d not in ("m", "n")] + ["m", "n"]
        live = [d for d in (*outer, *names[len(dims) :]) if not windows or d in ("m", "n", "k") or sizes[d] > 1]
        reduced = tuple(d for d in live if d not in outer)
        out = Load(root.output.buffer, root.output.index.rename(rename))
        self._node("batchmatmul", tuple((d, sizes[d]) for d in live), tuple(loads), out, reduced, root.origin)

    def _add_selection(self, expr: Expr, root: Root) -> None:
        """argmax over all reduced dims as one; top-k over one."""
        dims, kept = _live(root.dims), _live(root.dims)
        top: TopK | None = None
        output = root.output
        if isinstance(expr.form, Ranking):
            name, k = root.dims[expr.form.dim]
            kept = tuple(d for d in dims if d[0] != name)
            top = TopK(k, expr.form.ascending)
            output = Load(output.buffer, output.index.rename({name: _ALONG}))
        reduced = _live(root.rdims)
        if not reduced:
            only = const(0, expr.dtype) if OPS[expr.op].gives is Gives.PLACES else expr.args[0]
            self._add_root(only, root)
            return
        value = self._stored(expr.args[0], kept + reduced, root.origin, whole=True, copy=len(reduced) > 1)
        sizes = (*kept, (_ALONG, math.prod(n for _, n in reduced)))
        inner = {d for d, _ in reduced}
        if len(reduced) > 1:
            terms = tuple(t for t in value.index.terms if t.dim not in inner)
            value = Load(value.buffer, Index((*terms, Term(_ALONG)), value.index.const))
        else:
            value = Load(value.buffer, value.index.rename({reduced[0][0]: _ALONG}))
        summed = () if top else (_ALONG,)
        self._node(expr.op, sizes, (value,), output, summed, root.origin, along=_ALONG, top=top)

    # Operands

    def _operand(self, expr: Expr, dims: tuple[tuple[str, int], ...], origin: str) -> Value:
        """The value of expr as an operand, computing it into a temporary if it is not one already."""
        known = self.done.get(id(expr))
        if known is None:
            known = self.done[id(expr)] = (expr, self._compute(expr, dims, origin))
        return known[1]

    def _compute(self, expr: Expr, dims: tuple[tuple[str, int], ...], origin: str) -> Value:
        leaf = expr.leaf
        if expr.kind is Kind.GATHER:
            return self._gather(expr, dims, None, origin)
        if isinstance(leaf, Position) and any(t.div > 1 or t.mod for t in leaf.index.terms):
            return self._copy(leaf, dims, origin)  # its digits must not cut the dims of other operands
        if leaf is not None:
            return leaf
        if expr.kind is Kind.COPY:  # another name for the same bits
            return self._operand(expr.args[0], dims, origin)
        inputs = tuple(self._operand(a, dims, origin) for a in expr.args)
        live = _used(inputs, dims)
        known = self._recall(expr.op, live, inputs, expr.dtype)
        if known is not None:
            return known
        output = self.temp(live, expr.dtype)
        self._node(expr.op, live, inputs, output, origin=origin)
        self._remember(expr.op, live, inputs, output)
        return output

    def _stored(self, expr: Expr, dims: Dims, origin: str, whole: bool = False, copy: bool = False) -> Load:
        """The value of expr in a buffer; with `whole` one that holds it for every point of dims."""
        dims = tuple(dims)
        value = self._operand(expr, dims, origin)
        if not isinstance(value, Load) or self.buffers[value.buffer].kind == "scalar":
            return self._copy(value, dims, origin, dims if whole else None, expr.dtype)
        missing = whole and {d for d, n in dims if n > 1} != set(value.index.dims)
        return self._copy(value, dims, origin, dims) if missing or copy else value

    def _copy(self, value: Value, dims: Dims, origin: str, over: Dims | None = None, dtype: str | None = None) -> Load:
        """The value in a new buffer, contiguous over the dims it depends on (or over given ones)."""
        live = _live(over) if over is not None else _used((value,), tuple(dims))
        dtype = dtype or (self.buffers[value.buffer].dtype if isinstance(value, Load) else "int32")
        known = self._recall("identity", live, (value,), dtype)
        if known is not None and known.index.dims == tuple(d for d, _ in live):
            return known
        output = self.temp(live, dtype)
        self._node("identity", live, (value,), output, origin=origin)
        self._remember("identity", live, (value,), output)
        return output

    def _gather(self, expr: Expr, dims: Dims, output: Load | None, origin: str) -> Load:
        table = expr.leaf
        assert isinstance(table, Load)
        places = tuple(self._stored(p, dims, origin) for p in expr.args)
        inputs = (table, *places)
        live = _used(inputs, tuple(dims)) if output is None else tuple(dims)
        known = self._recall("gather", live, inputs, expr.dtype) if output is None else None
        if known is not None:
            return known
        output = output or self.temp(live, expr.dtype)
        self._node("gather", live, inputs, output, origin=origin, limits=expr.limits)
        self._remember("gather", live, inputs, output)
        return output

    def cast(self, x: Expr, dtype: str) -> Expr:
        return cast(x, dtype, self._as_float_scalar)

    def _as_float_scalar(self, x: Expr, dtype: str) -> Expr | None:
        if not isinstance(x.leaf, Load) or self.buffers[x.leaf.buffer].kind != "scalar":
            return None
        return Expr("load", "float32", leaf=Load(self._float_scalar(x.leaf.buffer, dtype), Index()))

    def _float_scalar(self, name: str, dtype: str) -> str:
        """The launch scalar `name` as an operand of a float dtype. The launcher converts an integer, and a number that
        float16 holds and the card's format does not: such a scalar is passed a second time."""
        form = "float16" if dtype == "float16" else "float32"
        held = self.buffers[name].dtype
        if held == form or (form == "float32" and is_float(held) and held != "float16"):
            return name
        twin = f"{name}_{form}"
        if twin not in self.buffers:
            self.buffers[twin] = Buffer(twin, form, (), (), "scalar")
            self.inputs.append(twin)
            self.source[twin] = name
        return twin

    # Nodes and common subexpressions

    def _node(
        self,
        op: str,
        dims: tuple[tuple[str, int], ...],
        inputs: tuple[Value, ...],
        output: Load,
        reduced: tuple[str, ...] = (),
        origin: str = "",
        along: str = "",
        limits: tuple[int, ...] = (),
        top: TopK | None = None,
    ) -> None:
        name = f"n{len(self.nodes)}_{op}"
        node = Node(name, op, dims, inputs, output, reduced, {}, origin, along, limits, top, self.hints)
        self.nodes.append(node)

    def _key(self, op: str, dims: Dims, inputs: tuple[Value, ...], dtype: str) -> tuple[Any, ...]:
        rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
        held = tuple(self._value_key(v, rename) for v in inputs)
        return op, held_as(dtype), tuple(n for _, n in dims), held

    def _value_key(self, value: Value, rename: dict[str, str]) -> object:
        if isinstance(value, Const):
            return value, type(value.value)  # True is 1 and 1 is 1.0, but not here
        index = value.index.rename(rename)
        return (value.buffer, self.version.get(value.buffer, 0), index) if isinstance(value, Load) else index

    def _remember(self, op: str, dims: tuple[tuple[str, int], ...], inputs: tuple[Value, ...], output: Load) -> None:
        dtype = self.buffers[output.buffer].dtype
        if self._recall(op, dims, inputs, dtype) is None:
            rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
            held = Load(output.buffer, output.index.rename(rename))
            self.seen[self._key(op, dims, inputs, dtype)] = (held, self.version.get(output.buffer, 0))

    def _recall(self, op: str, dims: tuple[tuple[str, int], ...], inputs: tuple[Value, ...], dtype: str) -> Load | None:
        """Where the value is, unless that buffer was written again since."""
        known, version = self.seen.get(self._key(op, dims, inputs, dtype), (None, 0))
        if known is None or version != self.version.get(known.buffer, 0):
            return None
        return Load(known.buffer, known.index.rename({f"x{i}": d for i, (d, _) in enumerate(dims)}))

    def returned(self, value: ir.IRNode) -> str:
        """Name of the buffer behind a result; remembers the view of it that callers get."""
        name: str = self.alias.get(value.get_name(), value.get_name())
        layout = value.get_layout()
        seen = (_ints(layout.size), _ints(layout.stride))
        if self.buffer(name).kind == "input":
            return self._copy_of_input(name, *seen, static(layout.offset))
        buffer = self.buffers[name]
        if layout.offset != 0:
            raise UnsupportedOp(f"result {name} starts {layout.offset} elements into its buffer")
        if seen != (buffer.size, buffer.stride):
            buffer.returned_as = seen
        return name

    def _copy_of_input(self, name: str, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> str:
        """A result that is an argument as it came: a call returns a tensor of its own."""
        dims = tuple((f"d{i}", n) for i, n in enumerate(size))
        place = tuple(Term(d, s) for (d, n), s in zip(dims, stride, strict=True) if n > 1)
        copy = f"{name}_result"
        self.buffers[copy] = Buffer(copy, self.buffers[name].dtype, size, stride)
        if 0 not in size:
            self._node("identity", _live(dims), (Load(name, Index(place, offset)),), Load(copy, Index(place)))
        return copy

    def graph(self, outputs: Iterable[str]) -> Graph:
        """Finishes: marks outputs, drops what nobody reads and copies that only carry a result over."""
        self.outputs = [self.alias.get(name, name) for name in outputs]
        for name in self.outputs:
            if self.buffers[name].kind == "temp":
                self.buffers[name].kind = "output"
        needed = self.checks | {n for n, b in self.buffers.items() if b.kind in ("output", "input")}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output.buffer in needed:
                kept.append(node)
                needed.update(load.buffer for load in node.loads())
        buffers = {n: b for n, b in self.buffers.items() if n in needed}
        inputs = [n for n in self.inputs if n in buffers]
        graph = Graph(self.name, buffers, kept[::-1], inputs, self.outputs)
        return forward_copies(graph)


def _live(dims: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(d for d in dims if d[1] > 1)


def _used(values: Iterable[Value], dims: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The dims that the values depend on."""
    names = {d for v in values if not isinstance(v, Const) for d in v.index.dims}
    return tuple(d for d in dims if d[0] in names)


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(static(v) for v in values)


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
