# SPDX-License-Identifier: Apache-2.0
"""The operations of fla-core, forward and backward, on sequences of 96 positions.

The formulas are recurrences, position by position; for operations with more to them, the ones that the package itself
writes in PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from case import Case, Values

_whole_init = triton.runtime.autotuner.Autotuner.__init__


def _first_configuration(self: Any, fn: Any, arg_names: Any, configs: Any, *rest: Any, **more: Any) -> None:
    _whole_init(self, fn, arg_names, configs[:1], *rest, **more)


# These kernels have dozens of configurations each, and the table asks what they compute.
triton.runtime.autotuner.Autotuner.__init__ = _first_configuration  # type: ignore[method-assign]

import fla.ops as ops  # noqa: E402

B, T, H, D = 1, 96, 2, 32


def heads(dim: int = D) -> torch.Tensor:
    return torch.randn(B, T, H, dim)


def unit(dim: int = D) -> torch.Tensor:
    return F.normalize(heads(dim), dim=-1)


def gates(*shape: int) -> torch.Tensor:
    """Logarithms of decays."""
    return F.logsigmoid(torch.randn(B, T, H, *shape) + 2)


def strengths() -> torch.Tensor:
    return torch.rand(B, T, H)


def naive(module: str, name: str) -> Callable[..., Any]:
    """A formula of the package; they mix float32 into what they are given."""
    function = getattr(importlib.import_module(f"fla.ops.{module}.naive"), name)

    def formula(*arguments: Any) -> Any:
        narrow = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
        return function(*([t.float() for t in a] if isinstance(a, list) else a for a in narrow))

    return formula


def heads_first(module: str, name: str) -> Callable[..., Any]:
    """A formula of the package for tensors of (batch, heads, positions, …)."""

    def formula(*arguments: Any) -> Any:
        return first(naive(module, name)(*(a.transpose(1, 2) for a in arguments))).transpose(1, 2)

    return formula


def first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple | list) else found


def recurrence(q: Any, k: Any, v: Any, gate: Any = None, beta: Any = None, bonus: Any = None) -> Any:
    """``S = decay · S + k ⊗ u``, ``o = q · S``; u is v, or by the delta rule ``beta · (v - k · S)``."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        q_t, k_t, v_t = q[:, t, :, :, None], k[:, t, :, :, None], v[:, t, :, None, :]
        decay = None if gate is None else gate[:, t].exp().reshape(*gate.shape[:1], gate.shape[2], -1, 1)
        if bonus is not None:  # the newest pair counts in another way, and decays come after
            outputs.append((q_t * (state + bonus[None, :, :, None] * k_t * v_t)).sum(-2))
        if decay is not None:
            state = state * decay
        update = v_t if beta is None else beta[:, t, :, None, None] * (v_t - (k_t * state).sum(-2, keepdim=True))
        state = state + k_t * update
        if bonus is None:
            outputs.append((q_t * state).sum(-2))
    return torch.stack(outputs, 1) * (1 if bonus is not None else q.shape[-1] ** -0.5)


def comba(q: Any, k: Any, v: Any, p: Any, gate: Any, beta: Any) -> Any:
    """The delta rule along `p`, against the state before it decays."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        held = (p[:, t, :, :, None] * state).sum(-2, keepdim=True)
        update = beta[:, t, :, None, None] * (v[:, t, :, None, :] - held)
        state = state * gate[:, t].exp()[:, :, None, None] + k[:, t, :, :, None] * update
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1) * q.shape[-1] ** -0.5


def fixed(q: Any, rates: Any) -> Any:
    return rates.to(q)[None, None, :].expand(*q.shape[:3])


def retention(q: Any, k: Any, v: Any) -> Any:
    return recurrence(q, k, v, fixed(q, (1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))).log()))


def lightning(q: Any, k: Any, v: Any) -> Any:
    rates = -(8 / H * (1 - 1 / 4)) * torch.arange(H, dtype=torch.float64)
    return recurrence(q, k, v, fixed(q, rates))


def causal(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        sums = bias.transpose(1, 2).cumsum(-1)
        scores = scores + sums[..., :, None] - sums[..., None, :]
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(later, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def case(name: str, inputs: Callable[[], Values], formula: Any, call: Any = None, **more: Any) -> Case:
    function = call or getattr(ops, name)
    return Case(name, inputs, lambda *a: first(function(*a)), lambda *a: first(formula(*a)), **more)


def halves(make: Callable[[], Values]) -> Callable[[], Values]:
    """For operations that take no float32."""
    return lambda: [t.half() for t in make()]


def plain() -> Values:
    return [heads(), heads(), heads()]


def gated(*shape: int) -> Callable[[], Values]:
    return lambda: [heads(), heads(), heads(), gates(*shape)]


def delta() -> Values:
    return [heads(), unit(), heads(), strengths()]


def gated_delta(*shape: int) -> Callable[[], Values]:
    return lambda: [heads(), unit(), heads(), gates(*shape), strengths()]


def pairs() -> Values:
    """For states that lose what they hold along a direction, and get something back."""
    a = unit()
    return [heads(), unit(), heads(), -a, a * strengths()[..., None]]


def pairs_gated() -> Values:
    return [*pairs(), gates(D)]


def slots() -> Values:
    return [heads(), heads(), heads(), heads(16), gates(16)]


def conv(x: Any, w: Any) -> Any:
    padded = F.pad(x.transpose(1, 2), (w.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, w[:, None], groups=w.shape[0])).transpose(1, 2)


def conv_call(x: Any, w: Any) -> Any:
    return first(module("modules.causal_conv1d", "causal_conv1d")(x, w, activation="silu"))


def module(path: str, name: str) -> Any:
    return getattr(importlib.import_module(f"fla.{path}"), name)


def rms(x: Any, w: Any, eps: float = 1e-5) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def chunk_sums(x: Any) -> Any:
    return torch.cat([part.cumsum(1) for part in x.split(32, 1)], 1)


def chunk_means(x: Any) -> Any:
    return torch.stack([part.mean(1) for part in x.split(32, 1)], 1)


def shifted(x: Any) -> Any:
    return F.pad(x, (0, 0, 1, -1)) - x


CASES = [
    case("fused_recurrent_linear_attn", plain, recurrence),
    case("chunk_linear_attn", plain, recurrence, lambda *a: ops.chunk_linear_attn(*a, normalize=False)),
    case("fused_chunk_linear_attn", plain, recurrence, lambda *a: ops.fused_chunk_linear_attn(*a, normalize=False)),
    case("fused_recurrent_retention", plain, retention),
    case("chunk_retention", plain, retention),
    case("fused_chunk_retention", plain, retention),
    case("parallel_retention", plain, retention),
    case("fused_recurrent_lightning_attn", plain, lightning, lambda *a: ops.fused_recurrent_lightning_attn(*a, 1, 4)),
    case("chunk_lightning_attn", plain, lightning, lambda *a: ops.chunk_lightning_attn(*a, 1, 4)),
    case("fused_recurrent_gla", gated(D), recurrence),
    case("chunk_gla", gated(D), recurrence),
    case("fused_recurrent_simple_gla", gated(), recurrence),
    case("chunk_simple_gla", gated(), recurrence),
    case("fused_chunk_simple_gla", gated(), recurrence),
    case("parallel_simple_gla", gated(), recurrence),
    case("fused_recurrent_rwkv6", lambda: [*gated(D)(), torch.randn(H, D)], lambda r, k, v, w, u: recurrence(
        r, k, v, w, bonus=u), lambda *a: ops.fused_recurrent_rwkv6(*a, scale=1.0)),
    case("chunk_rwkv6", lambda: [*gated(D)(), torch.randn(H, D)], lambda r, k, v, w, u: recurrence(
        r, k, v, w, bonus=u), lambda *a: ops.chunk_rwkv6(*a, scale=1.0)),
    case("fused_recurrent_delta_rule", delta, lambda q, k, v, b: recurrence(q, k, v, None, b)),
    case("chunk_delta_rule", halves(delta), lambda q, k, v, b: recurrence(q, k, v, None, b), tolerance=2e-2),
    case("fused_recurrent_gated_delta_rule", gated_delta(), recurrence,
         lambda q, k, v, g, b: ops.fused_recurrent_gated_delta_rule(q, k, v, g=g, beta=b), gradients=False),
    case("chunk_gated_delta_rule", gated_delta(), recurrence),
    case("fused_recurrent_kda", gated_delta(D), recurrence, gradients=False),
    case("chunk_kda", gated_delta(D), recurrence),
    case("fused_recurrent_iplr_delta_rule", pairs,
         heads_first("generalized_delta_rule.iplr", "iplr_recurrence")),
    case("chunk_iplr_delta_rule", pairs, heads_first("generalized_delta_rule.iplr", "iplr_recurrence"),
         gradients=False),
    case("fused_recurrent_dplr_delta_rule", pairs_gated,
         heads_first("generalized_delta_rule.dplr", "dplr_recurrence"), gradients=False),
    case("chunk_dplr_delta_rule", pairs_gated,
         heads_first("generalized_delta_rule.dplr", "dplr_recurrence")),
    case("chunk_rwkv7", lambda: [heads(), gates(D), unit(), heads(), *pairs()[3:]],
         lambda r, w, k, v, a, b: heads_first("generalized_delta_rule.dplr", "dplr_recurrence")(
             r * D**0.5, k, v, a, b, w)),
    case("fused_recurrent_gsa", slots, lambda *a: naive("gsa", "naive_recurrent_gsa")(*a)),
    case("chunk_gsa", slots, lambda *a: naive("gsa", "naive_recurrent_gsa")(*a)),
    case("chunk_abc", lambda: slots()[:4], heads_first("abc", "naive_cumsum_abc")),
    case("fused_recurrent_hgrn", lambda: [torch.randn(B, T, 64), F.logsigmoid(torch.randn(B, T, 64))],
         lambda *a: naive("hgrn", "naive_recurrent_hgrn")(*a)),
    case("chunk_hgrn", lambda: [torch.randn(B, T, 64), F.logsigmoid(torch.randn(B, T, 64))],
         lambda *a: naive("hgrn", "naive_recurrent_hgrn")(*a),
         lambda *a: module("ops.hgrn.chunk", "chunk_hgrn")(*a)),
    case("chunk_comba", lambda: [heads(), unit(), heads(), unit(), gates(), strengths()],
         comba),
    case("fused_recurrent_comba", lambda: [heads(), unit(), heads(), unit(), gates(), strengths()], comba,
         lambda q, k, v, p, g, b: ops.fused_recurrent_comba(q, k, p, v, g, b), gradients=False),
    case("parallel_attn", plain, causal),
    case("parallel_forgetting_attn", gated(), causal),
    case("parallel_based", lambda: [heads(16), heads(16), heads()], heads_first(
        "based", "naive_parallel_based")),
    case("fused_chunk_based", lambda: [heads(16), heads(16), heads()], lambda *a: heads_first(
        "based", "naive_parallel_based")(*a)),
    case("parallel_stickbreaking_attn", plain, lambda *a: naive("stickbreaking_attn", "naive_stickbreaking_attn")(
        *a, D**-0.5)),
    case("parallel_parallax", halves(lambda: [heads(), heads(), heads(), heads()]), lambda *a: naive(
        "parallax", "naive_parallax")(*a), tolerance=2e-2),
    case("chunk_mesa_net", lambda: [heads(), unit(), heads(), gates(), strengths(), torch.rand(H, D) + 1],
         lambda q, k, v, g, b, lamb: naive("mesa_net", "naive_mesa_net_exact")(q, k, v, g, lamb, b),
         tolerance=2e-3),  # the operation iterates, the formula solves
    case("fused_attnres", lambda: [torch.randn(64), torch.randn(4, 2, 16, 64), torch.rand(64)],
         lambda q, r, w: naive("attnres", "naive_attnres")(q, list(r.unbind()), w),
         lambda q, r, w: ops.fused_attnres(q, list(r.unbind()), w)),
    case("chunk_local_cumsum", lambda: [heads()], chunk_sums,
         lambda x: module("ops.utils", "chunk_local_cumsum")(x, 32), gradients=False),
    case("chunk_global_cumsum", lambda: [heads()], lambda x: x.cumsum(1),
         lambda x: module("ops.utils", "chunk_global_cumsum")(x), gradients=False),
    case("mean_pooling", lambda: [heads()], chunk_means, lambda x: module("ops.utils", "mean_pooling")(x, 32)),
    case("softmax", lambda: [torch.randn(33, 100)], lambda x: x.softmax(-1),
         lambda x: module("ops.utils.softmax", "softmax_fwd")(x), gradients=False),
    case("matmul", lambda: [torch.randn(70, 50), torch.randn(50, 90)], lambda a, b: a @ b,
         lambda a, b: module("ops.utils", "matmul")(a, b), gradients=False),
    case("layer_norm", lambda: [torch.randn(33, 100), torch.randn(100), torch.randn(100)],
         lambda x, w, b: F.layer_norm(x, (100,), w, b), lambda *a: module("modules.norm.layernorm", "layer_norm")(*a)),
    case("rms_norm", lambda: [torch.randn(33, 100), torch.randn(100)], rms,
         lambda x, w: module("modules.norm.layernorm", "rms_norm")(x, w, None)),
    case("rms_norm_gated", lambda: [torch.randn(33, 100), torch.randn(33, 100), torch.randn(100)],
         lambda x, g, w: rms(x, w) * F.silu(g),
         lambda x, g, w: module("modules.norm.fused_norm_gate", "rms_norm_gated")(x, g, w, None)),
    case("l2norm", lambda: [torch.randn(33, 100)], lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
         lambda x: module("modules.norm.l2norm", "l2norm")(x)),
    case("swish", lambda: [torch.randn(33, 100)], F.silu, lambda x: module("modules.activations", "swish")(x)),
    case("swiglu", lambda: [torch.randn(33, 100), torch.randn(33, 100)], lambda x, y: F.silu(x) * y,
         lambda *a: module("modules.activations", "swiglu")(*a)),
    case("logsigmoid", lambda: [torch.randn(33, 100)], F.logsigmoid,
         lambda x: module("modules.activations", "logsigmoid")(x)),
    case("sigmoid", lambda: [torch.randn(33, 100)], torch.sigmoid,
         lambda x: module("modules.activations", "sigmoid")(x)),
    case("rotary_embedding", lambda: [heads(), *(t(torch.arange(T)[:, None] / 10.0 ** (torch.arange(16) / 8)) for t in
                                                 (torch.cos, torch.sin))],
         lambda x, c, s: module("modules.rotary.ops", "rotary_embedding_ref")(x, c.detach(), s.detach()),
         lambda x, c, s: module("modules.rotary", "rotary_embedding")(x, c.detach(), s.detach())),
    case("causal_conv1d", lambda: [torch.randn(2, 40, 64), torch.randn(64, 4)], conv, conv_call),
    case("token_shift", lambda: [torch.randn(2, 40, 64)], shifted,
         lambda x: module("modules.token_shift", "token_shift")(x)),
    case("cross_entropy", lambda: [torch.randn(33, 100), torch.randint(0, 100, (33,))],
         lambda x, y: F.cross_entropy(x, y, reduction="none"),
         lambda x, y: module("modules.fused_cross_entropy.ops", "cross_entropy_loss")(x, y)),
    case("fused_kl_div", lambda: [torch.randn(33, 64), torch.randn(33, 64), torch.randn(100, 64) / 8,
                                  torch.randn(100, 64) / 8],
         lambda x, t, w, u: F.kl_div((x @ w.T).log_softmax(-1), (t @ u.T).softmax(-1).detach(), reduction="batchmean"),
         lambda x, t, w, u: module("modules.fused_kl_div.ops", "fused_kl_div_loss")(x, t.detach(), w, u.detach())),
]  # fmt: skip
