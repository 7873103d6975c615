# SPDX-License-Identifier: Apache-2.0
"""Pages of keys and values that the card has no room for, on the host: vLLM's OffloadingConnector with copies between
the host and the card.

vLLM's scheduler chooses what goes and what comes back. The host keeps values in fp32, which has every value of the
card's 16-bit format, and the card makes the same bits of them again. float16 would not do: its range is smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spyre_inference.card_model import CardModel
from spyre_inference.vllm_api import CPUOffloadingSpec, OffloadingWorker, TransferResult
from torch_spyre.errors import UnsupportedOp

_models: list[CardModel] = []  # of this process; the runner says which


def serve(models: list[CardModel]) -> None:
    _models[:] = models


def stand_ins(config: Any) -> dict[str, torch.Tensor]:
    """What vLLM's connector measures in the place of pages: their number and size, without memory."""
    return {
        name: torch.empty(config.num_blocks, group.kv_cache_spec.page_size_bytes, dtype=torch.int8, device="meta")
        for group in config.kv_cache_groups
        for name in group.layer_names
    }


class CardOffloadingSpec(CPUOffloadingSpec):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.blocks_per_chunk != 1:
            raise UnsupportedOp("KV offloading in chunks of several pages: the card moves single pages")
        self.num_chunks //= 2  # fp32

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        return HostPages(_models, self.num_chunks)


class HostPages(OffloadingWorker):
    """Copies are made when vLLM asks for them, in the order of steps; so they are finished at once."""

    def __init__(self, models: list[CardModel], count: int) -> None:
        self.models = models
        self.held = [torch.empty(count, model.page_values()) for model in models]
        self.finished: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        places = torch.from_numpy(dst_spec.block_ids.astype(np.int64))
        for model, held in zip(self.models, self.held, strict=True):
            held[places] = model.read_pages(src_spec.block_ids)
        return self._finish(job_id, len(places))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        places = torch.from_numpy(src_spec.block_ids.astype(np.int64))
        for model, held in zip(self.models, self.held, strict=True):
            model.write_pages(dst_spec.block_ids, held[places])
        return self._finish(job_id, len(places))

    def _finish(self, job_id: int, count: int) -> bool:
        size = sum(held.shape[1] for held in self.held) * count * 4
        self.finished.append(TransferResult(job_id=job_id, success=True, transfer_size=size, transfer_time=None))
        return True

    def get_finished(self) -> list[Any]:
        found, self.finished = self.finished, []
        return found

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is on its way."""
