# SPDX-License-Identifier: Apache-2.0
"""Statements that move values, for random graphs: views, pieces, indexing, writes in place, new tensors."""

from __future__ import annotations

import math

import torch
from graph_fuzz_build import INTS, Builder, move_rule
from graph_fuzz_program import FLOATS


@move_rule(12)
def view(b: Builder) -> None:
    x = b.pick()
    if x is None:
        return
    size = tuple(b.values[x].shape)
    text = view_text(b, size)
    if text:
        b.add("{0}" + text, x)


def view_text(b: Builder, size: tuple[int, ...]) -> str:
    rank = len(size)
    if not rank:
        return b.random.choice([".unsqueeze(0)", ".expand(5)", ".reshape(1, 1)", ".expand(3, 65)"])
    d = b.random.randrange(rank)
    n, lead = size[d], ":, " * d
    kinds = [
        "permute",
        "transpose",
        "slice",
        "slice",
        "select",
        "flat",
        "flatten",
        "split",
        "unsqueeze",
        "squeeze",
        "narrow",
        "expand",
        "reshape",
        "diagonal",
        "unfold",
        "movedim",
        "contiguous",
        "last",
    ]
    kind = b.random.choice(kinds)
    if kind == "permute":
        return f".permute({b.random.sample(range(rank), rank)})"
    if kind == "transpose":
        return f".transpose({d}, {b.random.randrange(rank)})"
    if kind == "slice" and n > 1:
        start = b.random.randrange(n)
        return f"[{lead}{start}:{b.random.randint(start + 1, n)}:{b.random.choice([1, 1, 1, 2, 3])}]"
    if kind == "select" and n:
        return b.random.choice([f".select({d}, {b.random.randrange(n)})", f"[{lead}-1]"])
    if kind == "flat":
        return b.random.choice([".reshape(-1)", ".flatten()"])
    if kind == "flatten" and d + 1 < rank:
        return f".flatten({d}, {d + 1})"
    if kind == "split" and n > 1:
        inner = b.random.choice([i for i in range(2, n + 1) if n % i == 0])
        return b.random.choice(
            [f".unflatten({d}, ({n // inner}, {inner}))", f".reshape({[*size[:d], inner, n // inner, *size[d + 1 :]]})"]
        )
    if kind == "unsqueeze":
        return f".unsqueeze({b.random.randint(-1, rank)})"
    if kind == "squeeze":
        return b.random.choice([".squeeze()", f".squeeze({d})"])
    if kind == "narrow" and n:
        length = b.random.randint(1, n)
        return f".narrow({d}, {b.random.randint(0, n - length)}, {length})"
    if kind == "expand":
        return (
            f".expand({[m if m != 1 else b.random.choice([1, 3, 64]) for m in size]})"
            if 1 in size
            else f".expand(2, {', '.join(map(str, size))})"
        )
    if kind == "reshape" and math.prod(size):
        parts = b.random.choice([i for i in range(1, min(math.prod(size), 600) + 1) if math.prod(size) % i == 0])
        return b.random.choice([f".reshape({parts}, -1)", f".reshape(-1, {parts})"])
    if kind == "diagonal" and rank > 1:
        return f".diagonal({b.random.choice([0, 1, -1])}, {d - 1}, {d})" if d else ""
    if kind == "unfold" and n > 2:
        window = b.random.randint(2, min(n, 8))
        return f".unfold({d}, {window}, {b.random.randint(1, 3)})"
    if kind == "movedim":
        return f".movedim({d}, {b.random.randrange(rank)})"
    return b.random.choice([".contiguous()", ".clone()", ".mT" if rank > 1 else "", "[..., :1]"])


@move_rule(5)
def rearrange(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    if x is None:
        return
    d, rank = b.dim(x), b.values[x].ndim
    text = b.random.choice(
        [
            f"{{0}}.flip({d})",
            f"torch.roll({{0}}, {b.random.randint(-70, 70)}, {d})",
            f"{{0}}.repeat_interleave(2, {d})",
            f"{{0}}.repeat({[b.random.choice([1, 1, 2, 3]) for _ in range(rank)]})",
            f"{{0}}.tile({b.random.choice([2, 3])},)",
            f"F.pad({{0}}, ({b.random.randint(-1, 3)}, {b.random.randint(0, 65)}))",
            "torch.tril({0})",
            "torch.triu({0}, 1)",
            f"F.pad({{0}}, (1, 2), mode='{b.random.choice(['reflect', 'replicate', 'circular'])}')",
            "F.pad({0}, (0, 1, 2, 0), value=1.5)",
            "torch.rot90({0})",
            "torch.diag_embed({0})",
            "torch.roll({0}, 3)",
            "torch.flip({0}, [0, -1])",
            "F.interpolate({0}, scale_factor=2)",
        ]
    )
    b.add(text, x)


@move_rule(5)
def join(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    if x is None:
        return
    t, d = b.values[x], b.dim(x)
    same = b.pick(
        lambda y: (
            y.ndim == t.ndim
            and y.dtype == t.dtype
            and all(m == n or i == d % t.ndim for i, (m, n) in enumerate(zip(t.shape, y.shape, strict=True)))
        )
    )
    other = (
        same
        if (same and same != x) or b.chance(0.3)
        else b.input(
            tuple(n if i != d % t.ndim else b.random.choice([1, 3, 64, 65]) for i, n in enumerate(t.shape)), t.dtype
        )
    )
    kind = b.random.choice(["cat", "cat", "stack", "cat of pieces", "three"])
    if kind == "stack":
        b.add(f"torch.stack([{{0}}, {{1}}], {d})", x, b.partner(x, lambda y: y.shape == t.shape))
    elif kind == "cat of pieces" and t.shape[d] > 2:
        at = b.random.randint(1, t.shape[d] - 1)
        lead = ":, " * (d % t.ndim)
        b.add(f"torch.cat([{{0}}[{lead}{at}:], {{1}}, {{0}}[{lead}:{at}]], {d})", x, other or x)
    elif kind == "three":
        b.add(f"torch.cat([{{1}}, {{0}}, {{1}}], {d})", x, other or x)
    else:
        b.add(f"torch.cat([{{0}}, {{1}}], {d})", x, other or x)


@move_rule(3)
def part(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    if x is None:
        return
    d = b.dim(x)
    n = b.values[x].shape[d]
    if n < 2:
        return
    at = b.random.randint(1, n - 1)
    few = [
        f"torch.chunk({{0}}, 2, {d})",
        f"torch.split({{0}}, [{at}, {n - at}], {d})",
        f"torch.tensor_split({{0}}, 3, {d})",
    ]
    b.add(b.random.choice(few if n > 6 else [*few, f"torch.unbind({{0}}, {d})"]), x)


@move_rule(6)
def indexing(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0 and 0 not in t.shape and (t.dtype in FLOATS or b.chance(0.3)))
    if x is None:
        return
    t, d = b.values[x], b.dim(x)
    n, m, lead = t.shape[d], b.random.choice([1, 3, 5, 31, 64, 70]), ":, " * (d % t.ndim)
    whole = list(t.shape)
    whole[d] = m
    flat = b.input((m,), torch.int64, f"index {n}")
    kind = b.random.choice(
        [
            "select",
            "index",
            "gather",
            "embedding",
            "scatter_add",
            "index_add",
            "put",
            "scatter",
            "index_copy",
            "pair",
            "table",
            "take_along",
        ]
    )
    if kind == "select":
        b.add(f"torch.index_select({{0}}, {d}, {{1}})", x, flat)
    elif kind == "index":
        b.add(f"{{0}}[{lead}{{1}}]", x, flat)
    elif kind in ("gather", "take_along"):
        index = b.input(tuple(whole), torch.int64, f"index {n}")
        b.add(
            f"torch.{'gather' if kind == 'gather' else 'take_along_dim'}({{0}}, {d}, {{1}})"
            if kind == "gather"
            else f"torch.take_along_dim({{0}}, {{1}}, {d})",
            x,
            index,
        )
    elif kind == "embedding" and t.ndim == 2:
        b.add(
            "F.embedding({1}, {0})",
            x,
            b.input(b.random.choice([(m,), (2, m)]), b.random.choice(INTS), f"index {t.shape[0]}"),
        )
    elif kind == "scatter_add":
        b.add(
            f"{{0}}.scatter_add({d}, {{1}}, {{2}})",
            x,
            b.input(tuple(whole), torch.int64, f"index {n}"),
            b.input(tuple(whole), t.dtype),
        )
    elif kind == "index_add":
        b.add(f"{{0}}.index_add({d}, {{1}}, {{2}})", x, flat, b.input(tuple(whole), t.dtype))
    elif kind == "put":
        index = b.input((m,), torch.int64, f"index {t.shape[0]}")
        b.add("{0}.index_put([{1}], {2}, accumulate=True)", x, index, b.input((m, *t.shape[1:]), t.dtype))
    elif kind in ("scatter", "index_copy"):
        few = b.random.randint(1, n)
        order = b.input((few,), torch.int64, f"order {n}")
        whole[d] = few
        b.add(f"{{0}}.index_copy({d}, {{1}}, {{2}})", x, order, b.input(tuple(whole), t.dtype))
    elif kind == "pair" and t.ndim >= 2:
        b.add(
            "{0}[{1}, {2}]",
            x,
            b.input((m,), torch.int64, f"index {t.shape[0]}"),
            b.input((m,), torch.int64, f"index {t.shape[1]}"),
        )
    else:
        b.add("{0}[{1}]", x, b.input((2, m), torch.int64, f"index {t.shape[0]}"))


@move_rule(6)
def write(b: Builder) -> None:
    if not b.mutable:
        return
    x = b.pick(lambda t: t.numel() > 0 and t.dtype != torch.bool and not torch._debug_has_internal_overlap(t))
    if x is None:
        return
    t = b.values[x]
    y = b.partner(x, lambda s: s.shape == torch.broadcast_shapes(s.shape, t.shape) or True)
    rank = t.ndim
    part = ""
    if rank:
        d = b.random.randrange(rank)
        n = t.shape[d]
        start = b.random.randrange(n)
        part = f"[{':, ' * d}{start}:{b.random.randint(start + 1, n)}:{b.random.choice([1, 1, 2])}]"
    texts = [
        "{0}.add_({1})",
        "{0}.mul_({1})",
        "{0}.copy_({1})",
        "{0}.sub_({1}, alpha=2)",
        "{0}.zero_()",
        "{0}.fill_(2)",
        "{0}.neg_()",
        "{0}.clamp_(-1, 1)",
        "{0}.add_(1)",
    ]
    if t.dtype in FLOATS:
        texts += [
            "{0}.relu_()",
            "{0}.sigmoid_()",
            "{0}.mul_(0.5)",
            "{0}.masked_fill_({0} > 0.5, -1.0)",
            "{0}.div_({1}.abs() + 1)",
        ]
    if part:
        texts += [
            f"{{0}}{part}.add_(1)",
            f"{{0}}{part}.copy_({{1}}{part})",
            f"{{0}}{part}.mul_(2)",
            f"{{0}}{part}.fill_(0)",
        ] * 2
    if rank == 2:
        texts += ["{0}.t().add_({1}.t())"]
    text = b.random.choice(texts)
    b.add(text, x, *([y] if "{1}" in text else []), writes=True)


@move_rule(2)
def new(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    if x is None:
        return
    n = b.values[x].shape[-1]
    text = b.random.choice(
        [
            "torch.zeros_like({0})",
            "torch.ones_like({0})",
            "torch.full_like({0}, 2)",
            f"torch.arange({n}, device={{0}}.device)",
            f"torch.arange({n}, device={{0}}.device, dtype={{0}}.dtype)",
            f"{{0}}.new_full(({n},), 3)",
            f"{{0}}.new_zeros(3, {n})",
            f"torch.arange(1, {2 * n + 1}, 2, device={{0}}.device) % 5",
            f"(torch.arange({n}, device={{0}}.device)[:, None] >= torch.arange({n}, device={{0}}.device))",
            "F.one_hot(({0} > 0).long(), 3)",
        ]
    )
    b.add(text, x)
