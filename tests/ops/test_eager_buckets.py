# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_eager_buckets.py
"""Eager ops of sizes that vary: one program for a bucket of sizes, with the bits of the plan for each size alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_spyre
from torch_spyre import _C, knobs
from torch_spyre._inductor import planned_sizes

FP16 = torch.float16
Make = Callable[[int], list[torch.Tensor]]
Op = Callable[..., torch.Tensor]


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


# name -> inputs for a size, op
SHARED: dict[str, tuple[Make, Op]] = {
    "add": (lambda n: [half(n, 64), half(n, 64)], torch.add),
    "rows and a vector": (lambda n: [half(2, n, 40), half(40)], torch.mul),
    "number": (lambda n: [half(3, n, 70)], lambda a: a * 1.5),
    "launch number": (lambda n: [half(n, 64), half(n, 64)], lambda a, b: torch.add(a, b, alpha=0.5)),
    "silu": (lambda n: [half(1, n, 128)], F.silu),
    "compare": (lambda n: [half(n, 64), half(n, 64)], torch.gt),
    "where": (lambda n: [half(n, 33) > 0, half(n, 33), half(n, 33)], torch.where),
    "triangle": (lambda n: [half(n, n)], torch.tril),
    "cat": (lambda n: [half(1, 2, n, 16), half(1, 2, 1, 16)], lambda a, b: torch.cat([a, b], -2)),
    "scores": (lambda n: [half(2, 2, 16), half(2, n, 16)], lambda q, k: torch.bmm(q, k.transpose(1, 2))),
    "weighted": (lambda n: [half(2, 2, n), half(2, n, 16)], torch.bmm),
    "linear": (lambda n: [half(n, 64), half(128, 64)], lambda x, w: torch.mm(x, w.t())),
    "softmax": (lambda n: [half(1, 2, 2, n)], lambda a: torch.softmax(a, -1)),
    "sum": (lambda n: [half(n, 70)], lambda a: a.sum(0)),
    "mean": (lambda n: [half(3, n, 70)], lambda a: a.mean(1)),
    "most": (lambda n: [half(3, n)], lambda a: a.amax(-1)),
    "norm": (lambda n: [half(2, n, 64)], lambda a: F.layer_norm(a, (64,))),
    "rows by index": (lambda n: [half(50, 64), torch.randint(0, 50, (1, n))], lambda w, i: F.embedding(i, w)),
    "turned": (lambda n: [half(2, n, 40)], lambda a: -a.transpose(1, 2)),
    "columns": (lambda n: [half(2, n, 64)], lambda a: a[..., 32:] * 2),
    "parts": (lambda n: [half(1, n, 192)], lambda a: torch.mul(*a.split([64, 64, 64], -1)[1:])),
    "later rows": (lambda n: [half(n, 64)], lambda a: a[1:] + 1),
}
SOME = ("add", "cat", "scores", "weighted", "softmax", "mean", "rows by index", "columns")
PER_SIZE: dict[str, tuple[Make, Op]] = {
    "sort": (lambda n: [half(3, n)], lambda a: a.sort(-1)[0]),
    "pad": (lambda n: [half(3, n)], lambda a: F.pad(a, (1, 2))),
    "in place": (lambda n: [half(n, 64), half(n, 64)], lambda a, b: a.add_(b)),
    "out": (lambda n: [half(n, 64), half(n, 64)], lambda a, b: torch.mul(a, b, out=torch.empty_like(a))),
    "copy": (lambda n: [half(n, 64), half(n, 64)], lambda a, b: a.copy_(b)),
    "cast": (lambda n: [half(2, n, 40)], lambda a: a.float()),
    "square mask": (lambda n: [half(2, n, n), half(n, n) > 0], lambda a, m: a.masked_fill(m, -2.0)),
}


def on_card(op: Op, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    torch.full((1 << 14,), float("nan"), dtype=FP16).to("spyre")  # what is handed out next holds NaN
    return op(*(x.to("spyre") for x in inputs))


def check_exact(op: Op, inputs: Sequence[torch.Tensor], got: torch.Tensor) -> None:
    with knobs.patch(dynamic_buckets=False):
        wanted = op(*(x.to("spyre") for x in inputs))
    assert (got.shape, got.stride(), got.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    torch.testing.assert_close(got.cpu(), wanted.cpu(), rtol=0, atol=0, equal_nan=True)


def run(name: str, table: dict[str, tuple[Make, Op]], sizes: Sequence[int]) -> None:
    make, op = table[name]
    calls = [(inputs, on_card(op, inputs)) for inputs in map(make, sizes)]
    for inputs, got in calls:
        check_exact(op, inputs, got)


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in SHARED])
def test_a_bucket_has_one_program(name: str, planned: list[str]) -> None:
    make, op = SHARED[name]
    calls = [(inputs, on_card(op, inputs)) for inputs in map(make, range(20, 28))]
    assert max(Counter(planned).values()) == 2, "one for the first size, one for the bucket"
    for inputs, got in calls[::3]:
        check_exact(op, inputs, got)


@pytest.mark.parametrize("name", PER_SIZE)
def test_what_is_not_proved_is_planned_for_each_size(name: str, planned: list[str]) -> None:
    planned_sizes.exact_plans.clear()
    run(name, PER_SIZE, range(20, 23))
    rows = [row for row in torch_spyre.report().planned_per_size if row.kernel.startswith("eager aten::")]
    assert sum(row.count for row in rows) >= 2 and all(row.reason for row in rows)


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": True}


@settings(max_examples=4, **COMMON)
@given(st.sampled_from(sorted(SHARED)), st.integers(2, 200), st.integers(1, 3))
def test_growing(name: str, start: int, step: int) -> None:
    run(name, SHARED, [start + i * step for i in range(5)])


@pytest.mark.slow
@settings(max_examples=80, **{**COMMON, "derandomize": False})
@given(st.sampled_from(sorted(SHARED)), st.integers(2, 700), st.integers(1, 40))
def test_growing_more(name: str, start: int, step: int) -> None:
    run(name, SHARED, [start + i * step for i in range(6)])


def test_a_long_inner_dim_is_cut_as_for_the_size_alone(planned: list[str]) -> None:
    """From 512 on the inner dim of this product is shared out over cores: a program serves one number of sticks."""
    run("weighted", SHARED, (560, 561, 570, 576, 577, 600))
    with_buckets = [name for name in planned if name == "eager_bmm"]
    assert len(with_buckets) <= 4 + 6, "the exact plans of the check are six of these"


def test_knobs_that_change(planned: list[str]) -> None:
    """Plans made under other knobs are not used, neither those of one size nor those of a bucket."""
    from torch_spyre._inductor import config

    def cores(n: int) -> list[int]:
        before = len(planned)
        on_card(torch.add, [half(n, 64), half(n, 64)])
        return [len(planned) - before]

    assert cores(20) == [1] and cores(21) == [1] and cores(22) == [0]
    with knobs.patch(sencores=4):
        assert cores(20) == [1] and cores(21) == [1] and cores(23) == [0]
    with config.patch(dxp_lx_frac_avail=0.5):
        assert cores(20) == [1]
    assert cores(20) == [0] and cores(23) == [0]
    with knobs.patch(sencores=4):
        assert cores(20) == [0] and cores(24) == [0]
    with knobs.patch(dynamic_buckets=False):
        assert cores(22) == [1] and cores(23) == [1]


def test_another_cache_directory_knows_nothing(planned: list[str], tmp_path: Any) -> None:
    """What sizes vary is known from the cache: with another directory it is found out again."""
    counts = []
    for first in (28, 20):
        _C.clear_eager_cache()
        with knobs.patch(cache_dir=str(tmp_path / str(first))):
            for n in range(first, first + 3):
                before = len(planned)
                on_card(torch.mul, [half(n, 66), half(n, 66)])
                counts.append(len(planned) - before)
    assert counts == [1, 1, 0] * 2


def test_the_cache_is_bounded(planned: list[str]) -> None:
    """More sizes than are kept: what was not used for long is forgotten, and found again without planning."""
    most, x = 2 * 8192, torch.zeros(1 << 16, dtype=FP16).to("spyre")
    sizes = range(16400, 16400 + most + 1000)
    sizes_planned = []
    for n in sizes:
        before = len(planned)
        y = x[:n] + 1
        sizes_planned += [n] * (len(planned) - before)
        assert _C._eager_cache_state()[0] <= most or n % 1000
    programs = len(planned)
    assert programs <= 6, sizes_planned
    assert _C._eager_cache_state()[0] <= most
    assert torch.equal((x[: sizes[1]] + 1).cpu(), y.cpu()[: sizes[1]]) and len(planned) == programs


RUN = """
import sys, torch
from torch_spyre import _C
w = torch.arange(640, dtype=torch.float16).reshape(10, 64).to("spyre") * 0.01
keys = torch.ones(1, 2, 5, 64, dtype=torch.float16).to("spyre")
found = []
for step in range(20):
    keys = torch.cat([keys, (w[:2] + step)[None, :, None]], 2)
    weights = torch.softmax(torch.bmm(w[None, :2], keys[:, 0].transpose(1, 2)), -1)
    found.append(weights.cpu().float().sum(-1).tolist() + [keys.cpu().float().sum().item()])
print(found)
print("torch_spyre._inductor.planning.planner" in sys.modules, "torch._inductor.graph" in sys.modules, file=sys.stderr)
"""


def test_a_second_process_plans_nothing(fresh_caches: Any) -> None:
    def process() -> tuple[str, str]:
        made = subprocess.run([sys.executable, "-W", "ignore", "-c", RUN], capture_output=True, text=True, timeout=1500)
        assert made.returncode == 0, made.stderr
        return made.stdout, made.stderr

    first, second = process(), process()
    assert first[0] == second[0]
    assert second[1].split()[-2:] == ["False", "False"], "neither the planner nor Inductor's lowering"


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval().half().to("spyre")


def test_greedy_decoding_plans_a_handful_of_programs(planned: list[str]) -> None:
    """64 tokens with the cache that grows: nothing is planned but when it leaves a bucket (16, 32, 64 tokens)."""
    model, ids = llama(), torch.randint(0, 128, (1, 7)).to("spyre")
    model.generate(ids, max_new_tokens=4, do_sample=False)
    first = len(planned)
    tokens = model.generate(ids, max_new_tokens=64, do_sample=False)
    assert tokens.shape == (1, 71)
    assert len(planned) - first <= 24


@pytest.mark.slow
def test_decoding_has_the_bits_of_plans_for_each_size() -> None:
    model, prompts = llama(), [torch.randint(0, 128, (2, n)).to("spyre") for n in (7, 8, 9, 12)]
    options = {"max_new_tokens": 14, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    _C.clear_eager_cache()
    found = [model.generate(ids, **options).logits for ids in prompts]
    assert _C._eager_cache_state()[1] > 20, "programs of buckets"
    with knobs.patch(dynamic_buckets=False):
        wanted = [model.generate(ids, **options).logits for ids in prompts]
    for got, exact in zip(found, wanted, strict=True):
        assert all(torch.equal(g.cpu(), w.cpu()) for g, w in zip(got, exact, strict=True))
