# SPDX-License-Identifier: Apache-2.0
"""accelerate on the card: `Accelerator`, `PartialState`, ``device_map="auto"``, mixed precision, checkpoints.

accelerate asks one function per vendor (`is_xpu_available`, `is_npu_available`, ...). Missing hook for all of this:
``torch.accelerator``, which knows the device of the process.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch

from torch_spyre import knobs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.integrations import choice


def choose_card(module: ModuleType) -> None:
    """`accelerate.state`: the device where no other one is found, and one card for each process of a launcher.
    ``cpu=True`` and ACCELERATE_USE_CPU go before. Several cards are "MULTI_GPU" to it: the kind that its lists of
    devices with collectives know."""
    original = vars(module.PartialState)["default_device"].fget

    def default_device(self: Any) -> torch.device:
        device: torch.device = original(self)
        chosen = choice.card()
        return device if device.type != "cpu" or chosen is None else chosen

    def with_collectives(prepare: Any) -> Any:
        def _prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
            backend, kind = prepare(self, cpu, *args, **kwargs)
            launched = "LOCAL_RANK" in os.environ and knobs.get("started_processes") > 1
            if kind == module.DistributedType.NO and not cpu and launched and choice.card() is not None:
                return choice.GROUP_BACKEND, module.DistributedType.MULTI_GPU
            return backend, kind

        return _prepare_backend

    def with_card(setting: Any) -> Any:
        def set_device(self: Any) -> None:
            if self.device is None and self.backend == choice.GROUP_BACKEND:
                self.device = torch.device(DEVICE_NAME, self.local_process_index)
                torch.accelerator.set_device_index(self.local_process_index)
            setting(self)

        return set_device

    module.PartialState.default_device = property(default_device, doc=original.__doc__)
    choice.replace_method(module.PartialState, "_prepare_backend", with_collectives)
    choice.replace_method(module.PartialState, "set_device", with_card)


def train_in_fp16(module: ModuleType) -> None:
    """`accelerate.accelerator`: ``mixed_precision="fp16"``. The constructor holds the devices that can do it as a
    constant."""
    constructor = module.Accelerator.__init__
    code = constructor.__code__
    known = next((c for c in code.co_consts if isinstance(c, tuple) and {"cuda", "xpu", "npu"} <= {*c}), None)
    if known is None:
        raise AttributeError("Accelerator.__init__ lists no devices for fp16")
    constants = tuple((*c, DEVICE_NAME) if c is known else c for c in code.co_consts)
    constructor.__code__ = code.replace(co_consts=constants)


def place_on_cards(module: ModuleType) -> None:
    """`accelerate.utils.modeling`: the memory for ``device_map="auto"``, and the scaler of fp16 gradients."""

    def with_cards(original: Any) -> Any:
        def get_max_memory(max_memory: Any = None) -> Any:
            if choice.card() is None:
                return original(max_memory)
            if max_memory is None:
                return {**_free_memory(), **original(None)}
            return _given_memory(module, max_memory)

        return get_max_memory

    def with_scaler(original: Any) -> Any:
        def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
            if choice.card() is None:
                return original(distributed_type, **kwargs)
            return torch.amp.GradScaler(DEVICE_NAME, **kwargs)

        return get_grad_scaler

    choice.replace_function(module, "get_max_memory", with_cards)
    choice.replace_function(module, "get_grad_scaler", with_scaler)


def _free_memory() -> dict[int, int]:
    device = torch.get_device_module(DEVICE_NAME)
    return {index: device.mem_get_info(index)[0] for index in range(device.device_count())}


def _given_memory(module: ModuleType, max_memory: dict[Any, Any]) -> dict[Any, Any]:
    """What a caller sets, cards first; accelerate warns of every number when there is no GPU."""
    count = torch.get_device_module(DEVICE_NAME).device_count()
    cards = sorted(key for key in max_memory if isinstance(key, int))
    others = [key for key in ("cpu", "disk") if key in max_memory]
    unknown = [key for key in max_memory if key not in (*cards, *others)] + [key for key in cards if key >= count]
    if unknown:
        raise ValueError(f"max_memory names {unknown[0]!r}; there are cards 0 to {count - 1}, 'cpu' and 'disk'")
    sizes = {key: max_memory[key] for key in (*cards, *others)}
    return {k: module.convert_file_size_to_int(v) if isinstance(v, str) else v for k, v in sizes.items()}


def free_memory(module: ModuleType) -> None:
    """`accelerate.utils.memory`: what `release_memory` and `find_executable_batch_size` call."""

    def with_card(original: Any) -> Any:
        def clear_device_cache(garbage_collection: bool = False) -> None:
            original(garbage_collection)
            if choice.card() is not None:
                torch.accelerator.empty_cache()

        return clear_device_cache

    choice.replace_function(module, "clear_device_cache", with_card)


def keep_random_state(module: ModuleType) -> None:
    """`accelerate.checkpointing`: a run that goes on draws the numbers that it would have drawn."""

    def saving(original: Any) -> Any:
        def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(output_dir, *args, **kwargs)
            choice.save_random_state(output_dir)
            return result

        return save_accelerator_state

    def loading(original: Any) -> Any:
        def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(input_dir, *args, **kwargs)
            choice.load_random_state(input_dir)
            return result

        return load_accelerator_state

    choice.replace_function(module, "save_accelerator_state", saving)
    choice.replace_function(module, "load_accelerator_state", loading)
