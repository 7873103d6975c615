# SPDX-License-Identifier: Apache-2.0
"""Writes at places that other tensors hold: overwriting, in order, or adding.

With ``torch.use_deterministic_algorithms`` Inductor leaves these ops to kernels of the host. The card writes and adds
in a fixed order, so nothing here asks for that mode. What the card does not have (places given by truth values, sums
of int64 and of truth values) is left to Inductor's own entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import inductor_prims, ir
from torch._inductor.lowering import (
    check_and_broadcast_indices,
    clamp,
    clone,
    expand,
    full_like,
    index_output_size_and_inner_fn,
    lowerings,
    to_dtype,
    view,
    where,
)
from torch._inductor.virtualized import V, ops
from torch._prims_common import canonicalize_dim

from torch_spyre._inductor.lowering.guards import guarded, wrapped

aten = torch.ops.aten
Lowering = Callable[..., Any]
Load = Callable[[Sequence[Any]], Any]
_NOT_ADDED = (torch.int64, torch.bool)
_MASKS = (torch.bool, torch.uint8)


def write(target: ir.TensorBox, load: Load, ranges: Sequence[Any], there: Load, accumulate: bool) -> None:
    """Each element of `ranges` that is loaded goes to a place of `target`, `there`."""
    scatter = ir.Scatter(
        device=target.get_device(),
        dtype=target.get_dtype(),
        inner_fn=load,
        ranges=list(ranges),
        output_indexer=there,
        scatter_mode="atomic_add" if accumulate else None,
    )
    written = ir.ComputedBuffer(name=None, layout=ir.MutationLayoutSHOULDREMOVE(target), data=scatter)
    written.name = V.graph.register_buffer(written)
    V.graph.register_operation(written)


def keep_apart(target: ir.TensorBox, *operands: Any) -> None:
    """Computes what is made from `target` before `target` is written."""
    name = ir.try_get_name(target)
    for x in operands:
        if isinstance(x, ir.TensorBox) and name in x.get_read_names():
            x.realize()


def _index_put(in_place: bool, check: bool) -> Callable[[Lowering], Lowering]:
    """``x[indices] = values`` and ``x[indices] += values``."""

    def around(original: Lowering) -> Lowering:
        def lower(x: ir.TensorBox, indices: Sequence[Any], values: ir.TensorBox, accumulate: bool = False) -> Any:
            masked = any(i is not None and i.get_dtype() in _MASKS for i in indices)
            if masked or not x.get_size() or (accumulate and x.get_dtype() in _NOT_ADDED):
                return original(x, indices, values, accumulate)
            if in_place:
                keep_apart(x, values, *indices)
            return _put_at(x if in_place else clone(x), indices, to_dtype(values, x.get_dtype()), accumulate, check)

        return lower

    return around


def _put_at(x: ir.TensorBox, indices: Sequence[Any], values: ir.TensorBox, accumulate: bool, check: bool) -> Any:
    indices, given = check_and_broadcast_indices(indices, x.get_device())
    loaders = [i if i is None else i.make_loader() for i in indices]
    x.realize()
    size, count = x.get_size(), indices[given[0]].get_size()
    ranges, there = index_output_size_and_inner_fn(
        size, indices, given, list(count), loaders, size[: len(indices)], None, check=check
    )
    write(x, expand(values, ranges).make_loader(), ranges, there, accumulate)
    return x


def _scatter(in_place: bool, accumulate: bool) -> Callable[[Lowering], Lowering]:
    """Element i of `src` goes to the place along `dim` that element i of `index` names."""

    def around(original: Lowering) -> Lowering:
        def lower(x: ir.TensorBox, dim: int, index: ir.TensorBox, src: Any, **kwargs: Any) -> Any:
            if kwargs or (accumulate and x.get_dtype() in _NOT_ADDED):
                return original(x, dim, index, src, **kwargs)
            if in_place:
                keep_apart(x, index, src)
            target = x if in_place else clone(x)
            values = src if isinstance(src, ir.TensorBox) else full_like(target, src)
            return _scatter_into(target, dim, index, values, accumulate)

        return lower

    return around


def _scatter_into(x: ir.TensorBox, dim: int, index: ir.TensorBox, src: ir.TensorBox, accumulate: bool) -> Any:
    target, index, src = (view(t, [1]) if not t.get_size() else t for t in (x, index, src))
    if index.get_numel() == 0:
        return x
    target.realize()
    size = target.get_size()
    dim, places, load = canonicalize_dim(len(size), dim), index.make_loader(), src.make_loader()

    def there(at: Sequence[Any]) -> list[Any]:
        return [*at[:dim], ops.indirect_indexing(places(at), size[dim], wrap_neg=False), *at[dim + 1 :]]

    write(target, load, index.get_size(), there, accumulate)
    return target if x.get_size() else view(target, [])


def _masked_add(x: ir.TensorBox, mask: Any, indices: Sequence[Any], values: Any) -> Any:
    """The gradient of a read under a mask: places outside are inside once clamped, and add 0 there."""
    size = x.get_size()
    inside = [i if i is None else clamp(i, -size[d], size[d] - 1) for d, i in enumerate(indices)]
    return lowerings[aten._unsafe_index_put.default](x, inside, where(mask, values, 0), True)


def register() -> None:
    wrapped(aten.index_put, _index_put(in_place=False, check=True))
    wrapped(aten.index_put_, _index_put(in_place=True, check=True))
    wrapped(aten._unsafe_index_put, _index_put(in_place=False, check=False))
    wrapped(inductor_prims._unsafe_index_put_, _index_put(in_place=True, check=False))
    guarded(aten._unsafe_masked_index_put_accumulate)(_masked_add)
    wrapped(aten.scatter, _scatter(in_place=False, accumulate=False))
    wrapped(aten.scatter_, _scatter(in_place=True, accumulate=False))
    wrapped(aten.scatter_add, _scatter(in_place=False, accumulate=True))
    wrapped(aten.scatter_add_, _scatter(in_place=True, accumulate=True))
