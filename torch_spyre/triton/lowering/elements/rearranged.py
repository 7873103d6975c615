# SPDX-License-Identifier: Apache-2.0
"""Scans, sorting, and tiles that are put together from the elements of others."""

from __future__ import annotations

import re
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.ir import Attribute, SSAValue

from torch_spyre.triton.lowering import splice
from torch_spyre.triton.lowering.accesses.ktir_lines import Text
from torch_spyre.triton.lowering.linear import shape_of
from torch_spyre.triton.lowering.refusals import refusal

_BYTES = {"f16": 2, "bf16": 2, "i1": 2, "f32": 4, "i32": 4, "i16": 2, "i8": 1, "f8E4M3FN": 1, "f8E5M2": 1}
_CALL = re.compile(r"triton\.language\.standard\.(sort|topk|flip)__[a-z0-9]+S[0-9_]+S_(.*)$")


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        rule = _RULES.get(op.name)
        if rule is not None:
            rule(op)


def _sized(shape: tuple[int, ...] | list[int], element: Attribute) -> str:
    return f"tensor<{'x'.join([*map(str, shape), str(element)])}>"


# -- tiles by way of the scratchpad -----------------------------------------------------------------------------------


def _rules(shape: tuple[int, ...]) -> str:
    return ", ".join(f"d{d} >= 0, -d{d} + {size - 1} >= 0" for d, size in enumerate(shape))


def _set(shape: tuple[int, ...]) -> str:
    return f"affine_set<({', '.join(f'd{d}' for d in range(len(shape)))}) : ({_rules(shape)})>"


def _order(rank: int) -> str:
    dims = ", ".join(f"d{d}" for d in range(rank))
    return f"affine_map<({dims}) -> ({dims})>"


def _steps(shape: tuple[int, ...]) -> list[int]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return steps[::-1]


def _view(text: Text, address: int, shape: tuple[int, ...], steps: list[int], element: Attribute) -> tuple[str, str]:
    kind = f"memref<{'x'.join(map(str, shape))}x{element}>"
    name = text.name(
        f"ktdp.construct_memory_view {text.number(address)}, sizes: [{', '.join(map(str, shape))}], strides: "
        f"[{', '.join(map(str, steps))}] {{coordinate_set = {_set(shape)}, memory_space = "
        f"#ktdp.memory_space<ct_local>}} : {kind}"
    )
    return name, kind


def _tile(text: Text, view: str, kind: str, shape: tuple[int, ...]) -> tuple[str, str]:
    tile = f"!ktdp.access_tile<{'x'.join(map(str, shape))}xindex>"
    zero = text.number(0)
    name = text.name(
        f"ktdp.construct_access_tile {view}[{', '.join([zero] * len(shape))}] {{access_tile_set = {_set(shape)}, "
        f"access_tile_order = {_order(len(shape))}}} : {kind} -> {tile}"
    )
    return name, tile


def _kept(text: Text, value: SSAValue, address: int) -> tuple[str, str, Attribute, int]:
    """A tensor in the scratchpad from an element on: its view, the type of that, its element type, its end in bytes."""
    shape, element = shape_of(value.type), value.type.element_type  # type: ignore[attr-defined]
    name = text.value(value)
    if element == i64:
        name = text.name(f"arith.trunci {name} : {value.type} to {_sized(shape, 'i32')}")  # type: ignore[arg-type]
        element = _I32
    view, kind = _view(text, address, shape, _steps(shape), element)
    tile, tile_kind = _tile(text, view, kind, shape)
    text.lines.append(f"ktdp.store {name}, {tile} : {_sized(shape, element)}, {tile_kind}")
    count = 1
    for size in shape:
        count *= size
    return view, kind, element, (address + count) * _BYTES[str(element)]


def _loaded(text: Text, tile: str, kind: str, shape: tuple[int, ...], element: Attribute, wanted: Attribute) -> None:
    made = text.name(f"ktdp.load {tile} : {kind} -> {_sized(shape, element)}")
    if str(wanted.element_type) != str(element):  # type: ignore[attr-defined]
        text.name(f"arith.extsi {made} : {_sized(shape, element)} to {wanted}")


def _insert(op: Any, text: Text) -> SSAValue:
    return splice.before(op, "\n".join(text.lines), text.values)[0]


def flipped(op: Any, value: SSAValue, dim: int) -> SSAValue:
    """The elements along a dim in reverse order: a view that counts backwards."""
    shape, text = shape_of(value.type), Text()
    _, _, element, _ = _kept(text, value, 0)
    steps = _steps(shape)
    last = steps[dim] * (shape[dim] - 1)
    steps[dim] = -steps[dim]
    view, kind = _view(text, last, shape, steps, element)
    tile, tile_kind = _tile(text, view, kind, shape)
    _loaded(text, tile, tile_kind, shape, element, value.type)
    return _insert(op, text)


def _gather(op: Any) -> None:
    value, index = op.operands
    if str(index.type.element_type) in ("i8", "i16"):  # the card reads places as 32-bit numbers
        wide = _sized(shape_of(index.type), _I32)
        (index,) = splice.before(op, f"%w = arith.extsi %i : {index.type} to {wide}", {"i": index})
    axis, shape, text = int(op.attributes["axis"].value.data), shape_of(index.type), Text()
    view, kind, element, end = _kept(text, value, 0)
    places, places_kind, _, _ = _kept(text, index, -(-end // 128) * 32)
    variables = [f"%p{d}" for d in range(len(shape))]
    subscripts = [f"({name})" for name in variables]
    subscripts[axis] = f"ind({places}[{', '.join(variables)}])"
    tile = f"!ktdp.access_tile<{'x'.join(map(str, shape))}xindex>"
    made = text.name(
        f"ktdp.construct_indirect_access_tile intermediate_variables({', '.join(variables)}) "
        f"{view}[{', '.join(subscripts)}] {{variables_space_set = {_set(shape)}, variables_space_order = "
        f"{_order(len(shape))}}} : {kind}, {places_kind} -> {tile}"
    )
    _loaded(text, made, tile, shape, element, op.results[0].type)
    splice.replace(op, [_insert(op, text)])


def _histogram(op: Any) -> None:
    """Adds 1 to the bin of each element; what has no bin is not counted."""
    value, shape = op.operands[0], shape_of(op.operands[0].type)
    bins, text = shape_of(op.results[0].type), Text()
    kind = _sized(shape, _I32)
    name = text.value(value)
    if str(value.type.element_type) != "i32":
        cast = "trunci" if value.type.element_type == i64 else "extsi"
        name = text.name(f"arith.{cast} {name} : {value.type} to {kind}")
    if len(op.operands) > 1:
        nothing = text.name(f"arith.constant dense<-1> : {kind}")
        truth = text.value(op.operands[1])
        name = text.name(f"arith.select {truth}, {name}, {nothing} : {_sized(shape, _I1)}, {kind}")
    view, view_kind = _view(text, 0, bins, [1], _I32)
    tile, tile_kind = _tile(text, view, view_kind, bins)
    zeros = text.name(f"arith.constant dense<0> : {_sized(bins, _I32)}")
    text.lines.append(f"ktdp.store {zeros}, {tile} : {_sized(bins, _I32)}, {tile_kind}")
    places, places_kind = _view(text, -(-bins[0] // 32) * 32, shape, [1], _I32)
    at, at_kind = _tile(text, places, places_kind, shape)
    text.lines.append(f"ktdp.store {name}, {at} : {kind}, {at_kind}")
    made = text.name(
        f"ktdp.construct_indirect_access_tile intermediate_variables(%p0) {view}[ind({places}[%p0])] "
        f"{{variables_space_set = {_set(shape)}, variables_space_order = {_order(1)}}} : {view_kind}, {places_kind} "
        f"-> {at_kind}"
    )
    ones = text.name(f"arith.constant dense<1> : {kind}")
    text.lines.append(f"ktdp.store {ones}, {made} {{accumulate, masked}} : {kind}, {at_kind}")
    _loaded(text, tile, tile_kind, bins, _I32, op.results[0].type)
    splice.replace(op, [_insert(op, text)])


def _assert(op: Any) -> None:
    """Reads a place that exists only if the condition holds."""
    condition, text = op.operands[0], Text()
    if not isinstance(condition.type, TensorType):
        (condition,) = splice.before(op, f"%t = tensor.splat %c : {_sized([1], _I1)}", {"c": condition})
    shape = shape_of(condition.type)
    kind = _sized(shape, _I32)
    zero, one = (text.name(f"arith.constant dense<{n}> : {kind}") for n in (0, 1))
    name = text.name(f"arith.select {text.value(condition)}, {zero}, {one} : {condition.type}, {kind}")
    view, view_kind = _view(text, 0, shape, _steps(shape), _I32)
    tile, tile_kind = _tile(text, view, view_kind, shape)
    text.lines.append(f"ktdp.store {name}, {tile} : {kind}, {tile_kind}")
    # One element, after the numbers.
    count = 1
    for size in shape:
        count *= size
    only, only_kind = _view(text, -(-count // 32) * 32, (1,), [1], _I32)
    first, first_kind = _tile(text, only, only_kind, (1,))
    nothing = text.name(f"arith.constant dense<0> : {_sized([1], _I32)}")
    text.lines.append(f"ktdp.store {nothing}, {first} : {_sized([1], _I32)}, {first_kind}")
    variables = ", ".join(f"%p{d}" for d in range(len(shape)))
    made = text.name(
        f"ktdp.construct_indirect_access_tile intermediate_variables({variables}) {only}[ind({view}[{variables}])] "
        f"{{variables_space_set = {_set(shape)}, variables_space_order = {_order(len(shape))}}} : {only_kind}, "
        f"{view_kind} -> {tile_kind}"
    )
    read = text.name(f"ktdp.load {made} : {tile_kind} -> {kind}")
    text.lines.append(f"ktdp.store {read}, {tile} : {kind}, {tile_kind}")
    splice.before(op, "\n".join(text.lines), text.values)
    splice.erase(op)


# -- joined and split -------------------------------------------------------------------------------------------------


def _split(op: Any) -> None:
    given, wanted = op.operands[0].type, op.results[0].type
    shape = shape_of(given)
    parts = []
    for place in range(2):
        where = f"{[0] * (len(shape) - 1) + [place]} {[*shape[:-1], 1]} {[1] * len(shape)}"
        text = f"%s = tensor.extract_slice %a{where} : {given} to {wanted}"
        parts.append(splice.before(op, text, {"a": op.operands[0]})[0])
    splice.replace(op, parts)


def _join(op: Any) -> None:
    given, wanted = op.operands[0].type, op.results[0].type
    shape = shape_of(given)
    element = wanted.element_type
    if not isinstance(given, TensorType):
        lines = [f"%{n}x = tensor.splat %{n} : {_sized([1], element)}" for n in "ab"]
        column, last = _sized([1], element), 0
    else:
        groups = [[d] for d in range(len(shape) - 1)] + [[len(shape) - 1, len(shape)]]
        column, last = _sized([*shape, 1], element), len(shape)
        sizes = ", ".join(map(str, [*shape, 1]))
        lines = [
            f"%{n}x = tensor.expand_shape %{n} {groups} output_shape [{sizes}] : {given} into {column}" for n in "ab"
        ]
    lines.append(f"%r = tensor.concat dim({last}) %ax, %bx : ({column}, {column}) -> {wanted}")
    splice.instead(op, "\n".join(lines), {"a": op.operands[0], "b": op.operands[1]})


def _cat(op: Any) -> None:
    given, wanted = op.operands[0].type, op.results[0].type
    text = f"%r = tensor.concat dim(0) %a, %b : ({given}, {given}) -> {wanted}"
    splice.instead(op, text, {"a": op.operands[0], "b": op.operands[1]})


# -- calls of Triton's library ----------------------------------------------------------------------------------------


def _call(op: Any) -> None:
    match = _CALL.search(op.attributes["callee"].data)
    if match is None:
        raise refusal(op, "calls of functions that are not inlined; drop noinline=True")
    name, value = match[1], op.operands[0]
    constants = [part.removeprefix("c") for part in match[2].split("_")]
    rank = len(shape_of(value.type))
    if name == "flip":
        splice.replace(op, [flipped(op, value, int(constants[0]) % rank)])
        return
    k = int(constants.pop(0)) if name == "topk" else shape_of(value.type)[-1]
    descending = constants[1] in ("True", "1")
    element, shape = value.type.element_type, shape_of(value.type)
    if str(element) not in ("f16", "bf16", "f32", "i32"):
        raise refusal(op, f"{name} of {element}; convert to float32, which holds integers up to 2^24")
    values, places = op.results[0].type, _sized([*shape[:-1], k], _I32)
    text = (
        f"%v, %i = spyreop.sort %a {{dimension = {rank - 1} : i64, descending = {str(descending).lower()}, "
        f"stable = true, k = {k} : i64}} : {value.type} -> ({values}, {places})"
    )
    splice.replace(op, [splice.before(op, text, {"a": value})[0]])


# -- scans ------------------------------------------------------------------------------------------------------------

_KINDS = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "prod",
    "arith.muli": "prod",
    "arith.maxnumf": "max",
    "arith.maxsi": "max",
    "arith.minnumf": "min",
    "arith.minsi": "min",
}


def _scan(op: Any) -> None:
    """By the card's own instruction, or, with any other combiner, over distances of 1, 2, 4, …"""
    values = list(op.operands)
    found = {**op.properties, **op.attributes}
    dim, reverse = int(found["axis"].value.data), bool(found["reverse"].value.data)
    if reverse:
        values = [flipped(op, value, dim) for value in values]
    names = [inner.name for inner in op.regions[0].block.ops]
    kind = _KINDS.get(names[0]) if len(values) == 1 and len(names) == 2 else None
    if kind is not None:
        of = values[0].type
        text = f'%s = spyreop.scan %a {{dimension = {dim} : i64, kind = "{kind}"}} : {of} -> {of}'
        values = list(splice.before(op, text, {"a": values[0]}))
    else:
        distance = 1
        while distance < shape_of(values[0].type)[dim]:
            values = _combined_at(op, values, dim, distance)
            distance *= 2
    if reverse:
        values = [flipped(op, value, dim) for value in values]
    splice.replace(op, values)


def _combined_at(op: Any, values: list[SSAValue], dim: int, distance: int) -> list[SSAValue]:
    """Each element with the one that is `distance` before it; the first ones stay."""
    size = shape_of(values[0].type)[dim]
    first = [_slice(op, value, dim, 0, distance) for value in values]
    before = [_slice(op, value, dim, 0, size - distance) for value in values]
    after = [_slice(op, value, dim, distance, size - distance) for value in values]
    made = _elementwise(op, [*before, *after])
    results = []
    for start, rest, value in zip(first, made, values, strict=True):
        text = f"%r = tensor.concat dim({dim}) %a, %b : ({start.type}, {rest.type}) -> {value.type}"
        results.append(splice.before(op, text, {"a": start, "b": rest})[0])
    return results


def _slice(op: Any, value: SSAValue, dim: int, start: int, size: int) -> SSAValue:
    shape = shape_of(value.type)
    offsets = [start if d == dim else 0 for d in range(len(shape))]
    sizes = [size if d == dim else s for d, s in enumerate(shape)]
    kind = _sized(sizes, value.type.element_type)  # type: ignore[attr-defined]
    text = f"%s = tensor.extract_slice %a{offsets} {sizes} {[1] * len(shape)} : {value.type} to {kind}"
    return splice.before(op, text, {"a": value})[0]


def _elementwise(op: Any, values: list[SSAValue]) -> list[SSAValue]:
    """The combiner on whole tensors."""
    block = op.regions[0].block
    shape = shape_of(values[0].type)
    found: dict[SSAValue, SSAValue] = dict(zip(block.args, values, strict=True))
    for inner in block.ops:
        if inner is block.last_op:
            break
        if inner.regions or not inner.name.startswith(("arith.", "math.", "tt.")):
            raise refusal(inner, "a combiner with branches; use tl.where")
        made = inner.clone()
        made.location = inner.location
        if inner.name != "arith.constant":
            made.operands = [_as_tile(op, found.get(value, value), shape) for value in inner.operands]
        op.parent_block().insert_op_before(made, op)
        if inner.name == "arith.constant":
            text = f"%t = tensor.splat %c : {_sized(shape, made.results[0].type)}"
            found[inner.results[0]] = splice.before(op, text, {"c": made.results[0]})[0]
            continue
        for old, new in zip(inner.results, made.results, strict=True):
            new._type = TensorType(old.type, shape)
            found[old] = new
    return [_as_tile(op, found.get(value, value), shape) for value in block.last_op.operands]


def _as_tile(op: Any, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    """Values from outside of the combiner are the same for all elements."""
    if isinstance(value.type, TensorType):
        return value
    return splice.before(op, f"%t = tensor.splat %c : {_sized(shape, value.type)}", {"c": value})[0]


_I1: Any = "i1"
_I32: Any = "i32"

_RULES = {
    "tt.scan": _scan,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.split": _split,
    "tt.join": _join,
    "tt.cat": _cat,
    "tt.call": _call,
    "tt.assert": _assert,
}
