# SPDX-License-Identifier: Apache-2.0
"""Rules of each class of ops: how many operands, which dims they have, on which dims they stick.

Also finds the roles of dims from the operands alone (`matmul_roles`, `topk_roles`), so labels may be in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.optable import Kind, Row

Found = tuple[str, str, int | None] | tuple[str, str, int | None, int]  # rule, detail, tensor, core


@dataclass(frozen=True)
class MatmulRoles:
    """Dims of a matmul. m, n and k may be None: of one element, and missing from the file. `taps` are summed besides k:
    the windows of a convolution."""

    batch: tuple[str, ...]
    m: str | None
    n: str | None
    k: str | None
    taps: tuple[str, ...] = ()

    @property
    def summed(self) -> tuple[str, ...]:
        return (*self.taps, *([self.k] if self.k is not None else []))


def inputs_of(sdsc: SuperDSC) -> list[int]:
    """Tensors that the op reads as values: the accumulator of a reduction and index tensors are none."""
    skip = {*sdsc.compute.indices}
    if sdsc.row.kind in (Kind.REDUCTION, Kind.NORM, Kind.SELECTION):
        skip |= {*sdsc.compute.outputs}
    return [i for i in sdsc.compute.inputs if i not in skip]


def matmul_roles(sdsc: SuperDSC) -> MatmulRoles | str:
    """The roles, or why there are none."""
    a, b = (set(sdsc.moves(i)) for i in inputs_of(sdsc))
    c = set(sdsc.present(sdsc.compute.outputs[0]))
    order = [d for d in sdsc.sizes if d in c | (a & b)]
    strange = [d for d in sdsc.sizes if d in (a ^ b) - c and sdsc.valid(d) > 1]
    if strange:
        return f"dim {strange[0]} is in one operand alone and not in the result"
    k = [d for d in order if d not in c]
    n = [d for d in order if d in b and d in c and d not in a]
    m = [d for d in order if d in a and d in c and d not in b]
    taps = tuple(d for d in k if d in {w.dim for w in sdsc.windows.values()})
    if len(k) > len(taps) + 1 or len(n) > 1:
        return f"reduced dims {k} and generated dims {n}; a matmul has one of each"
    row = m[-1] if m else None
    batch = tuple(d for d in order if d not in (row, *n, *k))
    last = next((d for d in k if d not in taps), None)
    return MatmulRoles(batch, row, n[0] if n else None, last, taps)


def topk_roles(sdsc: SuperDSC) -> tuple[str, str] | str:
    """(dim that is searched, dim of the k results), or why there are none."""
    source, result = set(sdsc.present(inputs_of(sdsc)[0])), set(sdsc.present(sdsc.compute.outputs[0]))
    searched = [d for d in sdsc.sizes if d in source - result]
    found = [d for d in sdsc.sizes if d in result - source]
    if len(searched) != 1 or len(found) > 1:
        return f"searched dims {searched} and result dims {found}; one of each is known"
    return searched[0], found[0] if found else ""


def reduced_dims(sdsc: SuperDSC) -> tuple[str, ...]:
    """Dims that the result of a reduction lacks."""
    result = set(sdsc.present(sdsc.compute.outputs[0]))
    return tuple(d for d in sdsc.moves(inputs_of(sdsc)[0]) if d not in result)


def problems(sdsc: SuperDSC) -> Iterator[Found]:
    func = sdsc.row
    inputs, outputs = inputs_of(sdsc), sdsc.compute.outputs
    scalars = {p for c in sdsc.constants if (p := voc.immediate_position(c.name)) is not None}
    if len(inputs) + len(scalars) != func.tensors or len(outputs) != 1:
        counts = f"{len(inputs) + len(scalars)} inputs and {len(outputs)} outputs"
        yield "operands", f"{counts}, {func.name} takes {func.tensors} and gives 1", None
        return
    if not scalars <= set(range(func.tensors)):
        yield "operands", f"scalars at positions {sorted(scalars)}, {func.name} takes {func.tensors} inputs", None
        return
    yield from _races(sdsc, combined_dims(sdsc))
    yield from _windows(sdsc)
    if sdsc.compute.indices:
        yield from _gather(sdsc)
    elif func.kind is Kind.MATMUL:
        yield from _matmul(sdsc)
    elif func.kind is Kind.SELECTION:
        yield from _topk(sdsc)
    elif func.reduces:
        yield from _reduction(sdsc)
    else:
        yield from _same_dims(sdsc)
        if func.kind in (Kind.POINTWISE, Kind.NORM):
            yield from _one_stick(sdsc)
        if func.kind is Kind.NORM:
            yield from _one_value_per_stick(sdsc, func)
    yield from _constants(sdsc, func)
    if func.kind is Kind.CAST:
        yield from _cast(sdsc, func)


def _windows(sdsc: SuperDSC) -> Iterator[Found]:
    for tensor, allocation in enumerate(sdsc.allocations):
        for dim in allocation.windows:
            window = sdsc.window(tensor, dim)
            if window is None or window.dim not in sdsc.sizes:
                yield "window", f"padding_ of dim {dim}, for which N_ has no window", tensor
            elif min(window.stride, window.dilation) < 1:
                yield "window", f"dim {dim}: stride {window.stride}, dilation {window.dilation}", tensor
            elif sdsc.reach(tensor, dim, sdsc.sizes[dim]) > window.total:
                reach = sdsc.reach(tensor, dim, sdsc.sizes[dim])
                yield "window", f"dim {dim}: windows reach {reach} elements, the operand has {window.total}", tensor
            elif dim in _sticks(sdsc, tensor):
                yield "stick-rule", f"windows along dim {dim}, which lies in the sticks", tensor
            elif allocation.component == "lx" or tensor in sdsc.compute.outputs:
                yield "window", f"dim {dim}: windows are read from operands in memory", tensor


def combined_dims(sdsc: SuperDSC) -> tuple[str, ...]:
    """Dims over which cores combine partial results."""
    func = sdsc.row
    if func.kind is Kind.MATMUL:
        roles = matmul_roles(sdsc)
        return () if isinstance(roles, str) else roles.summed
    return reduced_dims(sdsc) if func.reduces else ()


def _one_value_per_stick(sdsc: SuperDSC, func: Row) -> Iterator[Found]:
    """Means and scales of a layer norm have one value (or one pair) per row, in a stick of its own."""
    inputs = inputs_of(sdsc)
    rows = [inputs[0], sdsc.compute.outputs[0]] if func.name == voc.NORM_SCALE else inputs[1:3]
    for tensor in rows:
        for dim in _sticks(sdsc, tensor):
            yield "stick-rule", f"{func.name} takes one value per stick here, not dim {dim}", tensor


def _sticks(sdsc: SuperDSC, tensor: int) -> list[str]:
    """Stick dims that a tensor really has."""
    scale = sdsc.scale(tensor)
    return [d for d in sdsc.primary[sdsc.tensors[tensor].label].stick_dims if scale[d] > 0]


def _constants(sdsc: SuperDSC, func: Row) -> Iterator[Found]:
    given = [c.name for c in sdsc.constants]
    missing = [name for name, default in func.constants.items() if default is None and name not in given]
    if missing:
        yield "constants", f"{func.name} needs the constant {missing[0]}", None
    if len(set(given)) != len(given):
        yield "constants", f"constants {given} have a name twice", None


def _same_dims(sdsc: SuperDSC) -> Iterator[Found]:
    """The result has every dim of more than one element, else several elements share one place."""
    output = sdsc.compute.outputs[0]
    present = set(sdsc.present(output))
    for dim, size in sdsc.sizes.items():
        used = any(dim in sdsc.present(i) for i in sdsc.compute.inputs)
        if dim not in present and used and sdsc.valid(dim) > 1:
            yield "dims", f"the result lacks dim {dim} of {size} elements, which is not reduced", output


def _races(sdsc: SuperDSC, reduced: Sequence[str]) -> Iterator[Found]:
    """Cores that differ in a slice write different bytes, or combine what they have, or write their own scratchpads."""
    output = sdsc.compute.outputs[0]
    if sdsc.allocations[output].component == "lx":
        return
    present = {*sdsc.present(output), *reduced}
    for dim, slices in sdsc.slices.items():
        if slices > 1 and dim not in present:
            core = next(c for c, place in sdsc.core_slices.items() if place[dim])
            yield "race", f"{slices} cores write the same bytes: the result lacks the split dim {dim}", output, core


def _one_stick(sdsc: SuperDSC) -> Iterator[Found]:
    """Operands share the stick dim or lack it."""
    sticks: dict[str, int] = {}
    for tensor in (*inputs_of(sdsc), *sdsc.compute.outputs):
        for dim in _sticks(sdsc, tensor):
            sticks.setdefault(dim, tensor)
    if len(sticks) > 1:
        (first, _), (second, tensor), *_ = sticks.items()
        yield "stick-rule", f"sticks on {second}, another operand on {first}; restickify first", tensor
        return
    for tensor in (*inputs_of(sdsc), *sdsc.compute.outputs):
        outside = [d for d in sticks if d in sdsc.present(tensor) and d not in _sticks(sdsc, tensor)]
        if outside:
            yield "stick-rule", f"has dim {outside[0]} outside its sticks, another operand inside", tensor


def _reduction(sdsc: SuperDSC) -> Iterator[Found]:
    source, output = inputs_of(sdsc)[0], sdsc.compute.outputs[0]
    extra = [d for d in sdsc.present(output) if d not in sdsc.present(source)]
    if extra:
        yield "dims", f"the result has dim {extra[0]}, the operand has not", output
        return
    reduced = reduced_dims(sdsc)
    split = [d for d in reduced if sdsc.slices[d] > 1]
    if len(split) > 1:
        yield "split", f"reduced dims {', '.join(split)} are all split; at most one may be", output
    sticks = _sticks(sdsc, source)
    over_stick = any(d in sticks for d in reduced)
    if sdsc.keeps_stick and over_stick:
        yield "stick-rule", f"{sdsc.opfunc} reduces dim {sticks[0]}, which lies in the sticks", source
    if sdsc.opfunc == voc.EXX2 and not over_stick:
        yield "stick-rule", "exx2 reduces the stick dim", source
    if not over_stick and reduced and not sdsc.keeps_stick and sticks and not sdsc.windows:
        yield (
            "stick-rule",
            f"{sdsc.opfunc} keeps the stick dim {sticks[0]}; that is {sdsc.opfunc}{voc.NONSTICK}",
            source,
        )
    yield from _one_stick(sdsc)


def _matmul(sdsc: SuperDSC) -> Iterator[Found]:
    roles = matmul_roles(sdsc)
    if isinstance(roles, str):
        yield "dims", roles, None
        return
    a, b = inputs_of(sdsc)
    formats = [sdsc.tensors[i].format for i in (a, b)]
    if formats[0] != formats[1]:
        yield "format", f"operands of formats {formats[0]} and {formats[1]}; a matmul's operands share one", b
    if sdsc.row.formats is not None and formats[0] not in sdsc.row.formats[0]:
        yield "format", f"{sdsc.opfunc} of {formats[0]}", a
    wanted = ((a, roles.k, "reduced"), (b, roles.n, "generated"), (sdsc.compute.outputs[0], roles.n, "generated"))
    for tensor, dim, role in wanted:
        sticks = _sticks(sdsc, tensor)
        # An fp8 weight packs pairs of the reduced dim beside the generated one.
        known = {dim, roles.k} if tensor == b else {dim}
        per_channel = roles.n is None and bool(roles.taps)  # all tensors stick on the channels
        if dim is not None and not per_channel and (dim not in sticks or not {*sticks} <= known):
            yield "stick-rule", f"sticks on {sticks or 'nothing'}, must stick on the {role} dim {dim}", tensor
    if roles.k is not None and not {roles.k} <= {*sdsc.present(a)} & {*sdsc.present(b)}:
        yield "dims", f"both operands need the reduced dim {roles.k}", a


def _topk(sdsc: SuperDSC) -> Iterator[Found]:
    roles = topk_roles(sdsc)
    if isinstance(roles, str):
        yield "dims", roles, None
        return
    searched, found = roles
    source, output = inputs_of(sdsc)[0], sdsc.compute.outputs[0]
    if sdsc.slices[searched] > 1 or (found and sdsc.slices[found] > 1):
        yield "split", f"dims {searched} and {found} of a topk are not split", source
    if searched in _sticks(sdsc, source):
        yield "stick-rule", f"topk searches dim {searched}, which lies in the sticks", source
    if found and found in _sticks(sdsc, output):
        yield "stick-rule", f"the result dim {found} of a topk lies in the sticks", output
    if found and sdsc.valid(found) > sdsc.valid(searched):
        yield "dims", f"the {sdsc.valid(found)} largest of {sdsc.valid(searched)} elements", output


def _gather(sdsc: SuperDSC) -> Iterator[Found]:
    if sdsc.opfunc != voc.COPY:
        yield "gather", f"{sdsc.opfunc} with index tensors; gathers are identity", None
        return
    found = [i for i in (*inputs_of(sdsc), *sdsc.compute.outputs) if sdsc.is_table(i)]
    if len(found) != 1:
        yield "gather", f"{len(found)} value_tensor allocations; a gather or scatter has one", None
        return
    (table,) = found
    gathered = sdsc.gathered(table)
    if len(gathered) != len(sdsc.compute.indices):
        yield "gather", f"{len(sdsc.compute.indices)} index tensors for the gathered dims {list(gathered)}", table
    sticks = [d for d in gathered if d in _sticks(sdsc, table)]
    if sticks:
        yield "stick-rule", f"gathers along dim {sticks[0]}, which lies in the sticks", table
    for index in sdsc.compute.indices:
        if sdsc.tensors[index].format not in ("SENUINT32", "IEEE_INT32"):
            yield "format", f"index tensor of {sdsc.tensors[index].format}; SENUINT32 and IEEE_INT32 are known", index
    # What moves along the table besides rows moves along the other tensor too, whichever of them is the result.
    other = inputs_of(sdsc)[0] if table in sdsc.compute.outputs else sdsc.compute.outputs[0]
    lacking = [d for d in sdsc.present(table) if d not in gathered and d not in sdsc.present(other)]
    if lacking and sdsc.valid(lacking[0]) > 1:
        what = "values lack" if table in sdsc.compute.outputs else "result lacks"
        yield "dims", f"the {what} dim {lacking[0]} of the table", other


def _cast(sdsc: SuperDSC, func: Row) -> Iterator[Found]:
    source, output = inputs_of(sdsc)[0], sdsc.compute.outputs[0]
    formats = sdsc.tensors[source].format, sdsc.tensors[output].format
    if func.formats is None or any(given not in known for given, known in zip(formats, func.formats, strict=True)):
        yield "format", f"{func.name} between tensors of formats {formats[0]} and {formats[1]}", output
