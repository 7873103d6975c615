# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_experts.py

Routed experts: products with stacked weights re-lay none of them, read each weight once, and are right wherever the
groups begin; programs do not depend on that.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import GptOssConfig, MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from torch_spyre import _C
from torch_spyre._inductor import compile as stages
from torch_spyre._inductor.debug import inspect
from torch_spyre.backend.program.decoder import decode
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.numerics.priority import PRIORITY, build
from torch_spyre.ops.kernels.grouped import grouped_mm
from torch_spyre.perf.survey import survey

FP16 = torch.float16
EXPERTS, HIDDEN, INNER = 8, 256, 384


def mixtral() -> nn.Module:
    config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    config._experts_implementation = "grouped_mm"
    return _with_weights(MixtralExperts(config))


def gpt_oss() -> nn.Module:
    """Keeps its weights transposed, and has biases."""
    config = GptOssConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    config._experts_implementation = "grouped_mm"
    return _with_weights(GptOssExperts(config))


def _with_weights(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(
                torch.from_numpy(oracle.round_dl16(torch.randn(p.shape) * (HIDDEN if p.dim() > 2 else 100) ** -0.5))
            )
    return module.half().eval()


def routed(rows: int, used: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, two experts for each (the first `used` in turn), and their weights."""
    chosen = torch.stack([torch.arange(rows) % used, (torch.arange(rows) + 1) % used], 1)
    return torch.randn(rows, HIDDEN).half(), chosen, torch.softmax(torch.randn(rows, 2), -1).half()


def on_card(args: Sequence[Tensor]) -> list[Tensor]:
    return [x.to("spyre") for x in args]


def _compiled_by(call: Any) -> list[Any]:
    _C.clear_eager_cache()
    torch._dynamo.reset()
    before = len(inspect.records())
    inspect.start()
    try:
        with torch.no_grad():
            call()
    finally:
        inspect.stop()
    return inspect.records()[before:]


def _ops(record: Any) -> list[str]:
    return [op.op for op in record.plan.kernel.ops]


def bytes_moved(record: Any) -> int:
    """Between memory and cores, with a slice that several cores read together counted once."""
    works = [work for works in survey(decode(record.program.binary)).phases for work in works]
    return sum(s.total for work in works for s in (*work.inputs, work.output) if s.in_memory)


@pytest.mark.parametrize(
    "make, mode, rows, used",
    [(mixtral, "compiled", 40, 8), (mixtral, "eager", 2, 3), (gpt_oss, "eager", 40, 8), (gpt_oss, "compiled", 2, 3)],
)
def test_weights_are_read_once_and_never_re_laid(make: Any, mode: str, rows: int, used: int) -> None:
    module = make().to("spyre")
    run = torch.compile(module, dynamic=False) if mode == "compiled" else module
    args = on_card(routed(rows, used))
    products = [r for r in _compiled_by(lambda: run(*args)) if "batchmatmul" in _ops(r)]
    assert len(products) == 2, "all experts in one product, or one program that serves each of them"
    for record in products:
        assert "ReStickifyOpHBM" not in _ops(record)
    weights = (used if used == EXPERTS else 1) * 3 * HIDDEN * INNER * 2
    assert weights < sum(map(bytes_moved, products)) <= 1.15 * weights, "the rest are rows"


@pytest.mark.parametrize("make", [mixtral, gpt_oss])
@pytest.mark.parametrize("rows, used", [(40, 8), (2, 3)])
def test_results_are_those_of_the_cpu(make: Any, rows: int, used: int) -> None:
    module, args = make(), routed(rows, used)
    x, chosen, weights = args
    with torch.no_grad():
        module.config._experts_implementation = "eager"  # the others have no float64
        expected = module.double()(x.double(), chosen, weights.double())
        module.config._experts_implementation = "grouped_mm"
        got = module.half().to("spyre")(*on_card(args)).cpu().double()
    # Four stores lie between: two products, the gate, and the weighted sum.
    scale = expected.abs().max()
    assert (got - expected).abs().max() <= 4 * 2.0**-9 * scale
    assert F.cosine_similarity(got, expected, dim=-1).min() > 0.99999


def check_grouped(counts: Sequence[int], behind: int = 0, dtype: torch.dtype = FP16) -> None:
    groups, k, n = len(counts), 96, 160
    x, matrices = torch.randn(sum(counts) + behind, k).to(dtype), torch.randn(groups, k, n).to(dtype)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    got = grouped_mm(x.to("spyre"), matrices.to("spyre"), ends.to("spyre"))
    assert got.shape == (len(x), n) and got.dtype == dtype
    start = 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        a, b = oracle.dl16(x[start:end]), oracle.dl16(matrix)
        oracle.assert_close_dl16(got[start:end], a @ b, extra=oracle.matmul_error(a, b))
        start = end
    assert not np.any(oracle.to64(got[start:]))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(10, 90)), min_size=1, max_size=6),
    st.sampled_from([0, 0, 5]),
)
def test_random_groups(counts: list[int], behind: int) -> None:
    if sum(counts) + behind:
        check_grouped(counts, behind)


def test_a_group_that_is_too_large_goes_in_parts() -> None:
    check_grouped([600, 1, 0, 1100], behind=3)


def test_programs_do_not_depend_on_where_groups_begin(monkeypatch: pytest.MonkeyPatch, fresh_caches: Any) -> None:
    made: list[str] = []
    original = stages.compile_graph
    monkeypatch.setattr(stages, "compile_graph", lambda *a, **k: made.append(a[0]) or original(*a, **k))
    _C.clear_eager_cache()
    check_grouped([30, 25, 20, 15])
    check_grouped([1, 0, 2, 0])
    check_grouped([0, 3, 0, 1])  # every matrix has met few rows now, and many
    known = len(made)
    check_grouped([25, 32, 17, 16])
    check_grouped([2, 0, 1, 0])
    check_grouped([0, 1, 0, 2])
    assert len(made) <= known + 1, "rows of a place in the table are picked by one program more at most"


def test_gradients() -> None:
    x, matrices, grad = torch.randn(40, 64).half(), torch.randn(3, 64, 96).half(), torch.randn(40, 96).half()
    ends = torch.tensor([10, 25, 40], dtype=torch.int32)
    leaves = [t.to("spyre").requires_grad_() for t in (x, matrices)]
    F.grouped_mm(*leaves, offs=ends.to("spyre")).backward(grad.to("spyre"))
    for (a, b), matrix, found in zip([(0, 10), (10, 25), (25, 40)], matrices, leaves[1].grad, strict=True):
        parts = [oracle.dl16(t) for t in (grad[a:b], matrix, x[a:b])]
        got = leaves[0].grad[a:b]
        oracle.assert_close_dl16(got, parts[0] @ parts[1].T, extra=oracle.matmul_error(parts[0], parts[1].T))
        oracle.assert_close_dl16(found, parts[2].T @ parts[0], extra=oracle.matmul_error(parts[2].T, parts[0]))


@pytest.mark.slow
def test_another_prompt_compiles_nothing(monkeypatch: pytest.MonkeyPatch, fresh_caches: Any) -> None:
    host = build(PRIORITY["mixtral-8x7b"], layers=2)
    card = compile_blocks(copy.deepcopy(host).half().to("spyre"))
    made: list[str] = []
    original = stages.compile_graph
    monkeypatch.setattr(stages, "compile_graph", lambda *a, **k: made.append(a[0]) or original(*a, **k))
    for rows in (7, 9):
        made.clear()
        ids = torch.randint(4, 500, (1, rows), generator=torch.Generator().manual_seed(rows))
        options = {"max_new_tokens": 6, "do_sample": False}
        assert torch.equal(card.generate(ids.to("spyre"), **options).cpu(), host.generate(ids, **options))
    assert made == []
