# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused when the engine starts, by name and with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_spyre.errors import UnsupportedOp

_DRAFTS = ("ngram", "draft_model")
_QUANTIZATIONS = ("fp8", "fp8_per_tensor", "fp8_per_channel", "compressed-tensors")


def refuse(config: Any) -> None:
    """Raises for the first options of vLLM's configuration that the card's worker does not have."""
    for option, reason in _reasons(config):
        raise UnsupportedOp(f"vLLM on spyre does not have {option}: {reason}")


def _reasons(config: Any) -> Iterator[tuple[str, str]]:
    parallel, model, cache = config.parallel_config, config.model_config, config.cache_config
    if parallel.pipeline_parallel_size > 1:
        yield f"--pipeline-parallel-size {parallel.pipeline_parallel_size}", "a model has to fit one card"
    if parallel.data_parallel_size > 1:
        yield f"--data-parallel-size {parallel.data_parallel_size}", "start one server for each card"
    if config.lora_config is not None and config.lora_config.fully_sharded_loras:
        yield "--fully-sharded-loras", "each card has the first matrices of all adapters"
    speculative = config.speculative_config
    if speculative is not None and speculative.method not in _DRAFTS:
        yield f"speculative decoding by {speculative.method!r}", f"the card has {' and '.join(_DRAFTS)}"
    transfer = config.kv_transfer_config
    if transfer is not None and transfer.kv_connector != "OffloadingConnector":
        yield f"the connector {transfer.kv_connector!r}", "pages go to this host alone: --kv-offloading-size"
    if cache.kv_offloading_size is not None and cache.kv_offloading_backend != "native":
        yield f"--kv-offloading-backend {cache.kv_offloading_backend}", "pages go to this host alone: 'native' works"
    if model is None:
        return
    if model.is_multimodal_model:
        yield f"the multimodal model {model.model}", "encoders of images and sound are not on the card"
    if model.is_encoder_decoder:
        yield f"the encoder-decoder model {model.model}", "cross attention over pages is missing"
    if model.is_hybrid or model.is_attention_free:
        yield f"the model {model.model}", "its layers keep states other than keys and values"
    if model.get_num_experts() and parallel.enable_expert_parallel:
        yield "--enable-expert-parallel", "each card has a share of every expert; --tensor-parallel-size works"
    quantization = getattr(model, "quantization", None)
    if quantization and quantization not in _QUANTIZATIONS:
        yield f"quantization {quantization!r}", f"the card multiplies 8-bit codes: {', '.join(_QUANTIZATIONS)}"
    if quantization and model.get_num_experts():
        yield f"quantization {quantization!r} of the mixture of experts {model.model}", "only linear layers have codes"
    if cache.cache_dtype not in ("auto", "float16"):
        yield f"--kv-cache-dtype {cache.cache_dtype}", "pages hold the card's 16-bit format"
