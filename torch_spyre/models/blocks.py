# SPDX-License-Identifier: Apache-2.0
"""Regional compilation: one decoder block is compiled and serves every layer of its kind.

A Hugging Face model repeats one block many times. Compiled as a whole, it is one large graph per sequence length; here
the block's `forward` is compiled once per shape and called with each layer's weights, and `lengths.py` sees to it that
there are few shapes. What would tell the layers apart to the compiler, and so make it compile each of them, is the
number of the layer and the identity of its cache: a block gets a window on its own part of the cache, as layer 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.quantised_linear import EightBitLinear

Shape = tuple[Any, ...]


class Compiled:
    """The compiled forms of one kind of block, one per shape."""

    def __init__(self, kind: type[nn.Module], options: dict[str, Any]) -> None:
        self.plain: Callable[..., Any] = inspect.unwrap(kind.forward)
        self.options = options
        self.forms: dict[Shape, Callable[..., Any]] = {}
        self.names = [n for n in inspect.signature(self.plain).parameters if n != "self"]

    def __getitem__(self, shape: Shape) -> Callable[..., Any]:
        form = self.forms.get(shape)
        if form is None:
            from torch_spyre.models.lengths import own_code  # late: start-up

            form = self.forms[shape] = torch.compile(own_code(self.plain), **self.options)
        return form


class Block:
    """The replacement of one block's `forward`."""

    def __init__(self, block: nn.Module, compiled: Compiled) -> None:
        self.block = block
        self.compiled = compiled
        self.numbered = [m for m in block.modules() if isinstance(getattr(m, "layer_idx", None), int)]
        self.index = self.numbered[0].layer_idx if self.numbered else 0
        for module in self.numbered:
            module.layer_idx = 0

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        call = {**dict(zip(self.compiled.names[1:], args, strict=False)), **kwargs}
        cache = call.get("past_key_values")
        if cache is None:
            return self.compiled[(hidden.shape,)](self.block, hidden, **call)
        layers = getattr(cache, "layers", ())
        layer: Any = layers[self.index] if len(layers) > self.index else None
        if not hasattr(layer, "window"):  # a cache whose tensors change from call to call
            return self._plain(hidden, call)
        if not layer.is_initialized:
            self._allocate(layer, hidden)
        call["past_key_values"] = window = layer.window()
        return self.compiled[(hidden.shape, window.keys.shape, window.span)](self.block, hidden, **call)

    def _allocate(self, layer: Any, hidden: torch.Tensor) -> None:
        """Makes the cache tensors now; left to the block, they would be made inside the compiled graph."""
        attention = self.numbered[0]
        config = attention.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = _local_heads(attention, width) or getattr(config, "num_key_value_heads", None)
        heads = heads or config.num_attention_heads
        like = hidden.new_empty((hidden.shape[0], heads, 0, width))
        layer.lazy_initialization(like, like)

    def _plain(self, hidden: torch.Tensor, call: dict[str, Any]) -> Any:
        for module in self.numbered:
            module.layer_idx = self.index
        try:
            return self.compiled.plain(self.block, hidden, **call)
        finally:
            for module in self.numbered:
                module.layer_idx = 0

    def restore(self) -> None:
        for module in self.numbered:
            module.layer_idx = self.index
        del self.block.forward


class Head:
    """The replacement of the `forward` of a head with 8-bit codes: compiled for one row, as eager mode would write its
    decoded weight down for every token."""

    def __init__(self, head: nn.Module, options: dict[str, Any]) -> None:
        self.head = head
        self.compiled = Compiled(type(head), options)

    def __call__(self, hidden: torch.Tensor) -> Any:
        if hidden.numel() != hidden.shape[-1]:
            return self.compiled.plain(self.head, hidden)
        return self.compiled[(hidden.shape,)](self.head, hidden)

    def restore(self) -> None:
        del self.head.forward


def _local_heads(attention: Any, width: int) -> int:
    """Heads whose keys this card makes: a share of the model's where several cards share it. 0: cannot be seen."""
    weight = getattr(getattr(attention, "k_proj", None), "weight", None)
    if weight is None or not weight.is_floating_point():
        return 0
    return int((weight.to_local() if hasattr(weight, "to_local") else weight).shape[0]) // width


def compile_blocks(model: nn.Module, **options: Any) -> nn.Module:
    """Compiles the repeated blocks of a model, one graph per kind and shape; `options` go to `torch.compile`.

    A decoder also gets its lengths rounded up (`lengths.py`). The model is changed in place and returned;
    `restore_blocks` undoes it.
    """
    options.setdefault("dynamic", False)
    compiled: dict[type[nn.Module], Compiled] = {}
    found = False
    for block in repeated(model):
        if isinstance(block.__dict__.get("forward"), Block):
            continue
        kind = type(block)
        if kind not in compiled:
            compiled[kind] = Compiled(kind, options)
        block.forward = Block(block, compiled[kind])
        found = True
    if not found:
        raise InvalidArgument(
            f"{type(model).__name__} has no repeated blocks to compile; use torch.compile(model) for the whole of it"
        )
    head = getattr(model, "lm_head", None)
    if isinstance(head, EightBitLinear) and "forward" not in head.__dict__:
        head.forward = Head(head, options)  # type: ignore[method-assign, assignment]
    if _is_decoder(model):
        from torch_spyre.models.lengths import Lengths  # late: start-up

        Lengths(model).install()
    return model


def restore_blocks(model: nn.Module) -> nn.Module:
    """Undoes `compile_blocks`."""
    outer = model.__dict__.get("forward")
    if hasattr(outer, "restore"):
        outer.restore()
    for block in model.modules():
        replaced = block.__dict__.get("forward")
        if isinstance(replaced, (Block, Head)):
            replaced.restore()
    return model


def _is_decoder(model: nn.Module) -> bool:
    generates = getattr(model, "can_generate", None)
    return generates is not None and generates() and not getattr(model.config, "is_encoder_decoder", False)


def repeated(model: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost lists of modules that hold at least two of a kind."""
    lists: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and not inside and len(module) > len({type(m) for m in module}):
            lists.append(name)
            yield from module
