# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_any_size.py
"""Any operation that fits in card memory runs: trips, copies that lie together and parts keep each core in its span.

Values are checked with a span of a few KiB, so that small tensors need all of it; true sizes are in
test_large_ops.py. Compiled ones run with `-m slow`.
"""

from __future__ import annotations

from collections.abc import Callable

import oracle
import pytest
import torch
import torch.nn.functional as F
from oracle import Bounded
from torch import Tensor

from torch_spyre import constants
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.passes import compaction, parts, span_loops
from torch_spyre.decompositions import order
from torch_spyre.ops import fallbacks

_SPAN = 32 << 10
_CORES = 3  # many cores would each stay within the span by themselves


def half(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float16)


def single(*size: int) -> Tensor:
    return torch.randn(size)


def whole(*size: int) -> Tensor:
    """Whole numbers, whose sums are exact in any order; their mean is not zero, so that none can be left out."""
    return torch.randint(-5, 9, size).float()


def powers_of_two(count: int) -> Tensor:
    """Most are 1, so that no product of some of them leaves the range of fp32."""
    return torch.randint(-1, 2, (count,)).float().exp2().where(torch.rand(count) < 0.01, torch.ones(()))


def distinct(dim: int, *size: int) -> Tensor:
    """Whole numbers that differ along a dim, and that 16 bits hold: order has one answer."""
    return (torch.rand(size).argsort(dim) - size[dim] // 2).half()


def places(limit: int, *size: int) -> Tensor:
    return torch.randint(0, limit, size)


EXACT: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]]]] = {
    "add": (lambda x, y: x + y, lambda: (half(7, 150, 260), half(7, 150, 260))),
    "broadcast": (lambda x, y: x * y, lambda: (single(9, 130, 140), single(130, 1))),
    "transpose": (lambda x: x.transpose(0, 1).contiguous(), lambda: (half(7, 150, 260),)),
    "transpose the sticks": (lambda x: x.t().contiguous(), lambda: (half(517, 390),)),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), lambda: (single(6, 150, 130),)),
    "amax over rows": (lambda x: x.amax(1), lambda: (half(7, 310, 130),)),
    "amax over two dims": (lambda x: x.amax((1, 2)), lambda: (half(5, 90, 260),)),
    "amin over all": (lambda x: x.amin(), lambda: (half(61, 1300),)),
    "argmax over rows": (lambda x: x.argmax(1), lambda: (half(7, 310, 130),)),
    "argmax over all": (lambda x: x.argmax(), lambda: (single(70000),)),
    "argmin over all": (lambda x: x.argmin(), lambda: (half(90007),)),
    "any": (lambda x: x.any(), lambda: (torch.zeros(90001, dtype=torch.bool),)),
    "integer sum": (lambda x: x.sum(), lambda: (places(100, 70001).to(torch.int32),)),
    "sum over rows": (lambda x: x.sum(1), lambda: (whole(7, 310, 130).half(),)),
    "sum over all": (lambda x: x.sum(), lambda: (whole(3, 7001, 4),)),
    "prod": (lambda x: x.prod(), lambda: (powers_of_two(40001),)),
    "cumsum over rows": (lambda x: x.cumsum(1), lambda: (whole(7, 310, 130).half(),)),
    "cumsum over all": (lambda x: x.cumsum(0), lambda: (whole(40003).half(),)),
    "cummax": (lambda x: x.cummax(0).values, lambda: (half(40003),)),
    "integer cumsum": (lambda x: x.cumsum(0), lambda: (places(9, 40003).to(torch.int32),)),
    "sort rows": (lambda x: x.sort(1), lambda: (distinct(1, 70, 900),)),
    "topk": (lambda x: x.topk(5, 1), lambda: (distinct(1, 5, 700, 70),)),
    "gather": (lambda x, i: x.gather(1, i), lambda: (half(300, 260), places(260, 300, 200))),
    "index_select": (lambda x, i: x.index_select(0, i), lambda: (half(700, 140), places(700, 600))),
    "embedding": (lambda i, x: F.embedding(i, x), lambda: (places(700, 12, 70), half(700, 140))),
    "scatter": (lambda x, i, y: x.scatter(0, i, y), lambda: (half(400, 130), places(400, 300, 130), half(300, 130))),
    "index_add": (
        lambda x, i, y: x.index_add(0, i, y),
        lambda: (single(400, 130), torch.randperm(400)[:300], single(300, 130)),
    ),
    "masked_scatter": (
        lambda x, m, y: x.masked_scatter(m, y),
        lambda: (half(1, 85, 512), half(1, 85, 512) > 0, half(1, 85, 512)),
    ),
    "flip": (lambda x: x.flip(0, 1), lambda: (half(310, 260),)),
    "roll": (lambda x: x.roll((5, 3), (0, 1)), lambda: (half(310, 260),)),
    "repeat and slice": (lambda x: x.repeat(2, 1)[7:] + 1, lambda: (single(300, 131),)),
    "slice inside a stick": (lambda x: x[:, 3:].contiguous(), lambda: (half(410, 330),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), lambda: (half(310, 70), half(310, 101))),
    "reshape across sticks": (lambda x: x.t().reshape(-1, 70), lambda: (half(140, 262),)),
    "pad": (lambda x: F.pad(x, (3, 5, 2, 0)), lambda: (half(300, 190),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), lambda: (half(7, 150, 260), half(260))),
    "narrow then widen": (lambda x: x.float().transpose(1, 2).contiguous().half(), lambda: (half(7, 150, 131),)),
}  # fmt: skip

# What is not one correctly rounded operation: the call, its inputs, and how far from float64 it may be.
Check = Callable[..., None]
ROUNDED: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]], Check]] = {
    "mean over all": (lambda x: x.mean(), lambda: (whole(91, 1001).half(),), lambda got, x: check_mean(got, x, (0, 1))),
    "mean of groups": (
        lambda x: x.view(3, 4, -1).mean(-1),
        lambda: (whole(3, 8, 60, 70),),
        lambda got, x: check_mean(got, x.view(3, 4, -1), 2),
    ),
    "softmax over rows": (
        lambda x: x.softmax(1),
        lambda: (half(7, 310, 130),),
        lambda got, x: Bounded.of(x).softmax(1).check(got),
    ),
    "softmax over sticks": (
        lambda x: x.softmax(-1),
        lambda: (half(7, 131, 300),),
        lambda got, x: Bounded.of(x).softmax(-1).check(got),
    ),
    "layer_norm": (
        lambda x: F.layer_norm(x, (300,)),
        lambda: (half(7, 131, 300),),
        lambda got, x: check_norm(got, F.layer_norm(exact(x), (300,))),
    ),
    "group_norm": (
        lambda x: F.group_norm(x, 4),
        lambda: (single(3, 8, 60, 70),),
        lambda got, x: check_norm(got, F.group_norm(exact(x), 4)),
    ),
    "linear": (
        F.linear,
        lambda: (half(7, 150, 260), half(300, 260), half(300)),
        lambda got, x, w, b: ((Bounded.of(x) @ Bounded.of(w.t())).store() + Bounded.of(b)).store().check(got),
    ),
    "linear with a large weight": (
        F.linear,
        lambda: (half(3, 390), half(517, 390)),
        lambda got, x, w: (Bounded.of(x) @ Bounded.of(w.t())).store().check(got),
    ),
    "bmm": (
        torch.bmm,
        lambda: (half(9, 1, 190), half(9, 190, 140)),
        lambda got, x, y: (Bounded.of(x) @ Bounded.of(y)).store().check(got),
    ),
    "matmul": (
        torch.matmul,
        lambda: (half(300, 290), half(290, 280)),
        lambda got, x, y: (Bounded.of(x) @ Bounded.of(y)).store().check(got),
    ),
    "attention": (
        F.scaled_dot_product_attention,
        lambda: tuple(half(2, 3, 190, 64) for _ in range(3)),
        lambda got, q, k, v: check_attention(got, q, k, v),
    ),
}  # fmt: skip


def exact(x: Tensor) -> Tensor:
    """What the card has after the copy, in float64 (integers as they are)."""
    return torch.from_numpy(oracle.dl16(x)) if x.is_floating_point() else x


def within(got: Tensor, want: object, error: object) -> None:
    (oracle.assert_close_fp32 if got.dtype == torch.float32 else oracle.assert_close_dl16)(got, want, error)


def check_exact(got: Tensor, want: Tensor) -> None:
    """Equal to the float64 result, rounded once to what the card stores."""
    if not got.is_floating_point():
        assert torch.equal(got, want)
    elif got.dtype == torch.float32:
        assert torch.equal(got, want.float())
    else:
        oracle.assert_same(got, oracle.round_dl16(want))


def check_mean(got: Tensor, x: Tensor, dims: int | tuple[int, ...]) -> None:
    """Of whole numbers, whose sum is exact: one product with the reciprocal of the count."""
    want = exact(x).mean(dims)
    within(got, want, oracle.elementwise_error(want, 1.5))


def check_norm(got: Tensor, want: Tensor) -> None:
    """Standardised values: mean and variance are sums in trees, so that no term passes through many additions."""
    within(got, want, 4 * oracle.gamma(64) * (1 + want.abs()))


def check_attention(got: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """The scale is applied to the queries, and each step is stored."""
    queries = (Bounded.of(q) * q.shape[-1] ** -0.5).store()
    ((queries @ Bounded.of(k.transpose(-1, -2))).store().softmax(-1) @ Bounded.of(v)).store().check(got)


def run(f: Callable[..., object], inputs: tuple[Tensor, ...], compiled: bool) -> list[Tensor]:
    torch._dynamo.reset()
    got = (torch.compile(f, dynamic=False) if compiled else f)(*(x.to("spyre") for x in inputs))
    return [t.cpu() for t in leaves(got)]


def leaves(got: object) -> list[Tensor]:
    return list(got) if isinstance(got, tuple) else [got]  # type: ignore[list-item]


def changed_plans(before: int) -> bool:
    """Did the span change a plan?"""
    graphs = [r.plan.graph for r in inspect.records()[before:] if r.plan is not None]
    return any(stage.explain(g) for g in graphs for stage in (span_loops, compaction, parts))


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, id="eager"), pytest.param(True, id="compiled", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_values_within_a_short_span(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the CPU in float64: rounded once, or within what the steps of the card allow."""
    f, make = EXACT[name] if name in EXACT else ROUNDED[name][:2]
    inputs = make()
    monkeypatch.setattr(constants, "MAX_SPAN_BYTES", _SPAN)
    inspect.start()
    before = len(inspect.records())
    try:
        with config.patch(sencores=_CORES):
            got = run(f, inputs, compiled)
    finally:
        inspect.stop()
    assert changed_plans(before), "the span did not matter; take larger tensors"
    if name in EXACT:
        for result, want in zip(got, leaves(f(*map(exact, inputs))), strict=True):
            check_exact(result, want)
    else:
        (result,) = got
        ROUNDED[name][2](result, *inputs)


LONG: dict[str, tuple[Callable[[Tensor], object], Callable[[], Tensor]]] = {
    "sort": (lambda x: x.sort(stable=True), lambda: places(40, 500).half()),
    "sort, largest first": (lambda x: x.sort(stable=True, descending=True), lambda: places(40, 300).half()),
    "sort along another dim": (lambda x: x.sort(dim=1, stable=True), lambda: places(40, 3, 130, 5)),
    "argsort": (lambda x: x.argsort(), lambda: distinct(0, 300)),
    "topk": (lambda x: x.topk(7), lambda: distinct(0, 300)),
    "topk, smallest": (lambda x: x.topk(20, 0, largest=False), lambda: distinct(0, 200, 3)),
    "topk of most": (lambda x: x.topk(70), lambda: distinct(0, 300)),
    "median": (lambda x: x.median(0), lambda: distinct(0, 301)),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_order_of_more_elements_than_one_instruction_sorts(
    name: str, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "MOST", 128)
    f, make = LONG[name]
    x = make()
    with fallbacks.disabled():
        got = run(f, (x,), compiled=False)
    for result, want in zip(got, leaves(f(x)), strict=True):
        check_exact(result, want)


def test_nan_is_the_largest_of_a_long_dim(planned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST", 128)
    x = distinct(0, 300)
    x[[7, 150]] = torch.nan
    values, at = (t.cpu() for t in x.to("spyre").sort(stable=True))
    assert torch.equal(at, x.argsort(stable=True)) and values[-2:].isnan().all()
