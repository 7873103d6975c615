# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: a process for each card, which vLLM's executor starts; collectives of layers go between cards."""

from __future__ import annotations

import os
from typing import ClassVar

import torch
import torch.distributed as dist

from spyre_inference.vllm_api import CpuCommunicator
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.distributed import BACKEND


def choose(rank: int, count: int) -> None:
    """Which card this process drives. Called before anything asks for one."""
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count), RANK=str(rank), WORLD_SIZE=str(count))


class SpyreCommunicator(CpuCommunicator):
    """vLLM's communicator between processes, with tensors of cards sent from card to card.

    Compiled blocks read `group` and `size` while they are traced; every rank calls the same.
    """

    group: ClassVar[str] = ""
    size: ClassVar[int] = 1

    @classmethod
    def connect(cls, count: int) -> None:
        """Once in each process, behind vLLM's own groups."""
        cls.group = dist.new_group(range(count), backend=BACKEND).group_name
        cls.size = count

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        if input_.device.type != DEVICE_NAME:
            return super().all_reduce(input_)
        functional = torch.ops._c10d_functional
        return functional.wait_tensor(functional.all_reduce(input_, "sum", self.group))

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if input_.device.type != DEVICE_NAME:
            return super().all_gather(input_, dim)
        functional = torch.ops._c10d_functional
        together = functional.all_gather_into_tensor(input_.contiguous(), self.size, self.group)
        parts = functional.wait_tensor(together).unflatten(0, (self.size, -1))
        dim %= input_.dim()
        return parts.movedim(0, dim).flatten(dim, dim + 1)
