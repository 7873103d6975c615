# SPDX-License-Identifier: Apache-2.0
"""Packages above PyTorch that know a fixed list of devices: here they learn about the card.

`TABLE` names, for each module of such a package, the function that changes it right after it is imported. Nothing of
those packages is imported here, and a function's own file is imported only with its library, so start-up does not pay
for any of it. Each function says which hook is missing upstream; with that hook it could go. SPYRE_INTEGRATIONS=0
leaves all packages as they are, except for reading and writing files. docs/ecosystem.md is the page for users.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

from torch_spyre import knobs
from torch_spyre.integrations.when_imported import when_imported

_HERE = "torch_spyre.integrations"
_LIGHTNING = (("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric"))

# Module of a library -> file here and its function. These make a card usable where the caller names it.
ACCEPT = {
    "safetensors": "safetensors.open_onto_the_card",
    "transformers.generation.utils": "generation.accept_cards",
    "transformers.distributed.utils": "transformers.name_backend",
    "transformers.quantizers.auto": "quantised.keep_codes",
    "torchao.float8.inference": "torchao.accept_cards",
    "torch.nn.attention.flex_attention": "torch_attention.accept_cards",
    "torch.nn.attention.varlen": "torch_attention.varlen_on_cards",
    "torchvision.extension": "torchvision.name_missing_ops",
}
# These also make it the choice where the caller names none.
CHOOSE = {
    "accelerate.state": "accelerate.choose_card",
    "accelerate.accelerator": "accelerate.train_in_fp16",
    "accelerate.utils.modeling": "accelerate.place_on_cards",
    "accelerate.utils.memory": "accelerate.free_memory",
    "accelerate.checkpointing": "accelerate.keep_random_state",
    "transformers.utils.import_utils": "transformers.know_bfloat16",
    "transformers.training_args": "transformers.choose_card",
    "transformers.trainer": "transformers.keep_random_state",
    "transformers.pipelines.base": "transformers.choose_for_pipelines",
    "sentence_transformers.util.environment": "device_names.of_sentence_transformers",
    "peft.utils.other": "device_names.of_peft",
    **{f"{name}.accelerators": "lightning.register" for pair in _LIGHTNING for name in pair},
    **{f"{name}.trainer.connectors.accelerator_connector": "lightning.choose_in_trainer" for name, _ in _LIGHTNING},
    **{f"{name}.connector": "lightning.choose_in_fabric" for _, name in _LIGHTNING},
}


def install() -> None:
    """Called once, when the device is registered."""
    table = {**ACCEPT, **CHOOSE} if knobs.get("integrations") else ACCEPT
    for module, change in table.items():
        when_imported(module, functools.partial(_apply, change))


def _apply(change: str, module: ModuleType) -> None:
    file, function = change.split(".")
    try:
        getattr(importlib.import_module(f"{_HERE}.{file}"), function)(module)
    except (AttributeError, KeyError) as error:
        library = module.__name__.split(".")[0]
        warnings.warn(
            f"torch_spyre does not know this version of {library} ({module.__name__}: {error}). It may choose the CPU: "
            "name the device 'spyre' where it takes one, or install a version of tests/ecosystem/requirements.txt. "
            "SPYRE_INTEGRATIONS=0 leaves libraries alone.",
            stacklevel=2,
        )
