# SPDX-License-Identifier: Apache-2.0
"""The steps of an op on the CPU, each rounded to the card's 16 bits as the card rounds them.

Tells a 16-bit result that is off because its steps are rounded from one that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torch_spyre.decompositions.attention import attention

# Ops that the CPU does in one kernel, by the formula that the card follows.
_FORMULAS: dict[str, Callable[..., Any]] = {"nn.functional.scaled_dot_product_attention": attention}
_SIXTEEN_BIT = (torch.float16, torch.bfloat16)


class _RoundedSteps(TorchDispatchMode):
    """Every tensor of float32 that an op makes holds values of the card's 16-bit format."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        views = any(r.alias_info is not None for r in func._schema.returns)
        return result if views else tree_map(_stored, result)


def _stored(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32 or not x.numel():
        return x
    values = oracle.round_dl16(x.detach().contiguous().numpy().reshape(-1))
    return torch.from_numpy(values).reshape(x.shape).to(x.dtype)


def has_sixteen_bits(sample: SampleInput) -> bool:
    return isinstance(sample.input, torch.Tensor) and sample.input.dtype in _SIXTEEN_BIT


def in_rounded_steps(op: Any, sample: SampleInput, use: Callable[[Callable[[], Any], SampleInput], Any]) -> Any:
    """What `use` makes of the call on a float32 form of the sample, every step rounded."""
    parts = tree_map(
        lambda x: x.detach().float() if isinstance(x, torch.Tensor) and x.dtype in _SIXTEEN_BIT else x,
        (sample.input, tuple(sample.args), dict(sample.kwargs)),
    )
    wide = SampleInput(parts[0], args=parts[1], kwargs=parts[2])
    formula = _FORMULAS.get(op.name, op)
    with _RoundedSteps():
        return use(lambda: formula(wide.input, *wide.args, **wide.kwargs), wide)
