# SPDX-License-Identifier: Apache-2.0
"""Tensors, views and factories with out=, on the CPU and on the card side by side."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import fuzz_numbers as numbers
import torch
from fuzz_numbers import MOST, nested, reach

Call = Callable[[torch.Tensor], torch.Tensor]


class Pair:
    """The same tensor twice."""

    def __init__(self, host: torch.Tensor, card: torch.Tensor) -> None:
        self.host, self.card = host, card

    def check(self) -> None:
        host, card = self.host, self.card
        got = (tuple(card.shape), card.stride(), card.storage_offset(), card.dtype)
        assert got == (tuple(host.shape), host.stride(), host.storage_offset(), host.dtype), (got, host.stride())
        if host.numel() <= MOST:
            values = card.cpu()
            assert torch.equal(values, host), (host, values, card.stride(), card.storage_offset())

    def check_storage(self) -> None:
        """Host bytes, in whatever shape the card has laid them out."""
        want = bytes_of(self.host.untyped_storage())
        got = bytes_of(self.card.untyped_storage().cpu())[: len(want)]
        assert torch.equal(got, want), (want, got)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def values(draw: random.Random, like: torch.Tensor) -> torch.Tensor:
    first = draw.randrange(50)
    return ((torch.arange(like.numel()) + first) % 50).reshape(like.shape).to(like.dtype)


def elements(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Elements of a storage one after the other."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), first, (count,), (1,))


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except numbers.Refused as error:
        return error


def no_memory(error: Any) -> bool:
    return isinstance(error, Exception) and "memory" in str(error)


def told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)}, strides {value.stride()}, offset {value.storage_offset()}, {value.dtype}"
    return f"{value!r:.300}"


def negative(value: Any) -> bool:
    """The CPU makes tensors of a negative size where another one is 0."""
    return isinstance(value, torch.Tensor) and min(value.shape, default=0) < 0


def both(host: Callable[[], Any], card: Callable[[], Any], grows: bool = False) -> tuple[Any, Any] | None:
    """Results of the two, None if they were refused. What one of them accepts the other must accept."""
    want = attempt(host)
    got = attempt(card)
    refused, failed = isinstance(want, Exception), isinstance(got, Exception)
    if no_memory(want) or no_memory(got):  # a host of terabytes, a card of gigabytes
        return None
    if failed and (beyond(want) or negative(want)):
        return None
    if "setStorage" in str(want) and not failed and got.untyped_storage().nbytes() >= reach(got):
        # A view may be all of a storage's sticks. set_ to the size that a host tensor has does not grow its storage.
        size = got.untyped_storage().nbytes() // got.element_size() * got.element_size()
        assert grows or reach(got) == size, told(got)
        return None
    assert refused == failed, f"host: {told(want)}, card: {told(got)}"
    return None if refused else (want, got)


# Steps. In-place ones work on an alias: a host tensor whose resize_ was refused has the new size all the same.


def reshaped(draw: random.Random, pair: Pair) -> tuple[Call, bool]:
    """A call that makes another tensor on the same storage, or tries to, and whether the storage may grow."""
    rank = max(pair.host.dim(), 1)
    a, b, n, m = draw.randrange(rank), draw.randrange(rank), numbers.size(draw), draw.choice([1, 1, 2, 3])
    shape = numbers.sizes(draw)
    stride, start = numbers.strides(draw, shape), numbers.offset(draw)
    form = draw.choice([None, None, None, torch.contiguous_format, torch.channels_last])
    order = draw.sample(range(pair.host.dim()), pair.host.dim())
    like = torch.empty(numbers.sizes(draw, absurd=0))
    fresh = torch.ops.aten.alias
    growing: list[Call] = [
        lambda t: fresh(t).set_(t.untyped_storage(), start, shape, stride),
        lambda t: fresh(t).set_(t.untyped_storage(), start, shape),
        lambda t: fresh(t).resize_(shape) if form is None else fresh(t).resize_(shape, memory_format=form),
        lambda t: fresh(t).resize_as_(like.to(t.device)),
    ]
    calls: list[Call] = [
        *growing,
        lambda t: t.as_strided(shape, stride, start),
        lambda t: t.as_strided(shape, stride),
        lambda t: fresh(t).as_strided_(shape, stride, start),
        lambda t: torch._reshape_alias(t, shape, stride),
        lambda t: fresh(t).set_(t),
        lambda t: fresh(t).resize_(t.shape),
        lambda t: fresh(t).resize_(t.shape[::-1]),
        lambda t: t.transpose(a, b),
        lambda t: t.permute(order),
        lambda t: t.narrow(a, m - 1, n),
        lambda t: t.select(a, n),
        lambda t: t[m - 1 :: m],
        lambda t: t.unsqueeze(a),
        lambda t: t.squeeze(a),
        lambda t: t.expand([n, *t.shape]),
        lambda t: t.unfold(a, n, m),
        lambda t: t.diagonal(m - 1, a, b),
        lambda t: t.view(-1),
        lambda t: t.view(shape),
        lambda t: torch.empty(0, dtype=t.dtype, device=t.device).set_(),
    ]
    call = draw.choice(calls)
    return call, call in growing


def beyond(host: Any) -> bool:
    """as_strided_ and _reshape_alias look at little: such a tensor must not be read."""
    return isinstance(host, torch.Tensor) and reach(host) > host.untyped_storage().nbytes()


def next_pair(draw: random.Random, pair: Pair) -> Pair | None:
    call, grows = reshaped(draw, pair)
    before = pair.host.untyped_storage().nbytes() // pair.host.element_size()
    shape = (pair.card.shape, pair.card.stride())
    made = both(lambda: call(pair.host), lambda: call(pair.card), grows)
    assert shape == (pair.card.shape, pair.card.stride()), "the tensor itself has changed"
    define_new(pair, before)
    if made is None:
        return None
    host, card = made
    if beyond(host):
        assert host.numel() > MOST or isinstance(attempt(card.cpu), RuntimeError), "elements that do not exist"
        return None
    return Pair(host, card)


def define_new(pair: Pair, before: int) -> None:
    """New memory holds anything. A host storage grows even where resize_ then refuses the memory format."""
    after = pair.host.untyped_storage().nbytes() // pair.host.element_size()
    if after > before:
        for side in (pair.host, pair.card):
            elements(side, before, after - before).zero_()


def write(draw: random.Random, pair: Pair) -> None:
    if pair.host.numel() > MOST or not nested(pair.host):
        return
    new = values(draw, pair.host)
    number = draw.choice([0, 1, 3])
    calls: list[Call] = [lambda t: t.copy_(new), lambda t: t.fill_(number), torch.Tensor.zero_]
    call = draw.choice(calls)
    call(pair.host), call(pair.card)


def save(pair: Pair) -> None:
    if pair.host.numel() > MOST:
        return
    file = io.BytesIO()
    torch.save(pair.card, file)
    file.seek(0)
    Pair(pair.host, torch.load(file, weights_only=True)).check()


def made(draw: random.Random) -> Pair | None:
    """A first tensor, with zeros where it has no elements."""
    dtype, shape = draw.choice(numbers.DTYPES), numbers.sizes(draw)
    stride = numbers.strides(draw, shape)
    form = draw.choice([torch.contiguous_format, torch.channels_last])
    ways: list[Callable[[str], torch.Tensor]] = [
        lambda device: torch.empty_strided(shape, stride, dtype=dtype, device=device),
        lambda device: torch.empty(shape, dtype=dtype, device=device),
        lambda device: torch.empty(shape, dtype=dtype, device=device, memory_format=form),
        lambda device: torch.empty(0, dtype=dtype, device=device).new_empty_strided(shape, stride),
    ]
    way = draw.choice([ways[0], *ways])
    pair = both(lambda: way("cpu"), lambda: way("spyre"))
    if pair is None:
        return None
    host, card = pair
    count = host.untyped_storage().nbytes() // host.element_size()
    if count > 1 << 20 or host.numel() > MOST:
        return None
    elements(host, 0, count).zero_()
    if not nested(host) or draw.random() < 0.5:
        elements(card, 0, count).zero_()
    if nested(host):
        new = values(draw, host)
        host.copy_(new), card.copy_(new)
    return Pair(host, card)


def run_views(draw: random.Random) -> str:
    first = made(draw)
    if first is None:
        return "refused"
    pairs = [first]
    for _ in range(draw.randrange(1, 7)):
        chosen = draw.choice(pairs)
        step = draw.random()
        if step < 0.7:
            pair = next_pair(draw, chosen)
            if pair is not None:
                pair.check()
                pairs.append(pair)
        elif step < 0.95:
            write(draw, chosen)
        elif step < 0.98:
            chosen.check_storage()
        else:
            save(chosen)
    for pair in pairs:
        pair.check()
    return "agreed"


# Factories that fill a view.

VIEWS: dict[str, Call] = {
    "columns": lambda x: x[:, 1:4],
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[1:],
    "every other": lambda x: x[::2, ::2],
    "transposed part": lambda x: x[1:3, 2:].t(),
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "all": lambda x: x,
}
Factory = Callable[[torch.Tensor, Any], torch.Tensor]
FILLED: dict[str, Factory] = {
    "zeros": lambda out, size: torch.zeros(size, out=out),
    "ones": lambda out, size: torch.ones(size, out=out),
    "full": lambda out, size: torch.full(size, 3.0, out=out),
    "eye": lambda out, size: torch.eye(*(size if len(size) == 2 else (2, 3)), out=out),
    "resize_as_": lambda out, size: out.resize_as_(torch.empty(size, device=out.device)).zero_(),
}
COUNTED: dict[str, Factory] = {
    "arange": lambda out, n: torch.arange(n, out=out),
    "range": lambda out, n: torch.range(1, n, out=out),
    "linspace": lambda out, n: torch.linspace(0, n - 1, n, out=out),
    "logspace": lambda out, n: torch.logspace(0, 3, n, base=2, out=out),
}
DRAWN: dict[str, Factory] = {
    "empty": lambda out, size: torch.empty(size, out=out),
    "rand": lambda out, size: torch.rand(size, out=out),
    "randn": lambda out, size: torch.randn(size, out=out),
    "randint": lambda out, size: torch.randint(5, size, out=out),
}


def run_factories(draw: random.Random) -> str:
    host = torch.arange(24.0).reshape(4, 6) + 100
    card = host.to("spyre")
    view = VIEWS[draw.choice(list(VIEWS))]
    a, b = view(host), view(card)
    kind = draw.random()
    shape = list(a.shape) if draw.random() < 0.6 else draw.choice([[2, 3], [4, 6], [6], [3, 2], [0], [5, 6]])
    if kind < 0.6:
        fill, size = FILLED[draw.choice(list(FILLED))], shape
    elif kind < 0.75:
        fill, size = COUNTED[draw.choice(list(COUNTED))], draw.choice([a.numel(), a.numel(), 4, 12])
    else:
        fill, size = DRAWN[draw.choice(list(DRAWN))], shape
    fill(a, size), fill(b, size)
    if fill in DRAWN.values():
        a.zero_(), b.zero_()
    for want, got in ((a, b), (host, card)):
        assert (want.shape, want.stride(), want.storage_offset()) == (got.shape, got.stride(), got.storage_offset())
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=0)
    return "agreed"
