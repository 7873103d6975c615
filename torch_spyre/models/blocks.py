# SPDX-License-Identifier: Apache-2.0
"""Regional compilation: one decoder block is compiled and serves every layer of its kind.

A Hugging Face model repeats one block many times. Compiled as a whole, it is one large graph per sequence length; here
the block's `forward` is compiled once and called with each layer's weights. What would tell the layers apart to the
compiler, and so make it compile each of them, is the number of the layer and the identity of its cache tensors: a block
gets a view of its own part of the cache instead, as layer 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_spyre.errors import InvalidArgument


class StaticView:
    """One layer of a `StaticCache`, on tensors of its own that share the cache's memory."""

    def __init__(self, layer: Any) -> None:
        self.keys = layer.keys.detach()
        self.values = layer.values.detach()
        self.length = layer.cumulative_length.detach()
        self.max_cache_len = layer.max_cache_len

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(keys.shape[-2], device=keys.device) + self.length
        self.length.add_(keys.shape[-2])
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        return self.keys, self.values


class Block:
    """The replacement of one block's `forward`."""

    def __init__(self, block: nn.Module, compiled: Callable[..., Any]) -> None:
        self.block = block
        self.plain = type(block).forward
        self.compiled = compiled
        self.numbered = [m for m in block.modules() if isinstance(getattr(m, "layer_idx", None), int)]
        self.index = self.numbered[0].layer_idx if self.numbered else 0
        self.view: tuple[Any, StaticView] | None = None
        for module in self.numbered:
            module.layer_idx = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        if cache is None:
            return self.compiled(self.block, *args, **kwargs)
        layer: Any = cache.layers[self.index] if len(cache.layers) > self.index else None
        if not getattr(layer, "is_compileable", False) or getattr(layer, "is_sliding", False):
            return self._plain(*args, **kwargs)  # a cache whose tensors change from call to call
        if not layer.is_initialized:
            self._allocate(layer, args[0] if args else kwargs["hidden_states"])
        if self.view is None or self.view[0] is not layer.keys:
            self.view = (layer.keys, StaticView(layer))
        kwargs["past_key_values"] = self.view[1]
        return self.compiled(self.block, *args, **kwargs)

    def _allocate(self, layer: Any, hidden: torch.Tensor) -> None:
        """Makes the cache tensors now; left to the block, they would be made inside the compiled graph."""
        config = self.numbered[0].config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        like = hidden.new_empty((hidden.shape[0], heads, 0, width))
        layer.lazy_initialization(like, like)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        for module in self.numbered:
            module.layer_idx = self.index
        try:
            return self.plain(self.block, *args, **kwargs)
        finally:
            for module in self.numbered:
                module.layer_idx = 0

    def restore(self) -> None:
        for module in self.numbered:
            module.layer_idx = self.index
        del self.block.forward


def compile_blocks(model: nn.Module, **options: Any) -> nn.Module:
    """Compiles the repeated blocks of a model, one graph per kind and shape; `options` go to `torch.compile`.

    The model is changed in place and returned; `restore_blocks` undoes it.
    """
    options.setdefault("dynamic", False)
    compiled: dict[type[nn.Module], Callable[..., Any]] = {}
    found = False
    for block in _repeated(model):
        if isinstance(block.__dict__.get("forward"), Block):
            continue
        kind = type(block)
        if kind not in compiled:
            compiled[kind] = torch.compile(kind.forward, **options)
        block.forward = Block(block, compiled[kind])
        found = True
    if not found:
        raise InvalidArgument(
            f"{type(model).__name__} has no repeated blocks to compile; use torch.compile(model) for the whole of it"
        )
    return model


def restore_blocks(model: nn.Module) -> nn.Module:
    for block in model.modules():
        replaced = block.__dict__.get("forward")
        if isinstance(replaced, Block):
            replaced.restore()
    return model


def _repeated(model: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost lists of modules that hold at least two of a kind."""
    lists: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and not inside and len(module) > len({type(m) for m in module}):
            lists.append(name)
            yield from module
