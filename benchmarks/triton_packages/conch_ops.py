# SPDX-License-Identifier: Apache-2.0
"""The operations of conch-triton-kernels, which have no backward of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from case import Case, Values
from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul
from conch.ops.activation.silu_and_mul import silu_and_mul
from conch.ops.attention.paged_attention import paged_attention
from conch.ops.attention.varlen_attention import varlen_attention
from conch.ops.embedding.rotary_embedding import rotary_embedding
from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm
from conch.ops.normalization.rms_norm import fused_add_rms_norm, rms_norm
from conch.ops.quantization.gemm import scaled_gemm
from conch.ops.quantization.int8 import scaled_int8_quant
from conch.ops.vision.bev_pool import bev_pool, bev_pool_backward
from conch.ops.vision.nms import nms
from conch.ops.vllm.copy_blocks import copy_blocks
from conch.ops.vllm.reshape_and_cache import reshape_and_cache

HEADS, KV_HEADS, HEAD, BLOCK, BLOCKS = 4, 2, 64, 16, 12


def rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def caches() -> Values:
    return [torch.randn(BLOCKS, BLOCK, KV_HEADS, HEAD) for _ in range(2)]


def paged_inputs() -> Values:
    table = torch.randperm(BLOCKS).int().reshape(3, 4)
    return [torch.randn(3, HEADS, HEAD), *caches(), table, torch.tensor([5, 64, 33], dtype=torch.int32)]


def sequence(cache: Any, blocks: Any, length: int) -> Any:
    found = cache[blocks.long()].flatten(0, 1)[:length]
    return found.repeat_interleave(HEADS // KV_HEADS, 1)


def paged(q: Any, keys: Any, values: Any, table: Any, lengths: Any) -> Any:
    rows = []
    for i, length in enumerate(lengths.tolist()):
        k, v = (sequence(c, table[i], length) for c in (keys, values))
        weights = (torch.einsum("hd,nhd->hn", q[i], k) * HEAD**-0.5).softmax(-1)
        rows.append(torch.einsum("hn,nhd->hd", weights, v))
    return torch.stack(rows)


def varied_inputs() -> Values:
    table = torch.randperm(BLOCKS).int().reshape(3, 4)
    starts, lengths = torch.tensor([0, 5, 6, 30], dtype=torch.int32), torch.tensor([9, 64, 40], dtype=torch.int32)
    return [torch.randn(30, HEADS, HEAD), *caches(), starts, lengths, table]


def varied_call(q: Any, keys: Any, values: Any, starts: Any, lengths: Any, table: Any) -> Any:
    return varlen_attention(q, keys, values, starts, 24, lengths, 64, table, causal=True)


def varied(q: Any, keys: Any, values: Any, starts: Any, lengths: Any, table: Any) -> Any:
    rows = []
    for i, length in enumerate(lengths.tolist()):
        mine = q[starts[i] : starts[i + 1]]
        k, v = (sequence(c, table[i], length) for c in (keys, values))
        scores = torch.einsum("qhd,nhd->hqn", mine, k) * HEAD**-0.5
        places = torch.arange(length - mine.shape[0], length)[:, None] < torch.arange(length)[None]
        rows.append(torch.einsum("hqn,nhd->qhd", scores.masked_fill(places, float("-inf")).softmax(-1), v))
    return torch.cat(rows)


def rotary_inputs() -> Values:
    angles = torch.arange(50)[:, None] / 10.0 ** (torch.arange(32) / 8)
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    return [torch.randint(0, 50, (20,)), torch.randn(20, HEADS * HEAD), torch.randn(20, KV_HEADS * HEAD), cache]


def rotary(places: Any, q: Any, k: Any, cache: Any) -> Any:
    cos, sin = (t[:, None] for t in cache[places].chunk(2, -1))

    def turned(x: Any) -> Any:
        a, b = x.unflatten(-1, (-1, HEAD)).chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    return turned(q), turned(k)


def cached_inputs() -> Values:
    slots = torch.randperm(BLOCKS * BLOCK)[:20]
    return [torch.randn(20, KV_HEADS, HEAD), torch.randn(20, KV_HEADS, HEAD), *caches(), slots]


def cached_call(k: Any, v: Any, keys: Any, values: Any, slots: Any) -> Any:
    reshape_and_cache(k, v, keys, values, slots)
    return keys, values


def cached(k: Any, v: Any, keys: Any, values: Any, slots: Any) -> Any:
    keys, values = keys.clone(), values.clone()
    keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots] = k, v
    return keys, values


def copied_call(keys: Any, values: Any, pairs: Any) -> Any:
    copy_blocks([keys], [values], pairs)
    return keys, values


def copied(keys: Any, values: Any, pairs: Any) -> Any:
    keys, values = keys.clone(), values.clone()
    for source, target in pairs.tolist():
        keys[target], values[target] = keys[source], values[source]
    return keys, values


def scaled_inputs() -> Values:
    a, b = (torch.randint(-100, 100, s, dtype=torch.int8) for s in ((50, 128), (128, 70)))
    return [a, b, torch.rand(1) / 100, torch.rand(1) / 100]


def pooled_inputs() -> Values:
    places = torch.tensor([[1, 2, 0, 0], [3, 1, 1, 1], [0, 3, 1, 0]], dtype=torch.int32)
    lengths = torch.tensor([4, 7, 2], dtype=torch.int32)
    starts = torch.tensor([0, 4, 11], dtype=torch.int32)
    return [torch.randn(13, 32), places.repeat_interleave(lengths.long(), 0), starts, lengths]


def pooled(features: Any, places: Any, starts: Any, lengths: Any) -> Any:
    out = features.new_zeros(2, 2, 4, 4, 32)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        x, y, z, b = places[start].tolist()
        out[b, z, x, y] = features[start : start + length].sum(0)
    return out


def unpooled(grad: Any, places: Any, starts: Any, lengths: Any) -> Any:
    x, y, z, b = places.long().unbind(1)
    return grad[b, z, x, y]


def unpooled_inputs() -> Values:
    return [torch.randn(2, 2, 4, 4, 32), *pooled_inputs()[1:]]


def boxes() -> Values:
    corner = torch.rand(40, 2) * 10
    return [torch.cat((corner, corner + 1 + torch.rand(40, 2) * 4), 1), torch.randperm(40) / 40]


def kept(found: Any, scores: Any) -> Any:
    best, stay = scores.argsort(descending=True).tolist(), []
    for i in best:
        a = found[i]
        for j in stay:
            b = found[j]
            wide = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).prod()
            whole = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - wide
            if wide / whole > 0.3:
                break
        else:
            stay.append(i)
    return torch.tensor(stay)


def case(name: str, inputs: Any, call: Any, formula: Any, **more: Any) -> Case:
    return Case(name, inputs, call, formula, gradients=False, **more)


CASES = [
    case("silu_and_mul", lambda: [torch.randn(33, 200)], silu_and_mul, lambda x: F.silu(x[:, :100]) * x[:, 100:]),
    case(
        "gelu_tanh_and_mul",
        lambda: [torch.randn(33, 200)],
        gelu_tanh_and_mul,
        lambda x: F.gelu(x[:, :100], approximate="tanh") * x[:, 100:],
    ),
    case("rms_norm", lambda: [torch.randn(33, 100), torch.randn(100)], lambda x, w: rms_norm(x, w, 1e-6), rms),
    case(
        "fused_add_rms_norm",
        lambda: [torch.randn(33, 100), torch.randn(33, 100), torch.randn(100)],
        lambda x, r, w: fused_add_rms_norm(x, r, w, 1e-6),
        lambda x, r, w: (rms(x + r, w), x + r),
    ),
    case(
        "gemma_rms_norm",
        lambda: [torch.randn(33, 100), torch.randn(100)],
        lambda x, w: gemma_rms_norm(x, w, 1e-6),
        lambda x, w: rms(x, 1 + w),
    ),
    case("rotary_embedding", rotary_inputs, lambda p, q, k, c: rotary_embedding(p, q, k, HEAD, c), rotary),
    case("paged_attention", paged_inputs, paged_attention, paged),
    case("varlen_attention", varied_inputs, varied_call, varied),
    case("reshape_and_cache", cached_inputs, cached_call, cached),
    case(
        "copy_blocks",
        lambda: [torch.randn(8, 256), torch.randn(8, 256), torch.tensor([[0, 5], [3, 7]])],
        copied_call,
        copied,
    ),
    case(
        "scaled_int8_quant",
        lambda: [torch.randint(-300, 300, (33, 100)) / 2 + 0.1, torch.tensor([1.5])],
        lambda x, s: scaled_int8_quant(x, s)[0],
        lambda x, s: (x / s).trunc().clamp(-128, 127),
    ),
    case(
        "scaled_gemm",
        scaled_inputs,
        lambda a, b, s, t: scaled_gemm(a, b, s, t, torch.float32),
        lambda a, b, s, t: (a.double() * s) @ (b.double() * t),
    ),
    case("bev_pool", pooled_inputs, lambda *a: bev_pool(*a, 2, 2, 4, 4), pooled),
    case("bev_pool_backward", unpooled_inputs, bev_pool_backward, unpooled),
    case("nms", boxes, lambda b, s: nms(b, s, 0.3), kept),
]
