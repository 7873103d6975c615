# SPDX-License-Identifier: Apache-2.0
"""Every name that this package takes from vLLM, and where the version `VLLM_VERSION` has it.

vLLM moves its internals between releases; a new release is tried by this table. A name is looked up when it is asked
for, because vLLM asks for the platform before most of its modules can be imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from torch_spyre.errors import UnsupportedOp

VLLM_VERSION = "0.32.0"

_WHERE = {
    "Attention": "vllm.model_executor.layers.attention",
    "AttentionBackend": "vllm.v1.attention.backend",
    "AttentionBackendEnum": "vllm.v1.attention.backends.registry",
    "AttentionImpl": "vllm.v1.attention.backend",
    "AttentionMetadataBuilder": "vllm.v1.attention.backend",
    "AttentionType": "vllm.v1.attention.backend",
    "BaseLayerWithLoRA": "vllm.lora.layers.base",
    "BaseLinearLayerWithLoRA": "vllm.lora.layers.base_linear",
    "clear_layer_kv_caches": "vllm.v1.worker.utils",
    "CommonAttentionMetadata": "vllm.v1.attention.backend",
    "CompilationMode": "vllm.config",
    "CompilationTimes": "vllm.v1.worker.worker_base",
    "cpu_worker": "vllm.v1.worker.cpu_worker",
    "CpuCommunicator": "vllm.distributed.device_communicators.cpu_communicator",
    "CPUModelRunner": "vllm.v1.worker.cpu_model_runner",
    "CPUOffloadingSpec": "vllm.v1.kv_offload.cpu.spec",
    "CpuPlatform": "vllm.platforms.cpu",
    "CPUWorker": "vllm.v1.worker.cpu_worker",
    "EncoderOnlyAttentionSpec": "vllm.v1.kv_cache_interface",
    "EngineArgs": "vllm.engine.arg_utils",
    "FP8ScaledMMLinearKernel": "vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel",
    "FusedTopKRouter": "vllm.model_executor.layers.fused_moe.router.fused_topk_router",
    "get_forward_context": "vllm.forward_context",
    "init_logger": "vllm.logger",
    "Int8ScaledMMLinearKernel": "vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel",
    "KVCacheConfig": "vllm.v1.kv_cache_interface",
    "KVCacheLayout": "vllm.v1.kv_cache_interface",
    "KVTransferConfig": "vllm.config",
    "linear_kernels": "vllm.model_executor.kernels.linear",
    "LinearBase": "vllm.model_executor.layers.linear",
    "LogitsProcessorWithLoRA": "vllm.lora.layers.logits_processor",
    "MoERunner": "vllm.model_executor.layers.fused_moe.runner.moe_runner",
    "MultipleOf": "vllm.v1.attention.backend",
    "OffloadingWorker": "vllm.v1.kv_offload.base",
    "ParallelLMHead": "vllm.model_executor.layers.vocab_parallel_embedding",
    "PlatformEnum": "vllm.platforms.interface",
    "Pooler": "vllm.model_executor.layers.pooler",
    "PunicaWrapperCPU": "vllm.lora.punica_wrapper.punica_cpu",
    "register_backend": "vllm.v1.attention.backends.registry",
    "RMSNorm": "vllm.model_executor.layers.layernorm",
    "RotaryEmbeddingBase": "vllm.model_executor.layers.rotary_embedding.base",
    "SamplerOutput": "vllm.v1.outputs",
    "set_current_vllm_config": "vllm.config",
    "set_random_seed": "vllm.utils.torch_utils",
    "TOKEN_TYPE_SHIFT": "vllm.model_executor.models.bert",
    "TransferResult": "vllm.v1.kv_offload.base",
    "UsageContext": "vllm.usage.usage_lib",
    "VocabParallelEmbedding": "vllm.model_executor.layers.vocab_parallel_embedding",
    "VocabParallelEmbeddingWithLoRA": "vllm.lora.layers.vocab_parallel_embedding",
}

_MODULES = ("cpu_worker", "linear_kernels")


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_WHERE[name])
    return module if name in _MODULES else getattr(module, name)


def set_batch_defaults(rows: int, sequences: int) -> None:
    """Rows of a step, and sequences in it, where the user says nothing: vLLM asks no platform for them."""
    arguments, contexts = __getattr__("EngineArgs"), [None, *__getattr__("UsageContext")]

    def defaults(cls: type, world_size: int) -> tuple[dict[Any, int], dict[Any, int]]:
        return dict.fromkeys(contexts, rows), dict.fromkeys(contexts, sequences)

    arguments.get_batch_defaults = classmethod(defaults)


def quantise_on_host() -> None:
    """vLLM's own op for codes with a given scale is not in its CPU build."""
    operations: Any = import_module("vllm._custom_ops")

    def scaled_fp8_quant(input: Any, scale: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if scale is None or args or kwargs:
            raise UnsupportedOp("8-bit codes of weights without one scale that is given")
        most = torch.finfo(torch.float8_e4m3fn).max
        return (input.float() / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale

    operations.scaled_fp8_quant = scaled_fp8_quant


def name_models_without_float16() -> None:
    """vLLM lists kinds of models that it does not run in float16. With no other format to choose, it ends in an
    IndexError."""
    model: Any = import_module("vllm.config.model")
    resolve = model._resolve_auto_dtype

    def resolve_or_say(model_type: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return resolve(model_type, *args, **kwargs)
        except IndexError:
            raise UnsupportedOp(
                f"models of type {model_type!r}: vLLM does not run them in float16, and the card serves no other format"
            ) from None

    model._resolve_auto_dtype = resolve_or_say
