# SPDX-License-Identifier: Apache-2.0
"""Print a planned Kernel as KTIR: one function that every core runs, ops in order, barriers where cores meet in memory.

Each op becomes loads of its operands, tensor arithmetic, and a store; its body stands in `scf.if` when it uses fewer
cores than the kernel. A split reduced dim becomes an inter-tile reduction whose result the first core of each cohort
stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, UnitAttr, f32, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.dialect.arith_ops import element_type
from torch_spyre.ir.ktir.dialect.context import BatchMatmulOp, LoadOp, MatmulOp, ReduceOp, StoreOp
from torch_spyre.ir.ktir.dialect.spyreop_tensor import ArgReduceOp, ScanOp, SortOp
from torch_spyre.ir.ktir.emit.accesses import INDEX, Head, Slice, hint, tensor_type
from torch_spyre.ir.ktir.emit.arithmetic import (
    ELEMENT_TYPES,
    combiner,
    compute_type,
    contraction,
    convert,
    is_eight_bit,
    is_float,
    pointwise,
    positions,
)
from torch_spyre.ir.ktir.emit.core_groups import barrier, cohort_sets, groups_set, produce_and_reduce
from torch_spyre.ir.ktir.emit.deliveries import deliver, groups_of
from torch_spyre.ir.ktir.emit.tile_loops import tile_loop
from torch_spyre.ir.ktir.text import verify
from torch_spyre.ir.plan.barriers import barriers_before
from torch_spyre.ir.plan.tileops import (
    Immediate,
    Input,
    Kernel,
    LaunchScalar,
    LinearOperand,
    Operand,
    Positions,
    Space,
    TileOp,
)
from torch_spyre.optable import SELECT, Gives, Kind


def emit(kernel: Kernel) -> ModuleOp:
    """The kernel as a verified KTIR module; raises UnsupportedOp for an opfunc that is not known."""
    arg_types = [INDEX] * len(kernel.args) + [_scalar_type(f) for f in kernel.scalars]
    entry = Block(arg_types=arg_types)
    names = [a.name for a in kernel.args] + [f"s{i}" for i in range(len(kernel.scalars))]
    for arg, name in zip(entry.args, names, strict=True):
        hint(arg, name)
    head = Head(kernel, entry)
    body: list[Operation] = []
    needs_barrier = barriers_before(kernel)
    loops = {loop.begin: loop for loop in kernel.loops}
    i = 0
    while i < len(kernel.ops):
        if needs_barrier[i]:
            zero = head.splat(head.scalar(0, i32), [Slice("", 1)])
            body.extend(barrier(zero, kernel.cores))
        loop = loops.get(i)
        ops = kernel.ops[loop.begin : loop.end] if loop else kernel.ops[i : i + 1]
        if loop:
            body.append(tile_loop(head, loop.trips, partial(_emit_all, kernel, ops)))
        else:
            _emit_all(kernel, ops, head, body)
        i += len(ops)
    entry.add_ops(body)
    entry.add_op(func.ReturnOp())
    function = func.FuncOp(kernel.name, (arg_types, []), Region(entry))
    function.attributes["grid"] = ArrayAttr([IntegerAttr(kernel.cores, i64)])
    module = ModuleOp([function])
    verify(module)
    return module


def _emit_all(kernel: Kernel, ops: Sequence[TileOp], head: Head, body: list[Operation]) -> None:
    for op in ops:
        _OpEmitter(kernel, head, op, body).run()


def _scalar_type(format: str) -> Attribute:
    if format not in ELEMENT_TYPES:
        raise UnsupportedOp(f"launch scalar of format {format}; use one of {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[format]


class _OpEmitter:
    """Emits one TileOp: shared values go to the head, the rest to `ops`."""

    def __init__(self, kernel: Kernel, head: Head, op: TileOp, ops: list[Operation]) -> None:
        self.kernel = kernel
        self.head = head
        self.op = op
        self.row = op.row
        self.ops = ops
        self.slices = {d.name: head.slice(op, d) for d in op.dims}

    def run(self) -> None:
        op = self.op
        if not self.row.takes(len(op.inputs)):
            raise InvalidProgram(f"op {op.name}: {op.op} takes {self.row.operands} inputs, got {len(op.inputs)}")
        if op.cores > self.kernel.cores:
            raise InvalidProgram(f"op {op.name} is split over {op.cores} cores, the kernel has {self.kernel.cores}")
        if op.cores < self.kernel.cores:
            self._guarded(self.head.less_than(self.head.core_id, op.cores), self._body)
        else:
            self._body()

    def _body(self) -> None:
        linear = [x for x in (*self.op.inputs, self.op.output) if isinstance(x, LinearOperand)]
        if linear and not self.row.is_move:
            raise InvalidProgram(
                f"op {self.op.name}: {self.op.op} touches {linear[0].tensor.name} at a linear offset; copy it"
            )
        emit: dict[Kind, Callable[[], None]] = {
            Kind.POINTWISE: self._pointwise,
            Kind.REDUCTION: self._reduction,
            Kind.MATMUL: self._matmul,
            Kind.COPY: self._move,
            Kind.CAST: self._move,
            Kind.GATHER: self._gather,
            Kind.SCATTER: self._scatter,
            Kind.SCAN: self._scan,
            Kind.EXCHANGE: self._handover,
            Kind.SELECTION: self._selection,
        }
        emit[self.row.kind]()

    # -- building blocks -----------------------------------------------------------------------------------------

    def _add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def _guarded(self, condition: SSAValue, build: Callable[[], None]) -> None:
        outer, self.ops = self.ops, []
        build()
        block = Block([*self.ops, scf.YieldOp()])
        self.ops = outer
        self.ops.append(scf.IfOp(condition, [], Region(block)))

    def _dims(self, names: Sequence[str] | None = None) -> list[Slice]:
        return [self.slices[d] for d in names] if names is not None else list(self.slices.values())

    def _output_type(self) -> Attribute:
        return ELEMENT_TYPES[self.op.output.tensor.format]

    def _load(self, operand: Operand | LinearOperand, dims: Sequence[Slice]) -> SSAValue:
        tile = self._add(self.head.tile(operand, dims))
        element = ELEMENT_TYPES[operand.tensor.format]
        load = LoadOp.build(operands=[tile], result_types=[tensor_type(element, tuple(s.size for s in dims))])
        return hint(self._add(load), operand.tensor.name)

    def _store(self, value: SSAValue, dims: Sequence[Slice]) -> None:
        value = convert(self._add, value, self._output_type())
        tile = self._add(self.head.tile(self.op.output, dims))
        store = StoreOp.build(operands=[value, tile])
        store.attributes["origin"] = StringAttr(f"{self.op.name}: {self.op.origin}" if self.op.origin else self.op.name)
        self.ops.append(store)

    def _value(self, source: Input, dims: Sequence[Slice], element: Attribute | None = None) -> SSAValue:
        """An input over `dims`, converted to `element` if one is given."""
        if isinstance(source, Operand | LinearOperand):
            value = self._load(source, dims)
        elif isinstance(source, LaunchScalar):
            if not 0 <= source.index < len(self.kernel.scalars):
                raise InvalidProgram(f"op {self.op.name}: launch scalar {source.index} of {len(self.kernel.scalars)}")
            value = self.head.splat(self.head.argument(len(self.kernel.args) + source.index), dims)
        elif isinstance(source, Positions):
            offsets = {s.name: s.offset for s in dims if s.offset is not None}
            value = self._add(positions(source.value, offsets, [s.name for s in dims], self._empty(i32, dims)))
        else:
            return self._splat(source.value, element or ELEMENT_TYPES[source.format], dims)
        return value if element is None else convert(self._add, value, element)

    def _empty(self, element: Attribute, dims: Sequence[Slice]) -> SSAValue:
        type_ = tensor_type(element, tuple(s.size for s in dims))
        return self._add(tensor.EmptyOp([s.extent for s in dims if s.extent is not None], type_))

    def _splat(self, value: float, element: Attribute, dims: Sequence[Slice]) -> SSAValue:
        """A constant; one that has no exact f16 form is rounded from f32 where it is used."""
        if compute_type([element], [value]) == element or not is_float(element):
            return self.head.splat(self.head.scalar(value, element), dims)
        return convert(self._add, self.head.splat(self.head.scalar(value, f32), dims), element)

    def _input_type(self, source: Input) -> Attribute | None:
        """Element type that an input brings along; constants fit any."""
        if isinstance(source, Operand | LinearOperand):
            return ELEMENT_TYPES[source.tensor.format]
        if isinstance(source, Positions):
            return ELEMENT_TYPES[source.format]
        return ELEMENT_TYPES[self.kernel.scalars[source.index]] if isinstance(source, LaunchScalar) else None

    # -- classes of ops ------------------------------------------------------------------------------------------

    def _move(self) -> None:
        dims, source = self._dims(), self.op.inputs[0]
        self._store(self._value(source, dims, self._output_type() if isinstance(source, Immediate) else None), dims)

    def _pointwise(self) -> None:
        op, dims = self.op, self._dims()
        is_select = self.row is SELECT
        sources = op.inputs[1:] if is_select else op.inputs
        elements = [e for e in map(self._input_type, sources) if e is not None]
        if not self.row.predicates:
            elements.append(self._output_type())
        element = compute_type(elements, [s.value for s in sources if isinstance(s, Immediate)], self.row.chooses)
        condition = [self._value(op.inputs[0], dims)] if is_select else []
        values = condition + [self._value(s, dims, element) for s in sources]

        result = pointwise(
            self._add,
            lambda v, e: self.head.splat(self.head.scalar(v, e), dims),
            self.row,
            values,
            lambda: self._empty(element, dims),
        )
        self._store(result, dims)

    def _gather(self) -> None:
        dims, table = self._dims(), self.op.inputs[0]
        if not isinstance(table, Operand):
            raise InvalidProgram(f"op {self.op.name}: the table of a gather must be a tensor")
        tile = self._add(self.head.gather_tile(table, self.op.inputs, dims))
        type_ = tensor_type(ELEMENT_TYPES[table.tensor.format], tuple(s.size for s in dims))
        self._store(self._add(LoadOp.build(operands=[tile], result_types=[type_])), dims)

    def _scatter(self) -> None:
        """Into a table: several cores may hit one element, so a split dim must be a direct coordinate of the table."""
        op, dims, table = self.op, self._dims(), self.op.output
        if not isinstance(table, Operand):
            raise InvalidProgram(f"op {op.name}: the table of a scatter must be a tensor")
        own = {term.dim for coord in table.coords for term in coord.terms}
        shared = [d.name for d in op.dims if d.slices > 1 and d.name not in own]
        if shared:
            raise InvalidProgram(f"op {op.name}: split dims {shared} do not tell the cores' parts of the table apart")
        value = self._value(op.inputs[0], dims, self._output_type())
        store = StoreOp.build(operands=[value, self._add(self.head.gather_tile(table, op.inputs, dims))])
        store.attributes["origin"] = StringAttr(f"{op.name}: {op.origin}" if op.origin else op.name)
        if self.row.combine:
            store.attributes["accumulate"] = UnitAttr()
        self.ops.append(store)

    def _along(self) -> int:
        """Position of the dim that a scan or a selection runs along."""
        names = [d.name for d in self.op.dims]
        if self.op.along not in names or self.op.dim(self.op.along).slices > 1:
            raise InvalidProgram(f"op {self.op.name}: {self.op.op} along {self.op.along!r}, a whole dim among {names}")
        return names.index(self.op.along)

    def _scan(self) -> None:
        dims = self._dims()
        source = self._value(self.op.inputs[0], dims, self._output_type())
        self._store(self._add(ScanOp(source, self._along(), self.row.reduction)), dims)

    def _selection(self) -> None:
        op, along = self.op, self._along()
        dims = self._dims()
        source = self._value(op.inputs[0], dims)
        if self.row.reduction:
            chosen = ArgReduceOp(source, along, self.row.reduction)
            self.ops.append(chosen)
            self._store(chosen.index, [s for i, s in enumerate(dims) if i != along])
            return
        if op.top is None:
            raise InvalidProgram(f"op {op.name}: {op.op} does not say how many elements it finds")
        order = SortOp(source, along, not op.top.ascending, True, op.top.count)
        self.ops.append(order)
        dims[along] = Slice(op.along, op.top.count)
        self._store(order.index if self.row.gives is Gives.PLACES else order.value, dims)

    def _handover(self) -> None:
        op = self.op
        source = op.inputs[0]
        if not isinstance(source, Operand) or {source.tensor.space, op.output.tensor.space} != {Space.LX}:
            raise InvalidProgram(f"op {op.name}: a hand-over goes from scratchpad to scratchpad")
        found = groups_of(op)
        partial = self._load(source, [Slice(d.name, d.extent) for d in op.source])
        target = [Slice(d.name, op.dim(d.name).extent) for d in op.source]
        result = tensor_type(element_type(partial.type), tuple(s.size for s in target))
        self.ops.extend(operations := deliver(found, partial, result))
        self._store(operations[-1].results[0], target)

    def _reduction(self) -> None:
        op = self.op
        kept = self._dims([d.name for d in op.dims if d.name not in op.reduced])
        source = self._value(op.inputs[0], self._dims())
        element, out = element_type(source.type), self._output_type()
        narrow = not is_float(element) and element != i32  # the least number is one of int32
        if self._split_reduced() or self.row.scaled_by or element != out or narrow:
            element = f32 if is_float(element) or is_float(out) else i32
            source = convert(self._add, source, element)
        combine, neutral = combiner(self.row, element), self.row.neutral[0 if is_float(element) else 1]
        init = self.head.splat(self.head.scalar(neutral, element), kept)
        axes = [i for i, d in enumerate(op.dims) if d.name in op.reduced]
        value = self._add(ReduceOp([source], [init], axes, ReduceOp.short_combiner(combine, element)))
        self._finish(value, init, combine, kept, self._factor() if self.row.scaled_by else None)

    def _factor(self) -> float:
        constant = self.row.scaled_by
        if constant not in self.op.constants:
            raise InvalidProgram(
                f"op {self.op.name}: {self.row.name} needs constants[{constant!r}], one over the element count"
            )
        return self.op.constants[constant]

    def _matmul(self) -> None:
        op = self.op
        names, summed = [d.name for d in op.dims], len(op.reduced)
        if not summed or len(names) < 2 + summed or op.reduced != tuple(names[-summed:]):
            raise InvalidProgram(f"op {op.name}: batchmatmul has dims (batch…, m, n, k…) and reduces k…, got {op.dims}")
        *batch, m, n = names[:-summed]
        k = names[-summed:]
        out_dims = self._dims([*batch, m, n])
        a = self._value(op.inputs[0], self._dims([*batch, m, *k]))
        b = self._value(op.inputs[1], self._dims([*batch, *k, n]))
        types = [element_type(x.type) for x in (a, b)]
        element = f32 if any(map(is_float, types)) else i32
        mixed = types[0] != types[1]
        if mixed and not any(map(is_eight_bit, types)):  # the array decodes 8-bit operands itself
            a, b = convert(self._add, a, element), convert(self._add, b, element)
            mixed = False
        init = self.head.splat(self.head.scalar(0, element), out_dims)
        if len(batch) > 1 or summed > 1 or mixed:  # named products have operands of one type
            value = self._add(contraction(len(batch), summed, a, b, init))
        else:
            value = self._add((BatchMatmulOp if batch else MatmulOp)([a, b], [init]))
        self._finish(
            value,
            init,
            arith.AddfOp if is_float(element) else arith.AddiOp,
            out_dims,
            op.constants.get("scaling_factor"),
        )

    # -- split reduced dims --------------------------------------------------------------------------------------

    def _split_reduced(self) -> list[str]:
        return [d.name for d in self.op.dims if d.name in self.op.reduced and d.slices > 1]

    def _finish(
        self, value: SSAValue, neutral: SSAValue, combine: Any, dims: Sequence[Slice], factor: float | None
    ) -> None:
        """Combine partial results if a reduced dim is split, scale, and store (on one core of each cohort)."""
        split = self._split_reduced()

        def store() -> None:
            result = value
            if factor is not None:
                result = self._add(arith.MulfOp(value, self._splat(factor, element_type(value.type), dims)))
            self._store(result, dims)

        if not split:
            store()
            return
        order = tuple((self.op.dim(name).slices, name in split) for name in self.op.core_order)
        producers, consumers, count = cohort_sets(order)
        produce, reduce = produce_and_reduce(value, neutral, combine, producers, consumers, groups_set(count))
        self.ops.extend([produce, reduce])
        value = reduce.values[0]
        first = self.head.is_zero([self.head.slice_index(self.op, self.op.dim(name)) for name in split])
        self._guarded(first, store)
