# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_dynamic_random.py
"""Random graphs with a size that varies, and the algebra of buckets: the same bits as for each size by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from torch_spyre._inductor.dynamic.space import NotBucketed, Shape, Space, parts, without_digits
from torch_spyre._inductor.tilegraph.tracing import symbol
from torch_spyre.buckets import KERNEL_SIZES

FP16 = torch.float16
Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
C = 40  # columns

# Each takes x of [b, n, C] and w of [C, C], and gives another x.
OPS: dict[str, Op] = {
    "relu": lambda x, w: torch.relu(x) - 0.25,
    "softmax": lambda x, w: torch.softmax(x, -1),
    "softmax of rows": lambda x, w: torch.softmax(x, 1),
    "norm": lambda x, w: F.layer_norm(x, (C,)),
    "linear": lambda x, w: x @ w * 0.2,
    "centre": lambda x, w: x - x.mean(1, keepdim=True),
    "scale": lambda x, w: x / (x.abs().amax(1, keepdim=True) + 1),
    "turn": lambda x, w: torch.cat([x[:, 2:], x[:, :2]], 1),
    "twice": lambda x, w: torch.cat([x, x * 2], 1).unflatten(1, (2, -1)).amax(1),
    "flip": lambda x, w: x.flip(1) + x,
    "attend": lambda x, w: torch.softmax(x @ x.transpose(1, 2) * 0.1, -1) @ x,
    "causal": lambda x, w: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "running": lambda x, w: x.cumsum(1) * 0.1,
    "flat": lambda x, w: F.silu(x.reshape(-1, C) @ w * 0.2).view(x.shape),
    "across": lambda x, w: torch.exp(x.transpose(1, 2).contiguous() * 0.1).transpose(1, 2),
    "places": lambda x, w: x + torch.arange(x.shape[1], device=x.device)[:, None] * 0.01,
    "last": lambda x, w: x + x[:, -1:],
    "best": lambda x, w: x + x.gather(1, x.argmax(1, keepdim=True)),
    "heads": lambda x, w: x.unflatten(-1, (4, C // 4)).transpose(1, 2).flatten(1, 2).reshape(x.shape[0], -1, C) * 0.5,
    "masked": lambda x, w: x.masked_fill(torch.arange(x.shape[1], device=x.device)[:, None] % 3 == 0, -2.0),
    "shifted": lambda x, w: x * 0.5 + torch.cat([x[:, :1] * 0, x[:, :-1]], 1),
}
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


def run(names: Sequence[str], batch: int, sizes: Sequence[int]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for name in names:
            x = OPS[name](x, w)
        return x, x[:, -1] * 2, x.sum(1)

    torch._dynamo.reset()
    compiled, w = torch.compile(fn), torch.randn(C, C).to(FP16)
    calls = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in sizes:
            x = torch.randn(batch, n, C).to(FP16)
            torch.full((1 << 16,), float("nan"), dtype=FP16).to("spyre")  # what is handed out next holds NaN
            device = x.to("spyre")
            torch._dynamo.mark_dynamic(device, 1)
            calls.append((x, [r.cpu() for r in compiled(device, w.to("spyre"))]))
    torch._dynamo.reset()
    static = torch.compile(fn, dynamic=False)
    for x, got in calls:
        for g, wanted in zip(got, static(x.to("spyre"), w.to("spyre")), strict=True):
            torch.testing.assert_close(g, wanted.cpu(), rtol=0, atol=0, equal_nan=True)


GRAPHS = (st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=5), st.sampled_from([1, 2, 3]))
SIZES = st.lists(st.integers(4, 140), min_size=2, max_size=3, unique=True)


@settings(max_examples=3, **COMMON)
@given(*GRAPHS, SIZES)
@example(["twice", "attend", "last"], 2, [20, 30])
def test_random_graphs(names: list[str], batch: int, sizes: list[int]) -> None:
    run(names, batch, sizes)


@pytest.mark.slow
@settings(max_examples=60, **{**COMMON, "derandomize": False})
@given(*GRAPHS, SIZES)
def test_more_random_graphs(names: list[str], batch: int, sizes: list[int]) -> None:
    run(names, batch, sizes)


def test_an_index_value_that_runs_backwards() -> None:
    """A gather from a reversed tensor."""
    run(["flip", "best"], 1, (20,))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPS))
def test_each(name: str) -> None:
    run([name], 2, (20, 30, 65))


@given(st.integers(1, 1 << 20))
def test_buckets(n: int) -> None:
    bucket = KERNEL_SIZES.capacity
    room = bucket(n)
    least = KERNEL_SIZES.least_size(room)
    assert n <= room <= max(2 * n, 16) and bucket(room) == room and bucket(n + 1) >= room
    assert bucket(least) == room and (least == 1 or bucket(least - 1) < room)


N = symbol("n")
D = [symbol(f"d{i}") for i in range(3)]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(17, 32), st.data())
def test_accesses_keep_their_element(heads: int, width: int, n: int, data: st.DataObject) -> None:
    """A tensor of [heads, n, width] with room for 32 rows: each access finds the coordinates it had."""
    space = Space({N: 32}, {N: 17}, {N: 32})
    shape = Shape.of([heads, N, width], [N * width, width, 1], [heads, 32, width], {N: n})
    head, row = data.draw(st.integers(0, heads - 1)), data.draw(st.integers(1, 5))
    accesses = [
        (D[0] * N * width + D[1] * width + D[2], lambda h, r, c: (h, r, c)),
        (head * N * width + D[1] * width + D[2], lambda h, r, c: (head, r, c)),
        (D[0] * N * width + (N - 1 - D[1]) * width + D[2], lambda h, r, c: (h, n - 1 - r, c)),
        (D[0] * N * width + (N - row) * width + D[2], lambda h, r, c: (h, n - row, c)),
    ]
    exact = {D[0]: sympy.Integer(heads), D[1]: N, D[2]: sympy.Integer(width)}
    for index, element in accesses:
        found = parts(shape, index, space, exact)
        h, r, c = (data.draw(st.integers(0, m - 1)) for m in (heads, n, width))
        values = {D[0]: h, D[1]: r, D[2]: c, N: n}
        offset = 0
        for level, part in zip(shape.levels, found, strict=True):
            terms = sum(q * a for a, q in part.terms.items()) + part.const
            offset += level.room_base * int(sympy.sympify(terms).xreplace(values))
        h, r, c = element(h, r, c)
        assert offset == (h * 32 + r) * width + c


def test_accesses_that_carry_are_refused() -> None:
    space = Space({N: 32}, {N: 17}, {N: 32})
    shape = Shape.of([4, N, 8], [N * 8, 8, 1], [4, 32, 8], {N: 20})
    with pytest.raises(NotBucketed, match="may carry"):
        parts(shape, D[0] * 8 + D[1], space, {D[0]: 4 * N, D[1]: sympy.Integer(8)})
    with pytest.raises(NotBucketed, match="no multiple of a stride"):
        parts(shape, D[0] * N + D[1], space, {D[0]: sympy.Integer(4), D[1]: N})
    with pytest.raises(NotBucketed, match="not that of a dense tensor"):
        Shape.of([4, N, 8], [N * 16, 8, 1], [4, 32, 8], {N: 20})


def test_digits_by_a_size() -> None:
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    space = Space({N: 32}, {N: 17}, {N: 32})
    extents = {D[0]: sympy.Integer(3), D[1]: N}
    whole = D[0] * N + D[1]
    assert without_digits(FloorDiv(whole, N) * 5 + ModularIndexing(whole, 1, N), space, extents) == 5 * D[0] + D[1]
    assert without_digits(ModularIndexing(whole, N, 3), space, extents) == D[0]
    unknown = FloorDiv(D[0] + D[1], N)  # may be 0 or 1
    assert without_digits(unknown, space, extents) == unknown


def test_strides_of_a_storage_as_numbers_and_as_functions_of_the_sizes() -> None:
    """[3, n, 70] with room for 32 rows: rows of two sticks, and a plane begins after 32 rows instead of n."""
    n = symbol("n")
    shape = Shape.of([3, n, 70], [70 * n, 70, 1], [3, 32, 70], {n: 20})
    extents, room, exact = [32, 2, 3, 64], [70, 64, 32 * 70, 1], [70, 64, 20 * 70, 1]
    assert shape.translated(room, extents, {n: 20}, back=True) == exact
    assert shape.translated(exact, extents, {n: 20}, back=False) == room
    for strides, back in ((room, True), (exact, False)):
        assert shape.stride_exprs(strides, extents, {n: 20}, back) == [70, 64, 70 * n, 1]
    assert shape.stride_exprs(exact, [32, 1, 3, 64], {n: 20}, back=False) == [70, -1, 70 * n, 1]
    with pytest.raises(NotBucketed, match="stride 1401"):
        shape.translated([70, 64, 1401, 1], extents, {n: 20}, back=False)
