# SPDX-License-Identifier: Apache-2.0
"""A process of vLLM that has one card."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from spyre_inference import cards
from spyre_inference.runner import SpyreModelRunner
from spyre_inference.vllm_api import CompilationTimes, cpu_worker, set_random_seed
from torch_spyre._inductor import config


class SpyreWorker(cpu_worker.CPUWorker):
    def init_device(self) -> None:
        config.cut_k = False  # a row's bits depend on no other row
        count = self.parallel_config.tensor_parallel_size
        if count > 1:
            cards.choose(self.local_rank, count)

        chosen: Any = cpu_worker
        replaced, chosen.CPUModelRunner = chosen.CPUModelRunner, SpyreModelRunner
        threads = torch.set_num_threads
        try:
            super().init_device()
        finally:
            chosen.CPUModelRunner = replaced
            torch.set_num_threads = threads
        if count > 1:
            cards.SpyreCommunicator.connect(count)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    def determine_available_memory(self) -> int:
        given = self.cache_config.kv_cache_memory_bytes
        assert given is not None  # the platform sets it
        return int(given)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        seconds = self.model_runner.warm_up()
        set_random_seed(self.model_config.seed, self.parallel_config.data_parallel_index)
        return CompilationTimes(language_model=seconds, encoder=0.0)
