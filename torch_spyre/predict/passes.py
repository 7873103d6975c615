# SPDX-License-Identifier: Apache-2.0
"""What a request asks of a model: its forward passes, the blocks of each, and what cards tell one another meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_spyre.errors import InvalidArgument
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.sharding import shard

STICK = 64  # fp16 elements
HALF = 2  # bytes of an element


@dataclass(frozen=True)
class Request:
    batch: int = 1
    prompt: int = 512
    decode: int = 128
    together: bool = False  # all prompts in one pass, instead of one after another

    def __post_init__(self) -> None:
        if self.batch < 1 or self.prompt < 1 or self.decode < 0:
            raise InvalidArgument(f"batch {self.batch}, prompt {self.prompt}, decode {self.decode}: sizes are positive")

    def contexts(self) -> dict[int, int]:
        """Cache lengths while decoding, in whole sticks, and the tokens decoded at each."""
        steps: dict[int, int] = {}
        for i in range(self.decode):
            length = -(-(self.prompt + i + 1) // STICK) * STICK
            steps[length] = steps.get(length, 0) + 1
        return steps

    @property
    def longest(self) -> int:
        """Cache length that must be kept."""
        return max(self.contexts(), default=-(-self.prompt // STICK) * STICK)


@dataclass(frozen=True)
class Part:
    """A block with its shapes: one compilation. `context` is the length of the cache."""

    kind: str  # what `timed_parts` makes of it
    label: str
    batch: int  # of an expert: tokens of the whole pass
    tokens: int
    context: int = 0


@dataclass(frozen=True)
class Exchange:
    """A collective of all cards. `nbytes` is the whole message on one card."""

    kind: str
    nbytes: int


@dataclass
class Phase:
    """A forward pass: how often each part runs."""

    name: str
    counts: dict[Part, int] = field(default_factory=dict)
    times: int = 1  # passes of this kind
    exchanges: dict[Exchange, int] = field(default_factory=dict)

    def add(self, part: Part, count: int) -> None:
        if count:
            self.counts[part] = self.counts.get(part, 0) + count

    def exchange(self, kind: str, elements: int, count: int = 1) -> None:
        if count:
            message = Exchange(kind, elements * HALF)
            self.exchanges[message] = self.exchanges.get(message, 0) + count


def passes(c: ModelConfig, request: Request, cards: int = 1) -> list[Phase]:
    """The prefill and, for each cache length, the decoding steps; of one card, and what it tells the others."""
    if c.positions and request.prompt + request.decode > c.positions:
        asked = f"prompt {request.prompt} and {request.decode} tokens"
        raise InvalidArgument(f"{c.name} has {c.positions} positions: {asked} are more")
    sequences = request.batch if request.together else 1
    prefill = forward("prefill", c, cards, sequences, request.prompt, request.prompt)
    prefill.times = 1 if request.together else request.batch
    found = [prefill]
    for context, steps in request.contexts().items():
        phase = forward(f"decode at {context}", c, cards, request.batch, 1, context)
        phase.times = steps
        found.append(phase)
    return found


def forward(name: str, c: ModelConfig, cards: int, batch: int, tokens: int, context: int) -> Phase:
    fill = _whole if cards == 1 else _parallel
    return fill(Phase(name), c, cards, batch, tokens, context)


def seen(window: int, tokens: int, context: int) -> int:
    """Of the cache."""
    return context if not window or tokens > 1 else min(context, -(-window // STICK) * STICK)


def _whole(phase: Phase, c: ModelConfig, cards: int, batch: int, tokens: int, context: int) -> Phase:
    """One card has it all: a layer is one block, and an expert another."""
    phase.add(Part("embedding", "embedding", batch, tokens), 1)
    for label, count, window in c.kinds():
        kind, label = ("routed", "attention") if c.experts else ("layer", label)
        phase.add(Part(kind, label, batch, tokens, seen(window, tokens, context)), count)
    if c.mamba:
        kind, label = ("routed mamba", "mamba") if c.experts else ("mamba layer", "mamba layer")
        phase.add(Part(kind, label, batch, tokens), c.mamba.layers)
    _add_experts(phase, c, batch * tokens)
    phase.add(Part("head", "head", batch, 1), 1)
    return phase


def _add_experts(phase: Phase, c: ModelConfig, tokens: int) -> None:
    if c.experts:
        active, rows = spread(c, tokens)
        phase.add(Part("expert", "expert", tokens, rows), active * c.layers)


def _parallel(phase: Phase, c: ModelConfig, cards: int, batch: int, tokens: int, context: int) -> Phase:
    """Every card has a share of the heads, of each MLP and of the vocabulary; sums are made where they meet."""
    rows = batch * tokens
    hidden = rows * _sticks(c.hidden)
    phase.add(Part("embedding rows", "embedding", batch, tokens), 1)
    phase.exchange("all_reduce", hidden)
    for label, count, window in c.kinds():
        _add_attention(phase, c, label, count, batch, tokens, seen(window, tokens, context))
    if c.mamba and c.mamba.groups > 1:
        phase.add(Part("mamba segment", "mamba", batch, tokens), c.mamba.layers)
    elif c.mamba:
        phase.add(Part("scan segment", "mamba scan", batch, tokens), c.mamba.layers)
        phase.add(Part("out segment", "mamba out", batch, tokens), c.mamba.layers)
        phase.exchange("all_reduce", batch * _sticks(tokens), c.mamba.layers)  # the norm is over the heads of all cards
    if not c.parallel:
        after = "router" if c.experts else "mlp"
        phase.add(Part(f"{after} segment", after, batch, tokens), c.layers)
    _add_experts(phase, c, rows)
    phase.exchange("all_reduce", hidden, c.layers if c.parallel else 2 * c.layers)
    phase.add(Part("head columns", "head", batch, 1), 1)
    phase.exchange("all_gather", batch * _sticks(shard(c, cards).vocab) * cards)
    return phase


def _add_attention(phase: Phase, c: ModelConfig, label: str, count: int, batch: int, tokens: int, context: int) -> None:
    name = label.removesuffix("layer") + "attention" if label != "attention layer" else "attention"
    if c.parallel:
        phase.add(Part("parallel segment", label, batch, tokens, context), count)
    elif c.wide_qk_norm:
        phase.add(Part("project segment", "projections", batch, tokens), count)
        phase.exchange("all_reduce", 2 * batch * _sticks(tokens), count)  # the norm is over the heads of all cards
        phase.add(Part("attend segment", name, batch, tokens, context), count)
    else:
        phase.add(Part("attention segment", name, batch, tokens, context), count)


def _sticks(elements: int) -> int:
    """Elements that whole sticks hold."""
    return -(-elements // STICK) * STICK


def spread(c: ModelConfig, tokens: int) -> tuple[int, int]:
    """(experts at work, tokens of each), if the router spreads the tokens evenly."""
    active = min(c.experts, tokens * c.experts_per_token)
    return active, -(-tokens * c.experts_per_token // active)


def distinct(phases: Iterable[Phase]) -> list[Part]:
    return list(dict.fromkeys(part for phase in phases for part in phase.counts))
