# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint folder straight onto the card.

Each tensor goes from the mapped safetensors file to card memory, in the layout that matmul reads, and is dropped: the
host never holds more than one tensor beside the card's own memory. `from_pretrained` works too; it makes the whole
model on the host first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_spyre.device.modules import Order, matmul_weights, weight_layout
from torch_spyre.device.tensors import to_with_layout
from torch_spyre.errors import InvalidArgument


def load(folder: str | Path, device: str | torch.device = "spyre", dtype: torch.dtype = torch.float16) -> Any:
    """The model of a folder with config.json and *.safetensors, in evaluation mode, on `device`."""
    folder = Path(folder)
    model = _empty(folder, dtype)
    target = torch.device(device)
    weights = {id(w): order for w, order in matmul_weights(model)}
    places = _places(model)
    missing, computed = set(places), {name for name, _ in model.named_buffers()}
    for name, tensor in _tensors(folder):
        where = places.get(name) or places.get(_prefixed(model, name))
        if where is None and name in computed:
            continue  # older files hold what the model now computes
        if where is None:
            raise InvalidArgument(f"{folder}: {type(model).__name__} has no parameter {name!r}; try from_pretrained")
        moved = _moved(tensor, target, dtype, weights.get(id(where[0][0]._parameters.get(where[0][1]))))
        for owner, attribute in where:
            if attribute in owner._parameters:
                owner._parameters[attribute] = nn.Parameter(moved, requires_grad=False)
            else:
                owner._buffers[attribute] = moved
            missing -= {n for n, w in places.items() if w is where}
    if missing:
        raise InvalidArgument(f"{folder}: no values for {sorted(missing)[:3]} of {type(model).__name__}")
    model.tie_weights()
    return model.to(target).eval()  # what the file does not hold: rotary frequencies, for instance


def _empty(folder: Path, dtype: torch.dtype) -> Any:
    """The module with parameters that nobody wrote: their memory is not even committed."""
    import transformers
    from transformers.initialization import no_init_weights

    described = json.loads((folder / "config.json").read_text())
    names = described.get("architectures") or []
    kind: Any = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise InvalidArgument(f"{folder}: config.json names no architecture that transformers has (got {names})")
    config = kind.config_class.from_pretrained(folder)
    with no_init_weights():
        model = kind(config)
    if model.can_generate() and (folder / "generation_config.json").exists():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = torch.empty_like(parameter, dtype=dtype)
    model.tie_weights()
    return model


def _places(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Name in a file -> every (module, attribute) that holds it; tied ones share one entry."""
    shared: dict[int, list[tuple[nn.Module, str]]] = {}
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    for prefix, owner in model.named_modules():
        held: dict[str, Any] = {**owner._parameters, **owner._buffers}
        for name, tensor in held.items():
            if tensor is None or name in owner._non_persistent_buffers_set:
                continue
            group = shared.setdefault(id(tensor), [])
            group.append((owner, name))
            places[f"{prefix}.{name}" if prefix else name] = group
    return places


def _prefixed(model: Any, name: str) -> str:
    """Files of a base model carry no prefix in front of their names."""
    return f"{model.base_model_prefix}.{name}"


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(f"{folder}: no .safetensors file")
    for file in files:
        with safe_open(str(file), "pt") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name)


def _moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, order: Order | None) -> torch.Tensor:
    dtype = dtype if tensor.is_floating_point() else tensor.dtype
    if order is not None and device.type == "spyre":
        return to_with_layout(tensor, weight_layout(tensor.shape, dtype, order), dtype, device)
    return tensor.to(device, dtype)
