# SPDX-License-Identifier: Apache-2.0
"""The card's 16-bit format on the host: rounding, units, and what rounding alone does to a computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_spyre import dl16


def round_dl16(x: Tensor) -> Tensor:
    """The values that a store of `x` leaves on the card, as fp32: nearest, ties away from zero, no infinities."""
    return torch.from_numpy(dl16.rounded(x.detach().float().numpy()))


def ulp(magnitude: float) -> float:
    """Distance between neighbouring numbers of the format at `magnitude`."""
    _, exponent = torch.frexp(torch.tensor(max(abs(magnitude), 2 * dl16.ZERO)))
    return float(2.0 ** (int(exponent) - 10))


class _Rounding(TorchDispatchMode):
    """Rounds every floating-point result of every op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return result  # a view: its values are rounded already
        if any(r.alias_info is not None for r in returns):
            for x in [result] if isinstance(result, Tensor) else result:
                if x.is_floating_point():
                    x.copy_(round_dl16(x))
            return result
        return tree_map_only(Tensor, lambda x: round_dl16(x) if x.dtype == torch.float32 else x, result)


@contextlib.contextmanager
def rounding() -> Iterator[None]:
    """CPU fp32 arithmetic inside rounds like the card: after every op, attention op by op.

    The error of such a run is the part that the format owes, whatever the model does to it afterwards. A card that
    computes in fp32 between two stores differs from it in the order and the number of roundings only.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Rounding():
        yield
