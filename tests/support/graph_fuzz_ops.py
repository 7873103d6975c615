# SPDX-License-Identifier: Apache-2.0
"""Statements that compute, for random graphs: pointwise, reductions, norms, scans, orders, products."""

from __future__ import annotations

import torch
from graph_fuzz_build import INTS, SIZES, Builder, broadcasts, rule
from graph_fuzz_program import FLOATS

# Pointwise.

UNARY = """
torch.relu({0})
torch.neg({0})
torch.abs({0})
torch.exp(torch.clamp({0}, max=4.0))
torch.tanh({0})
torch.sigmoid({0})
F.silu({0})
F.gelu({0})
F.gelu({0}, approximate='tanh')
torch.sqrt({0}.abs())
torch.rsqrt({0}.abs() + 0.5)
torch.log({0}.abs() + 0.1)
torch.sin({0})
torch.cos({0})
torch.erf({0})
torch.reciprocal({0}.abs() + 0.5)
F.softplus({0})
torch.square({0})
torch.floor({0})
torch.ceil({0})
torch.round({0})
torch.trunc({0})
torch.sign({0})
F.leaky_relu({0}, 0.2)
F.elu({0})
F.hardtanh({0})
F.hardswish({0})
F.mish({0})
torch.log1p({0}.abs())
torch.expm1(torch.clamp({0}, max=3.0))
torch.atan({0})
torch.clamp({0}, -1.0, 1.5)
torch.clamp({0}, min=0.25)
{0} ** 2
{0} ** 3
{0}.abs() ** 0.5
torch.exp2({0}.clamp(-4, 4))
torch.log2({0}.abs() + 1)
F.relu6({0})
F.logsigmoid({0})
F.softsign({0})
torch.isnan({0})
torch.frac({0})
F.hardsigmoid({0})
F.selu({0})
torch.nan_to_num({0})
torch.tan({0}.clamp(-1, 1))
torch.cosh({0}.clamp(-2, 2))
torch.sinh({0}.clamp(-2, 2))
torch.asinh({0})
torch.special.erfc({0})
F.tanhshrink({0})
F.hardshrink({0})
{0}.logical_not()
torch.signbit({0})
torch.asin({0}.clamp(-0.9, 0.9))
F.threshold({0}, 0.1, 2.0)
""".split("\n")[1:-1]

BINARY = """
torch.add({0}, {1})
torch.sub({0}, {1})
torch.mul({0}, {1})
torch.maximum({0}, {1})
torch.minimum({0}, {1})
torch.add({0}, {1}, alpha=2)
{0} / ({1}.abs() + 0.5)
torch.atan2({0}, {1})
torch.lerp({0}, {1}, 0.3)
torch.addcmul({0}, {0}, {1}, value=0.5)
torch.addcdiv({0}, {0}, {1}.abs() + 1)
torch.rsub({0}, {1})
torch.fmod({0}, {1}.abs() + 0.5)
torch.remainder({0}, {1}.abs() + 0.5)
torch.hypot({0}, {1})
torch.logaddexp({0}, {1})
torch.copysign({0}, {1})
({0}.abs() + 0.1) ** {1}.clamp(-2, 2)
torch.div({0}, {1}.abs() + 0.5, rounding_mode='floor')
torch.div({0}, {1}.abs() + 0.5, rounding_mode='trunc')
F.mse_loss({0}, {1})
torch.xlogy({0}, {1}.abs() + 0.1)
""".split("\n")[1:-1]

WITH_NUMBER = """
{0} + %s
{0} * %s
%s - {0}
{0} / %s
torch.maximum({0}, torch.full_like({0}, %s))
{0}.clamp(max=%s)
torch.add({0}, {0}, alpha=%s)
torch.sub({0}, %s)
""".split("\n")[1:-1]

COMPARE = """
{0} < {1}
{0} > {1}
{0} <= {1}
{0} >= {1}
{0} == {1}
{0} != {1}
""".split("\n")[1:-1]

INT_UNARY = """
-{0}
{0}.abs()
~{0}
torch.sign({0})
{0}.clamp(-3, 5)
{0} % 7
{0} // 3
{0} * 3 % 11
{0} & 7
{0} | 1
{0} ^ 5
{0} << 2
{0} >> 1
{0} / 2
torch.bitwise_not({0})
""".split("\n")[1:-1]

INT_BINARY = """
{0} + {1}
{0} - {1}
({0} * {1}) % 101
torch.maximum({0}, {1})
torch.minimum({0}, {1})
{0} & {1}
{0} | {1}
{0} ^ {1}
{0} // ({1}.abs() + 1)
{0} % ({1}.abs() + 1)
{0} / ({1}.abs() + 1)
""".split("\n")[1:-1]

BOOL = """
{0} & {1}
{0} | {1}
{0} ^ {1}
torch.logical_and({0}, {1})
torch.logical_or({0}, {1})
torch.logical_xor({0}, {1})
""".split("\n")[1:-1]

NUMBERS = ["0.1", "2.0", "-3.0", "1", "0", "3", "0.5", "-0.25", "1e-3", "7"]


@rule(14)
def unary(b: Builder) -> None:
    b.add(b.random.choice(UNARY), b.floating())


@rule(12)
def binary(b: Builder) -> None:
    x = b.floating()
    if x is not None:
        y = b.partner(x, lambda t: t.dtype in FLOATS or b.chance(0.2))
        args = (x, y) if b.chance(0.5) else (y, x)
        b.add(b.random.choice(BINARY), *args)


@rule(6)
def with_number(b: Builder) -> None:
    number = b.random.choice([n for n in NUMBERS if n != "0"])
    b.add(b.random.choice(WITH_NUMBER) % number, b.pick(lambda x: x.dtype != torch.bool))


@rule(2)
def with_input_number(b: Builder) -> None:
    kind = b.random.choice(["number", "host", "normal"])
    number = b.input((), torch.float32 if kind != "normal" else b.float, kind)
    b.add(
        b.random.choice(["{0} * {1}", "{0} + {1}", "{1} - {0}", "torch.where({0} > {1}, {0}, {1})"]),
        b.floating(),
        number,
    )


@rule(4)
def compare(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype != torch.bool)
    if x is None:
        return
    if b.chance(0.4):
        b.add(b.random.choice(COMPARE).replace("{1}", b.random.choice(NUMBERS)), x)
    else:
        b.add(b.random.choice(COMPARE), x, b.partner(x))


@rule(5)
def select_by_mask(b: Builder) -> None:
    x = b.floating()
    if x is None:
        return
    size = b.values[x].shape
    mask = b.pick(lambda t: t.dtype == torch.bool and broadcasts(t.shape, size)) or b.input(tuple(size), torch.bool)
    form = b.random.choice(
        [
            "torch.where({1}, {0}, {2})",
            "torch.where({1}, {0}, 0.5)",
            "{0}.masked_fill({1}, -2.0)",
            "torch.where({1}, 1.0, {0})",
        ]
    )
    b.add(form, x, mask, *([b.partner(x)] if "{2}" in form else []))


@rule(4)
def integers(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in INTS) or b.input(b.size(), b.random.choice(INTS))
    if b.chance(0.5):
        b.add(b.random.choice(INT_UNARY), x)
    else:
        b.add(b.random.choice(INT_BINARY), x, b.partner(x, lambda t: t.dtype in INTS))


@rule(2)
def booleans(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == torch.bool)
    if x is not None:
        b.add(b.random.choice([*BOOL, "~{0}"]), x, b.partner(x, lambda t: t.dtype == torch.bool))


@rule(4)
def cast(b: Builder) -> None:
    x = b.pick()
    to = b.random.choice(["float16", "float16", "float32", "float32", "bfloat16", "int32", "int64", "bool"])
    text = (
        "{0}"
        if x is None or b.values[x].dtype not in FLOATS or to not in ("int32", "int64")
        else "{0}.clamp(-100, 100)"
    )
    b.add(f"{text}.to(torch.{to})", x)


# Reductions and what is made of them.


OVER_DIMS = """
{0}.sum(%s, keepdim=%s)
{0}.mean(%s, keepdim=%s)
{0}.amax(%s, keepdim=%s)
{0}.amin(%s, keepdim=%s)
torch.logsumexp({0}, %s, keepdim=%s)
torch.var({0}, %s, keepdim=%s, unbiased=False)
torch.std({0}, %s, keepdim=%s, correction=0)
torch.linalg.vector_norm({0}, 2, %s, %s)
{0}.sum(%s, keepdim=%s, dtype=torch.float32)
{0}.any(%s, keepdim=%s)
{0}.all(%s, keepdim=%s)
torch.count_nonzero({0}, %s)
torch.var_mean({0}, %s, keepdim=%s, correction=0)
""".split("\n")[1:-1]

OVER_ONE_DIM = """
{0}.argmax(%s, keepdim=%s)
{0}.argmin(%s, keepdim=%s)
{0}.max(%s, keepdim=%s)
{0}.min(%s, keepdim=%s)
{0}.clamp(-1.5, 1.5).prod(%s, keepdim=%s)
{0}.sum(%s, keepdim=%s)
""".split("\n")[1:-1]


@rule(8)
def reduction(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    if x is None:
        return
    rank = b.values[x].ndim
    dims = sorted(b.random.sample(range(rank), b.random.randint(1, rank)))
    keep = b.chance(0.5)
    many = OVER_DIMS
    if b.values[x].dtype not in FLOATS:
        many = [t for t in many if t.startswith(("{0}.sum", "{0}.a", "torch.count"))]
    if b.chance(0.1):
        b.add(b.random.choice(["{0}.sum()", "{0}.max()", "{0}.min()", "{0}.float().argmax()", "{0}.any()"]), x)
    elif b.chance(0.65):
        text = b.random.choice(many)
        b.add(text % ((dims, keep) if text.count("%s") == 2 else (dims,)), x)
    else:
        if b.values[x].dtype != torch.bool:
            b.add(b.random.choice(OVER_ONE_DIM) % (b.dim(x), keep), x)


@rule(5)
def normalisation(b: Builder) -> None:
    x = b.floating(1)
    if x is None:
        return
    dim, size = b.dim(x), b.values[x].shape
    kind = b.random.choice(
        ["softmax", "softmax", "log_softmax", "layer_norm", "rms_norm", "normalize", "by hand", "group"]
    )
    if kind in ("softmax", "log_softmax"):
        b.add(f"torch.{kind}({{0}}, {dim}{b.random.choice(['', '', ', dtype=torch.float32'])})", x)
    elif kind == "normalize":
        b.add(f"F.normalize({{0}}, dim={dim})", x)
    elif kind == "by hand":
        mean = b.add(f"{{0}}.mean({dim}, keepdim=True)", x)
        centred = b.add("{0} - {1}", x, mean) if mean else None
        if centred:
            b.add(f"{{0}} * torch.rsqrt(({{0}} * {{0}}).mean({dim}, keepdim=True) + 1e-3)", centred)
    elif kind == "group" and len(size) >= 2:
        groups = b.random.choice([g for g in range(1, size[1] + 1) if size[1] % g == 0][:6] or [1])
        b.add(f"F.group_norm({{0}}, {groups})", x)
    else:
        last = b.random.randint(1, min(2, len(size)))
        shape = tuple(size[-last:])
        dtype = b.values[x].dtype
        w = b.input(shape, dtype) if b.chance(0.6) else None
        bias = b.input(shape, dtype) if w and kind == "layer_norm" and b.chance(0.6) else None
        extra = "".join(f", {{{i + 1}}}" for i in range(sum(v is not None for v in (w, bias))))
        b.add(
            f"F.{kind if kind in ('layer_norm', 'rms_norm') else 'layer_norm'}({{0}}, {list(shape)}{extra})",
            *[v for v in (x, w, bias) if v],
        )


@rule(2)
def scan(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0 and t.dtype != torch.bool)
    if x is not None:
        text = b.random.choice(
            ["{0}.cumsum(%d)", "{0}.cumsum(%d)", "{0}.clamp(-1, 1).cumprod(%d)", "{0}.cummax(%d)", "{0}.cummin(%d)"]
        )
        b.add(text % b.dim(x), x)


@rule(2)
def ordering(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0 and t.dtype != torch.bool)
    if x is not None:
        dim = b.dim(x)
        n = b.values[x].shape[dim]
        k = b.random.randint(1, max(1, min(n, 9)))
        text = b.random.choice(
            [
                f"torch.topk({{0}}, {k}, {dim})",
                f"torch.topk({{0}}, {k}, {dim}, largest=False)",
                f"torch.sort({{0}}, dim={dim}, stable=True)",
                f"torch.sort({{0}}, dim={dim}, descending=True, stable=True)",
                f"torch.argsort({{0}}, dim={dim}, stable=True)",
            ]
        )
        b.add(text, x)


# Matrix products.


@rule(8)
def product(b: Builder) -> None:
    x = b.floating(1)
    if x is None:
        return
    t = b.values[x]
    k, n = t.shape[-1], b.random.choice(SIZES)
    scale = max(k, 1) ** -0.5
    kind = b.random.choice(
        ["matmul", "linear", "linear bias", "self", "batched", "einsum", "vector", "addmm", "weight t"]
    )
    if kind == "linear" or kind == "weight t":
        w = b.input((n, k), t.dtype, "normal", scale)
        b.add("F.linear({0}, {1})" if kind == "linear" else "{0} @ {1}.t()", x, w)
    elif kind == "linear bias":
        b.add("F.linear({0}, {1}, {2})", x, b.input((n, k), t.dtype, "normal", scale), b.input((n,), t.dtype))
    elif kind == "self" and t.ndim >= 2:
        b.add(f"{{0}} @ {{0}}.mT * {scale:.4f}" if b.chance(0.5) else f"({{0}} * {scale:.4f}).mT @ {{0}}", x)
    elif kind == "batched" and t.ndim >= 3:
        lead = tuple(1 if b.chance(0.2) else m for m in t.shape[:-2])
        w = b.input((*lead, n, k), t.dtype, "normal", scale) if b.chance(0.5) else None
        b.add("{0} @ {1}.transpose(-1, -2)", x, w) if w else b.add(
            "{0} @ {1}", x, b.input((*lead, k, n), t.dtype, "normal", scale)
        )
    elif kind == "einsum" and t.ndim in (2, 3, 4):
        einsum(b, x)
    elif kind == "vector":
        b.add("{0} @ {1}", x, b.input((k,), t.dtype, "normal", scale))
    elif kind == "addmm" and t.ndim == 2:
        b.add(
            "torch.addmm({1}, {0}, {2}, beta=0.5, alpha=2)",
            x,
            b.input((n,), t.dtype),
            b.input((k, n), t.dtype, "normal", scale),
        )
    else:
        b.add("torch.matmul({0}, {1})", x, b.input((k, n), t.dtype, "normal", scale))


def einsum(b: Builder, x: str) -> None:
    size, dtype = b.values[x].shape, b.values[x].dtype
    letters = "abcd"[: len(size)]
    extent = dict(zip(letters, size, strict=True)) | {"z": b.random.choice(SIZES[:12])}
    other = "".join(b.random.sample(letters, b.random.randint(1, len(letters)))) + ("z" if b.chance(0.7) else "")
    other = "".join(b.random.sample(other, len(other)))
    out = [c for c in {**dict.fromkeys(letters), **dict.fromkeys(other)} if c == "z" or b.chance(0.6)]
    y = b.input(tuple(extent[c] for c in other), dtype, "normal", 0.2)
    b.add(f"torch.einsum('{letters},{other}->{''.join(b.random.sample(out, len(out)))}', {{0}}, {{1}})", x, y)


@rule(1.5)
def attention(b: Builder) -> None:
    heads, s, d = b.random.choice([1, 2, 4]), b.random.choice([1, 5, 31, 64, 65]), b.random.choice([8, 16, 32, 64])
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim == 4 and t.shape[-1] in (8, 16, 32, 64, 128)) or b.input(
        (1, heads, s, d)
    )
    n, h, s, d = b.values[x].shape
    dtype = b.values[x].dtype
    length = b.random.choice([s, 7, 64, 100])
    k, v = b.input((n, h, length, d), dtype), b.input((n, h, length, d), dtype)
    flag = ", is_causal=True" if b.chance(0.3) and length == s else ""
    if b.chance(0.6):
        b.add(f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{flag})", x, k, v)
    else:
        b.add("torch.softmax({0} @ {1}.transpose(-1, -2) / 4.0, -1) @ {2}", x, k, v)


@rule(1.5)
def rotary(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim >= 2 and t.shape[-1] % 2 == 0 and t.shape[-1] > 0)
    if x is None:
        return
    half = b.values[x].shape[-1] // 2
    turned = b.add(f"torch.cat([-{{0}}[..., {half}:], {{0}}[..., :{half}]], -1)", x)
    if turned is not None:
        size = tuple(b.values[x].shape[-2:])
        b.add("{0} * {2} + {1} * {3}", x, turned, b.input(size, b.values[x].dtype), b.input(size, b.values[x].dtype))


@rule(1)
def convolution(b: Builder) -> None:
    rank = b.random.choice([1, 2])
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim == rank + 2 and 0 < t.shape[1] <= 64 and t.numel() < 8000)
    x = x or b.input((b.random.choice([1, 2]), b.random.choice([1, 3, 8]), *[b.random.choice([7, 16, 31])] * rank))
    c, dtype = b.values[x].shape[1], b.values[x].dtype
    if b.chance(0.4):
        b.add(
            b.random.choice(
                [f"F.max_pool{rank}d({{0}}, 2)", f"F.avg_pool{rank}d({{0}}, 2)", f"F.max_pool{rank}d({{0}}, 3, 2, 1)"]
            ),
            x,
        )
        return
    w = b.input((b.random.choice([1, 4, 9]), c, *[b.random.choice([1, 3])] * rank), dtype, "normal", 0.3)
    b.add(f"F.conv{rank}d({{0}}, {{1}}, padding={b.random.choice([0, 1])}, stride={b.random.choice([1, 2])})", x, w)
