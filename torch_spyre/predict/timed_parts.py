# SPDX-License-Identifier: Apache-2.0
"""Making the blocks of a model on the card and timing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.predict import decoder_parts, mamba_parts, segments
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.measure import Timed, empties, indices, time_block
from torch_spyre.predict.passes import Part
from torch_spyre.predict.timing import timing_only

Shape = tuple[int, ...]


def time_part(c: ModelConfig, part: Part, cards: int = 1) -> Timed:
    """`c` is what this card has of the model."""
    with timing_only():
        return time_block(part.label, lambda: _module(c, part, cards), lambda: _inputs(c, part))


def _module(c: ModelConfig, part: Part, cards: int) -> nn.Module:
    device = DEVICE_NAME
    match part.kind:
        case "routed mamba":
            return decoder_parts.Routed(c, device, mamba_parts.Mixer)
        case "mamba layer":
            return decoder_parts.Dense(c, device, mamba_parts.Mixer)
        case "out segment":
            return segments.OutSegment(c, cards, device)
        case "attend segment":
            return segments.AttendSegment(c, cards, device)
    return _MODULES[part.kind](c, device)


_MODULES: dict[str, Callable[[ModelConfig, str], nn.Module]] = {
    "embedding": decoder_parts.Embedding,
    "layer": decoder_parts.Dense,
    "routed": decoder_parts.Routed,
    "expert": decoder_parts.Expert,
    "head": decoder_parts.Head,
    "embedding rows": segments.EmbeddingRows,
    "attention segment": segments.AttentionSegment,
    "attention core": segments.AttentionCore,
    "project segment": segments.ProjectSegment,
    "parallel segment": segments.ParallelSegment,
    "scan segment": segments.ScanSegment,
    "mamba segment": segments.MambaSegment,
    "mlp segment": segments.MlpSegment,
    "router segment": segments.RouterSegment,
    "head columns": segments.HeadColumns,
}


def _inputs(c: ModelConfig, part: Part) -> Sequence[Tensor]:
    device = DEVICE_NAME
    batch, tokens = part.batch, part.tokens
    x = (batch, tokens, c.hidden)
    match part.kind:
        case "embedding":
            return [indices(device, batch * tokens)] * (2 if c.positions else 1)
        case "embedding rows":
            rows = indices(device, batch * tokens)
            return [rows, *empties(device, (batch * tokens, 1)), *([rows] if c.positions else [])]
        case "head":
            return empties(device, (batch, c.hidden))
        case "head columns":
            return empties(device, (batch, c.hidden), (batch, c.hidden))
        case "expert":
            hidden, share, out = empties(device, (batch, c.hidden), (tokens, 1), (batch, c.hidden))
            return [hidden, indices(device, tokens), share, out]
        case "mlp segment" | "router segment" | "project segment":
            return empties(device, x, x)
        case "layer" | "routed":
            return empties(device, x, *_attention(c, part))
        case "attention segment" | "parallel segment":
            return empties(device, x, x, *_attention(c, part))
        case "attention core":
            q, k = ((batch, tokens, n * c.head_dim) for n in (c.heads, c.kv_heads))
            return empties(device, q, k, k, *_attention(c, part))
        case "attend segment":
            q, k = ((batch, tokens, n * c.head_dim) for n in (c.heads, c.kv_heads))
            return empties(device, q, k, k, (2, batch, tokens), *_attention(c, part))
        case "mamba layer" | "routed mamba":
            return empties(device, x, *_states(c, part))
        case "scan segment" | "mamba segment":
            return empties(device, x, x, *_states(c, part))
        case "out segment":
            assert c.mamba is not None
            return empties(device, (batch, tokens, c.mamba.inner), (batch, tokens))
    raise AssertionError(part.kind)


def _attention(c: ModelConfig, part: Part) -> list[Shape]:
    """Rotary factors, mask and cache."""
    half, rows = (c.rotary_dim or c.head_dim) // 2, c.heads // c.kv_heads * part.tokens
    cache = (part.batch, c.kv_heads, part.context, c.head_dim)
    return [(part.tokens, half), (part.tokens, half), (rows, part.context), cache, cache]


def _states(c: ModelConfig, part: Part) -> list[Shape]:
    """The last tokens that convolutions see, the state, and the mask inside a chunk."""
    m = c.mamba
    assert m is not None
    before = m.conv - 1
    chunk = min(m.chunk, part.tokens)
    return [
        (part.batch, before, m.inner),
        (part.batch, before, m.shared_channels),
        (part.batch, m.heads, m.head_dim, m.state),
        (chunk, chunk),
    ]
