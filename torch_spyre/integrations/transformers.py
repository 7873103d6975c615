# SPDX-License-Identifier: Apache-2.0
"""transformers on the card: `TrainingArguments`, `Trainer`, `pipeline`, ``tp_plan``.

Like accelerate, it asks one function per vendor. Missing hook for all of this: ``torch.accelerator``.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.integrations import choice


def know_bfloat16(module: ModuleType) -> None:
    """`transformers.utils.import_utils`: ``bf16=True``."""

    def with_card(original: Any) -> Any:
        def is_torch_bf16_gpu_available() -> bool:
            return bool(original()) or choice.card() is not None

        return is_torch_bf16_gpu_available

    choice.replace_function(module, "is_torch_bf16_gpu_available", with_card)


def name_backend(module: ModuleType) -> None:
    """`transformers.distributed.utils`: ``tp_plan="auto"`` makes a process group by a table of backends."""
    module.DISTRIBUTED_BACKEND_MAP.setdefault(DEVICE_NAME, choice.GROUP_BACKEND)


def choose_card(module: ModuleType) -> None:
    """`transformers.training_args`: the device of `Trainer` is the one that accelerate chose."""
    original = vars(module.TrainingArguments)["_setup_devices"].func

    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = original(self)
        state = self.distributed_state
        if device.type != "cpu" or self.use_cpu or not choice.is_card(getattr(state, "device", None)):
            return device
        self._n_gpu = 1
        return torch.device(state.device)

    changed = functools.cached_property(_setup_devices)
    changed.__set_name__(module.TrainingArguments, "_setup_devices")
    module.TrainingArguments._setup_devices = changed


def keep_random_state(module: ModuleType) -> None:
    """`transformers.trainer`: a run that goes on from a checkpoint draws the numbers that it would have drawn."""

    def saving(original: Any) -> Any:
        def _save_rng_state(self: Any, output_dir: str) -> None:
            original(self, output_dir)
            choice.save_random_state(output_dir)

        return _save_rng_state

    def loading(original: Any) -> Any:
        def _load_rng_state(self: Any, checkpoint: str | None) -> None:
            original(self, checkpoint)
            if checkpoint is not None:
                choice.load_random_state(checkpoint)

        return _load_rng_state

    choice.replace_method(module.Trainer, "_save_rng_state", saving)
    choice.replace_method(module.Trainer, "_load_rng_state", loading)


def choose_for_pipelines(module: ModuleType) -> None:
    """`transformers.pipelines.base`: no device, or a number, is a card; -1 is the CPU as ever."""
    signature = inspect.signature(module.Pipeline.__init__)

    def choosing(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            call = signature.bind(self, *args, **kwargs)
            given, chosen = call.arguments.get("device"), choice.card()
            placed = getattr(call.arguments["model"], "hf_device_map", None)  # by ``device_map=``
            if chosen is not None and placed is None and _is_number(0 if given is None else given):
                call.arguments["device"] = chosen if given is None else torch.device(DEVICE_NAME, given)
            original(*call.args, **call.kwargs)
            if chosen is not None and placed and _is_number(first := next(iter(placed.values()))):
                self.device = torch.device(DEVICE_NAME, first)

        return __init__

    choice.replace_method(module.Pipeline, "__init__", choosing)


def _is_number(device: Any) -> bool:
    return isinstance(device, int) and device >= 0
