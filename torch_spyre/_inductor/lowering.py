# SPDX-License-Identifier: Apache-2.0
"""Lowerings that Inductor lacks for this device.

Inductor's table is global per op, so each entry here looks at the device first and passes everything else to the
entry it found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.lowering import lowerings, make_pointwise, promote_constants, transform_args
from torch._inductor.virtualized import V, ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten


def _on_spyre(x: Any) -> bool:
    device = x.get_device() if isinstance(x, ir.TensorBox) else None
    return device is not None and device.type == DEVICE_NAME


def _guarded(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a lowering for tensors on spyre in front of the present one."""

    def register(ours: Callable[..., Any]) -> Callable[..., Any]:
        overloads = [op, *(getattr(op, name) for name in op.overloads())] if hasattr(op, "overloads") else [op]
        for overload in overloads:
            previous = lowerings.get(overload)
            if previous is None:
                continue

            def lower(*args: Any, _previous: Callable[..., Any] = previous, **kwargs: Any) -> Any:
                return (ours if any(_on_spyre(a) for a in args) else _previous)(*args, **kwargs)

            lowerings[overload] = lower
        return ours

    return register


def _dot(a: ir.TensorBox, b: ir.TensorBox) -> ir.TensorBox:
    """Batched matrix product as one reduction whose body is `ops.dot` of two plain loads."""
    if a.get_dtype() != b.get_dtype():
        raise UnsupportedOp(f"matmul of {a.get_dtype()} and {b.get_dtype()}: convert one operand first")
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    if k == 0:
        return lowerings[aten.full.default]([*batch, m, n], 0, dtype=a.get_dtype(), device=a.get_device())
    a.realize()
    b.realize()
    load_a, load_b = a.make_loader(), b.make_loader()

    def inner(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        *outer, i, j = index
        (r,) = rindex
        return ops.dot(load_a([*outer, i, r]), load_b([*outer, r, j]))

    product = ir.TensorBox.create(
        ir.Reduction(
            device=a.get_device(),
            dtype=a.get_dtype(),
            inner_fn=inner,
            ranges=[*batch, m, n],
            reduction_ranges=[k],
            reduction_type="dot",
            src_dtype=a.get_dtype(),
            reduction_hint=ir.ReductionHint.DEFAULT,
        )
    )
    product.realize()
    return product


def _divide(a: Any, b: Any) -> Any:
    """A true division. Inductor multiplies by the reciprocal of a constant, which rounds differently from eager."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
    args, _ = transform_args([a, b], {}, broadcast=True, type_promotion_kind=kind, convert_input_to_bool=False)
    return make_pointwise(ops.truediv)(*promote_constants(args, type_promotion_kind=kind))


def _scatter_through_view(view: Any) -> Callable[..., Any]:
    """x with a view of it replaced by src: a copy of x, and src copied into the view. Inductor would mask instead."""

    def scatter(x: ir.TensorBox, src: ir.TensorBox, *place: Any, **named: Any) -> ir.TensorBox:
        whole = lowerings[aten.clone.default](x)
        whole.realize()
        lowerings[aten.copy_.default](lowerings[view](whole, *place, **named), src)
        return whole

    return scatter


def _check_inner(a: ir.TensorBox, b: ir.TensorBox) -> None:
    V.graph.sizevars.check_equals(a.get_size()[-1], b.get_size()[-2])


def _keep_reduction(op: Any) -> None:
    """Inductor unrolls short reductions into adds, which would round at every step: keep them reductions."""
    overloads = [getattr(op, name) for name in op.overloads() if getattr(op, name) in lowerings]
    originals = {overload: lowerings[overload] for overload in overloads}

    for overload, original in originals.items():

        def lower(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            if not any(_on_spyre(a) for a in args):
                return _original(*args, **kwargs)
            with inductor_config.patch(unroll_reductions_threshold=1):
                return _original(*args, **kwargs)

        lowerings[overload] = lower


def register() -> None:
    """Installs the lowerings; called once, when Inductor first asks for the device."""
    for reduction in (aten.sum, aten.amax, aten.amin, aten.max, aten.min, aten.mean, aten.prod, aten.any, aten.all):
        _keep_reduction(reduction)

    for division in (aten.div.Tensor, aten.true_divide):
        _guarded(division)(_divide)

    for scatter, view in ((aten.slice_scatter, aten.slice.Tensor), (aten.select_scatter, aten.select.int)):
        _guarded(scatter)(_scatter_through_view(view))

    @_guarded(aten.mm)
    def mm(a: ir.TensorBox, b: ir.TensorBox, **kwargs: Any) -> ir.TensorBox:
        _check_inner(a, b)
        return _dot(a, b)

    @_guarded(aten.bmm)
    def bmm(a: ir.TensorBox, b: ir.TensorBox, **kwargs: Any) -> ir.TensorBox:
        _check_inner(a, b)
        return _dot(a, b)

    @_guarded(aten.addmm)
    def addmm(bias: Any, a: ir.TensorBox, b: ir.TensorBox, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any) -> Any:
        product = lowerings[aten.mm.default](a, b)
        if alpha != 1:
            product = lowerings[aten.mul.Tensor](product, alpha)
        if beta == 0:
            return product
        if beta != 1:
            bias = lowerings[aten.mul.Tensor](bias, beta)
        return lowerings[aten.add.Tensor](product, bias)
