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
from torch_spyre.models.parallel import Share, cut


def load(
    folder: str | Path,
    device: str | torch.device = "spyre",
    dtype: torch.dtype = torch.float16,
    group: Any = None,
) -> Any:
    """The model of a folder with config.json and *.safetensors, in evaluation mode, on `device`. With a process group,
    this rank's share of it (`parallel.py`)."""
    folder, target = Path(folder), torch.device(device)
    model = _empty(folder, dtype)
    places = _places(model)
    if group is not None:
        names = {id(module): name for name, module in model.named_modules()}
        cut(model, group, lambda part: part)  # nothing is there to be copied yet
        for shared in {id(shared): shared for shared in places.values()}.values():
            shared[:] = [(model.get_submodule(names[id(owner)]), attribute) for owner, attribute in shared]
    weights = {id(w): order for w, order in matmul_weights(model)}
    missing, computed = set(places), {name for name, _ in model.named_buffers()}
    for name, tensor in _tensors(folder):
        where = places.get(name) or places.get(_prefixed(model, name))
        if where is None and name in computed:
            continue  # older files hold what the model now computes
        if where is None:
            raise InvalidArgument(f"{folder}: {type(model).__name__} has no parameter {name!r}; try from_pretrained")
        whole = None
        for owner, attribute in where:
            order = weights.get(id(owner._parameters.get(attribute)))
            if isinstance(owner, Share):
                moved = _moved(owner.part(attribute, tensor), target, dtype, order)
            else:
                moved = whole = _moved(tensor, target, dtype, order) if whole is None else whole
            if attribute in owner._parameters:
                owner._parameters[attribute] = nn.Parameter(moved, requires_grad=False)
            else:
                owner._buffers[attribute] = moved
        missing -= {n for n, w in places.items() if w is where}
    if missing:
        raise InvalidArgument(
            f"{folder}: no values for {sorted(missing)[:3]} of {type(model).__name__}; is a .safetensors file of it "
            "not there? from_pretrained makes up what is missing"
        )
    model.tie_weights()
    return model.to(target).eval()  # what the file does not hold: rotary frequencies, for instance


def _empty(folder: Path, dtype: torch.dtype) -> Any:
    """The module with parameters that nobody wrote: their memory is not even committed."""
    import transformers
    from transformers.initialization import no_init_weights

    names = _described(folder).get("architectures") or []
    kind: Any = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise InvalidArgument(
            f"{folder}: config.json names no architecture that transformers has (got {names}, version "
            f"{transformers.__version__}): "
            'write one of its classes as "architectures", or load the model with from_pretrained and .to("spyre")'
        )
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


def _described(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise InvalidArgument(
            f"{folder}: cannot read config.json ({error.strerror}); give the folder that save_pretrained wrote, or a "
            "downloaded snapshot"
        ) from None
    except ValueError as error:
        raise InvalidArgument(f"{folder}: config.json is not JSON ({error}); download or save it again") from None
    if not isinstance(described, dict):
        raise InvalidArgument(f"{folder}: config.json holds no object; download or save it again")
    return described


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
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(
            f"{folder}: no .safetensors file; from_pretrained reads other formats, and save_pretrained writes this one"
        )
    for file in files:
        try:
            with safe_open(str(file), "pt") as opened:
                for name in opened.keys():
                    yield name, opened.get_tensor(name)
        except SafetensorError as error:
            raise InvalidArgument(f"{file} cannot be read ({error}); download or save it again") from None


def _moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, order: Order | None) -> torch.Tensor:
    dtype = dtype if tensor.is_floating_point() else tensor.dtype
    if order is not None and device.type == "spyre":
        return to_with_layout(tensor, weight_layout(tensor.shape, dtype, order), dtype, device)
    return tensor.to(device, dtype)
