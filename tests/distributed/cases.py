# SPDX-License-Identifier: Apache-2.0
"""Collectives as data: a `Case` is one call that all ranks make. `execute` makes it on the cards, `expected` says what
comes out on each rank, from the definition: values of the card's format, combined in ascending order of ranks, one
rounding for each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from oracle import MAX, decode, encode_host, round_dl16

from torch_spyre import _C

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DTYPES = (*FLOATS, *WHOLE, torch.bool, torch.float8_e4m3fn)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
MOVING = ("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all", "all_to_all_single")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
VIEWS = ("plain", "transposed", "sliced", "stepped", "other layout")


@dataclass(frozen=True)
class Case:
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    op: str = "SUM"
    root: int = 0
    views: tuple[str, ...] = ("plain",)  # of rank r: the r-th, and around again
    async_op: bool = False
    seed: int = 0

    def view(self, rank: int) -> str:
        return self.views[rank % len(self.views)]


def combines(op: str, dtype: torch.dtype) -> bool:
    """Whether the op means something for numbers of this dtype."""
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in WHOLE or dtype == torch.bool
    return not (op == "AVG" and dtype == torch.bool)


def values(case: Case, rank: int, part: int = 0) -> torch.Tensor:
    """What a rank holds before the call, on the host: numbers that the card holds exactly; their sums are rounded."""
    state = np.random.default_rng((case.seed, rank, part, math.prod(case.shape)))
    if case.dtype == torch.bool:
        return torch.from_numpy(np.asarray(state.integers(0, 2, case.shape) > 0))
    if case.dtype in WHOLE:
        low, high = torch.iinfo(case.dtype).min, torch.iinfo(case.dtype).max
        small = case.dtype == torch.int64  # the card stores int32
        drawn = state.integers(max(low, -9) if small else low, 9 if small else high, case.shape)
        return torch.from_numpy(np.asarray(drawn)).to(case.dtype)
    drawn = torch.from_numpy(np.asarray(state.standard_normal(case.shape)))
    if case.dtype == torch.float8_e4m3fn:
        return drawn.to(torch.float32).to(case.dtype)
    spread = torch.from_numpy(np.asarray(2.0 ** state.integers(-6, 7, case.shape)))
    return as_on_card((drawn * spread).to(case.dtype))


def as_on_card(host: torch.Tensor) -> torch.Tensor:
    """The nearest values that the card holds, in the same dtype."""
    if host.dtype not in (torch.float16, torch.bfloat16):
        return host
    return torch.from_numpy(np.asarray(decode(encode_host(host)))).to(host.dtype)


# The model.


def combined(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """parts[0] op parts[1] op …, each step in the card's format."""
    dtype = parts[0].dtype
    if dtype == torch.bool:
        return _boolean(op, parts)
    result = parts[0]
    if dtype in WHOLE:
        for part in parts[1:]:
            result = _whole_step(op, result, part)
        return torch.div(result, len(parts), rounding_mode="trunc").to(dtype) if op == "AVG" else result
    exact = [np.asarray(p.to(torch.float64)) for p in parts]
    total = exact[0]
    for part in exact[1:]:
        total = _stored(dtype, _float_step(op, np.float32(total), np.float32(part)))
    if op == "AVG":
        total = _stored(dtype, np.float32(total) / np.float32(len(parts)))
    if dtype in (torch.float16, torch.bfloat16):  # the largest value of the card reads as infinity
        total = np.where(np.abs(total) >= MAX, np.copysign(np.inf, total), total)
    return torch.from_numpy(np.asarray(total)).to(dtype)


def _boolean(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(parts)
    if op == "BXOR":
        return stacked.sum(0) % 2 == 1
    return stacked.all(0) if op in ("PRODUCT", "MIN", "BAND") else stacked.any(0)


def _whole_step(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    calls = {"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
             "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}  # fmt: skip
    return calls[op](a, b)


def _float_step(op: str, a: Any, b: Any) -> Any:
    calls = {"SUM": np.add, "AVG": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
    return calls[op](a, b)


def _stored(dtype: torch.dtype, value: Any) -> Any:
    if dtype == torch.float32:
        return np.float64(value)
    if dtype == torch.float8_e4m3fn:
        return np.asarray(torch.from_numpy(np.asarray(value)).to(dtype).to(torch.float64))
    return round_dl16(value)


def expected(case: Case, n: int) -> list[list[torch.Tensor]]:
    """What each rank holds after the call, rank by rank."""
    first = [values(case, r) for r in range(n)]
    by_part = [[values(case, r, p) for p in range(n)] for r in range(n)]
    everyone = range(n)
    match case.kind:
        case "all_reduce":
            return [[combined(case.op, first)]] * n
        case "reduce":
            return [[combined(case.op, first)] if r == case.root else [first[r]] for r in everyone]
        case "reduce_scatter" | "reduce_scatter_tensor":
            return [[combined(case.op, [by_part[r][p] for r in everyone])] for p in everyone]
        case "broadcast":
            return [[first[case.root]]] * n
        case "all_gather":
            return [first] * n
        case "all_gather_into_tensor":
            return [[torch.cat([_rows(t) for t in first])]] * n
        case "gather":
            return [first if r == case.root else [] for r in everyone]
        case "scatter":
            return [[by_part[case.root][r]] for r in everyone]
        case "all_to_all":
            return [[by_part[r][p] for r in everyone] for p in everyone]
        case "all_to_all_single":
            return [[torch.cat([_rows(by_part[r][p]) for r in everyone])] for p in everyone]
    raise ValueError(case.kind)


def _rows(t: torch.Tensor) -> torch.Tensor:
    return t if t.dim() else t.reshape(1)


# On the ranks.


class Held:
    """Values on the card in some form, and what lies around them."""

    def __init__(self, host: torch.Tensor, view: str) -> None:
        self.tensor, self.base = _placed(host, view)
        self.inside = torch.zeros(self.base.shape, dtype=torch.bool)
        if self.base is not self.tensor:
            self.inside.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).fill_(True)
        else:
            self.inside.fill_(True)
        self.around = _bytes(self.base.cpu())[~self.inside.reshape(-1)]

    def taken(self) -> torch.Tensor:
        """The values on the host. Raises if something around them changed."""
        now = _bytes(self.base.cpu())[~self.inside.reshape(-1)]
        if not torch.equal(now, self.around):
            raise AssertionError("the collective wrote beside its tensor")
        return self.tensor.cpu().clone(memory_format=torch.contiguous_format)


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """A row of bytes for each element: comparable, NaNs and float8 too."""
    size = t.element_size()
    if not t.numel():
        return torch.empty(0, size, dtype=torch.uint8)
    return t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).reshape(-1, size)


def _placed(host: torch.Tensor, view: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A card tensor with these values, and the tensor it is a view of."""
    if view == "transposed" and host.dim() > 1:
        base = host.transpose(0, -1).contiguous().to("spyre")
        return base.transpose(0, -1), base
    if view == "sliced" and host.dim() and host.numel():
        around = torch.ones([size + 3 for size in host.shape]).to(host.dtype)
        inner = tuple(slice(1, 1 + size) for size in host.shape)
        around[inner] = host
        base = around.to("spyre")
        return base[inner], base
    if view == "stepped" and host.dim() and host.numel():
        around = torch.ones([*host.shape[:-1], 2 * host.shape[-1]]).to(host.dtype)
        around[..., ::2] = host
        base = around.to("spyre")
        return base[..., ::2], base
    if view == "other layout" and host.dim() == 2 and host.numel():
        order = _C.SpyreTensorLayout(list(host.shape), list(host.stride()), host.dtype, [1, 0])
        tensor = _C.spyre_empty_with_layout(list(host.shape), list(host.stride()), host.dtype, order)
        tensor.copy_(host)
        return tensor, tensor
    tensor = host.to("spyre")
    return tensor, tensor


def execute(cases: list[Case]) -> list[list[torch.Tensor]]:
    """Makes each call on this rank and returns what it holds afterwards, case by case."""
    return [perform(case) for case in cases]


def perform(case: Case, group: Any = None) -> list[torch.Tensor]:
    return finish(start(case, group))


def start(case: Case, group: Any = None) -> tuple[Any, list[Any]]:
    """Makes the call: its work, if it is asynchronous, and what will hold the results."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    view = case.view(rank)
    work, results = _call(case, Held(values(case, rank), view), view, n, rank, group)
    if not case.async_op and work is not None:
        raise AssertionError(f"{case.kind} returned {work} without async_op")
    return work, results


def finish(begun: tuple[Any, list[Any]]) -> list[torch.Tensor]:
    work, results = begun
    if work is not None:
        work.wait()
    return [r.taken() if isinstance(r, Held) else r.cpu() for r in results]


def _call(case: Case, held: Held, view: str, n: int, rank: int, group: Any) -> tuple[Any, list[Any]]:
    op, asynchronous = getattr(dist.ReduceOp, case.op), case.async_op
    root = dist.get_global_rank(group, case.root) if group is not None else case.root
    here = case.root == rank

    def empty() -> Held:
        """Not zero, so that what is not written shows."""
        return Held(torch.ones(case.shape).to(case.dtype), view)

    def parts() -> list[Held]:
        return [Held(values(case, rank, p), view) for p in range(n)]

    def rows(count: int) -> torch.Tensor:
        shape = (count * case.shape[0], *case.shape[1:]) if case.shape else (count,)
        return torch.ones(shape).to(case.dtype).to("spyre")

    match case.kind:
        case "all_reduce":
            return dist.all_reduce(held.tensor, op, group, asynchronous), [held]
        case "reduce":
            return dist.reduce(held.tensor, root, op, group, asynchronous), [held]
        case "broadcast":
            return dist.broadcast(held.tensor, root, group, asynchronous), [held]
        case "all_gather":
            outs = [empty() for _ in range(n)]
            return dist.all_gather([o.tensor for o in outs], held.tensor, group, asynchronous), outs
        case "all_gather_into_tensor":
            out = rows(n)
            return dist.all_gather_into_tensor(out, held.tensor, group, asynchronous), [out]
        case "gather":
            outs = [empty() for _ in range(n)] if here else []
            given = [o.tensor for o in outs] if here else None
            return dist.gather(held.tensor, given, root, group, asynchronous), outs
        case "scatter":
            out, ins = empty(), parts() if here else []
            given = [i.tensor for i in ins] if here else None
            return dist.scatter(out.tensor, given, root, group, asynchronous), [out]
        case "reduce_scatter":
            out, ins = empty(), parts()
            return dist.reduce_scatter(out.tensor, [i.tensor for i in ins], op, group, asynchronous), [out]
        case "reduce_scatter_tensor":
            out = empty()
            whole = torch.cat([_rows(values(case, rank, p)) for p in range(n)]).to("spyre")
            return dist.reduce_scatter_tensor(out.tensor, whole, op, group, asynchronous), [out]
        case "all_to_all":
            outs, ins = [empty() for _ in range(n)], parts()
            return dist.all_to_all([o.tensor for o in outs], [i.tensor for i in ins], group, asynchronous), outs
        case "all_to_all_single":
            out = rows(n)
            whole = torch.cat([_rows(values(case, rank, p)) for p in range(n)]).to("spyre")
            return dist.all_to_all_single(out, whole, group=group, async_op=asynchronous), [out]
    raise ValueError(case.kind)


# In the test.


def difference(case: Case, n: int, results: list[list[torch.Tensor]]) -> str:
    """How the results, rank by rank, differ from the model; empty if they do not differ in a bit."""
    for rank, (got, want) in enumerate(zip(results, expected(case, n), strict=True)):
        if len(got) != len(want):
            return f"{case}: rank {rank} holds {len(got)} tensors, not {len(want)}"
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            if g.dtype != w.dtype or g.shape != w.shape:
                return f"{case}: rank {rank}, tensor {i} is {g.dtype} {tuple(g.shape)}, not {w.dtype} {tuple(w.shape)}"
            unequal = (_bytes(g) != _bytes(w)).any(-1)
            if unequal.any():
                at = int(unequal.nonzero()[0])
                g1, w1 = g.reshape(-1)[at].item(), w.reshape(-1)[at].item()
                return f"{case}: rank {rank}, tensor {i}, element {at} is {g1}, not {w1} ({int(unequal.sum())} differ)"
    return ""
