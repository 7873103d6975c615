# SPDX-License-Identifier: Apache-2.0
"""A slow reference interpreter of programs, on numpy: an independent reading of docs/program-format.md.

Every core runs to its next barrier before the next core starts, so a program that needs more than its barriers promise
gives a wrong answer or trips one of the checks: bounds, scratchpad bytes that nobody wrote, remote reads of bytes that
their owner wrote in the same phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.decoder import decode
from torch_spyre.backend.program.isa import FORMAT_BY_CODE, VOP_NAMES, Compute, Rop, Sop, Space
from torch_spyre.ir.affine import Affine

try:
    from torch_spyre import _card
except ImportError:  # the extension is not built; the interpreter alone then has to do
    _card = None

_INTEGERS = {"IEEE_INT32": np.int32, "SENINT8": np.int8, "SENINT16": np.int16, "SENUINT32": np.uint32}


def sen169_encode(values: np.ndarray) -> np.ndarray:
    """fp32 to SEN169 codes: ties away from zero, saturating, one NaN."""
    values = np.asarray(values, np.float32)
    bits = values.reshape(-1).view(np.uint32).astype(np.int64).reshape(values.shape)
    rounded = (((bits & 0x7FFFFFFF) + 0x2000) >> 14) - (96 << 9)
    codes = np.clip(rounded, 0, 0x7FFE) | ((bits >> 16) & 0x8000)
    return np.where(np.isnan(values), 0x7FFF, codes).astype(np.uint16)


def sen169_decode(codes: np.ndarray) -> np.ndarray:
    magnitude = codes.astype(np.int64) & 0x7FFF
    value = np.ldexp(1 + (magnitude & 0x1FF) / 512.0, (magnitude >> 9) - 31)
    value = np.where(magnitude == 0, 0.0, np.where(magnitude == 0x7FFF, np.nan, value))
    return np.where(codes & 0x8000, -value, value).astype(np.float32)


def round_sen169(values: np.ndarray) -> np.ndarray:
    """The nearest card values of a float array."""
    return sen169_decode(sen169_encode(np.asarray(values, np.float32)))


def read_elements(buffer: np.ndarray, addresses: np.ndarray, fmt: int) -> np.ndarray:
    """fp32 or int32 values of the elements at byte addresses."""
    row = FORMAT_BY_CODE[fmt]
    assert not np.any(addresses % row.bytes), "an address is not a multiple of the element"
    if row.name == "SEN169_FP16":
        return sen169_decode(buffer.view(np.uint16)[addresses // 2])
    if row.name == "IEEE_FP32":
        return buffer.view(np.float32)[addresses // 4]
    return buffer.view(_INTEGERS[row.name])[addresses // row.bytes].astype(np.int32)


def write_elements(buffer: np.ndarray, addresses: np.ndarray, fmt: int, values: np.ndarray) -> None:
    row = FORMAT_BY_CODE[fmt]
    assert not np.any(addresses % row.bytes), "an address is not a multiple of the element"
    if row.name == "SEN169_FP16":
        buffer.view(np.uint16)[addresses // 2] = sen169_encode(values)
    elif row.name == "IEEE_FP32":
        buffer.view(np.float32)[addresses // 4] = values
    else:
        kind = np.iinfo(_INTEGERS[row.name])
        whole = np.clip(np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0), kind.min, kind.max)
        buffer.view(_INTEGERS[row.name])[addresses // row.bytes] = whole.astype(_INTEGERS[row.name])


def mapped(dim_map: asm.DimMap, v: np.ndarray) -> np.ndarray:
    if dim_map.block:
        return (v % dim_map.block) * dim_map.inner + (v // dim_map.block) * dim_map.outer
    return v * dim_map.inner


class _Core:
    def __init__(self, machine: Machine, index: int, integers: Sequence[int]) -> None:
        self.machine = machine
        self.registers: dict[int, int] = {0: index, **{1 + i: v for i, v in enumerate(integers)}}
        size = -(-machine.program.lx_bytes // 8) * 8
        self.lx = np.zeros(size, np.uint8)
        self.written = np.full(size, -1)  # phase that wrote a byte last

    def affine(self, affine: Affine) -> int:
        return affine.evaluate(self.registers)

    def run(self) -> Iterator[None]:
        """Executes; yields at every barrier."""
        program = self.machine.program.instructions
        loops: list[tuple[int, int]] = []  # start, limit
        pc = 0
        while not isinstance(inst := program[pc], asm.EndInst):
            match inst:
                case asm.BarrierInst():
                    yield
                case asm.IfInst():
                    if self.affine(inst.condition) < 0:
                        pc = self.machine.partner[pc]
                case asm.LoopInst():
                    self.registers[inst.register] = self.affine(inst.first)
                    limit = self.affine(inst.limit)
                    if self.registers[inst.register] >= limit:
                        pc = self.machine.partner[pc]
                    else:
                        loops.append((pc, limit))
                case asm.EndLoopInst():
                    start, limit = loops[-1]
                    loop = program[start]
                    assert isinstance(loop, asm.LoopInst)
                    self.registers[loop.register] += loop.step
                    if self.registers[loop.register] < limit:
                        pc = start
                    else:
                        loops.pop()
                case asm.SopInst():
                    self.registers[inst.register] = _sop(inst.op, self.affine(inst.a), self.affine(inst.b))
                case asm.EndIfInst():
                    pass
                case _:
                    self.tile(inst)
            pc += 1

    # -- operands --------------------------------------------------------------------------------------------------

    def shape(self, dims: tuple[asm.Extent, ...]) -> tuple[int, ...]:
        return tuple(max(0, min(extent.cap, self.affine(extent.affine))) for extent in dims)

    def addresses(self, operand: asm.Operand, shape: tuple[int, ...], moved: np.ndarray | None = None) -> np.ndarray:
        total = np.full(shape, self.affine(operand.offset), np.int64)
        if moved is not None:
            total += moved
        if isinstance(operand.maps, asm.LayoutMap):
            return total + self._layout(operand.maps, shape)
        for dim, dim_map in enumerate(operand.maps):
            part = mapped(dim_map, np.arange(shape[dim], dtype=np.int64))
            total += part.reshape([-1 if d == dim else 1 for d in range(len(shape))])
        return total

    def _layout(self, layout: asm.LayoutMap, shape: tuple[int, ...]) -> np.ndarray:
        rest = np.full(shape, self.affine(layout.offset), np.int64)
        for dim, stride in enumerate(layout.strides):
            rest += (np.arange(shape[dim]) * stride).reshape([-1 if d == dim else 1 for d in range(len(shape))])
        total = np.zeros(shape, np.int64)
        for host_stride, extent, byte_stride in layout.dims:
            coordinate = rest // host_stride
            assert coordinate.min() >= 0 and coordinate.max() < extent, "outside the layout"
            rest = rest - coordinate * host_stride
            total += coordinate * byte_stride
        assert not rest.any(), "the layout leaves a remainder"
        return total

    def _lx_bytes(self, addresses: np.ndarray, fmt: int) -> np.ndarray:
        return (addresses.reshape(-1, 1) + np.arange(FORMAT_BY_CODE[fmt].bytes)).ravel()

    def read(
        self,
        operand: asm.Operand,
        shape: tuple[int, ...],
        owner: int | None = None,
        moved: np.ndarray | None = None,
    ) -> np.ndarray:
        """Values of an operand; `moved` adds bytes to its addresses (a gather)."""
        machine = self.machine
        match operand.space:
            case Space.IMM:
                kind = np.float32 if FORMAT_BY_CODE[operand.format].name == "IEEE_FP32" else np.int32
                return np.full(shape, np.array([operand.bits], np.uint32).view(kind)[0])
            case Space.SCALAR:
                integer = operand.format in [r.code for r in FORMAT_BY_CODE.values() if r.name == "IEEE_INT32"]
                return np.full(shape, machine.scalars[operand.index], np.int32 if integer else np.float32)
            case Space.CONST:
                data = np.frombuffer(machine.program.constants, np.uint8)
                return read_elements(data, self.addresses(operand, shape, moved), operand.format)
            case Space.MEM:
                addresses = self.addresses(operand, shape, moved)
                return read_elements(
                    machine.memory(operand.index, addresses, operand.format), addresses, operand.format
                )
        addresses = self.addresses(operand, shape, moved)
        core = self
        if operand.space is Space.LX_REMOTE:
            core = machine.cores[self.affine(operand.core) if owner is None else owner]
        phases = core.written[self._lx_bytes(addresses, operand.format)]
        assert phases.size == 0 or phases.min() >= 0, "reads scratchpad bytes that nothing wrote"
        if operand.space is Space.LX_REMOTE:
            assert phases.size == 0 or phases.max() < machine.phase, "remote read in the phase that writes"
        return read_elements(core.lx, addresses, operand.format)

    def write(self, operand: asm.Operand, shape: tuple[int, ...], values: np.ndarray) -> None:
        addresses = self.addresses(operand, shape)
        if operand.space is Space.MEM:
            buffer = self.machine.memory(operand.index, addresses, operand.format, True)
        else:
            assert operand.space is Space.LX
            assert addresses.max(initial=0) < self.machine.program.lx_bytes, "outside the scratchpad"
            buffer = self.lx
            self.written[self._lx_bytes(addresses, operand.format)] = self.machine.phase
        write_elements(buffer, addresses, operand.format, np.broadcast_to(values, shape))

    # -- tile instructions -----------------------------------------------------------------------------------------

    def tile(self, inst: asm.Instruction) -> None:
        shape = self.shape(inst.dims)  # type: ignore[attr-defined]
        if 0 in shape:
            return
        with np.errstate(all="ignore"):
            match inst:
                case asm.VopInst():
                    inputs = [self.read(operand, shape) for operand in inst.inputs]
                    self.write(inst.out, shape, vector(VOP_NAMES[inst.op], inst.compute, inputs))
                case asm.CopyInst():
                    self.write(inst.out, shape, self.read(inst.input, shape))
                case asm.ReduceInst():
                    self._reduce(inst, shape)
                case asm.MatmulInst():
                    self._matmul(inst, shape)
                case asm.RingSumInst():
                    first = self.affine(inst.first)
                    owners = [first + i * inst.step for i in range(inst.count)]
                    total = self.read(inst.input, shape, owners[0])
                    for owner in owners[1:]:
                        total = total + self.read(inst.input, shape, owner)
                    self.write(inst.out, shape, total)
                case asm.GatherInst():
                    moved, inside = self._moved(inst.indices, shape, inst.masked)
                    values = self.read(inst.table, shape, moved=np.where(inside, moved, 0))
                    self.write(inst.out, shape, np.where(inside, values, values.dtype.type(0)))
                case asm.ScatterInst():
                    self._scatter(inst, shape)
                case asm.IotaInst():
                    numbers = np.full(shape, self.affine(inst.start), np.int64)
                    for dim, step in enumerate(inst.steps):
                        part = mapped(step, np.arange(shape[dim], dtype=np.int64))
                        numbers += part.reshape([-1 if d == dim else 1 for d in range(len(shape))])
                    integers = FORMAT_BY_CODE[inst.out.format].name in _INTEGERS
                    self.write(inst.out, shape, numbers if integers else numbers.astype(np.float32))
                case asm.ScanInst():
                    values = self.read(inst.source, shape)
                    values = values.astype(np.float32 if inst.compute is Compute.F32 else np.int32)
                    self.write(inst.out, shape, _combine(inst.op).accumulate(values, axis=inst.dim, dtype=values.dtype))
                case asm.ArgReduceInst() | asm.SortInst():
                    self._order(inst, shape)

    def _moved(
        self, indices: tuple[asm.IndexOperand, ...], shape: tuple[int, ...], masked: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that the indices add to the addresses of the table, and which points are inside it."""
        moved, inside = np.zeros(shape, np.int64), np.ones(shape, bool)
        for index in indices:
            values = self.read(index.operand, shape).astype(np.int64)
            fits = (values >= 0) & (values < index.limit)
            assert masked or fits.all(), "an index outside its table"
            inside &= fits
            moved += mapped(index.along, np.where(fits, values, 0))
        return moved, inside

    def _scatter(self, inst: asm.ScatterInst, shape: tuple[int, ...]) -> None:
        moved, inside = self._moved(inst.indices, shape, inst.masked)
        values = self.read(inst.source, shape)
        addresses = self.addresses(inst.table, shape, moved)
        for point in np.ndindex(shape):
            if not inside[point]:
                continue
            one = asm.Operand(inst.table.space, inst.table.format, Affine(int(addresses[point])), (), inst.table.index)
            value = values[point]
            if inst.accumulate:
                value = value.astype(np.int32) if self.read(one, ()).dtype == np.int32 else value.astype(np.float32)
                value = self.read(one, ()) + value
            self.write(one, (), np.asarray(value))

    def _order(self, inst: asm.ArgReduceInst | asm.SortInst, shape: tuple[int, ...]) -> None:
        """Both by a stable sort in which NaN is the largest value."""
        values = self.read(inst.source, shape)
        if isinstance(inst, asm.SortInst):
            descending, count = inst.descending, inst.k
        else:
            descending, count = inst.op is Rop.MAX, 1
        first = isinstance(inst, asm.ArgReduceInst) and not descending  # NaN also counts as the smallest
        key = np.clip(values.astype(np.float64), -1e300, 1e300)
        key = np.where(np.isnan(values), np.finfo(np.float64).max * (-1 if first else 1), key)
        order = np.argsort(-key if descending else key, axis=inst.dim, kind="stable")
        order = np.take(order, np.arange(count), axis=inst.dim)
        out = tuple(count if d == inst.dim else n for d, n in enumerate(shape))
        if inst.out_index is not None:
            self.write(inst.out_index, out, order.astype(np.int32))
        if inst.out_value is not None:
            self.write(inst.out_value, out, np.take_along_axis(values, order, axis=inst.dim))

    def _reduce(self, inst: asm.ReduceInst, shape: tuple[int, ...]) -> None:
        reduced = [d for d in range(len(shape)) if inst.mask >> d & 1]
        kept = [d for d in range(len(shape)) if d not in reduced]
        values = self.read(inst.input, shape).transpose(kept + reduced)
        outer = tuple(1 if d in reduced else n for d, n in enumerate(shape))
        result = reduce_in_order(inst.op, values.reshape([shape[d] for d in kept] + [-1])).reshape(outer)
        if inst.accumulate:
            result = _combine(inst.op)(result, self.read(inst.out, outer))
        self.write(inst.out, outer, result)

    def _matmul(self, inst: asm.MatmulInst, shape: tuple[int, ...]) -> None:
        *batch, m, n, k = shape
        a = self.read(inst.a, (*batch, m, 1, k))[..., 0, :]
        b = self.read(inst.b, (*batch, 1, n, k))[..., 0, :, :]
        out = (*batch, m, n, 1)
        total = self.read(inst.c, out)[..., 0] if inst.accumulate else np.zeros((*batch, m, n), np.float32)
        for i in range(k):  # one fused multiply-add each: the product is exact in fp64
            product = a[..., :, None, i].astype(np.float64) * b[..., None, :, i].astype(np.float64)
            total = (product + total.astype(np.float64)).astype(np.float32)
        self.write(inst.c, out, total[..., None])


def _sop(op: Sop, a: int, b: int) -> int:
    if op in (Sop.FLOORDIV, Sop.MOD):
        assert b > 0, "division by something not positive"
    table = {
        Sop.ADD: lambda: a + b,
        Sop.SUB: lambda: a - b,
        Sop.MUL: lambda: a * b,
        Sop.FLOORDIV: lambda: a // b,
        Sop.MOD: lambda: a % b,
        Sop.MIN: lambda: min(a, b),
        Sop.MAX: lambda: max(a, b),
    }
    return table[op]()


def _combine(op: Rop) -> np.ufunc:
    return {Rop.SUM: np.add, Rop.MAX: np.maximum, Rop.MIN: np.minimum, Rop.PROD: np.multiply}[op]


def reduce_in_order(op: Rop, values: np.ndarray) -> np.ndarray:
    """Reduces the last axis in the card's order: 64 lanes, a binary-counter tree in each, then a tree over lanes."""
    combine = _combine(op)
    count = values.shape[-1]
    lanes: list[np.ndarray | None] = []
    for lane in range(64):
        stack: list[tuple[int, np.ndarray]] = []
        for i in range(lane, count, 64):
            level, value = 0, values[..., i]
            while stack and stack[-1][0] == level:
                value = combine(stack.pop()[1], value)
                level += 1
            stack.append((level, value))
        total = stack.pop()[1] if stack else None
        while stack:
            total = combine(stack.pop()[1], total)
        lanes.append(total)
    step = 32
    while step:
        for lane in range(step):
            other = lanes[lane + step]
            if other is not None:
                mine = lanes[lane]
                lanes[lane] = other if mine is None else combine(mine, other)
        step //= 2
    assert lanes[0] is not None
    return lanes[0]


def vector(name: str, compute: Compute, inputs: list[np.ndarray]) -> np.ndarray:
    kind = np.float32 if compute is Compute.F32 else np.int32
    x = [value.astype(kind) for value in inputs]
    functions = {
        "identity": lambda: x[0],
        "add": lambda: x[0] + x[1],
        "sub": lambda: x[0] - x[1],
        "mul": lambda: x[0] * x[1],
        "div": lambda: x[0] / x[1],
        "maximum": lambda: np.maximum(x[0], x[1]),
        "minimum": lambda: np.minimum(x[0], x[1]),
        "neg": lambda: -x[0],
        "abs": lambda: np.abs(x[0]),
        "relu": lambda: np.maximum(x[0], 0),
        "exp": lambda: np.exp(x[0]),
        "log": lambda: np.log(x[0]),
        "sqrt": lambda: np.sqrt(x[0]),
        "rsqrt": lambda: 1 / np.sqrt(x[0]),
        "reciprocal": lambda: 1 / x[0],
        "tanh": lambda: np.tanh(x[0]),
        "sigmoid": lambda: 1 / (1 + np.exp(-x[0])),
        "floor": lambda: np.floor(x[0]),
        "eq": lambda: x[0] == x[1],
        "ne": lambda: x[0] != x[1],
        "lt": lambda: x[0] < x[1],
        "le": lambda: x[0] <= x[1],
        "gt": lambda: x[0] > x[1],
        "ge": lambda: x[0] >= x[1],
        "select": lambda: np.where(x[0] != 0, x[1], x[2]),
        "ceil": lambda: np.ceil(x[0]),
        "trunc": lambda: np.trunc(x[0]),
        "sign": lambda: np.sign(x[0]),
        "isnan": lambda: np.isnan(x[0]),
        "log2": lambda: np.log2(x[0]),
        "fmod": lambda: np.fmod(x[0], x[1]),
        "floordiv": lambda: np.floor_divide(x[0], x[1]),
        "logical_and": lambda: np.logical_and(x[0] != 0, x[1] != 0),
        "logical_or": lambda: np.logical_or(x[0] != 0, x[1] != 0),
        "logical_xor": lambda: np.logical_xor(x[0] != 0, x[1] != 0),
        "logical_not": lambda: x[0] == 0,
        "bit_and": lambda: np.bitwise_and(x[0], x[1]),
        "bit_or": lambda: np.bitwise_or(x[0], x[1]),
        "bit_xor": lambda: np.bitwise_xor(x[0], x[1]),
        "shl": lambda: np.left_shift(x[0], x[1]),
        "shr": lambda: np.right_shift(x[0], x[1]),
    }
    return functions[name]().astype(kind)


class Machine:
    """Runs one program on byte buffers, one per launch argument."""

    def __init__(self, binary: bytes, buffers: Sequence[np.ndarray], scalars: Sequence[float | int] = ()) -> None:
        self.program = decode(binary)
        self.buffers = [np.asarray(b, np.uint8) for b in buffers]
        self.scalars = list(scalars)
        self.phase = 0
        assert len(buffers) == len(self.program.args) and len(scalars) == len(self.program.scalars)
        for buffer, arg in zip(self.buffers, self.program.args, strict=True):
            assert buffer.size >= arg.bytes, f"a buffer of {buffer.size} bytes where {arg.bytes} are needed"
        self.partner = self._partners()
        integers = [int(s) for s, kind in zip(self.scalars, self.program.scalars, strict=True) if not kind]
        self.cores = [_Core(self, i, integers) for i in range(self.program.cores)]

    def _partners(self) -> dict[int, int]:
        partner: dict[int, int] = {}
        opened: list[int] = []
        for pc, inst in enumerate(self.program.instructions):
            if isinstance(inst, asm.IfInst | asm.LoopInst):
                opened.append(pc)
            elif isinstance(inst, asm.EndIfInst | asm.EndLoopInst):
                partner[opened.pop()] = pc
        assert not opened
        return partner

    def memory(self, index: int, addresses: np.ndarray, fmt: int, write: bool = False) -> np.ndarray:
        arg = self.program.args[index]
        assert arg.access & (2 if write else 1), "undeclared access to an argument"
        last = int(addresses.max(initial=0)) + FORMAT_BY_CODE[fmt].bytes
        assert addresses.min(initial=0) >= 0 and last <= arg.bytes, "outside the declared bytes of an argument"
        return self.buffers[index]

    def run(self) -> None:
        running = [core.run() for core in self.cores]
        while running:
            done = [next(core, self) is self for core in running]
            assert all(done) or not any(done), "cores stand at different barriers"
            if all(done):
                return
            self.phase += 1


def execute(
    binary: bytes, buffers: Sequence[np.ndarray], scalars: Sequence[float | int] = (), exact: bool = True
) -> None:
    """Runs a program on the buffers, in place; where the card is built, it has to give the same bytes.

    `exact` is False for programs with functions whose last fp32 bit differs between numpy and the card: those are only
    loaded (and so proved) and launched there.
    """
    on_card = None if _card is None else run_on_card(binary, buffers, scalars)
    Machine(binary, buffers, scalars).run()
    if on_card is not None and exact:
        for index, (theirs, ours) in enumerate(zip(on_card, buffers, strict=True)):
            np.testing.assert_array_equal(theirs, ours, f"argument {index} differs between card and interpreter")


def run_on_card(binary: bytes, buffers: Sequence[np.ndarray], scalars: Sequence[float | int]) -> list[np.ndarray]:
    """The buffers as a launch on the card leaves them."""
    card = _card.Card(0)
    sizes = [max(buffer.size, 128) for buffer in buffers]
    addresses = [card.allocate(size) for size in sizes]
    for address, buffer in zip(addresses, buffers, strict=True):
        card.write(address, buffer.tobytes())
    card.launch(_card.Program.load(binary), list(zip(addresses, sizes, strict=True)), list(scalars))
    card.synchronize()
    return [np.frombuffer(card.read(a, b.size), np.uint8) for a, b in zip(addresses, buffers, strict=True)]
