# SPDX-License-Identifier: Apache-2.0
"""An interpreter of KTIR in NumPy, float64, for tests: slow, direct, and written without looking at the back end.

Every compute tile runs the function; tiles wait for each other at deliveries and before they read another scratchpad.
`Undefined` is raised where the text does not say what happens: two tiles touch an element and one writes it, memory
outside the buffers, results on tiles that do not consume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
from ktir_reference_memory import Memory, Parts, Pointer, TooLong, Undefined, View, bounds, holds, least, move
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    TensorType,
    _FloatType,
)
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap, AffineSet

LOCAL_ELEMENTS = 1 << 18
MOST_POINTS = 1 << 21

BINARY: dict[str, Callable[..., Any]] = {
    "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "maximumf": np.maximum,
    "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin, "remf": np.fmod, "addi": np.add,
    "subi": np.subtract, "muli": np.multiply, "minsi": np.minimum, "maxsi": np.maximum, "minui": np.minimum,
    "maxui": np.maximum, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "divsi": lambda a, b: np.trunc(np.asarray(a) / b).astype(np.int64), "remsi": np.fmod,
    "divui": np.floor_divide, "remui": np.mod, "floordivsi": np.floor_divide,
    "ceildivsi": lambda a, b: -np.floor_divide(-np.asarray(a), b),
    "ceildivui": lambda a, b: -np.floor_divide(-np.asarray(a), b),
    "atan2": np.arctan2, "powf": np.power, "copysign": np.copysign,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "negf": np.negative, "absf": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x), "floor": np.floor, "ceil": np.ceil, "sin": np.sin, "cos": np.cos,
    "erf": np.vectorize(math.erf, otypes=[float]), "exp2": np.exp2, "log2": np.log2, "absi": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)), "reciprocal": lambda x: 1 / x,
}  # fmt: skip
CMPI = [
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    np.less, np.less_equal, np.greater, np.greater_equal,
]  # fmt: skip
ORDERED = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal, 6: np.not_equal}
CASTS = ("index_cast", "index_castui", "extsi", "extui", "trunci", "extf", "truncf", "sitofp", "uitofp")

Run = Generator[Any, Any, None]


class Interpreter:
    def __init__(self, function: Any, arguments: Sequence[Any], axis0_fastest: bool = True) -> None:
        """`arguments`: a Memory per base address, a number per scalar."""
        self.function = function
        self.arguments = arguments
        self.grid = function.grid
        self.cores = math.prod(self.grid)
        self.axes = range(len(self.grid)) if axis0_fastest else range(len(self.grid) - 1, -1, -1)
        self.locals = [Memory(np.full(LOCAL_ELEMENTS, np.nan)) for _ in range(self.cores)]
        self.work = 0

    def run(self) -> None:
        tiles = [_TileRun(self, t) for t in range(self.cores)]
        running = {t: run.body(self.function.op.body.block) for t, run in enumerate(tiles)}
        answers: dict[int, Any] = dict.fromkeys(running)
        with np.errstate(all="ignore"):
            while running:
                waiting: dict[int, Any] = {}
                for t in list(running):
                    try:
                        waiting[t] = running[t].send(answers[t])
                    except StopIteration:
                        del running[t]
                answers = self.meet(waiting, tiles)

    def meet(self, waiting: dict[int, Any], tiles: Sequence[_TileRun]) -> dict[int, Any]:
        if not waiting:
            return {}
        for memory in (*(a for a in self.arguments if isinstance(a, Memory)), *self.locals):
            memory.meet()
        ops = set(waiting.values())
        if ops == {None}:
            return dict.fromkeys(waiting)
        if len(ops) != 1 or len(waiting) != self.cores:
            raise Undefined("tiles wait at different operations")
        (op,) = ops
        return self.deliver(op, tiles)

    def members(self, points: AffineSet, symbols: Sequence[int]) -> list[int]:
        return [t for t in range(self.cores) if holds(points, [t], symbols)]

    def deliver(self, op: Any, tiles: Sequence[_TileRun]) -> dict[int, Any]:
        answers: dict[int, Any] = dict.fromkeys(range(self.cores))
        produce = op.future.owner
        for group in self.members(op.future.type.groups.data, []):
            producers = self.members(produce.producer_tiles_per_group.data, [group])
            consumers = self.members(op.consumer_tiles_per_group.data, [group])
            for consumer in consumers:
                sources = producers
                if op.dependency is not None:
                    symbols = [consumer, group][: op.dependency.data.num_symbols]
                    sources = [p for p in self.members(op.dependency.data, symbols) if p in producers]
                values = [tiles[p].env[op.future] for p in sources]
                found = self.combine(op, values, tiles[consumer])
                position = consumers.index(consumer)
                answers[consumer] = [
                    self.part(op, value, result.type, position) for value, result in zip(found, op.values, strict=True)
                ]
        return answers

    def combine(self, op: Any, values: list[Any], tile: _TileRun) -> list[np.ndarray]:
        if op.FOLDS:
            total = [tile.env[i] for i in op.identity]
            block = op.combiner.block
            for value in values:
                tile.env.update(zip(block.args, [*total, *value], strict=True))
                _finish(tile.body(block))
                total = [tile.env[v] for v in block.last_op.operands]
            return total
        if not op.concat_dims:
            return values[0]
        joined = []
        for index, result in enumerate(op.values):
            parts = [v[index] for v in values]
            if op.split_dims:  # all_to_all: each source is cut first
                joined.append(parts)
                continue
            joined.append(_concat(parts, op.concat_dims, result.type.get_shape()))
        return joined

    def part(self, op: Any, value: Any, kind: Any, position: int) -> np.ndarray:
        if not op.split_dims:
            return value
        if isinstance(value, list):
            before = value[0].shape
            shape = list(before)
            for d in op.split_dims:
                shape[d] = kind.get_shape()[d] // len(value) if d in op.concat_dims else kind.get_shape()[d]
            return _concat([_cut(v, op.split_dims, shape, position) for v in value], op.concat_dims, kind.get_shape())
        return _cut(value, op.split_dims, kind.get_shape(), position)


def _cut(value: np.ndarray, dims: Sequence[int], shape: Sequence[int], position: int) -> np.ndarray:
    counts = [value.shape[d] // shape[d] for d in dims]
    index = np.unravel_index(position, counts)
    cut = [slice(None)] * value.ndim
    for d, i in zip(dims, index, strict=True):
        cut[d] = slice(int(i) * shape[d], (int(i) + 1) * shape[d])
    return value[tuple(cut)]


def _concat(parts: list[np.ndarray], dims: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    counts = [shape[d] // parts[0].shape[d] for d in dims]
    out = np.empty([s if d in dims else parts[0].shape[d] for d, s in enumerate(shape)])
    for position, value in enumerate(parts):
        where = [slice(None)] * value.ndim
        for d, i in zip(dims, np.unravel_index(position, counts), strict=True):
            where[d] = slice(int(i) * value.shape[d], (int(i) + 1) * value.shape[d])
        out[tuple(where)] = value
    return out


def _finish(run: Run) -> None:
    for _ in run:
        raise Undefined("tiles meet inside a combiner")


class _TileRun:
    """One compute tile: its values, and the operations on them."""

    def __init__(self, machine: Interpreter, tile: int) -> None:
        self.machine, self.tile = machine, tile
        self.env: dict[SSAValue, Any] = {}
        block = machine.function.op.body.block
        for arg, value in zip(block.args, machine.arguments, strict=True):
            self.env[arg] = value if not isinstance(value, Memory) else Pointer(value, 0)

    def body(self, block: Block) -> Run:
        for op in block.ops:
            self.machine.work += 1
            if self.machine.work > 400_000:
                raise TooLong
            dialect, _, name = op.name.partition(".")
            handler = getattr(self, f"{dialect}_{name.replace('.', '_')}", None)
            if handler is not None:
                results = handler(op)
                if isinstance(results, Generator):
                    results = yield from results
            else:
                try:
                    results = self.plain(op, dialect, name)
                except ValueError as error:  # dynamic sizes that differ where the text says they are one
                    raise Undefined(str(error)) from error
            if op.results:
                values = results if isinstance(results, list) else [results]
                self.env.update(zip(op.results, values, strict=True))

    def get(self, values: Iterable[SSAValue]) -> list[Any]:
        return [self.env[v] for v in values]

    # -- arithmetic

    def plain(self, op: Operation, dialect: str, name: str) -> Any:
        values = self.get(op.operands)
        if any(v is None for v in values):
            raise Undefined("a value that this tile does not have")
        if dialect in ("arith", "math", "spyreop"):
            if name in ("addi", "subi") and any(isinstance(v, Pointer) for v in values):
                return move(values, -1 if name == "subi" else 1)
            if name in BINARY and len(values) == 2:
                return BINARY[name](*values)
            if name in UNARY and len(values) == 1:
                return UNARY[name](np.asarray(values[0], dtype=float) if name != "absi" else values[0])
            if name in CASTS:
                return self.cast(op, values[0])
        if dialect == "linalg" and hasattr(op, "body") and op.regions:
            return self.named(op)
        raise NotImplementedError(op.name)

    def cast(self, op: Operation, value: Any) -> Any:
        target: Any = op.results[0].type
        element = target.element_type if isinstance(target, TensorType) else target
        if isinstance(value, Pointer):
            return value
        return np.asarray(value, dtype=float) if isinstance(element, _FloatType) else np.asarray(value).astype(np.int64)

    def arith_constant(self, op: Any) -> Any:
        attr = op.properties["value"]
        if isinstance(attr, FloatAttr | IntegerAttr):
            return attr.value.data
        assert isinstance(attr, DenseIntOrFPElementsAttr)
        kind = float if isinstance(op.results[0].type.element_type, _FloatType) else np.int64
        values = np.array(list(attr.get_values()), dtype=kind)
        shape = op.results[0].type.get_shape()
        return np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)

    def arith_fptosi(self, op: Any) -> Any:
        return np.trunc(self.env[op.operands[0]]).astype(np.int64)

    def arith_cmpi(self, op: Any) -> Any:
        return CMPI[op.properties["predicate"].value.data](*self.get(op.operands))

    def arith_cmpf(self, op: Any) -> Any:
        code = op.properties["predicate"].value.data
        a, b = (np.asarray(v, dtype=float) for v in self.get(op.operands))
        unordered = np.isnan(a) | np.isnan(b)
        if code in (7, 14):
            return ~unordered if code == 7 else unordered
        if code in (0, 15):
            return np.full(a.shape, code == 15)
        test = ORDERED[code if code < 7 else code - 7](a, b)
        return test & ~unordered if code < 7 else test | unordered

    def arith_select(self, op: Any) -> Any:
        return np.where(*self.get(op.operands))

    # -- memory

    def ktdp_get_compute_tile_id(self, op: Any) -> Any:
        flat, found = self.tile, [0] * max(len(self.machine.grid), len(op.results))
        for axis in self.machine.axes:
            found[axis] = flat % self.machine.grid[axis]
            flat //= self.machine.grid[axis]
        return found[: len(op.results)]

    def mixed(self, static: Any, dynamic: Any) -> list[int]:
        values = iter(self.get(dynamic))
        return [int(next(values)) if s == DYNAMIC_INDEX else s for s in static]

    def ktdp_construct_memory_view(self, op: Any) -> Any:
        base = self.env[op.offset]
        sizes = self.mixed(op.static_sizes.get_values(), op.sizes)
        strides = self.mixed(op.static_strides.get_values(), op.strides)
        symbols = [int(v) for v in self.get(op.sizes)]
        domain = op.coordinate_set.data
        space = op.memory_space
        if space.is_local:
            owner = self.tile if space.tile is None else space.tile
            memory, offset = self.machine.locals[owner], base if not isinstance(base, Pointer) else None
        else:
            owner = None
            memory, offset = (base.memory, base.offset) if isinstance(base, Pointer) else (None, base)
        if memory is None or offset is None:
            raise Undefined("an address without a buffer")
        view = View(memory, int(offset), sizes, strides, lambda c: holds(domain, list(np.moveaxis(c, -1, 0)), symbols))
        view.local = owner if owner != self.tile else None
        view.origin = least(domain, symbols, sizes) if self.is_part(op) else [0] * len(sizes)
        return view

    @staticmethod
    def is_part(op: Any) -> bool:
        return any(u.operation.name == "ktdp.construct_distributed_memory_view" for u in op.view.uses)

    def ktdp_construct_distributed_memory_view(self, op: Any) -> Any:
        return Parts(self.get(op.parts), op.view.type.get_shape())

    def box(self, points: AffineSet, symbols: Sequence[SSAValue], order: AffineMap) -> np.ndarray:
        """Points of a set, in the order of the map, shaped as the tile."""
        values = [int(v) for v in self.get(symbols)]
        low, high = bounds(points, values)
        sizes = [max(0, h - lo + 1) for lo, h in zip(low, high, strict=True)]
        if math.prod(sizes) > MOST_POINTS:
            raise TooLong
        if not sizes:
            return np.zeros(0, np.int64)
        axes = (np.arange(lo, lo + s) for lo, s in zip(low, sizes, strict=True))
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        if not np.all(holds(points, list(np.moveaxis(grid, -1, 0)), values)):
            raise NotImplementedError("a set that is not a box")
        return grid.transpose(*[e.position for e in order.results], len(sizes))  # type: ignore[attr-defined]

    def ktdp_construct_access_tile(self, op: Any) -> Any:
        indices = [int(v) for v in self.get(op.indices)]
        anchor = np.array(op.base_map.data.eval(indices, []), dtype=np.int64)
        return self.env[op.base], self.box(op.access_tile_set.data, op.symbols, op.access_tile_order.data) + anchor

    def ktdp_construct_indirect_access_tile(self, op: Any) -> Any:
        points = self.box(op.variables_space_set.data, op.symbols, op.variables_space_order.data)
        captured = [int(v) for v in self.get(op.captured)]
        variables = list(np.moveaxis(points, -1, 0)) if op.variables else []
        shape = points.shape[:-1] if op.variables else ()
        views = iter(self.get(op.indirect))
        base = self.env[op.base]
        coordinates = []
        for dim, (attr, indirect) in enumerate(zip(op.per_dim_subscript_maps.data, op.is_indirect, strict=True)):
            places = [np.broadcast_to(r, shape) for r in attr.data.eval([*captured, *variables], [])]
            if not indirect:
                coordinates.append(places[0])
                continue
            index = self.read(next(views), np.stack(places, -1)).astype(np.int64)
            if index.size and (index.min() < 0 or index.max() >= base.sizes[dim]):
                raise Undefined("an index outside its table")
            coordinates.append(index)
        return base, np.stack(coordinates, -1)

    def read(self, view: Any, coordinates: np.ndarray) -> np.ndarray:
        shape = coordinates.shape[:-1]
        flat = coordinates.reshape(-1, coordinates.shape[-1])
        out = np.zeros(len(flat))
        left = np.ones(len(flat), bool)
        for part in view.parts if isinstance(view, Parts) else [view]:
            inside = left & np.broadcast_to(part.domain(flat), len(flat))
            out[inside] = part.memory.read(part.where(flat[inside]), self.tile)
            left &= ~inside
        return out.reshape(shape)

    def ktdp_load(self, op: Any) -> Any:
        view, coordinates = self.env[op.tile]
        if isinstance(view, np.ndarray):
            raise NotImplementedError("a tile of a tensor")
        parts = view.parts if isinstance(view, Parts) else [view]
        if any(p.local is not None for p in parts):
            yield None  # every tile has stored what it had to store
        value = self.read(view, coordinates)
        element = op.value.type.element_type
        return value if isinstance(element, _FloatType) else value.astype(np.int64)

    def ktdp_store(self, op: Any) -> Any:
        view, coordinates = self.env[op.tile]
        value = self.env[op.value]
        if value is None:
            raise Undefined("a value that this tile does not have")
        flat = coordinates.reshape(-1, coordinates.shape[-1])
        values = np.broadcast_to(value, coordinates.shape[:-1]).reshape(-1)
        left = np.ones(len(flat), bool)
        for part in view.parts if isinstance(view, Parts) else [view]:
            inside = left & np.broadcast_to(part.domain(flat), len(flat))
            where = part.where(flat[inside])
            if op.tile.owner.name != "ktdp.construct_indirect_access_tile" and np.unique(where).size != where.size:
                raise Undefined("a store that hits an element twice")
            part.memory.write(where, values[inside], self.tile, "accumulate" in op.attributes)
            left &= ~inside
        return []

    def ktdp_runtime_arg_extract(self, op: Any) -> Any:
        if op.field.data == "value":
            return self.env[op.argument]
        return getattr(op.argument.type, op.field.data).data

    # -- exchange

    def ktdp_inter_tile_produce(self, op: Any) -> Any:
        machine = self.machine
        for group in machine.members(op.future.type.groups.data, []):
            if self.tile in machine.members(op.producer_tiles_per_group.data, [group]):
                self.env[op.body.block.args[0]] = group
                yield from self.body(op.body.block)
                return [self.get(op.body.block.last_op.operands)]
        return [None]

    def delivery(self, op: Any) -> Any:
        answer = yield op
        return answer if answer is not None else [None] * len(op.results)

    ktdp_inter_tile_consume = ktdp_inter_tile_reduce = ktdp_inter_tile_gather = delivery
    ktdp_inter_tile_scatter = ktdp_inter_tile_all_to_all = ktdp_inter_tile_reduce_scatter = delivery

    def nothing(self, op: Any) -> Any:
        return []

    ktdp_yield_partial = ktdp_yield_reduced = ktdp_region_terminator = nothing
    scf_yield = linalg_yield = tensor_yield = func_return = nothing

    # -- control

    def scf_for(self, op: Any) -> Any:
        low, high, step = (int(v) for v in self.get(op.operands[:3]))
        if step <= 0:
            raise Undefined("a step that is not positive")
        carried = self.get(op.operands[3:])
        block = op.regions[0].block
        for i in range(low, high, step):
            self.env[block.args[0]] = i
            self.env.update(zip(block.args[1:], carried, strict=True))
            yield from self.body(block)
            carried = self.get(block.last_op.operands)
        return carried

    def scf_if(self, op: Any) -> Any:
        region = op.regions[0] if np.all(self.env[op.operands[0]]) else op.regions[1]
        if not region.blocks:
            return []
        yield from self.body(region.block)
        return self.get(region.block.last_op.operands)

    # -- tensors

    def shape_of(self, value: SSAValue, dynamic: Sequence[SSAValue] = ()) -> list[int]:
        return self.mixed(value.type.get_shape(), dynamic)  # type: ignore[attr-defined]

    def tensor_empty(self, op: Any) -> Any:
        return np.zeros(self.shape_of(op.results[0], op.operands)).view(_Empty)

    def tensor_splat(self, op: Any) -> Any:
        return np.full(self.shape_of(op.results[0], op.operands[1:]), self.env[op.operands[0]])

    def tensor_extract(self, op: Any) -> Any:
        value, *index = self.get(op.operands)
        return value[tuple(int(i) for i in index)]

    def reshaped(self, op: Any) -> Any:
        return np.asarray(self.env[op.operands[0]]).reshape(op.results[0].type.get_shape())

    tensor_collapse_shape = tensor_expand_shape = tensor_reshape = reshaped

    def tensor_generate(self, op: Any) -> Any:
        block = op.body.block
        shape = self.shape_of(op.results[0], op.operands)
        self.env.update(zip(block.args, np.meshgrid(*(np.arange(s) for s in shape), indexing="ij"), strict=True))
        yield from self.body(block)
        return np.broadcast_to(self.env[block.last_op.operands[0]], shape)

    def linalg_fill(self, op: Any) -> Any:
        value, out = self.get(op.operands)
        return np.full(np.shape(out), value)

    def linalg_broadcast(self, op: Any) -> Any:
        value, out = self.get(op.operands)
        shape = np.shape(out)
        return np.broadcast_to(np.expand_dims(value, tuple(op.dimensions.get_values())), shape)

    def linalg_transpose(self, op: Any) -> Any:
        return np.transpose(self.env[op.operands[0]], op.permutation.get_values())

    def contraction(self, op: Any) -> Any:
        a, b, c = (np.asarray(v, dtype=float) for v in self.get(op.operands))
        names = [[chr(97 + e.position) for e in m.results] for m in op.maps]
        product = np.einsum(f"{''.join(names[0])},{''.join(names[1])}->{''.join(names[2])}", a, b)
        return c + product

    linalg_matmul = linalg_batch_matmul = linalg_matvec = contraction

    def linalg_reduce(self, op: Any) -> Any:
        dims = op.dimensions.get_values()
        inputs, inits = self.get(op.inputs), self.get(op.inits)
        block = op.combiner.block
        only = next(iter(block.ops)).name.split(".")[1] if len(list(block.ops)) == 2 else ""
        whole = {
            "addf": np.sum,
            "maximumf": np.max,
            "minimumf": np.min,
            "maxnumf": np.max,
            "mulf": np.prod,
            "addi": np.sum,
        }
        if only in whole and len(inputs) == 1:
            total = whole[only](inputs[0], axis=tuple(dims))
            return total if isinstance(inits[0], _Empty) else BINARY[only](total, inits[0])
        kept = [d for d in range(inputs[0].ndim) if d not in dims]
        rows = [np.transpose(v, [*kept, *dims]).reshape(*(v.shape[d] for d in kept), -1) for v in inputs]
        state = [np.asarray(v) for v in inits]
        for i in range(rows[0].shape[-1]):
            self.env.update(zip(block.args, [*(r[..., i] for r in rows), *state], strict=True))
            yield from self.body(block)
            state = self.get(block.last_op.operands)
        return state

    def named(self, op: Any) -> Any:
        """Elementwise named operations, by their hidden body."""
        values = self.get(op.operands)
        block = op.regions[0].block
        self.env.update(zip(block.args, values, strict=True))
        _finish(self.body(block))
        return self.env[block.last_op.operands[0]]

    def linalg_generic(self, op: Any) -> Any:
        maps = [m.data for m in op.indexing_maps.data]
        kinds = [k.data.value for k in op.iterator_types.data]
        if any(k != "parallel" for k in kinds):
            raise NotImplementedError("linalg.generic with a reduction")
        values = self.get(op.operands)
        sizes: dict[int, int] = {}
        for m, v in zip(maps, values, strict=True):
            for e, s in zip(m.results, np.shape(v), strict=True):
                sizes[e.position] = s
        space = [sizes[d] for d in range(len(kinds))]
        block = op.body.block
        self.indices = np.meshgrid(*(np.arange(s) for s in space), indexing="ij")
        for arg, m, v in zip(block.args, maps, values, strict=True):
            places = [e.position for e in m.results]
            turned = np.transpose(v, np.argsort(places)) if places else v
            self.env[arg] = np.broadcast_to(
                np.asarray(turned).reshape([space[d] if d in places else 1 for d in range(len(space))]), space
            )
        yield from self.body(block)
        return [
            np.transpose(np.broadcast_to(self.env[v], space), [e.position for e in m.results])
            for v, m in zip(block.last_op.operands, maps[-len(op.results) :], strict=True)
        ]

    def linalg_index(self, op: Any) -> Any:
        return self.indices[op.dim.value.data]


class _Empty(np.ndarray):
    """Content of tensor.empty: zeros, and no initial value for a reduction."""
