# SPDX-License-Identifier: Apache-2.0
"""A process of vLLM that has one card."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from spyre_inference import cards
from spyre_inference.runner import SpyreModelRunner
from spyre_inference.vllm_api import CompilationTimes, cpu_worker, set_random_seed
from torch_spyre import knobs
from torch_spyre._inductor import config
from torch_spyre.errors import OutOfMemory

_HOST_SHARE = 0.8  # of the host's memory, that cards commit at most unless a knob says how much


def memory_budget() -> int:
    """Host memory, in bytes, that the cards of all workers together may commit."""
    chosen = knobs.get("host_memory_gb")
    if chosen is not None:
        return int(chosen * 2**30)
    return int(_HOST_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


class SpyreWorker(cpu_worker.CPUWorker):
    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        cache = vllm_config.cache_config
        given, cache.kv_cache_memory_bytes = cache.kv_cache_memory_bytes, 0  # the base class would look at the host's
        try:
            super().__init__(vllm_config, *args, **kwargs)
        finally:
            cache.kv_cache_memory_bytes = given

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
        """What is given; else what weights leave of the card's memory, or of the host's that the cards may commit."""
        given = self.cache_config.kv_cache_memory_bytes
        if given is not None:
            return int(given)
        free, total = torch.spyre.mem_get_info()
        host = memory_budget() // self.parallel_config.local_world_size
        used = int(total - free)
        available = int(min(total, host) * self.cache_config.gpu_memory_utilization) - used
        if available <= 0:
            raise OutOfMemory(
                f"weights take {used} bytes, which leaves none for keys and values: of the card's {total} bytes, and "
                f"of the {host} that the host may give it, {self.cache_config.gpu_memory_utilization:.0%} may be used; "
                "raise SPYRE_HOST_MEMORY_GB or --gpu-memory-utilization, or take a smaller model"
            )
        return available

    def compile_or_warm_up_model(self) -> CompilationTimes:
        seconds = self.model_runner.warm_up()
        set_random_seed(self.model_config.seed, self.parallel_config.data_parallel_index)
        return CompilationTimes(language_model=seconds, encoder=0.0)

    def sleep(self, level: int = 1) -> None:
        self.model_runner.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Weights and pages wake together, with the first tag."""
        if self.model_runner.asleep:
            self.model_runner.wake_up()
