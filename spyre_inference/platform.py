# SPDX-License-Identifier: Apache-2.0
"""What the card is to vLLM."""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import Any

import torch

from spyre_inference import metrics, vllm_api  # most of vLLM cannot be imported yet
from spyre_inference.refusals import refuse
from spyre_inference.vllm_api import CpuPlatform, PlatformEnum
from torch_spyre.errors import UnsupportedOp

PAGE = 64  # keys of a page: one stick of scores
DEFAULT_ROWS, DEFAULT_SEQUENCES = 256, 8  # of a step: each size more is compiled at the first start


class SpyrePlatform(CpuPlatform):
    """The host runs vLLM's scheduler and sampler, so its tensors are the CPU's; model and KV cache are the card's.

    What is inherited from vLLM's CPU platform is what concerns the host: processes, threads, shared memory.
    """

    _enum = PlatformEnum.OOT
    device_name = "cpu"  # both must be names that torch.device takes, and mean the host's buffers
    device_type = "cpu"
    dispatch_key = "PrivateUse1"
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float16]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "Spyre"

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise UnsupportedOp("latent and sparse attention (MLA, DSA) are not implemented on the card")
        custom = vllm_api.AttentionBackendEnum.CUSTOM
        vllm_api.register_backend(custom, "spyre_inference.attention.backend.SpyreAttentionBackend")
        return str(custom.get_path())

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        vllm_api.set_batch_defaults(DEFAULT_ROWS, DEFAULT_SEQUENCES)
        vllm_api.name_models_without_float16()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "spyre_inference.cards.SpyreCommunicator"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "spyre_inference.adapters.CardAdapters"

    @classmethod
    def can_update_inplace(cls) -> bool:
        """Layers with adapters take what the wrapper returns."""
        return False

    @classmethod
    def is_sleep_mode_available(cls) -> bool:
        return True

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """One page table for all layers: those with a window keep all keys and mask them."""
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        installed = version("vllm").partition("+")[0]
        if installed != vllm_api.VLLM_VERSION:
            vllm_api.init_logger(__name__).warning(
                "this plugin is written for vLLM %s, and %s is installed", vllm_api.VLLM_VERSION, installed
            )
        refuse(vllm_config)
        cache = vllm_config.cache_config
        if cache.kv_offloading_size is not None and vllm_config.kv_transfer_config is None:
            vllm_config.kv_transfer_config = vllm_api.KVTransferConfig()
        if vllm_config.kv_transfer_config is not None:  # vLLM goes on with it
            where = {"spec_name": "CardOffloadingSpec", "spec_module_path": "spyre_inference.offload"}
            vllm_config.kv_transfer_config.kv_connector_extra_config.update(where)
        given = cache.user_specified_block_size
        if given and cache.block_size != PAGE:
            raise UnsupportedOp(f"--block-size {cache.block_size}: the card's pages have {PAGE} keys")
        super().check_and_update_config(vllm_config)
        cache.block_size = PAGE
        if not vllm_config.instance_id:
            vllm_config.instance_id = uuid.uuid4().hex
        metrics.answer_for(vllm_config.instance_id)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
            parallel.worker_cls = "spyre_inference.worker.SpyreWorker"
        vllm_config.compilation_config.mode = vllm_api.CompilationMode.NONE  # blocks are compiled by this package
