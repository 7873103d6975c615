# SPDX-License-Identifier: Apache-2.0
"""int64 sums and products that leave int32, which is how the card keeps int64, fail the launch instead of wrapping.

The same in fp32 tells: a wrapped result is off by a multiple of 2**32, the rounding of fp32 by far less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings, to_dtype

from torch_spyre._inductor.guards import wrapped

aten = torch.ops.aten


def check(result: ir.TensorBox, in_floats: ir.TensorBox, what: str) -> None:
    difference = lowerings[aten.sub.Tensor](to_dtype(result, torch.float32), in_floats)
    near = lowerings[aten.lt.Scalar](lowerings[aten.abs.default](difference), 2.0**30)
    lowerings[aten._assert_async.msg](near, f"an int64 {what} leaves int32, which is how the card keeps int64")


def _checked(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(x: ir.TensorBox, *args: Any, **kwargs: Any) -> Any:
            result = original(x, *args, **kwargs)
            source = x.get_dtype()  # the card has not the room for so many truth values
            if not source.is_floating_point and source != torch.bool and result.get_dtype() == torch.int64:
                kwargs.pop("dtype", None)
                check(result, original(to_dtype(x, torch.float32), *args, **kwargs), what)
            return result

        return lower

    return around


def register() -> None:
    for op, what in ((aten.sum, "sum"), (aten.prod, "product"), (aten.cumsum, "sum"), (aten.cumprod, "product")):
        wrapped(op, _checked(what))
