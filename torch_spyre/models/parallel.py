# SPDX-License-Identifier: Apache-2.0
"""A decoder on several cards: every rank holds a share of each layer and works on the whole sequence.

transformers says for each of its models which linear layers are split by their outputs ("colwise": heads, the width
of an MLP) and which by their inputs ("rowwise"); after one of the latter, ranks hold parts of a sum. Here such a layer
becomes a `Linear` over plain tensors with one functional collective behind it: what `compile_blocks` compiles and
replays for one card, it compiles and replays for a share. For training, `torch.distributed.tensor.parallel` knows the
collectives of the backward pass too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from torch_spyre.device.modules import weight_layout
from torch_spyre.device.tensors import to_with_layout
from torch_spyre.errors import InvalidArgument, UnsupportedOp

# What transformers calls them. Whatever else is in its plans stays whole on every rank.
_BY_OUTPUTS = ("colwise", "colwise_gather_output", "colwise_rep")
_GATHERED = ("colwise_gather_output", "colwise_rep")
_BY_INPUTS = ("rowwise",)
_WHOLE = ("embedding_rowwise", "replicated_with_grad_allreduce", "replicate", "sequence_parallel")


class Share(nn.Linear):
    """A linear layer of which this rank holds one of `size` equal parts. `part` cuts it from a whole tensor."""

    rank: int
    size: int
    group: str  # name of the process group
    cut_along: ClassVar[dict[str, int]]  # parameter -> dim; every rank has all of the others

    def part(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        dim = self.cut_along.get(name)
        if dim is None:
            return whole
        rows = whole.shape[dim] // self.size
        return whole.narrow(dim, self.rank * rows, rows)


class OutputShare(Share):
    """Some of the output features; all of them if `gathered`."""

    gathered: bool
    cut_along = {"weight": 0, "bias": 0}  # noqa: RUF012  (declared in the base)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        mine = F.linear(input, self.weight, self.bias)
        return _gathered(mine, self.size, self.group) if self.gathered else mine


class InputShare(Share):
    """Some of the input features; the sum over the ranks is the layer's output."""

    cut_along = {"weight": 1}  # noqa: RUF012  (declared in the base)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        functional = torch.ops._c10d_functional
        mine = F.linear(input, self.weight)
        total: torch.Tensor = functional.wait_tensor(functional.all_reduce(mine, "sum", self.group))
        return total if self.bias is None else total + self.bias


def _gathered(mine: torch.Tensor, size: int, group: str) -> torch.Tensor:
    """The last dims of all ranks, one after the other."""
    functional = torch.ops._c10d_functional
    together = functional.wait_tensor(functional.all_gather_into_tensor(mine.contiguous(), size, group))
    return together.unflatten(0, (size, -1)).movedim(0, -2).flatten(-2)  # a view, if there is one row


def parallelize(model: Any, group: Any = None) -> Any:
    """Leaves this rank's share of a transformers decoder in `model`, which is changed in place and returned.

    The model may be anywhere; weights that are on a card stay there, in the layout that matmul reads. All ranks of the
    group must call it with the same model. `checkpoint.load(folder, group=…)` reads only the share from the start.
    """
    return cut(model, group, _placed)


def cut(model: Any, group: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`parallelize`; `place` makes a parameter of the part of a tensor, which it gets as a view."""
    group = group or dist.group.WORLD
    if group is None:
        raise InvalidArgument("parallelize() needs a process group; call torch.distributed.init_process_group() first")
    size = dist.get_world_size(group)
    if size == 1:
        return model
    plan = _plan_of(model)
    _check_heads(model, size)
    shares: list[tuple[str, nn.Module, Share]] = []  # all of them, before anything is changed
    for name, module in model.named_modules():
        style = plan.get(re.sub(r"\d+", "*", name))
        if style in (*_BY_OUTPUTS, *_BY_INPUTS):
            share = _share(name, module, style, dist.get_rank(group), size, group.group_name)
            shares += [] if share is None else [(name, module, share)]
    for name, module, share in shares:
        _fill(share, module, place)
        model.set_submodule(name, share)
    model.config.tie_word_embeddings = False  # the head is a share, the table of tokens is whole
    model._tp_size = size  # where transformers looks for the number of heads in a cache
    return model


def _plan_of(model: Any) -> dict[str, str]:
    plan = dict(getattr(model, "tp_plan", None) or {})
    if not plan:
        raise UnsupportedOp(
            f"transformers has no tensor parallel plan for {type(model).__name__}; use parallelize_module of "
            "torch.distributed.tensor.parallel with a plan of your own"
        )
    for name, style in plan.items():
        if style not in (*_BY_OUTPUTS, *_BY_INPUTS, *_WHOLE):
            raise UnsupportedOp(
                f"{type(model).__name__}: {name} is to be split as {style!r}, which parallelize() does not know; use "
                'from_pretrained(…, tp_plan="auto") of transformers'
            )
    return plan


def _check_heads(model: Any, size: int) -> None:
    config = model.config.get_text_config(decoder=True)
    counts = {"attention heads": config.num_attention_heads}
    counts["key/value heads"] = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    for what, count in counts.items():
        if count % size:
            able = [n for n in range(1, count + 1) if all(c % n == 0 for c in counts.values())]
            raise InvalidArgument(
                f"{type(model).__name__} has {count} {what}, which {size} ranks do not share evenly; start "
                f"{', '.join(map(str, able[:-1]))}{' or ' if able[:-1] else ''}{able[-1]}"
            )


def _share(name: str, module: nn.Module, style: str, rank: int, size: int, group: str) -> Any:
    """The share of this rank in a layer, without parameters yet; None if every rank has all of it."""
    if type(module) is not nn.Linear:
        raise UnsupportedOp(f"parallelize() splits layers of type Linear, but {name} is a {type(module).__name__}")
    by_outputs, gathered = style in _BY_OUTPUTS, style in _GATHERED
    width = module.out_features if by_outputs else module.in_features
    if width % size:
        if gathered:
            return None  # a head whose words cannot be shared evenly stays whole
        raise InvalidArgument(f"{name} has {width} features, which {size} ranks do not share evenly")
    share: Any = OutputShare if by_outputs else InputShare
    features = (module.in_features, width // size) if by_outputs else (width // size, module.out_features)
    share = share(*features, bias=module.bias is not None, device="meta").train(module.training)
    share.rank, share.size, share.group = rank, size, group
    if by_outputs:
        share.gathered = gathered
    return share


def _fill(share: Share, whole: nn.Module, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name, parameter in whole._parameters.items():
        if parameter is not None:
            part = place(share.part(name, parameter.detach()))
            share._parameters[name] = nn.Parameter(part, parameter.requires_grad)


def _placed(part: torch.Tensor) -> torch.Tensor:
    """A part of its own, not a view that keeps the whole alive; on a card in the layout that matmul reads."""
    if part.device.type == "spyre" and part.dim() == 2:
        return to_with_layout(part.contiguous(), weight_layout(part.shape, part.dtype), copy=True)
    return part.clone(memory_format=torch.contiguous_format)
