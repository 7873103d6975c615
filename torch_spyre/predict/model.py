# SPDX-License-Identifier: Apache-2.0
"""From blocks to a model: what the blocks of all passes add up to, and what memory they need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch_spyre.constants import SEGMENT_BYTES
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.fabric import CollectiveTime, Fabric, collective_seconds
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.passes import HALF, Exchange, Part, Phase, Request, distinct, passes
from torch_spyre.predict.sharding import counts, shard

USABLE_BYTES = 7 * SEGMENT_BYTES


@dataclass(frozen=True)
class Prediction:
    """Times in nanoseconds."""

    config: ModelConfig
    request: Request
    phases: tuple[Phase, ...]
    blocks: dict[Part, Any]  # Part -> measure.Timed
    cards: int = 1
    device: Device = field(default_factory=load)

    def pass_ns(self, phase: Phase) -> float:
        """One forward pass, and the host: it submits, reads the scores, and sends the next tokens."""
        card: float = sum(self.blocks[part].ns * n for part, n in phase.counts.items())
        return card + self.exchange_ns(phase) + self.host_ns

    def collective(self, exchange: Exchange) -> CollectiveTime:
        return collective_seconds(exchange.kind, exchange.nbytes, self.cards, Fabric.of(self.device))

    def exchange_ns(self, phase: Phase) -> float:
        """What the cards spend on one another in one pass; the next block waits for it."""
        return sum(self.collective(e).seconds * 1e9 * n for e, n in phase.exchanges.items())

    def communication(self, prefill: bool) -> float:
        """Share of the time of the prefill, or of decoding."""
        phases = self.phases[:1] if prefill else self.phases[1:]
        whole = sum(self.pass_ns(p) * p.times for p in phases)
        return sum(self.exchange_ns(p) * p.times for p in phases) / whole if whole else 0.0

    @property
    def host_ns(self) -> float:
        device = self.device
        scores = self.request.batch * self.config.vocab * HALF
        return device["launch.host"] * 1e3 + device["pcie.latency"] * 2e3 + scores / device["pcie.bandwidth_out"]

    @property
    def first_token_ns(self) -> float:
        """Until all sequences have one."""
        return self.pass_ns(self.phases[0]) * self.phases[0].times

    @property
    def token_ns(self) -> float:
        """Mean time of a decoding step."""
        steps = self.phases[1:]
        count = sum(p.times for p in steps)
        return sum(self.pass_ns(p) * p.times for p in steps) / count if count else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.request.batch * 1e9 / self.token_ns if self.token_ns else 0.0

    @property
    def total_ns(self) -> float:
        return self.first_token_ns + sum(self.pass_ns(p) * p.times for p in self.phases[1:])

    def traffic(self, phase: Phase) -> int:
        """Bytes of memory traffic in one pass of this kind."""
        blocks = ((self.blocks[part], n) for part, n in phase.counts.items())
        return sum((b.read_bytes + b.written_bytes) * n for b, n in blocks)

    def memory(self) -> Memory:
        """As `memory` says, with the activations that the compiler's plans need."""
        used = max(b.peak_bytes for b in self.blocks.values())
        return replace(memory(self.config, self.request, self.cards), activations=used)

    def classes(self) -> dict[str, float]:
        """Nanoseconds by validated class over the whole request; prefill and decode weigh as they last."""
        found: dict[str, float] = {}
        for phase in self.phases:
            for part, n in phase.counts.items():
                for name, ns in self.blocks[part].classes.items():
                    found[name] = found.get(name, 0.0) + ns * n * phase.times
        return found


@dataclass(frozen=True)
class Memory:
    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    @property
    def cards(self) -> int:
        """Cards that hold it, if it could be divided evenly."""
        return math.ceil(self.total / USABLE_BYTES)


def memory(whole: ModelConfig, request: Request, cards: int = 1) -> Memory:
    """Bytes on each card, before compiling: weights, the longest cache, and roughly the results of the prefill."""
    c = shard(whole, cards)
    sequences = request.batch if request.together else 1
    tokens = sequences * request.prompt
    scores = sequences * c.heads * request.prompt * request.prompt
    width = max(c.intermediate, c.mamba.inner if c.mamba else 0)
    live = tokens * (2 * c.hidden + 2 * width) + 2 * scores
    cache = request.batch * c.cache_elements(request.longest)
    return Memory(c.weight_bytes, cache * HALF, live * HALF)


def enough_cards(c: ModelConfig, request: Request) -> int | None:
    """The fewest cards that hold it, if any number does that the model can be divided by."""
    return next((n for n in counts(c) if memory(c, request, n).total <= USABLE_BYTES), None)


def predict(
    c: ModelConfig,
    request: Request,
    progress: Callable[[str, int, int], None] = lambda label, i, n: None,
    cards: int = 1,
) -> Prediction:
    """Compiles and times every distinct block. `progress` hears (block, number, how many)."""
    from torch_spyre.predict.timed_parts import time_part  # late: start-up

    one = shard(c, cards)
    if cards > 1:
        Fabric.of()  # a description without one is refused before anything is compiled
    phases = passes(c, request, cards)
    parts = distinct(phases)
    blocks = {}
    for i, part in enumerate(parts):
        progress(f"{part.label}, {part.batch}x{part.tokens} tokens, cache {part.context}", i, len(parts))
        blocks[part] = time_part(one, part, cards)
    progress("done", len(parts), len(parts))
    return Prediction(c, request, tuple(phases), blocks, cards)
