# SPDX-License-Identifier: Apache-2.0
"""What the layers of a decoder gave on the card, against the same layers in CPU fp32, with one of them there at a time.

`models/full_size.py` notes what each layer got and gave, for the tokens of a prompt and those that were made one by
one. A layer in fp32 reads them all at once, as a decoder's tokens do not see later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre.models.blocks import repeated
from torch_spyre.models.quantised_linear import FORMATS, HEAD, encoded_weight
from torch_spyre.models.random_weights import described
from torch_spyre.models.tensor_names import Tensors
from torch_spyre.numerics.layers import Call
from torch_spyre.numerics.streamed import Walk


@dataclass(frozen=True)
class Depth:
    """One layer: cosines with CPU fp32, of the least similar token and of all together."""

    layer: int
    own: float  # the worst token, of the layer given what the card's layer was given
    own_whole: float
    drift: float  # the worst token, of the same layer in a run of the model in fp32 from its first layer on


class _Done(Exception):
    pass


class Coded:
    """Weights as the codes of a format stand for them. The same steps as on the card's way make the codes."""

    def __init__(self, weights: Tensors, linear: set[str], form: str) -> None:
        self.weights, self.linear, self.dtype = weights, linear, FORMATS[form][0]

    def names(self) -> Sequence[str]:
        return self.weights.names()

    def bytes_of(self, name: str) -> int:
        return self.weights.bytes_of(name)

    def tensor(self, name: str) -> Tensor:
        found = self.weights.tensor(name)
        if name not in self.linear:
            return found
        codes, scale = encoded_weight(found, self.dtype)
        return codes.float().mul_(scale[:, None])


def compare(
    kind: Any,
    config: Any,
    weights: Tensors,
    form: str,
    embedded: Tensor,
    hidden: Sequence[tuple[Tensor, Tensor]],
    each: Callable[[Depth], None] | None = None,
) -> list[Depth]:
    """`form` is fp16, or that of the codes in the card's linear layers; the reference has what these stand for."""
    model = described(kind, config)
    if form in FORMATS:
        linear = {f"{n}.weight" for n, m in model.named_modules() if type(m) is nn.Linear}
        weights = Coded(weights, {n for n in linear if n.split(".")[-2] not in HEAD}, form)
    numbers = {id(block): number for number, block in enumerate(repeated(model))}
    rows: list[Depth] = []

    def seen(name: str, part: nn.Module, call: Call) -> None:
        number = numbers.get(id(part))
        if number is None:
            return
        given, made = hidden[number]
        alone = _first(part.forward(given, *call.args[1:], **call.kwargs))
        own = F.cosine_similarity(made.double(), alone.double(), -1)
        whole = F.cosine_similarity(made.double().flatten(), alone.double().flatten(), 0)
        drift = F.cosine_similarity(made.double(), _first(call.output).double(), -1)
        rows.append(Depth(number, float(own.min()), float(whole), float(drift.min())))
        if each is not None:
            each(rows[-1])
        if len(rows) == len(numbers):
            raise _Done

    try:
        inputs = {"inputs_embeds": embedded, "use_cache": False, "logits_to_keep": 1}
        Walk(model, weights).run(inputs, seen, "cpu", torch.float32)
    except _Done:
        pass
    return rows


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
