# SPDX-License-Identifier: Apache-2.0
"""Writes at given places that add, multiply or take an extreme, made of what the card has: overwrite and add.

A scatter of the card writes in order, so that of several writes to one place the last one stays.

Sums of 16-bit floats and of int64 are made in another format and rounded once. Where few places of a large tensor are
written, only these are converted (`_apart`), so that the cost is that of what is written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from torch_spyre.decompositions.custom import checked, put
from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
# The card adds floats and int32; int64 is int32 there, and truth adds as "or".
_AS_INT32 = (torch.int64, torch.bool)
_IN_PLACE = (torch.float32, torch.int32)  # what the card adds as it is stored
FEW = 4  # a tensor of this many times the elements that are written is large
_PAIRED = 8  # places along a dim that are sooner compared with each other than listed
_MAX_PAIRS = 2**26  # of a place and a written element, in a product


@dataclass(frozen=True)
class _Rows:
    """Places along a dim, by a vector that holds none below 0."""

    dim: int
    index: Any

    def read(self, x: Any) -> Any:
        return aten.index_select(x, self.dim, self.index)

    def write(self, x: Any, values: Any, add: bool = False) -> Any:
        return put(x, self.dim, self.index, values, add)

    def apart(self, x: Any) -> _Rows:
        """The same places in `read(x)`, where each is the one that was written last."""
        numbers = _numbers(self.index.shape, x.device)
        slots = aten.index_put(_slots([x.shape[self.dim]], x.device), [self.index], numbers)
        return _Rows(self.dim, aten.index_select(slots, 0, self.index))


@dataclass(frozen=True)
class _Elements:
    """Places along a dim, one for each element."""

    dim: int
    index: Any

    def read(self, x: Any) -> Any:
        return aten.gather(x, self.dim, self.index)

    def write(self, x: Any, values: Any, add: bool = False) -> Any:
        return (aten.scatter_add if add else aten.scatter)(x, self.dim, self.index, values)

    def apart(self, x: Any) -> _Elements:
        count = self.index.shape[self.dim]
        shape = [1] * self.index.dim()
        shape[self.dim] = count
        numbers = _numbers([count], x.device).reshape(shape)
        if guard_or_false(count <= _PAIRED):
            same = self.index.unsqueeze(self.dim) == self.index.unsqueeze(self.dim + 1)
            return _Elements(self.dim, torch.where(same, numbers.unsqueeze(self.dim), -1).amax(self.dim + 1))
        numbers = numbers.expand(self.index.shape)
        slots = aten.scatter(_slots(x.shape, x.device), self.dim, self.index, numbers)
        return _Elements(self.dim, aten.gather(slots, self.dim, self.index))


def _numbers(size: Any, device: Any) -> Any:
    return torch.arange(math.prod(size), dtype=torch.int32, device=device).reshape(size)


def _slots(size: Any, device: Any) -> Any:
    """A number for each place of a tensor. Only numbers that were written are read, so nothing has to be there."""
    return torch.empty(size, dtype=torch.int32, device=device)


def _few(x: Any, written: Any) -> bool:
    return bool(guard_or_false(written * FEW <= x.numel())) and not guard_or_false(written == 0)


def _apart(x: Any, places: _Rows | _Elements, combine: Callable[[Any, Any], Any]) -> Any:
    """x with what `combine` makes of the tensor of the places that are written, and of these places in it. What it
    makes for a place stands where the place is written last, so that it is what stays."""
    return places.write(x, combine(places.read(x), places.apart(x)))


def _through_int32(x: Any, values: Any, add: Callable[[Any, Any], Any]) -> Any:
    total = add(x.to(torch.int32), values.to(torch.int32))
    if x.dtype == torch.bool:
        return total != 0
    return checked(total, add(x.to(torch.float32), values.to(torch.float32)), "sum").to(x.dtype)


def _sum(x: Any, places: _Rows | _Elements, values: Any) -> Any:
    if x.dtype in _AS_INT32:
        return _through_int32(x, values, lambda a, b: places.write(a, b, add=True))
    return places.write(x, values, add=True)


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    if x.dtype != values.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    indices = as_masks(indices)
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and indices[given[0]].dtype == torch.bool and (values.numel() != 1 or given[0] > 0):
        return _put_where(x, given[0], indices[given[0]], values, accumulate)
    if not accumulate or x.dtype in _IN_PLACE or not indices:
        return NotImplemented
    if not any(i is not None and i.dtype == torch.bool for i in indices):
        chosen = aten.index(x, indices)
        if _few(x, chosen.numel()):
            return _put_apart(x, indices, chosen, values)
    if x.dtype not in _AS_INT32:
        return NotImplemented
    return _through_int32(x, values, lambda a, b: aten.index_put(a, indices, b, True))


def _put_apart(x: Any, indices: Any, chosen: Any, values: Any) -> Any:
    """``x[indices] += values``, as `_apart` does it: the places that are written become one dim."""
    given = [d for d, i in enumerate(indices) if i is not None]
    joined = torch.broadcast_shapes(*(indices[d].shape for d in given))
    first = given[0] if given[-1] - given[0] == len(given) - 1 else 0
    own = [indices[d] for d in given]
    slots = _slots([x.shape[d] for d in given], x.device)
    there = aten.index(aten.index_put(slots, own, _numbers(joined, x.device)), own).reshape(-1)
    rest = chosen.shape[first + len(joined) :]
    size = [*chosen.shape[:first], there.numel(), *rest]
    total = _sum(chosen.reshape(size), _Rows(first, there), values.expand(chosen.shape).reshape(size))
    return aten.index_put(x, indices, total.reshape(chosen.shape))


def as_masks(indices: Any) -> Any:
    """Indices with masks of bytes as truth values: PyTorch still takes them."""
    if not any(i is not None and i.dtype == torch.uint8 for i in indices):
        return indices
    warnings.warn(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.", stacklevel=2
    )
    return [i.to(torch.bool) if i is not None and i.dtype == torch.uint8 else i for i in indices]


def _index(x: Any, indices: Any) -> Any:
    masks = as_masks(indices)
    return NotImplemented if masks is indices else aten.index.Tensor(x, masks)


def _where(condition: Any, x: Any, y: Any) -> Any:
    if condition.dtype != torch.uint8:
        return NotImplemented
    warnings.warn(
        "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version "
        "of PyTorch. Use a boolean condition instead.",
        stacklevel=2,
    )
    return aten.where.self(condition.to(torch.bool), x, y)


def _put_where(x: Any, dim: int, mask: Any, values: Any, accumulate: bool) -> Any:
    """``x[:, mask] = values``: the n-th place that is marked gets row n of the values, or all get the same row."""
    rest = x.shape[dim + mask.dim() :]
    ahead = values.dim() - len(rest) - 1  # the dim of the values that counts the places
    if mask.numel() == 0 or mask.shape != x.shape[dim : dim + mask.dim()] or ahead > dim:
        return NotImplemented
    marked = mask.reshape(*mask.shape, *(1 for _ in rest))
    if ahead >= 0 and values.shape[ahead] != 1:
        rows = mask.reshape(-1).to(torch.int32).cumsum(0, dtype=torch.int32)
        message = "InvalidArgument: shape mismatch: a mask marks another number of places than there are values"
        aten._assert_async.msg(rows[-1] == values.shape[ahead], message)
        if values.shape[ahead] == 0:
            return x.clone()
        place = torch.where(mask.reshape(-1), rows - 1, 0)
        values = values.expand(*values.shape[: ahead + 1], *rest).index_select(ahead, place)
        values = values.reshape(*values.shape[:ahead], *mask.shape, *rest)
    elif ahead >= 0:
        values = values.reshape(*values.shape[:ahead], *(1 for _ in mask.shape), *values.shape[ahead + 1 :])
    return torch.where(marked, x + values if accumulate else values, x)


def _scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    if x.dtype in _IN_PLACE or x.dim() == 0:
        return NotImplemented
    if _few(x, index.numel()):
        for d, n in enumerate(index.shape):
            src = src.narrow(d, 0, n)
        return _apart(x, _Elements(dim, index), lambda a, there: _sum(a, there, src))
    if x.dtype not in _AS_INT32:
        return NotImplemented
    return _through_int32(x, src, lambda a, b: aten.scatter_add(a, dim, index, b))


def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    if x.dim() == 0:
        return _index_add(x.unsqueeze(0), 0, index.reshape(-1), source.reshape(-1), alpha=alpha).squeeze(0)
    values = (source if alpha == 1 else source * alpha).reshape(_with(x.shape, dim, index.numel()))
    places = _Rows(dim % x.dim(), index.reshape(-1))
    if x.dtype not in _IN_PLACE and _few(x, values.numel()):
        return _apart(x, places, lambda a, there: _sum(a, there, values))
    return _sum(x, places, values)


def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    if x.dim() == 0:
        return _index_copy(x.unsqueeze(0), 0, index.reshape(-1), source.reshape(-1)).squeeze(0)
    return put(x, dim, index.reshape(-1), source.reshape(_with(x.shape, dim, index.numel())), False)


def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    if x.dim() == 0:
        return _index_fill(x.unsqueeze(0), 0, index, value).squeeze(0)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    return aten.index_put(x, [None] * (dim % x.dim()) + [index.reshape(-1)], value.to(x.dtype))


def _with(size: Any, dim: int, n: int) -> list[int]:
    changed = list(size)
    changed[dim] = n
    return changed


def _index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if x.dim() == 0:
        return _index_reduce(
            x.unsqueeze(0), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        ).squeeze(0)
    view = [1] * x.dim()
    view[dim] = index.numel()
    places = index.reshape(view).expand(source.shape)
    return _scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _scatter_form(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    return _scatter_reduce(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_value(x: Any, dim: int, index: Any, value: Any, *, reduce: str) -> Any:
    src = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
    return _scatter_form(x, dim, index, src, reduce=reduce)


def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    if x.dim() == 0:
        parts = (t.reshape(1) for t in (x, index, src))
        x, index, src = parts
        return _scatter_reduce(x, 0, index, src, reduce, include_self=include_self).squeeze(0)
    if index.numel() == 0:
        return x.clone()
    for d, n in enumerate(index.shape):
        src = src.narrow(d, 0, n)
    if _few(x, index.numel()):
        return _apart(
            x,
            _Elements(dim, index),
            lambda a, there: _scatter_reduce(a, dim, there.index, src, reduce, include_self=include_self),
        )
    written = aten.scatter(torch.zeros_like(x, dtype=torch.bool), dim, index, True)
    wide = x.dtype if x.dtype in (torch.float32, torch.int32) else torch.int32
    if x.dtype.is_floating_point:
        wide = torch.float32
    if reduce in ("amax", "amin"):
        found = _extreme(x, dim, index, src, reduce)
        joined = (torch.maximum if reduce == "amax" else torch.minimum)(x, found)
        return torch.where(written, joined if include_self else found, x)
    start = x.to(wide) if include_self else torch.where(written, 1 if reduce == "prod" else 0, x.to(wide))
    product = reduce == "prod"
    total = _combined(product, start, dim, index, src.to(wide))
    if x.dtype == torch.int64:
        in_floats = _combined(product, start.to(torch.float32), dim, index, src.to(torch.float32))
        total = checked(total, in_floats, "product" if product else "sum")
    if product:
        return torch.where(written, total.to(x.dtype), x)  # what is written says which places there are
    if reduce == "mean":
        ones = torch.ones(index.shape, dtype=wide, device=x.device)
        count = aten.scatter_add(torch.full_like(start, 1 if include_self else 0), dim, index, ones).clamp(min=1)
        total = total / count if x.dtype.is_floating_point else torch.div(total, count, rounding_mode="floor")
    return total != 0 if x.dtype == torch.bool else total.to(x.dtype)


def _combined(product: bool, start: Any, dim: int, index: Any, src: Any) -> Any:
    if product:
        return start * _product(start.shape, dim, index, src)
    return aten.scatter_add(start, dim, index, src)


def _extreme(x: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
    """Writes in ascending (descending) order: the largest (smallest) of each place is the last. Unwritten places hold
    anything. NaN is the largest value of a sort, and has to win in both."""
    values, order = src.sort(dim, descending=reduce == "amin")
    found = aten.scatter(x, dim, index.gather(dim, order), values)
    if reduce == "amin" and x.dtype.is_floating_point:
        nans = torch.zeros(x.shape, dtype=torch.int32, device=x.device)
        nans = aten.scatter_add(nans, dim, index, src.isnan().to(torch.int32))
        found = torch.where(nans > 0, math.nan, found)
    return found


def _product(size: Any, dim: int, index: Any, src: Any) -> Any:
    """Of the elements that go to each place: each place looks at all elements of its line."""
    places = size[dim]
    if index.numel() * places > _MAX_PAIRS:
        raise UnsupportedOp(f"a product of {index.numel()} elements scattered to {places} places: too many pairs")
    here = torch.arange(places, device=src.device, dtype=index.dtype)
    chosen = index.movedim(dim, -1).unsqueeze(-2) == here.unsqueeze(-1)
    product = torch.where(chosen, src.movedim(dim, -1).unsqueeze(-2), 1).prod(-1, dtype=src.dtype).movedim(-1, dim)
    for d, n in enumerate(size):  # lines that nothing is written to
        if product.shape[d] < n:
            pad = [0, 0] * (product.dim() - 1 - d) + [0, n - product.shape[d]]
            product = torch.constant_pad_nd(product, pad, 1)
    return product


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The n-th place that is marked gets element n of the source."""
    x, mask = torch.broadcast_tensors(x, mask)
    place = mask.reshape(-1).to(torch.int32).cumsum(0, dtype=torch.int32).reshape(x.shape) - 1
    chosen = source.reshape(-1)[torch.where(mask, place, 0)]
    return torch.where(mask, chosen, x)


def _embedding_renorm(weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    rows = indices.reshape(-1)
    chosen = weight[rows]
    norm = torch.linalg.vector_norm(chosen.to(torch.float32), norm_type, -1, keepdim=True)
    scale = torch.where(norm > max_norm, max_norm / (norm + 1e-7), 1.0)
    return aten.index_put(weight, [rows], (chosen * scale).to(weight.dtype))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: _index,
    aten.where.self: _where,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.index_reduce.default: _index_reduce,
    aten.scatter.reduce: _scatter_form,
    aten.scatter.value_reduce: _scatter_value,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.masked_scatter.default: _masked_scatter,
    aten.embedding_renorm.default: _embedding_renorm,
}
