# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""What cannot work is refused when the engine starts, with a reason."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "option, said",
    [
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size 3.*spyreccl"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
        ({"enable_lora": True}, "--enable-lora.*merge"),
        ({"block_size": 32}, "--block-size 32.*64 keys"),
        ({"enable_sleep_mode": True}, "Sleep mode is not supported"),
        ({"runner": "pooling"}, "--runner pooling"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
    ],
)
def test_an_option_is_refused_by_name(smollm2: str, option: dict[str, Any], said: str) -> None:
    from vllm import LLM

    with pytest.raises(Exception, match=said):
        LLM(smollm2, max_model_len=128, **option)
