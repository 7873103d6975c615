# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint folder straight onto the card.

Each tensor goes from the mapped safetensors file to card memory, in the layout that matmul reads, and is dropped: the
host never holds more than one tensor beside the card's own memory. `from_pretrained` works too; it makes the whole
model on the host first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_spyre.device.modules import Order, matmul_weights, weight_layout
from torch_spyre.device.tensors import to_with_layout
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.parallel import Share, cut
from torch_spyre.models.quantised_files import prepare, received
from torch_spyre.models.quantised_linear import FORMATS, HEAD, EightBitLinear, Form, chosen, codes_on, replace
from torch_spyre.models.tensor_files import TensorFiles
from torch_spyre.models.tensor_names import Tensors, parts

Progress = Callable[[int, int], None]  # bytes that are on the card, and all bytes


def load(
    folder: str | Path,
    device: str | torch.device = "spyre",
    dtype: torch.dtype = torch.float16,
    group: Any = None,
    weights: str = "fp16",
    progress: Progress | None = None,
) -> Any:
    """The model of a folder with config.json and *.safetensors, in evaluation mode, on `device`. With a process group,
    this rank's share of it (`parallel.py`). Linear layers of which the folder holds 8-bit codes keep them;
    `weights`, fp8 or int8, makes such codes of the others while they pass."""
    folder = Path(folder)
    model = _empty(folder, dtype)
    described = _described(folder)
    quantization = described.get("quantization_config") or described.get("compression_config")
    if quantization is not None:
        prepare(model, quantization)
    return fill(model, TensorFiles(folder), str(folder), device, dtype, group, weights, progress)


def fill(
    model: Any,
    tensors: Tensors,
    name_of_source: str,
    device: str | torch.device = "spyre",
    dtype: torch.dtype = torch.float16,
    group: Any = None,
    weights: str = "fp16",
    progress: Progress | None = None,
) -> Any:
    """A model whose parameters nobody wrote gets them, one tensor after the other, each straight on `device`."""
    target = torch.device(device)
    if weights in FORMATS:
        for name, layer in chosen(model, HEAD).items():
            replace(model, name, EightBitLinear.empty(layer, Form(FORMATS[weights][0])))
    elif weights != "fp16":
        raise InvalidArgument(f"weights as {weights!r}: the choices are fp16, {', '.join(FORMATS)}")
    filling = _Filling(model, name_of_source, target, dtype, group)
    done, whole = 0, sum(map(tensors.bytes_of, tensors.names()))
    for part in parts(tensors, model):
        for name, tensor in part.read(tensors, model):
            filling.put(name, tensor)
        done += sum(tensors.bytes_of(name) for name, _ in part.sources)
        if progress is not None:
            progress(done, whole)
    filling.check()
    model.tie_weights()
    return model.to(target).eval()  # what the file does not hold: rotary frequencies, for instance


class _Filling:
    """Where the tensors of a model belong, and which are still missing."""

    def __init__(self, model: Any, source: str, target: torch.device, dtype: torch.dtype, group: Any) -> None:
        self.model, self.source, self.target, self.dtype = model, source, target, dtype
        self.places = _places(model)
        self.coded = {name: m for name, m in model.named_modules() if isinstance(m, EightBitLinear)}
        if group is not None:
            if self.coded:
                raise InvalidArgument(f"{source}: 8-bit weights are for one card; load 16-bit weights with a group")
            names = {id(module): name for name, module in model.named_modules()}
            cut(model, group, lambda part: part)  # nothing is there to be copied yet
            for shared in {id(shared): shared for shared in self.places.values()}.values():
                shared[:] = [(model.get_submodule(names[id(owner)]), attribute) for owner, attribute in shared]
        self.orders = {id(w): order for w, order in matmul_weights(model)}
        self.missing, self.computed = set(self.places), {name for name, _ in model.named_buffers()}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        owner, _, attribute = name.rpartition(".")
        layer = self.coded.get(owner) or self.coded.get(_prefixed(self.model, owner))
        if layer is None:
            self._put(name, tensor)
            return
        try:
            own = received(layer, attribute, tensor)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.source}: {name}: {error}") from None
        for attribute, value in own.items():
            self._put(f"{owner}.{attribute}", value, codes=attribute == "weight", scale=attribute.endswith("scale"))

    def _put(self, name: str, tensor: torch.Tensor, codes: bool = False, scale: bool = False) -> None:
        where = self.places.get(name) or self.places.get(_prefixed(self.model, name))
        if where is None and name in self.computed:
            return  # older files hold what the model now computes
        if where is None:
            raise InvalidArgument(
                f"{self.source}: {type(self.model).__name__} has no parameter {name!r}; try from_pretrained"
            )
        whole = None
        for owner, attribute in where:
            order = self.orders.get(id(owner._parameters.get(attribute)))
            if isinstance(owner, Share):
                moved = self._moved(owner.part(attribute, tensor), order)
            elif whole is not None:
                moved = whole
            elif codes or scale:
                moved = whole = codes_on(self.target, tensor) if codes else tensor.to(self.target)
            else:
                moved = whole = self._moved(tensor, order)
            if attribute in owner._parameters:
                owner._parameters[attribute] = nn.Parameter(moved, requires_grad=False)
            else:
                owner._buffers[attribute] = moved
        self.missing -= {n for n, w in self.places.items() if w is where}

    def _moved(self, tensor: torch.Tensor, order: Order | None) -> torch.Tensor:
        return moved(tensor, self.target, self.dtype, order)

    def check(self) -> None:
        if self.missing:
            raise InvalidArgument(
                f"{self.source}: no values for {sorted(self.missing)[:3]} of {type(self.model).__name__}; is a "
                ".safetensors file of it not there? from_pretrained makes up what is missing"
            )


def architecture(folder: Path) -> tuple[Any, Any]:
    """The class that a folder's config.json names, and its configuration."""
    import transformers

    names = _described(folder).get("architectures") or []
    kind: Any = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise InvalidArgument(
            f"{folder}: config.json names no architecture that transformers has (got {names}, version "
            f"{transformers.__version__}): "
            'write one of its classes as "architectures", or load the model with from_pretrained and .to("spyre")'
        )
    return kind, kind.config_class.from_pretrained(folder)


def _empty(folder: Path, dtype: torch.dtype) -> Any:
    """The module with parameters that nobody wrote: their memory is not even committed."""
    import transformers
    from transformers.initialization import no_init_weights

    kind, config = architecture(folder)
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


def moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, order: Order | None = None) -> torch.Tensor:
    """On the device in `dtype`, a weight on a card in the layout that matmul reads."""
    dtype = dtype if tensor.is_floating_point() else tensor.dtype
    if order is not None and device.type == "spyre":
        return to_with_layout(tensor, weight_layout(tensor.shape, dtype, order), dtype, device)
    return tensor.to(device, dtype)
