# SPDX-License-Identifier: Apache-2.0
"""A call on the card against the same call on the CPU, eager and compiled, with host fallbacks off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_spyre.ops import fallbacks

# Units in the last place of the card's format, at the largest magnitude of the result.
TOLERANCE = {torch.float16: 4 * 2.0**-9, torch.bfloat16: 2.0**-7, torch.float32: 32 * 2.0**-23}
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def stored(x: Any) -> Any:
    """The tensor with the values that arrive on the card."""
    return x.to("spyre").cpu() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def check(call: Callable[..., Any], *inputs: Any, mode: str = "eager", wide: bool = True) -> None:
    """`wide`: the CPU computes in a wider float type and rounds its result."""
    host = [stored(x) for x in inputs]
    plain = call(*host)
    exact = call(*(x.to(_WIDE.get(x.dtype, x.dtype)) if isinstance(x, torch.Tensor) else x for x in host))
    if mode == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="spyre", fullgraph=True, dynamic=False)
    with fallbacks.disabled():
        actual = call(*(x.to("spyre") if isinstance(x, torch.Tensor) else x for x in host))
    results = list(zip(tree_leaves(actual), tree_leaves(plain), tree_leaves(exact if wide else plain), strict=True))
    assert results
    for a, p, e in results:
        assert a.dtype == p.dtype and a.shape == p.shape and a.device.type == "spyre"
        close(a, e.to(p.dtype))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    if not expected.is_floating_point():
        assert torch.equal(actual.cpu(), expected)
        return
    scale = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0
    torch.testing.assert_close(
        actual.cpu().double(),
        expected.double(),
        rtol=0,
        atol=TOLERANCE[expected.dtype] * max(1.0, scale),
        equal_nan=True,
    )
