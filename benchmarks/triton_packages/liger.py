# SPDX-License-Identifier: Apache-2.0
"""The operations of liger-kernel, forward and backward."""

from __future__ import annotations

from typing import Any

import liger_kernel.ops as ops
import torch
import torch.nn.functional as F
from case import Case, Values


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def some(*shapes: tuple[int, ...]) -> Any:
    return lambda: [normal(*shape) for shape in shapes]


def labels(rows: int, classes: int) -> torch.Tensor:
    found = torch.randint(0, classes, (rows,))
    found[::5] = -100
    return found


def rms(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def angles(length: int, dim: int) -> Values:
    steps = torch.arange(length)[:, None] * (1 / 100 ** (torch.arange(0, dim, 2) / dim))[None]
    both = torch.cat((steps, steps), -1)[None]
    return [both.cos(), both.sin()]


def rope_inputs() -> Values:
    return [normal(2, 4, 16, 32), normal(2, 2, 16, 32), *angles(16, 32)]


def rope_formula(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return turned(q, cos[:, None], sin[:, None]), turned(k, cos[:, None], sin[:, None])


def rope_call(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return ops.LigerRopeFunction.apply(q, k, cos.detach(), sin.detach())


def mrope_inputs() -> Values:
    cos, sin = angles(16, 32)
    return [normal(2, 4, 16, 32), normal(2, 2, 16, 32), torch.stack([cos[0]] * 2)[None].repeat(3, 1, 1, 1).clone(),
            torch.stack([sin[0]] * 2)[None].repeat(3, 1, 1, 1).clone()]  # fmt: skip


def mrope_formula(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    sections = [4, 6, 6, 4, 6, 6]
    cos, sin = (
        torch.cat([part[i % 3] for i, part in enumerate(t.split(sections, -1))], -1)[:, None] for t in (cos, sin)
    )
    return turned(q, cos, sin), turned(k, cos, sin)


def jsd(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Of logarithms, with beta 0.5, over all rows."""
    middle = torch.log((p.exp() + q.exp()) / 2)
    both = F.kl_div(middle, q, reduction="sum", log_target=True) + F.kl_div(middle, p, reduction="sum", log_target=True)
    return both / 2 / p.shape[0]


def poly_norm(x: Any, w: Any, b: Any) -> Any:
    def unit(t: Any) -> Any:
        return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6)

    return w[0] * unit(x**3) + w[1] * unit(x**2) + w[2] * unit(x) + b


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    ordered = x.sort(-1, descending=True).values
    sums = ordered.cumsum(-1)
    places = torch.arange(1, x.shape[-1] + 1, device=x.device).to(x.dtype)
    support = (1 + places * ordered > sums).sum(-1, keepdim=True)
    return (x - (sums.gather(-1, support - 1) - 1) / support).clamp(min=0)


def attn_res(v: Any, q: Any, w: Any) -> Any:
    scores = (rms(v, w) * q).sum(-1)
    return (scores.softmax(0)[..., None] * v).sum(0)


def swiglu(a: Any, b: Any) -> Any:
    return F.silu(a) * b


def ce(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y)


def masked_scores(s: torch.Tensor, value: float) -> torch.Tensor:
    ones = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(ones, value)


def multi_token(scores: Any, weight: Any, bias: Any) -> Any:
    probabilities = masked_scores(scores, float("-inf")).softmax(-1)
    return masked_scores(F.conv2d(probabilities, weight, bias, padding=1), 0.0)


def moe(x: Any, up: Any, down: Any, which: Any, weights: Any) -> Any:
    total = torch.zeros_like(x)
    for k in range(which.shape[1]):
        gate, value = torch.einsum("th,tih->ti", x, up[which[:, k].long()]).chunk(2, -1)
        total = total + weights[:, k, None] * torch.einsum("ti,thi->th", swiglu(gate, value), down[which[:, k].long()])
    return total


def moe_inputs() -> Values:
    which = torch.stack([torch.randperm(4)[:2] for _ in range(24)]).int()
    return [normal(24, 64), normal(4, 64, 64) / 8, normal(4, 64, 32) / 6, which, torch.rand(24, 2)]


def embedding_call(table: Any, at: Any) -> Any:
    return ops.LigerEmbeddingFunction.apply(table, at)


def grpo_inputs() -> Values:
    rows, length, words = 2, 8, 40
    ids = torch.randint(0, words, (rows, length))
    return [normal(rows, length + 1, words), torch.randn(rows, length) * 0.1 - 3.5, ids, normal(rows)]


def grpo(logits: Any, old: Any, ids: Any, advantages: Any) -> Any:
    logp = logits[:, :-1].log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    ratio = (logp - old.detach()).exp()
    sides = ratio * advantages.detach()[:, None], ratio.clamp(0.8, 1.2) * advantages.detach()[:, None]
    return -torch.minimum(*sides).mean()


def grpo_call(logits: Any, old: Any, ids: Any, advantages: Any) -> Any:
    return ops.GrpoLossFunction.apply(
        logits, old.detach(), None, ids, advantages.detach(), None, 1.0, 0.0, 0.2, 0.2, False
    )[0]


def neighbours(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    places = torch.arange(q.shape[-2], device=q.device)
    far = (places[:, None] - places[None]).abs() > 3
    return scores.masked_fill(far, float("-inf")).softmax(-1) @ v


def complex_turn(q: Any, k: Any, freqs: Any) -> Any:
    c, s = freqs[..., 0], freqs[..., 1]

    def one(x: Any) -> Any:
        pairs = x.unflatten(-1, (-1, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        c_, s_ = (t[None, :, None, :] for t in (c, s))
        return torch.stack((a * c_ - b * s_, a * s_ + b * c_), -1).flatten(-2)

    return one(q), one(k)


def modulated(x: Any, w: Any, scale: Any, shift: Any) -> Any:
    return rms(x, w) * (1 + scale[:, None]) + shift[:, None]


CASES = [
    Case("rms_norm", some((33, 100), (100,)), lambda x, w: ops.LigerRMSNormFunction.apply(x, w, 1e-6), rms),
    Case(
        "layer_norm",
        some((33, 100), (100,), (100,)),
        lambda x, w, b: ops.LigerLayerNormFunction.apply(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (100,), w, b),
    ),
    Case(
        "group_norm",
        some((3, 8, 50), (8,), (8,)),
        lambda x, w, b: ops.LigerGroupNormFunction.apply(x, w, b, 8, 4, 1e-5),
        lambda x, w, b: F.group_norm(x, 4, w, b),
    ),
    Case(
        "fused_add_rms_norm",
        some((33, 100), (33, 100), (100,)),
        lambda x, r, w: ops.LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6),
        lambda x, r, w: (rms(x + r, w), x + r),
    ),
    Case(
        "modulated_rms_norm",
        some((2, 16, 100), (100,), (2, 100), (2, 100)),
        lambda x, w, a, b: ops.LigerModulatedRMSNormFunction.apply(x, w, a, b, 1e-6),
        modulated,
    ),
    Case(
        "poly_norm",
        lambda: [normal(33, 100), normal(3), torch.tensor(0.3)],
        lambda x, w, b: ops.LigerPolyNormFunction.apply(x, w, b, 1e-6),
        poly_norm,
    ),
    Case(
        "dyt",
        lambda: [normal(33, 128), torch.tensor([0.7]), normal(128), normal(128)],
        lambda x, a, g, b: ops.LigerDyTFunction.apply(x, a, g, b),
        lambda x, a, g, b: torch.tanh(a * x) * g + b,
    ),
    Case(
        "geglu",
        some((33, 100), (33, 100)),
        ops.LigerGELUMulFunction.apply,
        lambda a, b: F.gelu(a, approximate="tanh") * b,
    ),
    Case("swiglu", some((33, 100), (33, 100)), ops.LigerSiLUMulFunction.apply, swiglu),
    Case(
        "fused_gate_up_swiglu",
        some((33, 128)),
        ops.LigerFusedGateUpSiLUMulFunction.apply,
        lambda y: swiglu(*y.chunk(2, -1)),
    ),
    Case("relu_squared", some((33, 100)), ops.LigerReLUSquaredFunction.apply, lambda x: F.relu(x).square()),
    Case("softmax", some((33, 100)), ops.LigerSoftmaxFunction.apply, lambda x: x.softmax(-1)),
    Case("sparsemax", some((33, 100)), lambda x: ops.LigerSparsemaxFunction.apply(x, -1), sparsemax),
    Case("rope", rope_inputs, rope_call, lambda q, k, c, s: rope_formula(q, k, c.detach(), s.detach())),
    Case(
        "qwen2vl_mrope",
        mrope_inputs,
        lambda q, k, c, s: ops.LigerQwen2VLMRopeFunction.apply(q, k, c.detach(), s.detach(), [4, 6, 6]),
        lambda q, k, c, s: mrope_formula(q, k, c.detach(), s.detach()),
    ),
    Case(
        "llama4_rope",
        lambda: [normal(2, 16, 4, 32), normal(2, 16, 2, 32), normal(16, 16, 2)],
        lambda q, k, f: ops.LigerLlama4RopeFunction.apply(q, k, f.detach()),
        lambda q, k, f: complex_turn(q, k, f.detach()),
    ),
    Case(
        "cross_entropy",
        lambda: [normal(33, 100), labels(33, 100)],
        lambda x, y: ops.LigerCrossEntropyFunction.apply(x, y, None)[0],
        ce,
    ),
    Case(
        "fused_linear_cross_entropy",
        lambda: [normal(33, 64), normal(100, 64), labels(33, 100)],
        lambda x, w, y: ops.LigerFusedLinearCrossEntropyFunction.apply(x, w, y)[0],
        lambda x, w, y: ce(x @ w.T, y),
    ),
    Case(
        "kl_div",
        lambda: [normal(33, 100).log_softmax(-1), normal(33, 100).softmax(-1)],
        lambda p, q: ops.LigerKLDivLossFunction.apply(p, q.detach()),
        lambda p, q: F.kl_div(p, q.detach(), reduction="batchmean"),
    ),
    Case(
        "jsd",
        lambda: [normal(33, 100).log_softmax(-1), normal(33, 100).log_softmax(-1)],
        lambda p, q: ops.LigerJSDFunction.apply(p, q.detach()),
        lambda p, q: jsd(p, q.detach()),
    ),
    Case(
        "tvd",
        lambda: [normal(33, 100).softmax(-1), normal(33, 100).softmax(-1)],
        lambda p, q: ops.LigerTVDLossFunction.apply(p, q.detach()),
        lambda p, q: (p - q.detach()).abs().sum() / 2 / p.shape[0],
    ),
    Case(
        "fused_linear_jsd",
        some((33, 64), (100, 64), (33, 64), (100, 64)),
        lambda a, w, b, v: ops.LigerFusedLinearJSDFunction.apply(a, w, b.detach(), v.detach()),
        lambda a, w, b, v: jsd((a @ w.T).log_softmax(-1), (b @ v.T).log_softmax(-1).detach()),
    ),
    Case(
        "fused_linear_kl_div",
        lambda: [normal(33, 64), normal(100, 64), normal(33, 100).softmax(-1)],
        lambda a, w, t: ops.LigerFusedLinearKLDivFunction.apply(a, w, t.detach()),
        lambda a, w, t: F.kl_div((a @ w.T).log_softmax(-1), t.detach(), reduction="batchmean"),
    ),
    Case(
        "fused_ce_tvd",
        lambda: [normal(33, 100), normal(33, 100), labels(33, 100)],
        lambda s, t, y: ops.LigerFusedCETVDFunction.apply(s, t.detach(), y),
        lambda s, t, y: (
            F.cross_entropy(s, y, reduction="none"),
            (s.softmax(-1) - t.detach().softmax(-1)).abs().sum(-1) / 2 * (y != -100),
        ),
    ),
    Case("grpo_loss", grpo_inputs, grpo_call, grpo),
    Case(
        "embedding",
        lambda: [normal(50, 70), torch.randint(0, 50, (33,))],
        embedding_call,
        lambda table, at: table[at],
    ),
    Case(
        "attn_res",
        some((4, 33, 64), (64,), (64,)),
        lambda v, q, w: ops.LigerAttnResFunction.apply(v, q, w, 1e-6),
        attn_res,
    ),
    Case(
        "multi_token_attention",
        lambda: [normal(2, 3, 16, 16), normal(3, 3, 3, 3) / 3, normal(3)],
        lambda s, w, b: ops.LigerMultiTokenAttentionFunction.apply(s, w, b, 1, 1),
        multi_token,
    ),
    Case(
        "fused_neighborhood_attention",
        some((1, 2, 32, 16), (1, 2, 32, 16), (1, 2, 32, 16)),
        lambda q, k, v: ops.LigerFusedNeighborhoodAttentionFunction.apply(q, k, v, 7, 1, None),
        neighbours,
    ),
    Case("fused_moe", moe_inputs, ops.LigerFusedMoEFunction.apply, moe),
    Case(
        "mhc_pre",
        some((20, 4, 64), (20, 4)),
        lambda x, h: ops.LigerMHCPreFunction.apply(x, h),
        lambda x, h: (x * h[..., None]).sum(-2),
    ),
    Case(
        "mhc_post_res",
        some((20, 4, 64), (20, 64), (20, 4), (20, 4, 4)),
        ops.LigerMHCPostResFunction.apply,
        lambda x, f, p, r: p[..., None] * f[..., None, :] + r @ x,
    ),
    Case(
        "tiled_mlp",
        lambda: [normal(2, 32, 64)],
        lambda x: ops.LigerTiledMLPFunction.apply(
            lambda module, t: ops.LigerReLUSquaredFunction.apply(t), None, x, 4, None
        ),
        lambda x: F.relu(x).square(),
    ),
]
