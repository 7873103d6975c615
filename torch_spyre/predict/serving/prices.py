# SPDX-License-Identifier: Apache-2.0
"""How long the cards take for a step of a scheduler: any mixture of chunks of prompts and next tokens.

What has weights costs as much as a pass over the tokens of all requests together. Attention costs what each request's
tokens and cache cost; next tokens share one call. Sizes between those that were compiled are interpolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.fabric import Fabric, collective_seconds
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.passes import HALF, STICK, Part, Phase, forward, seen
from torch_spyre.predict.serving.scheduler import Work
from torch_spyre.predict.sharding import shard

_SIZES = [1, 8, *(2**i for i in range(6, 21))]  # of tokens of a chunk, and of a cache from a stick on


class StepPrices:
    """Blocks are compiled and timed when a step first needs them. Times in nanoseconds."""

    def __init__(self, c: ModelConfig, cards: int = 1, tell: Callable[[str], None] = lambda _: None) -> None:
        if c.mamba:
            raise InvalidArgument(
                f"{c.name}: Mamba layers take the tokens of a sequence in order, which a step of several requests does "
                "not say; spyre-predict without `serve` takes this model"
            )
        self._whole, self._one, self._cards, self._tell = c, shard(c, cards), cards, tell
        self._device: Device = load()
        self._parts: dict[Part, float] = {}
        self._rows: dict[int, float] = {}

    def step(self, works: Sequence[Work]) -> float:
        tokens = sum(w.new for w in works)
        samples = sum(w.samples for w in works)
        return self._weights(tokens) + self._attention(works) + self._heads(samples) + self._others(tokens, samples)

    def _weights(self, tokens: int) -> float:
        """Everything but attention's core and the head."""
        return _between(_grid(tokens), tokens, self._row)

    def _row(self, tokens: int) -> float:
        found = self._rows.get(tokens)
        if found is None:
            context = -(-tokens // STICK) * STICK
            phase = forward("", self._whole, self._cards, 1, tokens, context)
            found = sum(self._part(p) * n for p, n in phase.counts.items() if not p.kind.startswith("head"))
            for _, count, window in self._whole.kinds():
                found -= count * self._part(self._core(1, tokens, seen(window, tokens, context)))
            self._rows[tokens] = found = max(found, 0.0)
        return found

    def _attention(self, works: Sequence[Work]) -> float:
        next_tokens = [w.context for w in works if w.new == 1]
        total = 0.0
        for _, count, window in self._whole.kinds():
            if next_tokens:
                mean = sum(min(n, window) if window else n for n in next_tokens) / len(next_tokens)
                total += count * self._cores(len(next_tokens), 1, mean)
            for w in works:
                if w.new > 1:
                    total += count * self._cores(1, w.new, w.context)
        return total

    def _cores(self, batch: int, tokens: int, context: float) -> float:
        def of_batch(b: int) -> float:
            def of_tokens(n: int) -> float:
                lengths = [x for x in _SIZES if x >= max(STICK, n)]
                at = max(context, lengths[0])
                return _between(_around(lengths, at), at, lambda x: self._part(self._core(b, n, int(x))))

            return _between(_around(_SIZES, tokens), tokens, of_tokens)

        return _between(_grid(batch), batch, of_batch)

    def _core(self, batch: int, tokens: int, context: int) -> Part:
        return Part("attention core", "attention", batch, tokens, context)

    def _heads(self, samples: int) -> float:
        kind = "head" if self._cards == 1 else "head columns"
        if not samples:
            return 0.0
        return _between(_grid(samples), samples, lambda n: self._part(Part(kind, "head", n, 1)))

    def _others(self, tokens: int, samples: int) -> float:
        """What cards tell one another, and the host."""
        total = 0.0
        if self._cards > 1:
            phase = self._exchanges(tokens, max(samples, 1))
            for e, n in phase.exchanges.items():
                total += collective_seconds(e.kind, e.nbytes, self._cards, Fabric.of(self._device)).seconds * 1e9 * n
        d = self._device
        scores = samples * self._whole.vocab * HALF
        return total + d["launch.host"] * 1e3 + d["pcie.latency"] * 2e3 + scores / d["pcie.bandwidth_out"]

    def _exchanges(self, tokens: int, samples: int) -> Phase:
        phase = forward("", self._whole, self._cards, 1, tokens, STICK)
        scores = next(e for e in phase.exchanges if e.kind == "all_gather")
        count = phase.exchanges.pop(scores)
        phase.exchange("all_gather", scores.nbytes // HALF * samples, count)
        return phase

    def _part(self, part: Part) -> float:
        found = self._parts.get(part)
        if found is None:
            from torch_spyre.predict.timed_parts import time_part  # late: start-up

            self._tell(f"{part.label}, {part.batch}x{part.tokens} tokens, cache {part.context}")
            found = self._parts[part] = time_part(self._one, part, self._cards).ns
        return found


def _grid(value: int) -> tuple[int, ...]:
    """The powers of two around a number."""
    high = 1 << max(value - 1, 0).bit_length()
    return (value,) if high == value else (high // 2, high)


def _around(sizes: Sequence[int], value: float) -> tuple[int, ...]:
    i = bisect_left(sizes, value)
    if i == len(sizes):
        raise InvalidArgument(f"{value:.0f} tokens: no more than {sizes[-1]} are priced")
    return (sizes[i],) if sizes[i] == value or i == 0 else (sizes[i - 1], sizes[i])


def _between(ends: tuple[int, ...], value: float, price: Callable[[int], float]) -> float:
    low, high = ends[0], ends[-1]
    if low == high:
        return price(low)
    share = (value - low) / (high - low)
    return (1 - share) * price(low) + share * price(high)
