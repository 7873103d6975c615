# SPDX-License-Identifier: Apache-2.0
"""Libraries with one function that names the device. Missing hook: ``torch.accelerator`` in that function."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_spyre.integrations import choice


def of_sentence_transformers(module: ModuleType) -> None:
    """`sentence_transformers.util.environment`: the device of a `SentenceTransformer` or `CrossEncoder`."""
    choice.replace_function(module, "get_device_name", _naming_the_card)


def of_peft(module: ModuleType) -> None:
    """`peft.utils.other`: where the weights of adapters are read to."""
    choice.replace_function(module, "infer_device", _naming_the_card)


def _naming_the_card(original: Any) -> Any:
    def name() -> str:
        device: str = original()
        chosen = choice.card()
        return device if device != "cpu" or chosen is None else str(chosen)

    return name
