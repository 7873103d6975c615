# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused when the engine starts, by name and with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_spyre.errors import UnsupportedOp


def refuse(config: Any) -> None:
    """Raises for the first options of vLLM's configuration that the card's worker does not have."""
    for option, reason in _reasons(config):
        raise UnsupportedOp(f"vLLM on spyre does not have {option}: {reason}")


def _reasons(config: Any) -> Iterator[tuple[str, str]]:
    parallel, model, cache = config.parallel_config, config.model_config, config.cache_config
    if parallel.tensor_parallel_size > 1:
        yield (
            f"--tensor-parallel-size {parallel.tensor_parallel_size}",
            "collectives of vLLM's layers do not go through spyreccl yet; start one server for each card",
        )
    if parallel.pipeline_parallel_size > 1:
        yield f"--pipeline-parallel-size {parallel.pipeline_parallel_size}", "a model has to fit one card"
    if parallel.data_parallel_size > 1:
        yield f"--data-parallel-size {parallel.data_parallel_size}", "start one server for each card"
    if config.lora_config is not None:
        yield "--enable-lora", "adapters are not computed on the card yet; merge the adapter into the weights"
    speculative = config.speculative_config
    if speculative is not None and speculative.method != "ngram":
        yield f"speculative decoding by {speculative.method!r}", "a draft model has no card; 'ngram' works"
    if config.kv_transfer_config is not None:
        yield "--kv-transfer-config", "pages of the cache stay on the card"
    if model is None:
        return
    if model.is_multimodal_model:
        yield f"the multimodal model {model.model}", "encoders of images and sound are not on the card"
    if model.is_encoder_decoder:
        yield f"the encoder-decoder model {model.model}", "cross attention over pages is missing"
    if model.is_hybrid or model.is_attention_free:
        yield f"the model {model.model}", "its layers keep states other than keys and values"
    if model.get_num_experts():
        yield f"the mixture of experts {model.model}", "vLLM's layer of experts has no form for the card yet"
    if getattr(model, "quantization", None):
        yield f"quantization {model.quantization!r}", "the card's 8-bit products are not behind vLLM's layers yet"
    if model.enable_sleep_mode:
        yield "--enable-sleep-mode", "weights and pages stay on the card as long as the server runs"
    if cache.cache_dtype not in ("auto", "float16"):
        yield f"--kv-cache-dtype {cache.cache_dtype}", "pages hold the card's 16-bit format"
