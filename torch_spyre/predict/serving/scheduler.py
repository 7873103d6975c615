# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler, without an engine around it. All that depends on vLLM's version is here."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from torch_spyre.errors import SpyreError
from torch_spyre.predict.dimensions import ModelConfig

BLOCK = 64  # tokens of a page of the cache
_NAMES = {
    "vllm.config": (
        "CacheConfig",
        "DeviceConfig",
        "ModelConfig",
        "ParallelConfig",
        "SchedulerConfig",
        "VllmConfig",
    ),
    "vllm.sampling_params": ("SamplingParams",),
    "vllm.v1.core.sched.scheduler": ("Scheduler",),
    "vllm.v1.kv_cache_interface": ("FullAttentionSpec", "KVCacheConfig", "KVCacheGroupSpec"),
    "vllm.v1.outputs": ("ModelRunnerOutput",),
    "vllm.v1.request": ("Request",),
    "vllm.v1.structured_output": ("StructuredOutputManager",),
}


class NoScheduler(SpyreError, ImportError):
    """vLLM is not installed, or is a version that this one does not know."""


@dataclass(frozen=True)
class Limits:
    """What an operator chooses."""

    tokens: int = 512  # of a step: chunks of prompts and next tokens together
    sequences: int = 32  # at work together
    length: int = 4096  # of a prompt and what is generated


@dataclass(frozen=True)
class Work:
    """What a step computes for one request."""

    request: int
    new: int  # tokens
    context: int  # tokens in the cache afterwards
    samples: bool  # the step ends with a token for it


class Scheduler:
    """Requests in, steps out. One step at a time: `step`, then `done` with the same work."""

    def __init__(self, c: ModelConfig, blocks: int, limits: Limits) -> None:
        self._vllm = vllm = _load()
        self._folder = tempfile.TemporaryDirectory(prefix="spyre-serve-")
        Path(self._folder.name, "config.json").write_text(json.dumps(_config_json(c, limits.length)))
        model = vllm.ModelConfig(
            model=self._folder.name, skip_tokenizer_init=True, dtype="float16", max_model_len=limits.length
        )
        cache = vllm.CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
        config = vllm.VllmConfig(
            model_config=model,
            scheduler_config=vllm.SchedulerConfig(
                max_num_seqs=limits.sequences,
                max_num_batched_tokens=limits.tokens,
                max_model_len=limits.length,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
            ),
            cache_config=cache,
            parallel_config=vllm.ParallelConfig(),
            device_config=vllm.DeviceConfig("cpu"),
        )
        cache.num_gpu_blocks = blocks
        spec = vllm.FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=c.kv_heads, head_size=c.head_dim, dtype=torch.float16
        )
        pages = vllm.KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[vllm.KVCacheGroupSpec(["layer"], spec)]
        )
        self._scheduler = vllm.Scheduler(
            config, pages, vllm.StructuredOutputManager(config), block_size=BLOCK, log_stats=False
        )
        self._output: Any = None

    def add(self, request: int, prompt: int, output: int) -> None:
        parameters = self._vllm.SamplingParams(max_tokens=output, ignore_eos=True)
        self._scheduler.add_request(
            self._vllm.Request(
                request_id=str(request),
                prompt_token_ids=[1] * prompt,
                sampling_params=parameters,
                pooling_params=None,
                arrival_time=0.0,
            )
        )

    def busy(self) -> bool:
        return bool(self._scheduler.has_unfinished_requests())

    def counts(self) -> tuple[int, int]:
        """(at work, waiting)."""
        return len(self._scheduler.running), len(self._scheduler.waiting)

    def cache_use(self) -> float:
        return float(self._scheduler.kv_cache_manager.usage)

    def step(self) -> list[Work]:
        self._output = self._scheduler.schedule()
        found = []
        for name, new in self._output.num_scheduled_tokens.items():
            request = self._scheduler.requests[name]
            context = request.num_computed_tokens
            found.append(Work(int(name), new, context, context >= request.num_tokens))
        return found

    def done(self, works: list[Work]) -> list[int]:
        """Tells vLLM what came out; the requests that were thrown out of the cache since the last step start anew."""
        names = [str(w.request) for w in works]
        result = self._vllm.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[1] if w.samples else [] for w in works],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._scheduler.update_from_output(self._output, result)
        return [int(r.request_id) for r in self._scheduler.waiting if r.num_preemptions]


def _config_json(c: ModelConfig, length: int) -> dict[str, Any]:
    """Enough of a model for vLLM's checks; the scheduler asks for lengths and the shape of the cache only."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate,
        "vocab_size": c.vocab,
        "max_position_embeddings": length,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float16",
    }


def _load() -> Any:
    """The names of vLLM that are used here. It reads its environment when it is imported."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_PLUGINS", "none")  # the scheduler of this process serves no device
    try:
        found = {name: getattr(importlib.import_module(m), name) for m, names in _NAMES.items() for name in names}
    except (ImportError, AttributeError) as error:
        raise NoScheduler(
            f"vLLM's scheduler cannot be imported ({error}): run this in the environment that `make serve` makes, "
            ".venv-serving/bin/spyre predict serve …"
        ) from error
    return SimpleNamespace(**found)
