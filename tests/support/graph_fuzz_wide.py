# SPDX-License-Identifier: Apache-2.0
"""More statements, for the seeds from `graph_fuzz_build.WIDE` on: the programs of smaller seeds stay what they are."""

from __future__ import annotations

import torch
from graph_fuzz_build import INTS, Builder, wide_rule
from graph_fuzz_program import FLOATS

PLAIN = """
torch.var({0}, -1, correction=1)
torch.diff({0}, dim=-1)
torch.outer({0}.flatten()[:9], {0}.flatten()[:70])
torch.clamp({0}, min={0}.mean(), max={0}.abs() + 1)
torch.round({0}, decimals=1)
torch.floor_divide({0}, 0.75)
F.glu(torch.cat([{0}, {0}], -1))
torch.logcumsumexp({0}.clamp(-3, 3), -1)
torch.aminmax({0}, dim=-1)
torch.bucketize({0}, torch.arange(5, device={0}.device, dtype={0}.dtype))
F.rrelu({0}, training=False)
torch.heaviside({0}, torch.zeros_like({0}))
{0}[..., None] @ {0}[..., None, :3]
{0}.expand(2, *{0}.shape).sum(0)
torch.stack([{0}, -{0}], -1).flatten(-2)
{0}.flip(-1).cumsum(-1).flip(-1)
torch.where({0} > 0, {0}, {0}.exp().clamp(max=1) - 1)
{0}.softmax(-1).log()
torch.nn.functional.dropout({0}, 0.5, training=False) + 0
{0}.unsqueeze(0).repeat(3, *[1] * {0}.ndim).mean(0)
torch.special.xlog1py({0}, {0}.abs())
({0} > {0}.mean(-1, keepdim=True)).sum(-1)
({0} == {0}.amax(-1, keepdim=True)).any(0)
""".split("\n")[1:-1]

PAIRS = """
torch.bmm({0}, {1})
torch.baddbmm(torch.zeros_like({0} @ {1}), {0}, {1}, beta=0.5, alpha=2)
({0} @ {1}).relu() @ {1}.mT
torch.einsum('bij,bjk->bki', {0}, {1})
torch.tensordot({0}[0], {1}[0], 1)
{0}[0] @ {1}[0]
""".split("\n")[1:-1]


@wide_rule(8)
def more(b: Builder) -> None:
    b.add(b.random.choice(PLAIN), b.floating(1))


@wide_rule(3)
def batched(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim == 3 and t.numel() > 0)
    if x is not None:
        n, _, k = b.values[x].shape
        y = b.input((n, k, b.random.choice([1, 3, 64, 65])), b.values[x].dtype, "normal", k**-0.5)
        b.add(b.random.choice(PAIRS), x, y)


@wide_rule(3)
def grouped_attention(b: Builder) -> None:
    heads, shared, s, d = (*b.random.choice([(4, 2), (6, 1), (2, 2)]), b.random.choice([1, 5, 33]), 32)
    q, dtype = b.input((2, heads, s, d)), b.float
    length = b.random.choice([s, 7, 70])
    k, v = (b.input((2, shared, length, d), dtype) for _ in range(2))
    mask = b.input((2, 1, s, length), dtype)
    text = "F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3}, enable_gqa=True)"
    b.add(text, q, k, v, mask)


@wide_rule(3)
def losses(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim == 2 and t.shape[0] > 0 and t.shape[1] > 1)
    if x is not None:
        rows, classes = b.values[x].shape
        target = b.input((rows,), torch.int64, f"index {classes}")
        form = b.random.choice(["", ", reduction='none'", ", label_smoothing=0.1", ", ignore_index=0"])
        b.add(f"F.cross_entropy({{0}}, {{1}}{form})", x, target)


@wide_rule(3)
def wide_integers(b: Builder) -> None:
    x = b.input(b.size(), b.random.choice(INTS))
    y = b.partner(x, lambda t: t.dtype in INTS)
    text = b.random.choice(["{0} * {1} + {0}", "torch.floor_divide({0}, 3)", "({0} - {1}).abs().sum(0)", "{0} ** 2"])
    b.add(text, x, *([y] if "{1}" in text else []))


@wide_rule(3)
def written_rows(b: Builder) -> None:
    """A cache: rows of an input are replaced by position, then all of it is read."""
    if not b.mutable:
        return
    n, m = b.random.choice([3, 31, 64, 65]), b.random.choice([1, 2, 3])
    cache = b.input((n, b.random.choice([5, 64, 70])), b.float)
    rows = b.input((m, b.values[cache].shape[1]), b.float)
    order = b.input((m,), torch.int64, f"order {n}")
    b.add("{0}.index_copy_(0, {1}, {2})", cache, order, rows, writes=True)
    b.add("{0}.mean(0)", cache)
