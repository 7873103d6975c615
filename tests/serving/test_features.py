# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""What vLLM's users expect of an engine, one test each."""

from __future__ import annotations

import json
from typing import Any

import pytest

CAPITAL = "The capital of France is"
LONG = " ".join(f"Item {n} costs {n * 7 % 13} coins." for n in range(16))  # more rows than a step takes


def params(**options: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0, "max_tokens": 8, **options})


def said(engine: Any, prompt: str, **options: Any) -> list[Any]:
    return list(engine.generate([prompt], params(**options), use_tqdm=False)[0].outputs)


def ids(engine: Any, prompt: str, **options: Any) -> list[int]:
    return list(said(engine, prompt, **options)[0].token_ids)


def test_a_prompt_goes_in_chunks_and_comes_from_the_cache(engine: Any) -> None:
    engine.reset_prefix_cache()
    first, second = (engine.generate([LONG], params(logprobs=2, max_tokens=4), use_tqdm=False)[0] for _ in range(2))
    assert len(first.prompt_token_ids) > 64 and first.num_cached_tokens == 0 and second.num_cached_tokens >= 64
    assert first.outputs[0].logprobs == second.outputs[0].logprobs


def test_a_seed_is_a_seed(engine: Any) -> None:
    made = [ids(engine, CAPITAL, temperature=1.5, seed=seed) for seed in (1, 2, 1)]
    assert made[0] == made[2] != made[1]


def test_a_seed_does_not_draw_between_chunks(engine: Any) -> None:
    made = []
    for _ in range(2):  # the second time the prompt comes from the cache, in one chunk
        made.append(ids(engine, LONG, temperature=1.5, seed=5))
    engine.reset_prefix_cache()
    assert made[0] == made[1] == ids(engine, LONG, temperature=1.5, seed=5)


def test_several_answers(engine: Any) -> None:
    made = said(engine, CAPITAL, temperature=1.0, n=3, seed=3)
    assert len(made) == 3 and len({tuple(m.token_ids) for m in made}) > 1


def test_top_k_of_one_is_greedy(engine: Any) -> None:
    assert ids(engine, CAPITAL, temperature=1.0, top_k=1) == ids(engine, CAPITAL)


def test_top_p_of_almost_nothing_is_greedy(engine: Any) -> None:
    assert ids(engine, CAPITAL, temperature=1.0, top_p=1e-6) == ids(engine, CAPITAL)


def test_penalties(engine: Any) -> None:
    made = ids(engine, "one two one two one two", max_tokens=12, frequency_penalty=2.0, presence_penalty=2.0)
    assert len(set(made)) == len(made)
    assert ids(engine, CAPITAL, repetition_penalty=5.0) != ids(engine, CAPITAL)


def test_biases_and_stop_strings(engine: Any) -> None:
    greedy = ids(engine, CAPITAL)
    assert greedy[0] not in ids(engine, CAPITAL, logit_bias={greedy[0]: -100}, max_tokens=1)
    made = said(engine, "1, 2, 3, 4,", stop=["6"], max_tokens=16)[0]
    assert "6" not in made.text and made.finish_reason == "stop"


def test_logprobs_are_those_of_fp32(engine: Any, smollm2: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    made = engine.generate([CAPITAL], params(prompt_logprobs=1, logprobs=1, max_tokens=1), use_tqdm=False)[0]
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    given = torch.tensor([made.prompt_token_ids])
    with torch.no_grad():
        exact = model(given).logits[0].log_softmax(-1)
    close = 4 * 2.0**-5  # units in the last place of a logit between 16 and 32
    for place, tokens in enumerate(made.prompt_logprobs[1:]):
        token = made.prompt_token_ids[place + 1]
        assert abs(tokens[token].logprob - exact[place, token].item()) <= close
    for token, chosen in made.outputs[0].logprobs[0].items():
        assert abs(chosen.logprob - exact[-1, token].item()) <= close


def test_choices_and_schemas(engine: Any) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    chosen = said(engine, CAPITAL, structured_outputs=StructuredOutputsParams(choice=["Rome", "Berlin"]))[0].text
    assert chosen in ("Rome", "Berlin")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    form = StructuredOutputsParams(json=schema)
    text = said(engine, "A city as JSON:", structured_outputs=form, max_tokens=40)[0].text
    assert set(json.loads(text)) == {"city", "big"}


def test_a_grammar(engine: Any) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    form = StructuredOutputsParams(grammar='root ::= "yes" | "no"')
    assert said(engine, "Is water wet?", structured_outputs=form)[0].text in ("yes", "no")


def test_beams_find_what_is_at_least_as_likely(engine: Any) -> None:
    from vllm.sampling_params import BeamSearchParams

    found = engine.beam_search([{"prompt": CAPITAL}], BeamSearchParams(beam_width=2, max_tokens=4))[0].sequences
    greedy = said(engine, CAPITAL, logprobs=0, max_tokens=4)[0]
    assert len(found) == 2
    assert found[0].cum_logprob >= greedy.cumulative_logprob - 1e-3


def test_an_aborted_request_leaves_the_others_alone(engine: Any) -> None:
    core, alone = engine.llm_engine, ids(engine, CAPITAL, max_tokens=6)
    before = free_pages(engine)
    core.add_request("stays", CAPITAL, params(max_tokens=6))
    core.add_request("goes", LONG, params(max_tokens=100))
    made: dict[str, list[int]] = {}
    for step in range(200):
        if step == 4:
            core.abort_request(["goes"])
        for output in core.step():
            if output.finished:
                made[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)
        if not core.has_unfinished_requests():
            break
    assert made["stays"] == alone
    assert free_pages(engine) == before


def free_pages(engine: Any) -> int:
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def test_a_prompt_that_is_too_long_is_refused(engine: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="256"):
        engine.generate(["word " * 400], params(), use_tqdm=False)


def test_nothing_was_compiled_while_requests_waited(engine: Any) -> None:
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    assert runner.serving and runner.compiled_in_service == 0
