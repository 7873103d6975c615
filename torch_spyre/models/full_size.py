# SPDX-License-Identifier: Apache-2.0
"""A decoder at its published size: asked and timed, and what each of its layers got and gave.

The card's memory is memory of this process, so there is no second copy of the weights; `numerics/decoded.py` compares
the layers with the CPU, with the weights of one at a time.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torch_spyre import _C, reporting
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.blocks import compile_blocks, repeated
from torch_spyre.models.quantised_linear import EightBitLinear
from torch_spyre.ops import fallbacks

_WARM = 4  # tokens before the timed ones: the step is compiled, recorded twice, then replayed
_READ_BYTES = 1 << 29
_READS = 3


@dataclass
class Answer:
    """What a prompt and greedy decoding gave."""

    tokens: list[int]
    prompt_s: float
    step_s: list[float]  # of each token after the first
    card_prompt_us: float
    card_step_us: float
    streamed_bytes: int  # that a step reads
    read_bytes_per_s: float  # of a plain read, measured in between
    embedded: Tensor  # the tokens, as the table on the card gave them
    hidden: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of each layer, what came in and went out

    @property
    def bytes_per_s(self) -> float:
        steps = sorted(self.step_s[_WARM:])
        return self.streamed_bytes / steps[len(steps) // 2]

    @property
    def share(self) -> float:
        return self.bytes_per_s / self.read_bytes_per_s


def peak_bytes() -> int:
    """Most memory that this process held at once, the card's included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def streamed_bytes(model: nn.Module) -> int:
    """Bytes that each token reads: all weights but the table of tokens, unless that is the head too."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    return sum(p.nbytes for p in model.parameters() if tied or p is not embedding.weight)


def read_rate() -> float:
    """Bytes per second of the best whole-array reader at hand, on small and on huge pages."""
    best = 0.0
    for advice in (mmap.MADV_NOHUGEPAGE, mmap.MADV_HUGEPAGE):
        memory = mmap.mmap(-1, _READ_BYTES)
        memory.madvise(advice)
        data = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
        for read in (data.sum, data.amax) * _READS:
            start = time.perf_counter()
            read()
            best = max(best, _READ_BYTES / (time.perf_counter() - start))
        del data, read
    return best


@torch.no_grad()
def ask(model: Any, ids: Tensor, count: int, progress: Callable[[int, int], None] | None = None) -> Answer:
    """Greedy decoding with compiled blocks; then once more with the same tokens to see what each layer got and gave."""
    from transformers import StaticCache

    if count <= _WARM + 1:
        raise InvalidArgument(f"{count} tokens: ask for at least {_WARM + 2}, of which the first {_WARM + 1} warm up")
    compile_blocks(model)
    config = model.config.get_text_config()

    def run(each: Callable[[int, float, float], None]) -> list[int]:
        cache, given, tokens = StaticCache(config=config, max_cache_len=ids.shape[1] + count), ids, []
        for number in range(count):
            start, card = time.perf_counter(), _card_us()
            logits = model(given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            given = logits[:, -1:].argmax(-1).cpu()
            each(number, time.perf_counter() - start, _card_us() - card)
            tokens.append(int(given))
        return tokens

    seconds: list[tuple[float, float]] = []

    def note(number: int, wall: float, card: float) -> None:
        seconds.append((wall, card))
        if progress is not None:
            progress(number + 1, count)

    before = read_rate()
    fallbacks.reset()
    tokens = run(note)
    after = read_rate()
    seen = _Seen(model)
    with seen:
        again = run(lambda number, wall, card: None)
    if again != tokens:
        raise InvalidArgument(f"the same prompt gave {again} after {tokens}")
    return Answer(
        tokens,
        seconds[0][0],
        [wall for wall, _ in seconds[1:]],
        seconds[0][1],
        seconds[-1][1],
        streamed_bytes(model),
        max(before, after),
        *seen.joined(ids.shape[1]),
    )


class _Seen:
    """Notes what the table of tokens gives, and what each repeated layer gets and gives."""

    def __init__(self, model: Any) -> None:
        self.modules = [model.get_input_embeddings(), *repeated(model)]
        self.rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.modules]

    def __enter__(self) -> None:
        def hook(number: int) -> Any:
            def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                given = args[0] if args else kwargs["hidden_states"]
                made = output[0] if isinstance(output, tuple) else output
                self.rows[number].append((given.cpu().float(), made.cpu().float()))

            return note

        self.handles = [m.register_forward_hook(hook(i), with_kwargs=True) for i, m in enumerate(self.modules)]

    def __exit__(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()

    def joined(self, prompt: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Without the padding of the prompt, which lies at its end."""
        whole = [
            tuple(torch.cat([row[0][side][:, :prompt], *(step[side] for step in row[1:])], 1) for side in (0, 1))
            for row in self.rows
        ]
        return whole[0][1], [(given, made) for given, made in whole[1:]]


def eight_bit_layers(model: nn.Module) -> int:
    return sum(isinstance(module, EightBitLinear) for module in model.modules())


def on_host() -> list[str]:
    """The operations that ran on the host so far, with the number of calls."""
    return [f"{row.op} {row.calls}" for row in reporting.report()]


def _card_us() -> float:
    torch.spyre.synchronize()
    return 1e-3 * float(_C._card_counters(torch.spyre.current_device()).get("compute_ns", 0))
