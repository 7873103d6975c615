# SPDX-License-Identifier: Apache-2.0
"""Lowerings of functions that the card has whole, and of ops that it has not: those run on the host, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import (
    fallback_handler,
    lowerings,
    make_pointwise,
    promote_constants,
    register_lowering,
    transform_args,
)
from torch._inductor.virtualized import ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from torch_spyre._inductor.lowering.guards import guarded, overloads, wrapped
from torch_spyre.decompositions.host_ops import HOST_FUNCTIONS

aten = torch.ops.aten


def whole(opfunc: str, dtype: torch.dtype, *parameters: float) -> Callable[..., Any]:
    """The card's function of one tensor and some numbers."""

    def scalar(x: Any) -> Any:
        numbers = [ops.constant(p, torch.float32) for p in parameters]
        return ops.inline_asm_elementwise(x, *numbers, asm=opfunc, dtype=dtype)

    lower: Callable[..., Any] = make_pointwise(scalar)
    return lower


def _gelu(x: ir.TensorBox, approximate: str = "none") -> Any:
    return whole("gelu_tanh" if approximate == "tanh" else "gelufwd", x.get_dtype())(x)


def _silu(x: ir.TensorBox) -> Any:
    return whole("silu", x.get_dtype())(x)


def _mish(x: ir.TensorBox) -> Any:
    return whole("mish", x.get_dtype())(x)


def _softplus(x: ir.TensorBox, beta: float = 1, threshold: float = 20) -> Any:
    return whole("softplus", x.get_dtype(), float(beta), float(threshold))(x)


# Kept out of Inductor's decompositions for tensors on spyre; see torch_spyre/decompositions/collected.py.
WHOLE: dict[Any, Callable[..., Any]] = {
    aten.gelu.default: _gelu,
    aten.silu.default: _silu,
    aten.mish.default: _mish,
    aten.softplus.default: _softplus,
}


_PRODUCTS = range(-1, 4)  # exponents up to which that stays within a unit in the last place


def _is_rounded_often(a: Any, b: Any) -> bool:
    """Inductor makes a power of products, and each of them is rounded to 16 bits."""
    narrow = isinstance(a, ir.TensorBox) and a.get_dtype() in (torch.float16, torch.bfloat16)
    return narrow and isinstance(b, (int, float)) and float(b).is_integer() and int(b) not in _PRODUCTS


def _pow(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor hands powers of integer tensors to the host."""

    def lower(a: Any, b: Any) -> Any:
        if _is_rounded_often(a, b):
            exponent = float(b)
            return make_pointwise(lambda x: ops.pow(x, ops.constant(exponent, a.get_dtype())))(a)
        if isinstance(b, sympy.Basic) and not isinstance(b, sympy.Number):  # the size of something, which varies
            b = lowerings[aten.full.default]([], b, dtype=a.get_dtype(), device=a.get_device())
        operands = [x for x in (a, b) if isinstance(x, ir.TensorBox)]
        if not isinstance(b, ir.TensorBox) or isinstance(a, float) or not all(is_integer(x) for x in operands):
            return original(a, b)
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        args, _ = transform_args([a, b], {}, broadcast=True, type_promotion_kind=kind, convert_input_to_bool=False)
        return make_pointwise(ops.pow)(*promote_constants(args, type_promotion_kind=kind))

    return lower


def is_integer(x: ir.TensorBox) -> bool:
    dtype = x.get_dtype()
    return not dtype.is_floating_point and dtype != torch.bool


def _host(op: Any) -> None:
    """In a compiled graph the op is called as it is, and falls back as it does in eager mode."""
    for overload in overloads(op):
        guarded(overload)(fallback_handler(overload, add_to_fallback_set=False))


def register() -> None:
    wrapped(aten.pow, _pow)
    for name in HOST_FUNCTIONS:
        _host(getattr(aten, name))
    for op, lower in WHOLE.items():
        previous = lowerings.get(op)
        assert previous is None, f"{op} has a lowering already"
        register_lowering(op, type_promotion_kind=None)(lower)
