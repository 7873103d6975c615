# SPDX-License-Identifier: Apache-2.0
"""Making the blocks of a model on the card and timing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.predict import decoder_parts
from torch_spyre.predict.configs import ModelConfig
from torch_spyre.predict.measure import Timed, empties, indices, time_block
from torch_spyre.predict.model import Part
from torch_spyre.predict.timing import timing_only


def time_part(c: ModelConfig, part: Part) -> Timed:
    module, inputs = _making(c, part)
    with timing_only():
        return time_block(part.label, module, inputs)


def _expert_inputs(device: str, x: tuple[int, int], share: tuple[int, int]) -> list[Tensor]:
    hidden, weights, out = empties(device, x, share, x)
    return [hidden, indices(device, share[0]), weights, out]


def _making(c: ModelConfig, part: Part) -> tuple[Callable[[], nn.Module], Callable[[], Sequence[Tensor]]]:
    device = DEVICE_NAME
    batch, tokens = part.batch, part.tokens
    match part.kind:
        case "head":
            return lambda: decoder_parts.Head(c, device), lambda: empties(device, (batch, c.hidden))
        case "embedding":
            return lambda: decoder_parts.Embedding(c, device), lambda: [indices(device, batch * tokens)]
        case "expert":
            x, share = (batch, c.hidden), (tokens, 1)
            return lambda: decoder_parts.Expert(c, device), lambda: _expert_inputs(device, x, share)
    half, rows = c.head_dim // 2, c.heads // c.kv_heads * tokens
    cache = (batch, c.kv_heads, part.context, c.head_dim)
    shapes = ((batch, tokens, c.hidden), (tokens, half), (tokens, half), (rows, part.context), cache, cache)
    layer = decoder_parts.Routed if part.kind == "routed" else decoder_parts.Dense
    return lambda: layer(c, device), lambda: empties(device, *shapes)
