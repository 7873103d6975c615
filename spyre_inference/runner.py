# SPDX-License-Identifier: Apache-2.0
"""vLLM's runner of models, with the model on the card."""

from __future__ import annotations

import time
from typing import Any

import torch

from spyre_inference import layers, metrics, offload, quantised
from spyre_inference.attention.tables import Batch
from spyre_inference.card_model import CardModel
from spyre_inference.platform import PAGE
from spyre_inference.steps.buckets import Limits
from spyre_inference.vllm_api import (
    TOKEN_TYPE_SHIFT,
    CPUModelRunner,
    KVCacheConfig,
    SamplerOutput,
    get_forward_context,
    init_logger,
    set_current_vllm_config,
)
from torch_spyre.errors import UnsupportedOp

logger = init_logger(__name__)


class SpyreModelRunner(CPUModelRunner):
    """vLLM's buffers, batch and sampler are on the host; the model, its pages and the choice of greedy tokens are on
    the card."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        layers.register()
        quantised.register()
        super().__init__(vllm_config, device)
        self.choosing = False
        self.asleep = 0
        parallel = vllm_config.parallel_config
        metrics.publish_worker(vllm_config.instance_id, parallel.rank, self.numbers)

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        config, scheduler = self.model_config, self.scheduler_config
        rows, sequences = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
        limits = Limits(rows, sequences, config.max_model_len, PAGE, config.attn_type != "encoder_only")
        slots = self.lora_config.max_loras if self.lora_config else 0
        self.on_card = CardModel(self.model, limits, config.get_hidden_size(), slots, not self.is_pooling_model)
        if not self.is_pooling_model:
            self.model.compute_logits = self._logits
        self.models = [self.on_card]
        if self.speculative_config is not None and self.speculative_config.uses_draft_model():
            self.models.append(self._draft(Limits(rows + sequences, sequences, config.max_model_len, PAGE)))

    def _draft(self, limits: Limits) -> CardModel:
        """The draft model, where vLLM's proposer calls it."""
        model = self.drafter.model
        draft = CardModel(model, limits, self.speculative_config.draft_model_config.get_hidden_size())

        def forward(input_ids: torch.Tensor, positions: torch.Tensor, **others: Any) -> torch.Tensor:
            batch = _batch()
            states = draft.rows(input_ids.numpy(), positions.numpy(), batch)
            return torch.nn.functional.pad(states, (0, 0, 0, len(input_ids) - len(states)))

        model.forward, model.compute_logits = forward, draft.logits
        return draft

    def initialize_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int], kv_cache_allocation_context: Any = None
    ) -> dict[str, torch.Tensor]:
        if len(kv_cache_config.kv_cache_groups) > 1:
            kinds = ", ".join(type(g.kv_cache_spec).__name__ for g in kv_cache_config.kv_cache_groups)
            raise UnsupportedOp(f"layers that keep their pages apart ({kinds}): a step has one page table on the card")
        for model in self.models:
            model.take_pages(kv_cache_config.num_blocks)
            model.moves_pages = self.vllm_config.kv_transfer_config is not None
        offload.serve(self.models)
        return offload.stand_ins(kv_cache_config) if self.vllm_config.kv_transfer_config else {}

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """Places that hold no key of a sequence are masked, whatever they hold."""

    def warm_up(self) -> float:
        began = time.perf_counter()
        for model in self.models:
            model.warm_up()
        seconds = time.perf_counter() - began
        count = sum(len(model.steps) for model in self.models)
        logger.info("%d sizes of steps are ready, in %.1f s", count, seconds)
        return seconds

    @property
    def serving(self) -> bool:
        return all(model.serving for model in self.models)

    @property
    def compiled_in_service(self) -> int:
        return sum(model.compiled_in_service for model in self.models)

    def numbers(self) -> dict[str, int]:
        """For the metrics."""
        models = getattr(self, "models", ())
        return {"steps": sum(m.steps_made for m in models), "compiles": sum(m.compiled_in_service for m in models)}

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        self.choosing = not scheduler_output.has_structured_output_requests
        try:
            return super().execute_model(scheduler_output, intermediate_tensors)
        finally:
            self.choosing = False

    def sample_tokens(self, grammar_output: Any) -> Any:
        """A request in the middle of its prompt gives no token, so its seed must not draw: vLLM winds the generator
        back, and those of the CPU cannot be."""
        generators, waiting = self.input_batch.generators, self.discard_request_mask.np[: self.input_batch.num_reqs]
        held = {n: generators.pop(n) for n in waiting.nonzero()[0].tolist() if n in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(held)

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        assert input_ids is not None and positions is not None
        ids = input_ids.numpy()
        types = model_kwargs.get("token_type_ids")
        if types is not None:  # where vLLM's encoders look for them
            ids = ids | (types.numpy().astype(ids.dtype) << TOKEN_TYPE_SHIFT)
        return self.on_card.rows(ids, positions.numpy(), _batch())

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits; or, where a step asks for nothing but the best tokens, those (whole numbers, one for each row)."""
        if self.choosing and self.speculative_config is None and _greedy(self.input_batch.sampling_metadata):
            return self.on_card.best(hidden)
        return self.on_card.logits(hidden)

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        if logits is not None and not logits.is_floating_point():
            self.input_batch.update_async_output_token_ids()
            return SamplerOutput(sampled_token_ids=logits.unsqueeze(-1), logprobs_tensors=None)
        return super()._sample(logits, spec_decode_metadata)

    def sleep(self, level: int) -> None:
        for model in self.models:
            model.sleep(keep=level == 1)
        self.asleep = level

    def wake_up(self) -> None:
        """After level 2, weights come from the checkpoint."""
        if self.asleep == 2:
            pages = [model.pages for model in self.models]
            self.compilation_config.static_forward_context.clear()
            with set_current_vllm_config(self.vllm_config):
                self.load_model()
            for model, count in zip(self.models, pages, strict=True):
                model.take_pages(count)
            self.warm_up()
        else:
            for model in self.models:
                model.wake()
        self.asleep = 0

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """`wake_up` has read them."""
        if args or kwargs:
            raise UnsupportedOp("weights from elsewhere than the model's checkpoint: start a server with them")


def _batch() -> Batch:
    """What the attention backend made of the running step."""
    metadata = get_forward_context().attn_metadata
    return next(iter(metadata.values()))  # type: ignore[no-any-return]


def _greedy(metadata: Any) -> bool:
    """Whether the largest logit of each row is all that its request asks for."""
    if not metadata.all_greedy or not metadata.no_penalties or metadata.max_num_logprobs is not None:
        return False
    if metadata.allowed_token_ids_mask is not None or metadata.bad_words_token_ids or metadata.logprob_token_ids:
        return False
    holder = metadata.thinking_budget_state_holder
    if holder is not None and holder.has_tracked_requests():
        return False
    return all(_idle(processor) for processor in metadata.logitsprocs.non_argmax_invariant)


def _idle(processor: Any) -> bool:
    """Whether one of vLLM's own processors has no request to change; others may always change something."""
    name = {"LogitBiasLogitsProcessor": "biases", "MinTokensLogitsProcessor": "min_toks"}.get(type(processor).__name__)
    return name is not None and not getattr(processor, name)
