# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""What cannot work is refused when the engine starts, with a reason."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "option, said",
    [
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
        ({"block_size": 32}, "--block-size 32.*64 keys"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
        ({"quantization": "mxfp8"}, "quantization 'mxfp8'.*8-bit codes"),
        ({"enable_lora": True, "fully_sharded_loras": True}, "--fully-sharded-loras"),
        ({"speculative_config": {"method": "suffix", "num_speculative_tokens": 2}}, "'suffix'|[Aa]rctic"),
    ],
)
def test_an_option_is_refused_by_name(smollm2: str, option: dict[str, Any], said: str) -> None:
    from vllm import LLM

    with pytest.raises(Exception, match=said):
        LLM(smollm2, max_model_len=128, **option)
