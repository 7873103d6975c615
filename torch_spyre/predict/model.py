# SPDX-License-Identifier: Apache-2.0
"""From blocks to a model: which blocks a request needs, how often each runs, and what that adds up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch_spyre.constants import SEGMENT_BYTES
from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import load
from torch_spyre.predict.configs import ModelConfig

STICK = 64  # fp16 elements
USABLE_BYTES = 7 * SEGMENT_BYTES
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

    kind: str  # embedding, layer, routed, expert, head
    label: str
    batch: int  # of an expert: tokens of the whole pass
    tokens: int
    context: int = 0


@dataclass
class Phase:
    """A forward pass: how often each part runs."""

    name: str
    counts: dict[Part, int] = field(default_factory=dict)
    times: int = 1  # passes of this kind

    def add(self, part: Part, count: int) -> None:
        self.counts[part] = self.counts.get(part, 0) + count


def passes(c: ModelConfig, request: Request) -> list[Phase]:
    """The prefill and, for each cache length, the decoding steps."""
    prefill = _forward("prefill", c, request.batch if request.together else 1, request.prompt, request.prompt)
    prefill.times = 1 if request.together else request.batch
    found = [prefill]
    for context, steps in request.contexts().items():
        phase = _forward(f"decode at {context}", c, request.batch, 1, context)
        phase.times = steps
        found.append(phase)
    return found


def _forward(name: str, c: ModelConfig, batch: int, tokens: int, context: int) -> Phase:
    phase = Phase(name)
    phase.add(Part("embedding", "embedding", batch, tokens), 1)
    for label, count, window in c.kinds():
        seen = context if not window or tokens > 1 else min(context, -(-window // STICK) * STICK)
        if c.experts:
            phase.add(Part("routed", "attention", batch, tokens, seen), count)
            active, rows = spread(c, batch * tokens)
            phase.add(Part("expert", "expert", batch * tokens, rows), active * count)
        else:
            phase.add(Part("layer", label, batch, tokens, seen), count)
    phase.add(Part("head", "head", batch, 1), 1)
    return phase


def spread(c: ModelConfig, tokens: int) -> tuple[int, int]:
    """(experts at work, tokens of each), if the router spreads the tokens evenly."""
    active = min(c.experts, tokens * c.experts_per_token)
    return active, -(-tokens * c.experts_per_token // active)


def distinct(phases: Iterable[Phase]) -> list[Part]:
    return list(dict.fromkeys(part for phase in phases for part in phase.counts))


@dataclass(frozen=True)
class Prediction:
    """Times in nanoseconds."""

    config: ModelConfig
    request: Request
    phases: tuple[Phase, ...]
    blocks: dict[Part, Any]  # Part -> measure.Timed

    def pass_ns(self, phase: Phase) -> float:
        """One forward pass, and the host: it submits, reads the scores, and sends the next tokens."""
        card: float = sum(self.blocks[part].ns * n for part, n in phase.counts.items())
        return card + self.host_ns

    @property
    def host_ns(self) -> float:
        device = load()
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
        return replace(memory(self.config, self.request), activations=used)

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


def memory(c: ModelConfig, request: Request) -> Memory:
    """Bytes on the card, before compiling: fp16 weights, the longest cache, and roughly the results of the prefill."""
    sequences = request.batch if request.together else 1
    tokens = sequences * request.prompt
    scores = sequences * c.heads * request.prompt * request.prompt
    live = tokens * (2 * c.hidden + 2 * c.intermediate) + 2 * scores
    cache = request.batch * c.cache_elements(request.longest)
    return Memory(c.parameters * HALF, cache * HALF, live * HALF)


def predict(
    c: ModelConfig, request: Request, progress: Callable[[str, int, int], None] = lambda label, i, n: None
) -> Prediction:
    """Compiles and times every distinct block. `progress` hears (block, number, how many)."""
    from torch_spyre.predict.timed_parts import time_part  # late: start-up

    phases = passes(c, request)
    parts = distinct(phases)
    blocks = {}
    for i, part in enumerate(parts):
        progress(f"{part.label}, {part.batch}x{part.tokens} tokens, cache {part.context}", i, len(parts))
        blocks[part] = time_part(c, part)
    progress("done", len(parts), len(parts))
    return Prediction(c, request, tuple(phases), blocks)
