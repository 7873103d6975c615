# SPDX-License-Identifier: Apache-2.0
"""Regional compilation of vLLM's models: the code of one block is compiled for each size and serves all layers.

`torch_spyre.models.blocks` does the same for models of transformers; here the cache is no argument, and the size of a
step is known before it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spyre_inference.attention.tables import Sizes
from torch_spyre.models.blocks import repeated
from torch_spyre.models.lengths import own_code


class Forms:
    """The compiled forms of one kind of block, one for each size of a step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.plain: Callable[..., Any] = inspect.unwrap(kind.forward)
        self.names = [*inspect.signature(self.plain).parameters][1:]
        self.forms: dict[Any, Callable[..., Any]] = {}

    def __getitem__(self, size: Any) -> Callable[..., Any]:
        form = self.forms.get(size)
        if form is None:
            form = self.forms[size] = torch.compile(own_code(self.plain), dynamic=False)
        return form


class Blocks:
    """The repeated blocks of a model. `size` is set before a step: it chooses the form."""

    def __init__(self, model: nn.Module) -> None:
        self.size: Sizes | None = None
        forms: dict[type[nn.Module], Forms] = {}
        for block in repeated(model):
            kind = forms.setdefault(type(block), Forms(type(block)))
            block.forward = _Call(self, kind, block)


class _Call:
    """The `forward` of one block."""

    def __init__(self, blocks: Blocks, kind: Forms, block: nn.Module) -> None:
        self.blocks, self.kind, self.block = blocks, kind, block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = dict(zip(self.kind.names, args, strict=False)) | kwargs
        if (
            call.get("residual", call) is None
        ):  # the first block: what is added is 0, and its graph is that of the others
            call["residual"] = call["hidden_states"] - call["hidden_states"]
        return self.kind[self.blocks.size](self.block, **call)
