# SPDX-License-Identifier: Apache-2.0
"""A small evaluator of KTIR for tests: float64 numpy, all cores in turn, with a check for races in memory.

It knows nothing about the emitter. Buffers are flat arrays, one per function argument; padding is NaN, so that a
value computed from padding shows. Between two points where all cores meet, an element that one core writes must not be
touched by another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineSet

LX_ELEMENTS = 1 << 16


def to_device(host: np.ndarray, stick: int = 64) -> np.ndarray:
    """Default stick layout of a host array, flat, padding NaN."""
    sticks = -(-host.shape[-1] // stick)
    padded = np.full((*host.shape[:-1], sticks * stick), np.nan)
    padded[..., : host.shape[-1]] = host
    tiled = padded.reshape(*host.shape[:-1], sticks, stick)
    if host.ndim > 1:
        tiled = np.moveaxis(tiled, 0, -2)
    return np.ascontiguousarray(tiled).reshape(-1)


def from_device(flat: np.ndarray, shape: Sequence[int], stick: int = 64) -> np.ndarray:
    sticks = -(-shape[-1] // stick)
    if len(shape) == 1:
        return flat.reshape(-1)[: shape[0]]
    tiled = np.moveaxis(flat.reshape(*shape[1:-1], sticks, shape[0], stick), -2, 0)
    return tiled.reshape(*shape[:-1], sticks * stick)[..., : shape[-1]]


@dataclass(frozen=True)
class Pointer:
    argument: int
    offset: int = 0


@dataclass
class Buffer:
    """Memory that knows who wrote and who read each element since all cores last met (0 nobody, -1 several)."""

    data: np.ndarray
    writer: np.ndarray = field(init=False)
    reader: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.writer, self.reader = (np.zeros(self.data.size, np.int64) for _ in range(2))

    def meet(self) -> None:
        self.writer[:] = 0
        self.reader[:] = 0

    def read(self, where: np.ndarray, core: int) -> np.ndarray:
        assert np.isin(self.writer[where], (0, core + 1)).all(), f"core {core} reads what another core has written"
        self.reader[where] = np.where(np.isin(self.reader[where], (0, core + 1)), core + 1, -1)
        return self.data[where]

    def write(self, where: np.ndarray, value: np.ndarray, core: int) -> None:
        for other in (self.writer, self.reader):
            assert np.isin(other[where], (0, core + 1)).all(), f"core {core} writes what another core has touched"
        assert np.unique(where).size == where.size, f"core {core} writes an element twice"
        self.writer[where] = core + 1
        self.data[where] = value


def members(tiles: AffineSet, group: int, cores: int) -> list[int]:
    def holds(tile: int) -> bool:
        values = [(c.kind.value, c.lhs.eval([tile], [group]) - c.rhs.eval([tile], [group])) for c in tiles.constraints]
        return all(v == 0 if kind == "==" else v >= 0 if kind == ">=" else v <= 0 for kind, v in values)

    return [tile for tile in range(cores) if holds(tile)]


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.negf": np.negative,
    "arith.extf": np.positive,
    "arith.truncf": np.positive,
    "arith.uitofp": lambda x: x * 1.0,
    "arith.select": np.where,
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.log": np.log,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.tanh": np.tanh,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.roundeven": np.round,
    "math.erf": np.vectorize(math.erf),
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.asin": np.arcsin,
    "math.acos": np.arccos,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.log2": np.log2,
    "math.log1p": np.log1p,
    "math.expm1": np.expm1,
    "math.exp2": np.exp2,
    "math.powf": np.power,
    "math.fma": lambda a, b, c: a * b + c,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.andi": lambda a, b: a and b,
}
# Scalar functions inside linalg.generic, by name.
INTRINSICS: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x, beta, threshold: np.where(beta * x > threshold, x, np.log1p(np.exp(beta * x)) / beta),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "sign": np.sign,
    "clip": np.clip,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "floordiv": np.floor_divide,
    "isnan": lambda x: np.isnan(x) * 1.0,
    "isinf": lambda x: np.isinf(x) * 1.0,
}
CMPI: dict[int, Callable[..., Any]] = {0: np.equal, 1: np.not_equal, 2: np.less, 6: np.less}
CMPF: dict[int, Callable[..., Any]] = {
    1: np.equal,
    2: np.greater,
    3: np.greater_equal,
    4: np.less,
    5: np.less_equal,
    13: np.not_equal,
}
FOLDS: dict[str, Any] = {"arith.addf": np.add, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum}
FOLDS["arith.addi"] = np.add

Meeting = Generator[tuple[Operation, Any], Any, None]


class Core:
    """One core's environment; `run` stops at every inter-tile reduction."""

    def __init__(self, number: int, memory: list[Buffer]) -> None:
        self.number = number
        self.memory = memory
        self.lx = np.full(LX_ELEMENTS, np.nan)
        self.env: dict[SSAValue, Any] = {}

    def run(self, block: Block) -> Meeting:
        for op in block.ops:
            if op.name == "scf.if":
                if self.env[op.operands[0]]:
                    yield from self.run(op.regions[0].block)
            elif op.name == "ktdp.inter_tile_reduce":
                self.env[op.results[0]] = yield op, self.env[op.operands[0]]
            else:
                self.step(op)

    def step(self, op: Any) -> None:
        values = [self.env[v] for v in op.operands]
        name = op.name
        result: Any = None
        if name in ELEMENTWISE:
            result = ELEMENTWISE[name](*values)
        elif name == "arith.addi":
            pointer, number = values
            result = (
                pointer + number if isinstance(pointer, int) else Pointer(pointer.argument, pointer.offset + number)
            )
        elif name in ("arith.cmpi", "arith.cmpf"):
            result = (CMPI if name == "arith.cmpi" else CMPF)[op.predicate.value.data](*values)
        elif name == "arith.constant":
            result = op.value.value.data
        elif name == "ktdp.get_compute_tile_id":
            result = self.number
        elif name == "tensor.splat":
            result = np.full(self.shape(op.results[0], values[1:]), float(values[0]))
        elif name == "tensor.empty":
            result = np.full(self.shape(op.results[0], values), np.nan)
        elif name == "ktdp.construct_memory_view":
            result = values[0], op.static_strides.get_values(), op.static_sizes.get_values()
        elif name == "ktdp.construct_indirect_access_tile":
            result = self.addresses(op)
        elif name in ("ktdp.load", "ktdp.store"):
            result = self.transfer(op, values)
        elif name == "ktdp.inter_tile_produce":
            result = self.env[op.body.block.last_op.operands[0]]
        elif name == "linalg.reduce":
            fold, axes = FOLDS[op.combiner.block.first_op.name], tuple(op.dimensions.get_values())
            result = fold(fold.reduce(values[0], axis=axes), values[1])
        elif name in ("linalg.matmul", "linalg.batch_matmul"):
            result = values[0] @ values[1] + values[2]
        elif name == "linalg.generic":
            scalar = op.body.block.first_op.name.removeprefix("spyreop.")
            result = INTRINSICS[scalar](*values[:-1]) if scalar in INTRINSICS else values[0] @ values[1] + values[2]
        elif name != "func.return" and name != "scf.yield":
            raise NotImplementedError(name)
        if op.results:
            self.env[op.results[0]] = result

    @staticmethod
    def shape(value: SSAValue, dynamic: Sequence[int]) -> tuple[int, ...]:
        sizes = iter(dynamic)
        return tuple(next(sizes) if s == DYNAMIC_INDEX else s for s in value.type.get_shape())  # type: ignore[attr-defined]

    def addresses(self, op: Any) -> tuple[Any, np.ndarray]:
        base, strides, sizes = self.env[op.base]
        shape = self.shape(op.tile, [self.env[s] for s in op.symbols])
        grids = list(np.indices(shape))
        captured = [np.full(shape, self.env[c]) for c in op.captured]
        where = np.zeros(shape, np.int64)
        for attr, stride, size in zip(op.per_dim_subscript_maps.data, strides, sizes, strict=True):
            flat = [tuple(int(g.flat[i]) for g in (*captured, *grids)) for i in range(math.prod(shape))]
            coordinate = np.array([attr.data.eval(point, [])[0] for point in flat], np.int64).reshape(shape)
            assert ((coordinate >= 0) & (coordinate < size)).all(), f"{op}: coordinate outside the view"
            where += coordinate * stride
        return base, where

    def transfer(self, op: Any, values: list[Any]) -> Any:
        base, where = values[-1]
        if isinstance(base, Pointer):
            buffer = self.memory[base.argument]
            if op.name == "ktdp.load":
                return buffer.read(where + base.offset, self.number)
            buffer.write(where + base.offset, values[0], self.number)
        elif op.name == "ktdp.load":
            return self.lx[where + base]
        else:
            self.lx[where + base] = values[0]
        return None


def run(module: ModuleOp, buffers: Sequence[np.ndarray], scalars: Sequence[float] = ()) -> int:
    """Run the module's only function on its buffers, in place. Returns how often all cores met."""
    (function,) = (op for op in module.walk() if isinstance(op, FuncOp))
    cores = function.attributes["grid"].data[0].value.data  # type: ignore[attr-defined]
    memory = [Buffer(b) for b in buffers]
    waiting: dict[int, tuple[Meeting, Operation, Any]] = {}

    def resume(core: int, program: Meeting, value: Any, first: bool = False) -> None:
        try:
            op, partial = next(program) if first else program.send(value)
            waiting[core] = (program, op, partial)
        except StopIteration:
            waiting.pop(core, None)

    for number in range(cores):
        core = Core(number, memory)
        arguments: list[Any] = [*(Pointer(i) for i in range(len(buffers))), *scalars]
        core.env.update(zip(function.body.block.args, arguments, strict=True))
        resume(number, core.run(function.body.block), None, first=True)
    meetings = 0
    while waiting:
        for op in {id(w[1]): w[1] for w in waiting.values()}.values():
            results = _resolve(op, waiting, cores)
            if results is not None:
                break
        else:
            raise AssertionError("cores wait for each other")
        if len(results) == cores:
            meetings += 1
            for buffer in memory:
                buffer.meet()
        for number, value in results.items():
            resume(number, waiting[number][0], value)
    return meetings


def _resolve(op: Any, waiting: dict[int, tuple[Meeting, Operation, Any]], cores: int) -> dict[int, Any] | None:
    """Results per waiting core, if every member of every group waits at `op`."""
    producer = op.future.owner.producer_tiles_per_group.data
    results: dict[int, Any] = {number: None for number, w in waiting.items() if w[1] is op}
    groups = op.future.type.groups.data
    for group in (g for g in range(cores) if g in members(AffineSet(1, 1, groups.constraints), 0, cores)):
        producers, consumers = members(producer, group, cores), members(op.consumer_tiles_per_group.data, group, cores)
        assert len(consumers) == 1 or consumers == producers
        if not set(producers) | set(consumers) <= results.keys():
            return None
        fold = FOLDS[op.combiner.block.first_op.name]
        total = waiting[producers[0]][2]
        for number in producers[1:]:
            total = fold(total, waiting[number][2])
        results.update(dict.fromkeys(consumers, total))
    return results
