# SPDX-License-Identifier: Apache-2.0
"""Lowerings of ops that put tensors together: copies into views of one new buffer, where Inductor would mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import get_promoted_dtype, lowerings, register_lowering, to_dtype
from torch._inductor.virtualized import V, ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, canonicalize_dim

from torch_spyre._inductor.lowering.guards import guarded
from torch_spyre._inductor.lowering.scatter import keep_apart, write
from torch_spyre._inductor.tilegraph.carried import UNDEFINED
from torch_spyre.decompositions import custom

aten = torch.ops.aten


def undefined(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> ir.TensorBox:
    """A new buffer that nobody has written yet."""

    def inner(index: Sequence[Any]) -> Any:
        return ops.inline_asm_elementwise(asm=UNDEFINED, dtype=dtype)

    made = ir.Pointwise.create(device=device, dtype=dtype, inner_fn=inner, ranges=list(size))
    made.realize()
    return made


def copy_into(whole: ir.TensorBox, view: ir.TensorBox, source: ir.TensorBox) -> None:
    if view.data is whole.data:  # all of it: Inductor takes the source's buffer for it, which must not be another's
        source = lowerings[aten.clone.default](source)
    lowerings[aten.copy_.default](view, source)


def done(whole: ir.TensorBox) -> ir.TensorBox:
    """The buffer as a value of its own. An op in place gives the box of its operand another buffer, and the copies into
    the first one, which know it by its box, would go there."""
    return ir.TensorBox(ir.StorageBox(whole.data.data))


def scatter_through_view(view: Any) -> Callable[..., Any]:
    """x with a view of it replaced by src: a copy of x, and src copied into the view."""

    def scatter(x: ir.TensorBox, src: ir.TensorBox, *place: Any, **named: Any) -> ir.TensorBox:
        whole = lowerings[aten.clone.default](x)
        whole.realize()
        copy_into(whole, lowerings[view](whole, *place, **named), src)
        return done(whole)

    return scatter


def _zero(size: Any) -> bool:
    """Is the size known to be 0? (A symbol is not: Dynamo gives sizes 0 and 1 graphs of their own.)"""
    return bool(V.graph.sizevars.statically_known_equals(size, 0))


def _cat(tensors: Sequence[ir.TensorBox], dim: int = 0) -> ir.TensorBox:
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    dtype = get_promoted_dtype(*tensors, type_promotion_kind=kind)
    parts = [to_dtype(t, dtype) for t in tensors if not _skipped(t)]
    if not parts:
        return lowerings[aten.clone.default](to_dtype(tensors[0], dtype))
    size = list(parts[0].get_size())
    dim %= len(size)
    lengths = [t.get_size()[dim] for t in parts]
    whole = undefined([*size[:dim], sum(lengths), *size[dim + 1 :]], dtype, parts[0].get_device())
    start = 0
    for part, length in zip(parts, lengths, strict=True):
        if not _zero(length):
            copy_into(whole, lowerings[aten.slice.Tensor](whole, dim, start, start + length), part)
        start += length
    return done(whole)


def _skipped(x: ir.TensorBox) -> bool:
    """An empty tensor of one dim joins anything."""
    size = x.get_size()
    return len(size) == 1 and _zero(size[0])


def _constant_pad(x: ir.TensorBox, padding: Sequence[Any], value: Any = 0) -> ir.TensorBox:
    most, known = V.graph.sizevars.evaluate_max, V.graph.sizevars.statically_known_equals
    size, pads = list(x.get_size()), [sympy.sympify(p) for p in padding]
    dims = {len(size) - 1 - i: (pads[2 * i], pads[2 * i + 1]) for i in range(len(pads) // 2)}
    for dim, (before, after) in dims.items():  # a negative pad cuts
        start, end = most(-before, 0), size[dim] - most(-after, 0)
        if not (known(start, 0) and known(end, size[dim])):
            x = lowerings[aten.slice.Tensor](x, dim, start, end)
    grown = [n + sum(dims.get(d, (0, 0))) for d, n in enumerate(size)]
    if all(known(n, g) for n, g in zip(x.get_size(), grown, strict=True)):
        return lowerings[aten.clone.default](x)
    whole = lowerings[aten.full.default](grown, value, dtype=x.get_dtype(), device=x.get_device())
    whole.realize()
    view = whole
    for dim, (before, _) in dims.items():
        start = most(before, 0)
        view = lowerings[aten.slice.Tensor](view, dim, start, start + x.get_size()[dim])
    copy_into(whole, view, x)
    return done(whole)


def _index_select(x: ir.TensorBox, dim: int, index: ir.TensorBox) -> ir.TensorBox:
    """Inductor's form is that of ``x[index]``, which counts negative places from the end."""
    if len(index.get_size()) > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    unsqueeze = lowerings[aten.unsqueeze.default]
    if not x.get_size():
        return lowerings[aten.squeeze.dim](_index_select(unsqueeze(x, 0), 0, index), 0)
    index = index if index.get_size() else unsqueeze(index, 0)
    size = list(x.get_size())
    dim = canonicalize_dim(len(size), dim)
    limit, size[dim] = size[dim], index.get_size()[0]
    load, places = x.make_loader(), index.make_loader()

    def inner(at: Sequence[Any]) -> Any:
        place = ops.indirect_indexing(places([at[dim]]), limit, wrap_neg=False)
        return load([*at[:dim], place, *at[dim + 1 :]])

    return ir.Pointwise.create(device=x.get_device(), dtype=x.get_dtype(), inner_fn=inner, ranges=size)


def _put(x: ir.TensorBox, dim: int, index: ir.TensorBox, values: ir.TensorBox, accumulate: bool) -> ir.TensorBox:
    """`custom.put`: Inductor's own writes count negative places from the end."""
    whole = lowerings[aten.clone.default](x)
    _put_in_place(whole, dim, index, values, accumulate)
    return done(whole)


def _put_in_place(x: ir.TensorBox, dim: int, index: ir.TensorBox, values: ir.TensorBox, accumulate: bool) -> Any:
    x.realize()
    dim = canonicalize_dim(len(x.get_size()), dim)
    keep_apart(x, index, values)
    limit, places = x.get_size()[dim], index.make_loader()

    def there(at: Sequence[Any]) -> list[Any]:
        return [*at[:dim], ops.indirect_indexing(places([at[dim]]), limit, wrap_neg=False), *at[dim + 1 :]]

    write(x, values.make_loader(), values.get_size(), there, accumulate)
    return x


def register() -> None:
    register_lowering(custom.put, type_promotion_kind=None)(_put)
    register_lowering(custom.put_, type_promotion_kind=None)(_put_in_place)
    register_lowering(aten.index_select, type_promotion_kind=None)(_index_select)
    guarded(aten.cat)(_cat)
    guarded(aten.constant_pad_nd)(_constant_pad)
    for scatter, view in ((aten.slice_scatter, aten.slice.Tensor), (aten.select_scatter, aten.select.int)):
        guarded(scatter)(scatter_through_view(view))
