# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""A request's tokens and logprobs are the same bits alone and among others, whatever ran before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Lengths around a page of 64 keys, a tile of 64 rows and a step of 64 rows.
LENGTHS = (1, 2, 17, 63, 64, 65, 100, 128, 150)
TOKENS = 5
Made = list[tuple[int, float]]

requests = st.lists(st.tuples(st.sampled_from(LENGTHS), st.integers(0, 1)), min_size=1, max_size=6)
mixes = st.tuples(requests, st.lists(st.integers(0, 3), min_size=6, max_size=6), st.booleans())


def prompt(length: int, kind: int) -> list[int]:
    return [(kind * 977 + place * (31 + kind)) % 40000 + 100 for place in range(length)]


def params() -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS, logprobs=0, ignore_eos=True)


def made(output: Any) -> Made:
    return [(token, at[token].logprob) for token, at in zip(output.token_ids, output.logprobs, strict=True)]


@pytest.fixture(scope="module")
def alone(engine: Any) -> dict[tuple[int, int], Made]:
    """Each prompt by itself, in an engine that holds nothing of it."""
    found = {}
    for kind in (0, 1):
        for length in LENGTHS:
            engine.reset_prefix_cache()
            given = {"prompt_token_ids": prompt(length, kind)}
            found[length, kind] = made(engine.generate([given], params(), use_tqdm=False)[0].outputs[0])
    return found


def check(engine: Any, alone: dict[tuple[int, int], Made], mix: Any) -> None:
    wanted, delays, forgets = mix
    core = engine.llm_engine
    if forgets:
        engine.reset_prefix_cache()
    waiting = [(sum(delays[: n + 1]), n, request) for n, request in enumerate(wanted)]
    found: dict[int, Made] = {}
    step = 0
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][0] <= step:
            _, number, request = waiting.pop(0)
            core.add_request(str(number), {"prompt_token_ids": prompt(*request)}, params())
        for output in core.step() if core.has_unfinished_requests() else []:
            if output.finished:
                found[int(output.request_id.split("-")[0])] = made(output.outputs[0])
        step += 1
    assert found == {number: alone[request] for number, request in enumerate(wanted)}


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(mix=mixes)
def test_some_mixes(engine: Any, alone: dict[tuple[int, int], Made], mix: Any) -> None:
    check(engine, alone, mix)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(mix=mixes)
def test_many_mixes(engine: Any, alone: dict[tuple[int, int], Made], mix: Any) -> None:
    check(engine, alone, mix)
