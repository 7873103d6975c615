# SPDX-License-Identifier: Apache-2.0
"""One step of the model on the card, in the place of vLLM's."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from spyre_inference import layers
from spyre_inference.attention.backend import CardAttention, Current
from spyre_inference.attention.tables import NOWHERE, Batch, Sizes, tables
from spyre_inference.platform import PAGE
from spyre_inference.steps.blocks import Blocks
from spyre_inference.steps.buckets import Buckets, Limits
from spyre_inference.steps.recorded import RecordedStep
from spyre_inference.vllm_api import (
    Attention,
    CPUModelRunner,
    KVCacheConfig,
    get_forward_context,
    get_layers_from_vllm_config,
    init_logger,
)
from spyre_inference.weights import onto_card
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp
from torch_spyre.models.lengths import own_code
from torch_spyre.ops.kernels.paged_attention import PagedTables, places_and_distances

logger = init_logger(__name__)


class SpyreModelRunner(CPUModelRunner):
    """vLLM's buffers, batch and sampler are on the host; a step goes to the card as tables and comes back as rows."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        layers.register()
        super().__init__(vllm_config, device)
        self.card = torch.device(DEVICE_NAME, torch.spyre.current_device())
        self.current = Current()
        scheduler = vllm_config.scheduler_config
        self.buckets = Buckets(
            Limits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, self.model_config.max_model_len, PAGE)
        )
        self.steps: dict[Sizes, RecordedStep] = {}
        self.logit_steps: dict[int, RecordedStep] = {}
        self.serving = False
        self.compiled_in_service = 0

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        onto_card(self.model, self.card)
        for layer in get_layers_from_vllm_config(self.vllm_config, Attention).values():
            CardAttention.become(layer, self.current, self.card)
        self.blocks = Blocks(self.model)
        self.head = self.model.compute_logits
        self.model.compute_logits = self._logits

    def initialize_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int], kv_cache_allocation_context: Any = None
    ) -> dict[str, torch.Tensor]:
        """Keys and values of each layer, [pages * page size, heads, head size]: a head has a run of memory."""
        if len(kv_cache_config.kv_cache_groups) > 1:
            kinds = ", ".join(type(g.kv_cache_spec).__name__ for g in kv_cache_config.kv_cache_groups)
            raise UnsupportedOp(f"layers that keep their pages apart ({kinds}): a step has one page table on the card")
        for layer in get_layers_from_vllm_config(self.vllm_config, Attention).values():
            rows = kv_cache_config.num_blocks * PAGE
            keys = torch.zeros(rows, layer.num_kv_heads, layer.head_size, dtype=torch.float16).to(self.card)
            values = torch.zeros(rows, layer.num_kv_heads, layer.head_size_v, dtype=torch.float16).to(self.card)
            layer.take_pages(keys, values)
        return {}

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """Places that hold no key of a sequence are masked, whatever they hold."""

    def warm_up(self) -> float:
        began = time.perf_counter()
        sizes = [*self.buckets.all()]
        for size in sizes:
            self._step(size)
        for count in self.buckets.heads:
            self._logit_step(count)
        self.serving = True
        seconds = time.perf_counter() - began
        logger.info("%d sizes of steps, %d of logits are ready, in %.1f s", len(sizes), len(self.logit_steps), seconds)
        return seconds

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        assert input_ids is not None and positions is not None
        metadata = get_forward_context().attn_metadata
        batches = {id(b): b for b in metadata.values()} if metadata else {}
        batch: Batch = next(iter(batches.values()))
        sizes = self.buckets.sizes(batch)
        rows = len(batch.slots)
        values = tables(batch, sizes, PAGE)
        values["ids"] = _filled(input_ids[:rows].numpy(), sizes.rows)
        values["positions"] = _filled(positions[:rows].numpy(), sizes.rows)
        return self._step(sizes).run(values).cpu()[:rows]

    def _step(self, sizes: Sizes) -> RecordedStep:
        found = self.steps.get(sizes)
        if found is not None:
            return found
        empty = {
            "slots": np.zeros(sizes.rows, np.int32),
            "pages": np.zeros(sizes.pairs, np.int32),
            "tiles": np.zeros(sizes.pairs, np.int32),
            "starts": np.full(sizes.pairs, NOWHERE, np.int32),
            "tile_rows": np.zeros(sizes.tiles * sizes.tile, np.int32),
            "limits": np.zeros((sizes.tiles, sizes.tile), np.int32),
            "pairs": np.zeros((sizes.tiles, sizes.most), np.int32),
            "places": np.zeros(sizes.rows, np.int32),
        }
        on_card = {name: torch.from_numpy(value).to(self.card) for name, value in empty.items()}
        ids = torch.zeros(sizes.rows, dtype=torch.int32).to(self.card)
        positions = torch.zeros(sizes.rows, dtype=torch.int32).to(self.card)
        paged = PagedTables(**on_card)
        work_out = torch.compile(own_code(places_and_distances), dynamic=False)

        def forward() -> torch.Tensor:
            self.current.tables = paged.located(PAGE, work_out)
            self.blocks.size = sizes
            return self.model(input_ids=ids, positions=positions, intermediate_tensors=None, inputs_embeds=None)

        step = self.steps[sizes] = RecordedStep({**on_card, "ids": ids, "positions": positions}, forward)
        self._ready(step, sizes)
        return step

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of any number of rows, on the host."""
        most = self.buckets.heads[-1]
        parts = [self._logits_of(part) for part in hidden.split(most)]
        return torch.cat(parts)

    def _logits_of(self, hidden: torch.Tensor) -> torch.Tensor:
        count = self.buckets.logit_rows(len(hidden))
        rows = torch.zeros(count, hidden.shape[1], dtype=torch.float16)
        rows[: len(hidden)] = hidden
        return self._logit_step(count).run({"rows": rows.numpy()}).cpu()[: len(hidden)]

    def _logit_step(self, count: int) -> RecordedStep:
        found = self.logit_steps.get(count)
        if found is None:
            rows = torch.zeros(count, self.model_config.get_hidden_size(), dtype=torch.float16).to(self.card)
            found = self.logit_steps[count] = RecordedStep({"rows": rows}, lambda: self.head(rows))
            self._ready(found, count)
        return found

    def _ready(self, step: RecordedStep, sizes: Any) -> None:
        if self.serving:
            self.compiled_in_service += 1
            logger.error(
                "a step of %s was compiled while requests waited: warm-up missed it; please report this", sizes
            )
        with torch.inference_mode():
            step.warm_up()
        if step.refused:
            logger.warning("steps of %s run without a recording: %s", sizes, step.refused)


def _filled(x: np.ndarray, count: int) -> np.ndarray:
    made = np.zeros(count, np.int32)
    made[: len(x)] = x
    return made
