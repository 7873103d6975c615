# SPDX-License-Identifier: Apache-2.0
"""Virtual time: requests arrive, steps take what the cards take, tokens come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch_spyre.errors import InvalidArgument
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.model import USABLE_BYTES, enough_cards, memory
from torch_spyre.predict.passes import HALF, Request
from torch_spyre.predict.serving.prices import StepPrices
from torch_spyre.predict.serving.scheduler import BLOCK, Limits, Scheduler
from torch_spyre.predict.serving.workload import Arrival
from torch_spyre.predict.sharding import shard


@dataclass
class Served:
    """A request and when its tokens were there, in seconds."""

    arrival: Arrival
    started: float = -1.0
    tokens: list[float] = field(default_factory=list)

    @property
    def queued(self) -> float:
        return self.started - self.arrival.at

    @property
    def first(self) -> float:
        return self.tokens[0] - self.arrival.at

    @property
    def whole(self) -> float:
        return self.tokens[-1] - self.arrival.at

    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


@dataclass(frozen=True)
class Moment:
    """The state when a step ends."""

    at: float
    running: int
    waiting: int
    tokens: int  # of the step
    cache: float  # share of the pages in use


@dataclass(frozen=True)
class Run:
    requests: list[Served]
    moments: list[Moment]
    card_seconds: float
    blocks: int
    restarts: int  # requests thrown out of the cache and computed again


def cache_blocks(c: ModelConfig, cards: int, limits: Limits) -> int:
    """Pages that card memory holds beside weights and activations."""
    beside = memory(c, Request(batch=1, prompt=limits.tokens, decode=0), cards)
    one = shard(c, cards)
    page = BLOCK * 2 * one.kv_heads * one.head_dim * one.attention_layers * HALF
    free = USABLE_BYTES - beside.weights - beside.activations
    if free < page * -(-limits.length // BLOCK):
        enough = enough_cards(c, Request(batch=1, prompt=limits.length, decode=0))
        more = f"; {enough} cards do" if enough and enough > cards else ""
        raise InvalidArgument(
            f"{c.name} on {cards} card{'s' * (cards > 1)}: {free / 1e9:.2f} GB are left for the cache, one request of "
            f"{limits.length} tokens needs {page * -(-limits.length // BLOCK) / 1e9:.2f}{more}"
        )
    return free // page


def simulate(
    c: ModelConfig,
    arrivals: Sequence[Arrival],
    limits: Limits,
    prices: StepPrices,
    cards: int = 1,
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> Run:
    """Serves all requests. `tell` hears how many are done."""
    for a in arrivals:
        if a.prompt + a.output > limits.length:
            raise InvalidArgument(
                f"a request of {a.prompt} tokens with {a.output} to generate is longer than --length {limits.length}"
            )
    blocks = cache_blocks(c, cards, limits)
    scheduler = Scheduler(c, blocks, limits)
    served = [Served(a) for a in arrivals]
    moments: list[Moment] = []
    now, card, due, finished = 0.0, 0.0, 0, 0
    thrown: set[tuple[int, int]] = set()
    while due < len(served) or scheduler.busy():
        if not scheduler.busy():
            now = max(now, served[due].arrival.at)
        while due < len(served) and served[due].arrival.at <= now:
            scheduler.add(due, served[due].arrival.prompt, served[due].arrival.output)
            due += 1
        works = scheduler.step()
        for w in works:
            if served[w.request].started < 0:
                served[w.request].started = now
        seconds = prices.step(works) * 1e-9
        now, card = now + seconds, card + seconds
        for w in works:
            if w.samples:
                request = served[w.request]
                request.tokens.append(now)
                finished += len(request.tokens) == request.arrival.output
        thrown.update((r, len(served[r].tokens)) for r in scheduler.done(works))
        moments.append(Moment(now, *scheduler.counts(), sum(w.new for w in works), scheduler.cache_use()))
        tell(finished, len(served))
    return Run(served, moments, card, blocks, len(thrown))
