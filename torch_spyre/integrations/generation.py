# SPDX-License-Identifier: Apache-2.0
"""`generate()` of transformers with a model on the card, each change with the upstream hook that is missing.

Models elsewhere are not touched.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_spyre import knobs
from torch_spyre.constants import DEVICE_NAME


def accept_cards(module: ModuleType) -> None:
    mixin: Any = getattr(module, "GenerationMixin", None)
    if mixin is None or hasattr(mixin.generate, "_spyre_patched"):
        return
    _loop_on_the_host(mixin)
    _compile_with_static_cache(mixin)


def _loop_on_the_host(mixin: Any) -> None:
    """Ids and masks grow by one with each token: on the card, every length would be a program. transformers keeps them
    on the host if the caller does. Missing hook: a device that asks for it."""
    original = mixin.generate

    @functools.wraps(original)
    def generate(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != DEVICE_NAME or not knobs.get("generate_on_host"):
            return original(self, inputs, *args, **kwargs)
        given = next((x for x in (inputs, kwargs.get("input_ids")) if isinstance(x, torch.Tensor)), None)
        moved = {name: _host(x) for name, x in kwargs.items()}
        result = original(self, _host(inputs), *args, **moved)
        return _back(result, given.device) if given is not None else result

    generate._spyre_patched = True  # type: ignore[attr-defined]
    mixin.generate = generate


def _host(x: Any) -> Any:
    """Ids, masks and positions on the host; pixels, audio and embeddings stay where they are."""
    if not isinstance(x, torch.Tensor) or x.device.type != DEVICE_NAME:
        return x
    return x if x.is_floating_point() else x.cpu()


def _back(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        return result.to(device)
    if isinstance(getattr(result, "sequences", None), torch.Tensor):
        result.sequences = result.sequences.to(device)
    return result


def _compile_with_static_cache(mixin: Any) -> None:
    """With a static cache `generate` compiles the decoding step, on a fixed list of devices. Missing hook: a device
    that puts itself on that list."""
    original = mixin._valid_auto_compile_criteria

    @functools.wraps(original)
    def criteria(self: Any, model_kwargs: Any, generation_config: Any) -> bool:
        if self.device.type != DEVICE_NAME:
            return bool(original(self, model_kwargs, generation_config))
        if "forward" in self.__dict__:  # compiled already, by its blocks or by the user
            return False
        from transformers import CompileConfig

        asked = generation_config.compile_config
        cache = model_kwargs.get("past_key_values")
        if asked is None and (cache is None or not cache.is_compileable):
            return False
        config = asked if asked is not None else CompileConfig(mode="default", dynamic=False)
        config._compile_all_devices = True
        generation_config.compile_config = config
        return bool(original(self, model_kwargs, generation_config))

    mixin._valid_auto_compile_criteria = criteria
