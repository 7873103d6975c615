# SPDX-License-Identifier: Apache-2.0
"""Lowerings of ops that depend on order along one dim: running sums, sorting, the largest elements, their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V, ops
from torch._prims_common import canonicalize_dim

from torch_spyre._inductor.lowering.guards import guarded
from torch_spyre._inductor.tilegraph.carried import Ranking, Running
from torch_spyre.optable import OPS, Gives

aten = torch.ops.aten


def scan(opfunc: str, x: ir.TensorBox, axis: int) -> ir.TensorBox:
    size = x.get_size()
    axis = canonicalize_dim(len(size), axis)
    load = x.make_loader()

    def reindex(index: Sequence[Any], scanned: Sequence[Any]) -> list[Any]:
        return [*index[:axis], *scanned, *index[axis:]]

    result = ir.TensorBox.create(
        ir.Scan(
            device=x.get_device(),
            dtype=x.get_dtype(),
            inner_fn=load,
            ranges=[*size[:axis], *size[axis + 1 :]],
            scan_ranges=[size[axis]],
            size=size,
            combine_fn=Running(opfunc),
            reindex=reindex,
            reduction_hint=ir.ReductionHint.DEFAULT,
            output_index=0,
            dtypes=(x.get_dtype(),),
            inner_fns=(load,),
        )
    )
    result.realize()
    return result


def _running(opfunc: str) -> Callable[..., Any]:
    def lower(x: ir.TensorBox, axis: int, dtype: torch.dtype | None = None) -> ir.TensorBox:
        if dtype is None and not x.get_dtype().is_floating_point:
            dtype = torch.int64
        x = to_dtype(x, dtype or x.get_dtype(), copy=True)
        axis = canonicalize_dim(len(x.get_size()), axis)
        return scan(opfunc, x, axis) if len(x.get_size()) else x

    return lower


def _running_extreme(opfunc: str) -> Callable[..., Any]:
    """Values, and the place of the last element that equals the running value."""

    def lower(x: ir.TensorBox, axis: int) -> tuple[ir.TensorBox, ir.TensorBox]:
        size, device = x.get_size(), x.get_device()
        if not size:
            return lowerings[aten.clone.default](x), lowerings[aten.full.default](
                [], 0, dtype=torch.int64, device=device
            )
        axis = canonicalize_dim(len(size), axis)
        value = scan(opfunc, x, axis)
        load_x, load_value = x.make_loader(), value.make_loader()

        def place(index: Sequence[Any]) -> Any:
            here = ops.index_expr(index[axis], torch.int64)
            own, running = load_x(index), load_value(index)
            equal = ops.eq(own, running)
            if x.get_dtype().is_floating_point:
                equal = ops.logical_or(equal, ops.isnan(own))
            return ops.where(equal, here, ops.constant(0, torch.int64))

        places = ir.Pointwise.create(device=device, dtype=torch.int64, inner_fn=place, ranges=list(size))
        return value, scan("cummax", places, axis)

    return lower


def _select(opfunc: str, x: ir.TensorBox, k: int, dim: int, largest: bool) -> ir.TensorBox:
    """The k largest (or smallest) along dim in order, or their places: a reduction that leaves k values."""
    size = list(x.get_size())
    load = x.make_loader()
    dtype = torch.int64 if OPS[opfunc].gives is Gives.PLACES else x.get_dtype()

    def inner(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        return load([*index[:dim], rindex[0], *index[dim + 1 :]])

    result = ir.TensorBox.create(
        ir.Reduction(
            device=x.get_device(),
            dtype=dtype,
            inner_fn=inner,
            ranges=[*size[:dim], k, *size[dim + 1 :]],
            reduction_ranges=[size[dim]],
            reduction_type=str(Ranking(opfunc, dim, ascending=not largest)),
            src_dtype=x.get_dtype(),
            reduction_hint=ir.ReductionHint.DEFAULT,
        )
    )
    result.realize()
    return result


def ordered(x: ir.TensorBox, k: Any, dim: int, largest: bool) -> tuple[ir.TensorBox, ir.TensorBox]:
    size = x.get_size()
    dim = canonicalize_dim(len(size), dim)
    if not size:
        places = lowerings[aten.full.default]([], 0, dtype=torch.int64, device=x.get_device())
        return lowerings[aten.clone.default](x), places
    taken = [*size[:dim], k, *size[dim + 1 :]]
    if any(V.graph.sizevars.statically_known_equals(n, 0) for n in taken):
        make, device = lowerings[aten.full.default], x.get_device()
        return make(taken, 0, dtype=x.get_dtype(), device=device), make(taken, 0, dtype=torch.int64, device=device)
    x.realize()
    values = _select("topkvalue", x, k, dim, largest)
    return values, _select("topkindex", x, k, dim, largest)


def _sort(x: ir.TensorBox, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    size = x.get_size()
    return ordered(x, size[canonicalize_dim(len(size), dim)] if size else 1, dim, descending)


def _sort_default(x: ir.TensorBox, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim=dim, descending=descending)


def _topk(x: ir.TensorBox, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return ordered(x, k, dim, largest)


def register() -> None:
    for op, opfunc in ((aten.cumsum, "cumsum"), (aten.cumprod, "cumprod")):
        guarded(op)(_running(opfunc))
    for op, opfunc in ((aten.cummax, "cummax"), (aten.cummin, "cummin")):
        guarded(op)(_running_extreme(opfunc))
    guarded(aten.sort.stable)(_sort)
    guarded(aten.sort.default)(_sort_default)
    guarded(aten.topk)(_topk)
