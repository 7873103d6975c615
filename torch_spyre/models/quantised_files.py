# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that hold 8-bit weights: which layers have codes, and what their tensors become.

config.json tells the layouts apart: compressed-tensors with float8 or int8 weights (a scale for the tensor, for each
row or for blocks; int8 codes lie as such or four in a word), and fine-grained float8 (`quant_method` "fp8", a scale for
each block). The codes go to the card as they are. What the card's matrix unit does not take is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.models.quantised_linear import BLOCK, EightBitLinear, Form, chosen, encoded_weight, replace

_CODES = {"float": torch.float8_e4m3fn, "int": torch.int8}
_ROWS = ("channel", "tensor")
_INSTEAD = "load the weights in 16 bits, or quantise them with weights='fp8' or 'int8'"


def prepare(model: nn.Module, described: dict[str, Any]) -> None:
    """Replaces the layers of which a checkpoint holds codes; `described` is its quantization_config."""
    forms = forms_of(model, described)
    for name, form in forms.items():
        replace(model, name, EightBitLinear.empty(model.get_submodule(name), form))


def forms_of(model: nn.Module, described: dict[str, Any]) -> dict[str, Form]:
    method = described.get("quant_method")
    layers = chosen(model, ())
    if method == "compressed-tensors":
        return dict(_compressed(layers, described))
    if method == "fp8":
        return dict(_fine_grained(layers, described))
    raise UnsupportedOp(
        f"weights quantised by {method!r}: the card takes 8-bit codes as compressed-tensors and fine-grained fp8 "
        f"checkpoints hold them; {_INSTEAD}"
    )


def _compressed(layers: dict[str, nn.Linear], described: dict[str, Any]) -> Iterator[tuple[str, Form]]:
    ignored = described.get("ignore") or []
    for group in (described.get("config_groups") or {}).values():
        form = _form_of(group, described.get("format", ""))
        for name in layers:
            named = any(_names(pattern, name) for pattern in group.get("targets") or ["Linear"])
            if named and not any(_names(pattern, name) for pattern in ignored):
                yield name, form


def _names(pattern: str, name: str) -> bool:
    """Patterns are classes, names of modules or of their ends, and regular expressions."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == "Linear" or pattern == name or name.endswith(f".{pattern}")


def _form_of(group: dict[str, Any], layout: str) -> Form:
    weights, inputs = group["weights"], group.get("input_activations")
    kind, bits, strategy = weights.get("type", "int"), weights.get("num_bits"), weights.get("strategy")
    what = f"{bits}-bit {kind} weights of strategy {strategy!r}, format {group.get('format') or layout!r}"
    blocks = strategy == "block" and list(weights.get("block_structure") or ()) == [BLOCK, BLOCK] and kind == "float"
    if bits != 8 or kind not in _CODES or not (strategy in _ROWS or blocks):
        raise UnsupportedOp(
            f"{what}: the card's matrix unit takes 8-bit codes with a scale for the tensor, for each row, or for each "
            f"{BLOCK} x {BLOCK} of float8; {_INSTEAD}"
        )
    if not weights.get("symmetric", True) or (inputs and not inputs.get("symmetric", True)):
        raise UnsupportedOp(f"{what} with zero points: the card's codes are symmetric; {_INSTEAD}")
    if inputs and (inputs.get("num_bits"), inputs.get("type", "int")) != (8, kind):
        raise UnsupportedOp(f"{what} with other codes for activations: both must be of one kind; {_INSTEAD}")
    static = bool(inputs and not inputs.get("dynamic"))
    return Form(_CODES[kind], bool(inputs) or blocks, static, blocks, strategy == "tensor")


def _fine_grained(layers: dict[str, nn.Linear], described: dict[str, Any]) -> Iterator[tuple[str, Form]]:
    size = described.get("weight_block_size", [BLOCK, BLOCK])
    if size not in (None, [BLOCK, BLOCK], (BLOCK, BLOCK)):
        raise UnsupportedOp(f"fp8 weights in blocks of {size}: the card's are {BLOCK} x {BLOCK}; {_INSTEAD}")
    if described.get("scale_fmt", "float") not in ("float", None):
        raise UnsupportedOp(f"fp8 scales as {described['scale_fmt']!r}: the card's are float32; {_INSTEAD}")
    kept = described.get("modules_to_not_convert") or ["lm_head"]
    static = described.get("activation_scheme") == "static"
    form = Form(torch.float8_e4m3fn, True, static, size is not None, size is None)
    for name in layers:
        if not any(name == k or name.endswith(f".{k}") or name.startswith(f"{k}.") for k in kept):
            yield name, form


def received(layer: EightBitLinear, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """What a tensor of a file is to the layer: its own attributes and their values. A weight in 16 bits gets codes."""
    if name == "weight" and tensor.dtype != layer.weight.dtype:
        if not tensor.is_floating_point():
            raise InvalidArgument(f"a weight of {tensor.dtype} where config.json says {layer.weight.dtype}")
        codes, scale = encoded_weight(tensor, layer.weight.dtype)
        return {"weight": codes, "scale": scale}
    if name == "weight_packed":
        return {"weight": _unpacked(tensor, layer.in_features)}
    if name in ("weight_scale", "weight_scale_inv"):
        return {"scale": _scale(layer, tensor.float())}
    if name in ("input_scale", "activation_scale"):
        return {"input_scale": tensor.float().reshape(1)}
    if name == "weight_zero_point" and bool(tensor.any()):
        raise UnsupportedOp(f"weights with zero points: the card's codes are symmetric; {_INSTEAD}")
    return {} if name in ("weight_zero_point", "weight_shape", "input_zero_point") else {name: tensor}


def _scale(layer: EightBitLinear, scale: Tensor) -> Tensor:
    size = layer.scale.shape
    if scale.numel() == 1 and len(size) == 1:
        return scale.reshape(1).repeat(size[0])
    if scale.numel() != size.numel():
        raise InvalidArgument(f"scales of size {tuple(scale.shape)} where {tuple(size)} are expected")
    return scale.reshape(size)


def _unpacked(words: Tensor, columns: int) -> Tensor:
    """Four codes in a word, the first one lowest, each 128 more than its value."""
    codes = words.contiguous().view(torch.uint8)[:, :columns]
    return (codes.to(torch.int16) - 128).to(torch.int8)
