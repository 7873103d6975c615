# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_any_size.py
"""Any operation that fits in card memory runs: trips, copies that lie together and parts keep each core in its span.

Values are checked with a span of a few KiB, so that small tensors need all of it; true sizes are in
test_large_ops.py. Compiled ones run with `-m slow`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_spyre import constants
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.passes import compaction, parts, span_loops

_SPAN = 32 << 10
_CORES = 3  # many cores would each stay within the span by themselves


def half(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float16)


def single(*size: int) -> Tensor:
    return torch.randn(size)


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
    "cummax": (lambda x: x.cummax(0).values, lambda: (half(40003),)),
    "integer cumsum": (lambda x: x.cumsum(0), lambda: (places(9, 40003).to(torch.int32),)),
    "sort rows": (lambda x: x.sort(1), lambda: (half(70, 900),)),
    "topk": (lambda x: x.topk(5, 1), lambda: (half(5, 700, 70),)),
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
ROUNDED: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]], float]] = {
    "sum over rows": (lambda x: x.sum(1), lambda: (half(7, 310, 130),), 1.0),
    "sum over all": (lambda x: x.sum(), lambda: (single(3, 7001, 4),), 1.0),
    "mean over all": (lambda x: x.mean(), lambda: (half(91, 1001),), 1.0),
    "mean of groups": (lambda x: x.view(3, 4, -1).mean(-1), lambda: (single(3, 8, 60, 70),), 1.0),
    "prod": (lambda x: (1 + x / 1e4).prod(), lambda: (single(40001),), 1.0),
    "cumsum over rows": (lambda x: x.cumsum(1), lambda: (half(7, 310, 130),), 1.0),
    "cumsum over all": (lambda x: x.cumsum(0), lambda: (half(40003),), 1.0),
    "softmax over rows": (lambda x: x.softmax(1), lambda: (half(7, 310, 130),), 1.0),
    "softmax over sticks": (lambda x: x.softmax(-1), lambda: (half(7, 131, 300),), 1.0),
    "layer_norm": (lambda x: F.layer_norm(x, (300,)), lambda: (half(7, 131, 300),), 1.0),
    "group_norm": (lambda x: F.group_norm(x, 4), lambda: (single(3, 8, 60, 70),), 1.0),
    "linear": (F.linear, lambda: (half(7, 150, 260), half(300, 260), half(300)), 1.0),
    "linear with a large weight": (F.linear, lambda: (half(3, 390), half(517, 390)), 1.0),
    "bmm": (torch.bmm, lambda: (half(9, 1, 190), half(9, 190, 140)), 1.0),
    "matmul": (torch.matmul, lambda: (half(300, 290), half(290, 280)), 1.0),
    "attention": (F.scaled_dot_product_attention, lambda: tuple(half(2, 3, 190, 64) for _ in range(3)), 1.0),
}  # fmt: skip


def run(f: Callable[..., object], inputs: tuple[Tensor, ...], compiled: bool) -> list[Tensor]:
    torch._dynamo.reset()
    got = (torch.compile(f, dynamic=False) if compiled else f)(*(x.to("spyre") for x in inputs))
    return [t.cpu() for t in (got if isinstance(got, tuple) else (got,))]


def changed_plans(before: int) -> bool:
    """Did the span change a plan?"""
    graphs = [r.plan.graph for r in inspect.records()[before:] if r.plan is not None]
    return any(stage.explain(g) for g in graphs for stage in (span_loops, compaction, parts))


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, id="eager"), pytest.param(True, id="compiled", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_values_within_a_short_span(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit as with the whole span, except where sums are made in parts; those are right to one rounding."""
    f, make = EXACT[name] if name in EXACT else ROUNDED[name][:2]
    inputs = make()
    with config.patch(sencores=_CORES - 1):  # another number, so that neither run finds the other's programs
        want = run(f, inputs, compiled)
    monkeypatch.setattr(constants, "MAX_SPAN_BYTES", _SPAN)
    inspect.start()
    before = len(inspect.records())
    try:
        with config.patch(sencores=_CORES):
            got = run(f, inputs, compiled)
    finally:
        inspect.stop()
    assert changed_plans(before), "the span did not matter; take larger tensors"
    for g, w in zip(got, want, strict=True):
        if name in EXACT:
            assert torch.equal(g, w)
        else:
            # Sums of the same values in another order, rounded once each.
            scale = w.double().abs().amax().item()
            unit = 2.0**-9 if g.dtype == torch.float16 else 2.0**-18
            assert (g.double() - w.double()).abs().amax().item() <= unit * scale
