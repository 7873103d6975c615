# SPDX-License-Identifier: Apache-2.0
"""Inductor's realised buffers -> TileGraph.

Each buffer's body is traced symbolically into an expression; every operation of it becomes one node, so that a node
is one device operation with tensor operands. Equal expressions over equal accesses are computed once, whether
Inductor realised them or inlined them twice. Intermediates are contiguous temporaries over the dims they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V

from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Graph, Load, Node, Value
from torch_spyre._inductor.tilegraph.index import BASE, Index, from_sympy, split_base
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ktir.tileops import Term

# Inductor's scalar op -> opfunc. Casts, constants and loads are handled apart.
POINTWISE = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "realdiv",
    "maximum": "maximum",
    "minimum": "minimum",
    "neg": "neg",
    "abs": "abs",
    "relu": "relufwd",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "floor": "floor",
    "where": "where3",
}
COMPARE = {
    "eq": "equal",
    "ne": "notequal",
    "gt": "greaterthan",
    "ge": "greaterequal",
    "lt": "lesserthan",
    "le": "lesserequal",
}
# On truth values, stored as 1 and 0.
LOGICAL = {
    "logical_and": "mul",
    "bitwise_and": "mul",
    "logical_or": "maximum",
    "bitwise_or": "maximum",
    "logical_xor": "notequal",
    "bitwise_xor": "notequal",
}
REDUCTIONS = {"sum": "sum", "max": "max", "min": "min"}
_SIXTEEN_BIT = ("float16", "bfloat16", "bool")
_SAME_FORMAT = (_SIXTEEN_BIT, ("int32", "int64"))
_BITS = {"int64": 32, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}  # of the values, as the card keeps them
_NARROW = ("int16", "int8", "uint8")
_CONVERTIBLE = (*_SIXTEEN_BIT, *_BITS, "float32", "float8_e4m3fn", "float8_e5m2fnuz")


# (dtype, size, stride, is a launch scalar)
Outside = tuple[torch.dtype, Sequence[Any], Sequence[Any], bool]


@dataclass(frozen=True)
class Expr:
    """A traced scalar: ``op`` is load, const or an opfunc."""

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    leaf: Value | None = None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Tracer(DefaultHandler):
    """Ops handler that records one buffer's body as an expression over loads."""

    def __init__(self, builder: Builder, sizes: dict[str, int], reading: str) -> None:
        self.builder = builder
        self.sizes = sizes
        self.reading = reading
        self.stored: tuple[Index, Expr] | None = None

    def _index(self, index: sympy.Expr) -> Index:
        ranges = {sympy.Symbol(n, integer=True, nonnegative=True): sympy.Integer(s) for n, s in self.sizes.items()}
        return from_sympy(V.graph.sizevars.simplify_with_ranges(self._numbers(index), ranges), self.sizes)

    def _numbers(self, expr: sympy.Expr) -> sympy.Expr:
        """The expression with its symbolic sizes as numbers."""
        expr = sympy.sympify(expr)
        return expr.xreplace({s: sympy.Integer(_static(s)) for s in expr.free_symbols if str(s) not in self.sizes})

    def load(self, name: str, index: sympy.Expr) -> Expr:
        buffer = self.builder.buffer(name)
        try:
            return Expr("load", buffer.dtype, leaf=Load(buffer.name, self._index(index)))
        except UnsupportedOp as error:
            found = split_base(self._numbers(index), self.sizes)
            if found is None:
                raise UnsupportedOp(f"{self.reading}: {error}") from None
            return Expr("load", buffer.dtype, leaf=self.builder.flattened(buffer, *found, self.reading))

    def constant(self, value: bool | float | int, dtype: torch.dtype) -> Expr:
        return Expr("const", dtype_name(dtype), leaf=Const(value, dtype_name(dtype)))

    def to_dtype(self, x: Expr, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True) -> Expr:
        return self.builder.cast(x, dtype_name(dtype))

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Expr:
        if reduction_type == "dot" and value.op == "dot":
            return Expr("batchmatmul", dtype_name(dtype), value.args)
        if reduction_type not in REDUCTIONS or not isinstance(value, Expr):
            raise UnsupportedOp(f"reduction {reduction_type} in {self.reading} has no device operation yet")
        return Expr(REDUCTIONS[reduction_type], dtype_name(dtype), (value,))

    def dot(self, x: Expr, y: Expr) -> Expr:
        return Expr("dot", x.dtype, (x, y))

    def store(self, name: str, index: sympy.Expr, value: Expr, mode: Any = None) -> None:
        if mode is not None:
            raise UnsupportedOp(f"store mode {mode} in {self.reading} has no device operation yet")
        self.stored = (self._index(index), value)

    def store_reduction(self, name: str, index: sympy.Expr, value: Expr) -> None:
        self.stored = (self._index(index), value)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Expr:
        expr = self._numbers(expr)
        if not isinstance(expr, sympy.Integer):
            raise UnsupportedOp(f"{self.reading} computes with positions ({expr}), which has no device operation yet")
        return self.constant(int(expr), dtype)

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expr:
        if name == "square":
            return Expr("mul", args[0].dtype, (args[0], args[0]))
        if name in LOGICAL and all(a.dtype == "bool" for a in args):
            return Expr(LOGICAL[name], "bool", tuple(args))
        if name in ("logical_not", "bitwise_not") and args[0].dtype == "bool":
            return Expr("equal", "bool", (args[0], Expr("const", "bool", leaf=Const(0, "bool"))))
        if name in POINTWISE and not kwargs:
            values = args[1:] if name == "where" else args
            dtype = values[0].dtype
            if dtype in _NARROW:  # computed in int32 and brought back to the dtype's range, as PyTorch wraps
                wide = tuple(self.builder.cast(v, "int32") for v in values)
                return self.builder.cast(Expr(POINTWISE[name], "int32", (*args[: -len(wide)], *wide)), dtype)
            return Expr(POINTWISE[name], dtype, tuple(args))
        if name in COMPARE:
            return Expr(COMPARE[name], "bool", tuple(args))
        raise UnsupportedOp(
            f"{name} in {self.reading} has no device operation yet: move the tensor with .cpu() first to run it there"
        )


class Builder:
    """Collects nodes; `graph()` returns the result."""

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
        copy = self._recall("identity", sizes, source)
        if copy is None:
            copy = self.temp(sizes, buffer.dtype)
            self._node("identity", sizes, source, copy, origin=origin)
            self._remember("identity", sizes, source, copy)
        outer = tuple(t for t in copy.index.terms if t.dim != BASE)
        return Load(copy.buffer, Index((*position.terms, *outer), position.const))

    # Operations

    def add_computed(self, buf: ir.ComputedBuffer) -> None:
        """One realised buffer: traces its body and adds its nodes."""
        data = buf.data
        if not isinstance(data, (ir.Pointwise, ir.Reduction)) or isinstance(data, ir.Scatter):
            raise UnsupportedOp(f"{type(data).__name__} buffer {buf.get_name()} has no device operation yet")
        buf.decide_layout()
        ranges = _ints(data.ranges)
        rranges = _ints(data.get_reduction_size())
        dims = [(f"d{i}", n) for i, n in enumerate(ranges)]
        rdims = [(f"r{i}", n) for i, n in enumerate(rranges)]
        names = [sympy.Symbol(n, integer=True, nonnegative=True) for n, _ in dims + rdims]
        origin = _origin(buf)
        tracer = Tracer(self, dict(dims + rdims), origin or buf.get_name())
        index, rindex = names[: len(dims)], names[len(dims) :]
        with V.set_ops_handler(tracer):
            store = buf.get_store_function()
            if rindex or isinstance(data, ir.Reduction):
                store(index, rindex)
            else:
                store(index)
        assert tracer.stored is not None
        out_index, expr = tracer.stored
        target = self._target(buf)
        if 0 in ranges:  # nothing to compute: the empty result only has to exist
            pass
        elif 0 in rranges:
            raise UnsupportedOp(f"reduction of {buf.get_name()} over a dim of size 0 ({origin})")
        elif isinstance(data, ir.Reduction):
            self._add_reduction(expr, dims, rdims, Load(target, out_index), origin)
        else:
            self._add_root(expr, dims, Load(target, out_index), origin)
        if isinstance(buf.layout, ir.MutationLayoutSHOULDREMOVE):
            self.version[target] = self.version.get(target, 0) + 1
            self.alias[buf.get_name()] = target

    def _target(self, buf: ir.ComputedBuffer) -> str:
        """Name of the buffer that buf's store writes: its own, or the one it mutates."""
        layout = buf.layout
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self.buffer(layout.get_buffer().get_name()).name
        fixed = layout.as_fixed()
        name = buf.get_name()
        self.buffers[name] = Buffer(name, dtype_name(buf.get_dtype()), _ints(fixed.size), _ints(fixed.stride))
        return name

    def _add_root(self, expr: Expr, dims: list[tuple[str, int]], output: Load, origin: str) -> None:
        live = tuple(d for d in dims if d[1] > 1)
        dtype = self.buffers[output.buffer].dtype
        if expr.dtype != dtype:
            expr = self.cast(expr, dtype)
        if expr.op in ("load", "const"):
            assert expr.leaf is not None
            self._node("identity", live, (expr.leaf,), output, origin=origin)
            return
        inputs = tuple(self._operand(a, live, origin) for a in expr.args)
        self._node(expr.op, live, inputs, output, origin=origin)
        self._remember(expr.op, live, inputs, output)

    def _add_reduction(
        self, expr: Expr, dims: list[tuple[str, int]], rdims: list[tuple[str, int]], output: Load, origin: str
    ) -> None:
        dtype = self.buffers[output.buffer].dtype
        if expr.dtype != dtype:
            raise UnsupportedOp(f"reduction of {expr.dtype} into {dtype} ({origin})")
        if expr.op == "batchmatmul":
            names = [f"b{i}" for i in range(len(dims) - 2)] + ["m", "n", "k"]
            rename = {old: new for (old, _), new in zip(dims + rdims, names, strict=True)}
            loads = []
            for arg in expr.args:
                leaf = self._operand(arg, tuple(dims + rdims), origin)
                assert isinstance(leaf, Load)
                loads.append(Load(leaf.buffer, leaf.index.rename(rename)))
            sizes = tuple((rename[d], n) for d, n in dims + rdims)
            out = Load(output.buffer, output.index.rename(rename))
            self._node("batchmatmul", sizes, tuple(loads), out, reduced=("k",), origin=origin)
            return
        live = tuple(d for d in dims + rdims if d[1] > 1)
        value = self._operand(expr.args[0], live, origin)
        reduced = tuple(d for d, n in rdims if n > 1)
        op = expr.op if reduced else "identity"
        self._node(op, live, (value,), output, reduced=reduced, origin=origin)

    def _operand(self, expr: Expr, dims: tuple[tuple[str, int], ...], origin: str) -> Value:
        """The value of expr as an operand, computing it into a temporary if it is not one already."""
        if expr.op in ("load", "const"):
            assert expr.leaf is not None
            return expr.leaf
        inputs = tuple(self._operand(a, dims, origin) for a in expr.args)
        used = {d for v in inputs if isinstance(v, Load) for d in v.index.dims}
        live = tuple(d for d in dims if d[0] in used)
        known = self._recall(expr.op, live, inputs)
        if known is not None:
            return known
        output = self.temp(live, expr.dtype)
        self._node(expr.op, live, inputs, output, origin=origin)
        self._remember(expr.op, live, inputs, output)
        return output

    def cast(self, x: Expr, dtype: str) -> Expr:
        """x in another dtype; a dtype stored in the same device format is a new name for the same value."""
        if x.dtype == dtype:
            return x
        if isinstance(x.leaf, Load) and self.buffers[x.leaf.buffer].kind == "scalar" and "int" not in dtype:
            return Expr("load", dtype, leaf=Load(self._float_scalar(x.leaf.buffer), Index()))
        if x.op == "const":
            assert isinstance(x.leaf, Const)
            value = x.leaf.value
            value = bool(value) if dtype == "bool" else float(value) if "float" in dtype else int(value)
            return Expr("const", dtype, leaf=Const(value, dtype))
        if x.dtype in _SIXTEEN_BIT and dtype == "float32":
            return Expr("dl16tofp32", dtype, (x,))
        if x.dtype == "float32" and dtype in ("float16", "bfloat16"):
            return Expr("fp32todl16", dtype, (x,))
        if dtype == "bool":
            return Expr("notequal", dtype, (x, Expr("const", x.dtype, leaf=Const(0, x.dtype))))
        if any(x.dtype in same and dtype in same for same in _SAME_FORMAT):
            return Expr("identity", dtype, (x,))
        if x.dtype == "float8_e4m3fn" and dtype in ("float16", "bfloat16"):
            return Expr("fp8todl16", dtype, (x,))
        if dtype == "uint8" and x.dtype not in _BITS:  # -1.0 is 255, as on the host
            x = self.cast(x, "int32")
        if x.dtype in _BITS and dtype in _BITS:
            x = self._wrapped(x, dtype)
        if x.dtype not in _CONVERTIBLE or dtype not in _CONVERTIBLE:
            raise UnsupportedOp(f"conversion of {x.dtype} to {dtype} has no device operation: convert on the host")
        return Expr("convert", dtype, (x,))

    def _wrapped(self, x: Expr, dtype: str) -> Expr:
        """The integer x modulo the range of a narrower dtype. The card saturates when it stores; PyTorch wraps."""
        bits, unsigned = _BITS[dtype], dtype == "uint8"
        if _BITS[x.dtype] < bits or (x.dtype == "uint8" and bits > 8):
            return x
        wide = x if x.dtype in _SAME_FORMAT[1] else Expr("convert", "int32", (x,))

        def number(value: int) -> Expr:
            return Expr("const", "int32", leaf=Const(value, "int32"))

        def apply(op: str, left: Expr, value: int) -> Expr:
            return Expr(op, "int32", (left, number(value)))

        # Shift left and back: the product wraps, and dividing it by the same power of two is exact.
        shift = 1 << (32 - bits)
        low = apply("truncdiv", apply("mul", wide, shift), shift)
        if not unsigned:
            return low
        borrow = apply("maximum", apply("minimum", low, 0), -1)  # -1 where the value is negative, else 0
        return Expr("sub", "int32", (low, apply("mul", borrow, 1 << bits)))

    def _float_scalar(self, name: str) -> str:
        """The launch scalar `name` as fp32: an integer one is passed a second time, converted by the launcher."""
        buffer = self.buffers[name]
        if "int" not in buffer.dtype:
            return name
        twin = f"{name}_float"
        if twin not in self.buffers:
            self.buffers[twin] = Buffer(twin, "float32", (), (), "scalar")
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
    ) -> None:
        self.nodes.append(Node(f"n{len(self.nodes)}_{op}", op, dims, inputs, output, reduced, origin=origin))

    def _key(self, op: str, dims: tuple[tuple[str, int], ...], inputs: tuple[Value, ...]) -> tuple[Any, ...]:
        rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
        canonical = tuple(
            (v.buffer, self.version.get(v.buffer, 0), v.index.rename(rename)) if isinstance(v, Load) else v
            for v in inputs
        )
        return op, tuple(n for _, n in dims), canonical

    def _remember(self, op: str, dims: tuple[tuple[str, int], ...], inputs: tuple[Value, ...], output: Load) -> None:
        if self._recall(op, dims, inputs) is None:
            rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
            held = Load(output.buffer, output.index.rename(rename))
            self.seen[self._key(op, dims, inputs)] = (held, self.version.get(output.buffer, 0))

    def _recall(self, op: str, dims: tuple[tuple[str, int], ...], inputs: tuple[Value, ...]) -> Load | None:
        """Where the value is, unless that buffer was written again since."""
        known, version = self.seen.get(self._key(op, dims, inputs), (None, 0))
        if known is None or version != self.version.get(known.buffer, 0):
            return None
        return Load(known.buffer, known.index.rename({f"x{i}": d for i, (d, _) in enumerate(dims)}))

    def returned(self, value: ir.IRNode) -> str:
        """Name of the buffer behind a result; remembers the view of it that callers get."""
        name = self.alias.get(value.get_name(), value.get_name())
        layout = value.get_layout()
        seen = (_ints(layout.size), _ints(layout.stride))
        buffer = self.buffers[name]
        if layout.offset != 0:
            raise UnsupportedOp(f"result {name} starts {layout.offset} elements into its buffer")
        if seen != (buffer.size, buffer.stride):
            buffer.returned_as = seen
        return name

    def graph(self, outputs: Iterable[str]) -> Graph:
        """Finishes: marks outputs, drops what nobody reads."""
        self.outputs = [self.alias.get(name, name) for name in outputs]
        for name in self.outputs:
            if self.buffers[name].kind == "temp":
                self.buffers[name].kind = "output"
        needed = {n for n, b in self.buffers.items() if b.kind in ("output", "input")}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output.buffer in needed:
                kept.append(node)
                needed.update(load.buffer for load in node.loads())
        buffers = {n: b for n, b in self.buffers.items() if n in needed}
        inputs = [n for n in self.inputs if n in buffers]
        return Graph(self.name, buffers, kept[::-1], inputs, self.outputs)


def _origin(buf: ir.ComputedBuffer) -> str:
    """aten ops and the user's line, for messages and dumps."""
    nodes = sorted(buf.get_origins(), key=lambda n: n.name)
    ops = ", ".join(dict.fromkeys(str(n.target) for n in nodes if n.op == "call_function"))
    for node in nodes:
        trace = node.meta.get("stack_trace") or ""
        lines = [line.strip() for line in trace.strip().splitlines() if line.strip().startswith("File ")]
        if lines:
            return f"{ops} at {lines[-1].removeprefix('File ')}"
    return ops


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(_static(v) for v in values)


def _static(value: Any) -> int:
    """A size as a number. A symbolic one gets its present value, and a guard: another size compiles another graph."""
    if isinstance(value, (int, sympy.Integer)):
        return int(value)
    try:
        return int(V.graph.sizevars.guard_int(value))
    except Exception as error:
        raise UnsupportedOp(f"size {value} depends on data: give it a fixed size") from error


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
