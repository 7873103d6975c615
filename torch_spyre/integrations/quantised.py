# SPDX-License-Identifier: Apache-2.0
"""transformers loads checkpoints with 8-bit codes: where a card is, the codes stay codes.

`transformers.quantizers` multiplies codes with kernels of CUDA and XPU; without them it turns weights into 16 bits.
Missing hook: a quantizer that a device brings for a method that is known already.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn

from torch_spyre.integrations import choice

_METHODS = ("fp8", "compressed-tensors")
_CONFIG = "compressed-tensors"  # whose configuration class asks for a package that is not needed here


def keep_codes(module: ModuleType) -> None:
    """`transformers.quantizers.auto`: the tables of quantizers and of their configurations, by method."""
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    own_quantizer = _quantizer(HfQuantizer)
    for method in _METHODS:
        original = module.AUTO_QUANTIZER_MAPPING[method]
        module.AUTO_QUANTIZER_MAPPING[method] = _chosen(original, own_quantizer)
    original = module.AUTO_QUANTIZATION_CONFIG_MAPPING[_CONFIG]
    own_config = _config(QuantizationConfigMixin)
    module.AUTO_QUANTIZATION_CONFIG_MAPPING[_CONFIG] = _chosen(original, own_config)


def _chosen(original: type[Any], own: type[Any]) -> type[Any]:
    """A class that is `own` where cards are the accelerator, else the original; whoever asks for weights in 16 bits
    (`dequantize=True`) gets the original too."""

    class Chosen(original):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            dequantize = getattr(args[0], "dequantize", False) if args else kwargs.get("dequantize", False)
            return (original if choice.card() is None or dequantize else own)(*args, **kwargs)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """What `__new__` made is complete."""

        @classmethod
        def from_dict(cls, described: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            of_card = choice.card() is not None and not described.get("dequantize", False)
            return (own if of_card else original).from_dict(described, *args, **kwargs)

    Chosen.__name__, Chosen.__qualname__ = original.__name__, original.__qualname__
    return Chosen


def _config(base: type[Any]) -> type[Any]:
    class CardConfig(base):
        """The quantization_config of a compressed-tensors checkpoint, as it stands in config.json."""

        def __init__(self, quant_method: str = _CONFIG, **described: Any) -> None:
            self.quant_method = quant_method
            for name, value in described.items():
                setattr(self, name, value)

    return CardConfig


def _quantizer(base: type[Any]) -> type[Any]:
    class CardQuantizer(base):
        """Tensors come in under the names of the files; then each layer makes of them what it computes with."""

        @property
        def is_trainable(self) -> bool:
            return False

        @property
        def is_compileable(self) -> bool:
            return True

        def is_serializable(self) -> bool:
            return False

        def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
            from torch_spyre.models.quantised_files import forms_of  # late: start-up
            from torch_spyre.models.quantised_linear import replace  # late: start-up

            described = self.quantization_config.to_dict()
            packed = described.get("format") == "pack-quantized"
            for name, form in forms_of(model, described).items():
                replace(model, name, Arriving(model.get_submodule(name), form, described["quant_method"], packed))

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            from torch_spyre.models.quantised_linear import replace  # late: start-up

            arrived = [(name, m) for name, m in model.named_modules() if isinstance(m, Arriving)]
            for name, layer in arrived:
                replace(model, name, layer.complete())
            return model

    return CardQuantizer


class Arriving(nn.Module):
    """A linear layer whose tensors have the names that they have in the files."""

    def __init__(self, linear: nn.Module, form: Any, method: str, packed: bool) -> None:
        super().__init__()
        from torch_spyre.models.quantised_linear import BLOCK, EightBitLinear  # late: start-up

        with torch.device("meta"):
            self.made = [EightBitLinear.empty(linear, form)]  # in a list: no part of the module
            rows, columns = self.made[0].weight.shape
            if packed:
                self._add("weight_packed", torch.empty(rows, -(-columns // 4), dtype=torch.int32))
                self._add("weight_shape", torch.empty(2, dtype=torch.int64))
            else:
                self._add("weight", torch.empty(rows, columns, dtype=form.dtype))
            fine = method == "fp8"
            size = (-(-rows // BLOCK), -(-columns // BLOCK)) if form.blocks else (rows, 1)
            one = () if fine else (1,)
            scale = torch.empty(one if form.whole else size, dtype=torch.float32)
            self._add("weight_scale_inv" if fine else "weight_scale", scale)
            if form.static:
                self._add("activation_scale" if fine else "input_scale", torch.empty(one, dtype=torch.float32))
        self.register_parameter("bias", linear.bias)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def complete(self) -> nn.Module:
        from torch_spyre.models.quantised_files import received  # late: start-up
        from torch_spyre.models.quantised_linear import codes_on  # late: start-up

        layer = self.made[0]
        for name, tensor in self._parameters.items():
            if tensor is None or name == "bias":
                continue
            for attribute, value in received(layer, name, tensor.detach()).items():
                if attribute == "weight":
                    layer.weight = nn.Parameter(codes_on(value.device, value), requires_grad=False)
                else:
                    layer._buffers[attribute] = value
        layer.bias = self.bias
        return layer
