# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""What an operator meets: sleep and wake, metrics, memory; and greedy tokens that are chosen on the card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

PROMPT = [5, 17, 100, 3, 42, *range(60, 140)]
BAD = 7  # a token whose embedding is NaN
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
LIMITS = {
    "skip_tokenizer_init": True, "max_model_len": 128, "max_num_seqs": 2, "max_num_batched_tokens": 16, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    made = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    for p in model.parameters():
        p.data = torch.randn_like(p) * 0.08 if p.dim() > 1 else p.data
    model.model.embed_tokens.weight.data[BAD] = torch.nan
    model.half().save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def small(folder: Path) -> Iterator[Any]:
    from vllm import LLM

    yield LLM(str(folder), enable_sleep_mode=True, kv_cache_memory_bytes=1 << 20, **LIMITS)


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def made(llm: Any, prompt: list[int], **options: Any) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(**{"temperature": 0, "max_tokens": 6, "ignore_eos": True, "detokenize": False, **options})
    return llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].outputs[0]


def test_greedy_tokens_are_chosen_on_the_card(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = runner_of(small).on_card, []
    best = model.best
    monkeypatch.setattr(model, "best", lambda hidden: calls.append(len(hidden)) or best(hidden))
    chosen = made(small, PROMPT).token_ids
    assert len(calls) >= 6
    calls.clear()
    assert made(small, PROMPT, logprobs=1).token_ids == chosen and not calls
    assert chosen[0] not in made(small, PROMPT, logit_bias={chosen[0]: -100.0}, max_tokens=1).token_ids and not calls


def test_nan_stays_with_the_request_that_made_it(small: Any) -> None:
    small.reset_prefix_cache()
    before = made(small, PROMPT, logprobs=0)
    pages = runner_of(small).on_card.pages
    for start in range(10, 10 + 2 * pages):  # through all pages
        bad = [start % 200 + 20, BAD, *range(40, 60)]
        assert all(
            torch.isnan(torch.tensor(e.logprob)) for at in made(small, bad, logprobs=0).logprobs for e in at.values()
        )
    small.reset_prefix_cache()
    after = made(small, PROMPT, logprobs=0)
    assert before.token_ids == after.token_ids and before.logprobs == after.logprobs


@pytest.mark.parametrize("level", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sleep_and_wake(small: Any, level: int) -> None:
    from torch._dynamo.utils import counters

    small.reset_prefix_cache()
    before, used = made(small, PROMPT, logprobs=0), torch.spyre.memory_allocated()
    compiled = counters["stats"]["unique_graphs"]
    small.sleep(level=level)
    held = sum(
        t.nbytes for layer in runner_of(small).on_card.layers for t in (layer.keys, layer.values) if t is not None
    )
    assert held == 0 and torch.spyre.memory_allocated() < used - (1 << 20)
    small.wake_up()
    after = made(small, PROMPT, logprobs=0)
    assert before.token_ids == after.token_ids and before.logprobs == after.logprobs
    assert level == 2 or counters["stats"]["unique_graphs"] == compiled
    assert runner_of(small).compiled_in_service == 0


def test_metrics_of_the_card(small: Any) -> None:
    from prometheus_client import REGISTRY

    from torch_spyre.device import publish

    made(small, PROMPT)
    publish.publish()
    at = {"card": "0"}
    steps = REGISTRY.get_sample_value("spyre:steps_total", at)
    made(small, PROMPT)
    publish.publish()
    assert REGISTRY.get_sample_value("spyre:steps_total", at) > steps > 0
    assert REGISTRY.get_sample_value("spyre:card_busy_seconds_total", at) > 0
    assert REGISTRY.get_sample_value("spyre:lx_read_bytes_total", at) > 0
    assert 0 < REGISTRY.get_sample_value("spyre:memory_used_bytes", at) < 112 << 30
    assert REGISTRY.get_sample_value("spyre:compiles_in_service_total", at) == 0
    assert REGISTRY.get_sample_value("spyre:host_fallbacks_total", at) == 0


def test_pages_are_counted_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from spyre_inference.worker import SpyreWorker
    from torch_spyre.errors import OutOfMemory

    worker: Any = SimpleNamespace(
        cache_config=SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.5),
        parallel_config=SimpleNamespace(local_world_size=2),
    )
    monkeypatch.setenv("SPYRE_HOST_MEMORY_GB", "8")
    monkeypatch.setattr(torch.spyre, "mem_get_info", lambda: (99 << 30, 100 << 30))
    assert SpyreWorker.determine_available_memory(worker) == 1 << 30  # half of 4 GiB, without 1 GiB of weights
    worker.parallel_config.local_world_size = 8
    with pytest.raises(OutOfMemory, match="SPYRE_HOST_MEMORY_GB"):
        SpyreWorker.determine_available_memory(worker)


@pytest.mark.slow
def test_a_large_cache_is_committed_as_it_is_used(folder: Path) -> None:
    from vllm import LLM

    llm = LLM(str(folder), **LIMITS)
    model = runner_of(llm).on_card
    assert model.pages * 64 * 2 * 2 * 32 * 2 * 2 > 1 << 30
    before = resident()
    made(llm, PROMPT)
    assert resident() - before < 256 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
def test_pages_go_to_the_host_and_back(folder: Path) -> None:
    from vllm import LLM

    # 5 pages of 32 KiB on the card, one of which is not for requests: each prompt drives the others away.
    llm = LLM(str(folder), kv_cache_memory_bytes=5 * (32 << 10), kv_offloading_size=0.01, **LIMITS)
    model = runner_of(llm).on_card
    assert model.pages == 5
    prompts = [[start, *range(60, 180)] for start in range(20, 28)]
    before = [made(llm, p, logprobs=0, max_tokens=4) for p in prompts]
    calls: list[int] = []
    write, model.write_pages = model.write_pages, lambda pages, values: (calls.append(len(pages)), write(pages, values))
    after = [made(llm, p, logprobs=0, max_tokens=4) for p in prompts]
    assert sum(calls) >= len(prompts) // 2
    assert [o.logprobs for o in after] == [o.logprobs for o in before]
    assert runner_of(llm).compiled_in_service == 0

    model.write_pages = write
    for cache in model._caches():  # what float16 cannot hold is in the card's format
        cache.copy_(torch.randn(cache.shape).half())
        cache.mul_(4096.0)
        cache.mul_(4096.0)
    held = model.read_pages(torch.arange(5).numpy())
    assert held.abs().max() > 2**20
    for cache in model._caches():
        cache.zero_()
    model.write_pages(torch.arange(5).numpy(), held)
    assert torch.equal(model.read_pages(torch.arange(5).numpy()), held)
