# SPDX-License-Identifier: Apache-2.0
"""Lowerings that Inductor lacks for this device.

Inductor's table is global per op, so each entry here looks at the device first and passes everything else to the
entry it found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.lowering import (
    broadcast_symbolic_shapes,
    lowerings,
    make_pointwise,
    promote_constants,
    register_lowering,
    to_dtype,
    transform_args,
)
from torch._inductor.virtualized import V, ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from torch_spyre._inductor.lowering import moves, order, overflow, scatter, view_writes, whole_functions
from torch_spyre._inductor.lowering.guards import guarded, makes_spyre, wrapped
from torch_spyre._inductor.tilegraph.carried import Draw, Windows
from torch_spyre.decompositions import custom
from torch_spyre.decompositions.random_words import random_words, words_of_key
from torch_spyre.errors import InvalidArgument, UnsupportedOp

aten = torch.ops.aten
REDUCTIONS = (
    aten.sum, aten.amax, aten.amin, aten.max, aten.min, aten.mean, aten.prod, aten.any, aten.all, aten.argmax,
    aten.argmin,
)  # fmt: skip
EIGHT_BIT_FLOATS = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e5m2fnuz}
EIGHT_BIT = {torch.int8, *EIGHT_BIT_FLOATS}


def _dot(a: ir.TensorBox, b: ir.TensorBox, dtype: torch.dtype | None = None) -> ir.TensorBox:
    """Batched matrix product as one reduction whose body is `ops.dot` of two plain loads."""
    dtype = dtype or a.get_dtype()
    if a.get_dtype() != b.get_dtype() and not (a.get_dtype() in EIGHT_BIT_FLOATS and b.get_dtype() in EIGHT_BIT_FLOATS):
        raise UnsupportedOp(
            "matmul: expected both operands and their product to have the same dtype, but got: "
            f"{a.get_dtype()} != {b.get_dtype()}; convert one of them first"
        )
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    if k == 0:
        return lowerings[aten.full.default]([*batch, m, n], 0, dtype=dtype, device=a.get_device())
    for x in (a, b):
        if not _is_copy(x):
            x.realize()
    load_a, load_b = a.make_loader(), b.make_loader()

    def inner(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        *outer, i, j = index
        (r,) = rindex
        return ops.dot(load_a([*outer, i, r]), load_b([*outer, r, j]))

    product = ir.TensorBox.create(
        ir.Reduction(
            device=a.get_device(),
            dtype=dtype,
            inner_fn=inner,
            ranges=[*batch, m, n],
            reduction_ranges=[k],
            reduction_type="dot",
            src_dtype=a.get_dtype(),
            reduction_hint=ir.ReductionHint.DEFAULT,
        )
    )
    product.realize()
    if dtype == torch.int64:
        floats = [to_dtype(x, torch.float32) for x in (a, b)]
        overflow.check(product, _dot(*floats), "product")
    return product


def _windows(
    x: ir.TensorBox, weight: ir.TensorBox, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> ir.TensorBox:
    """`custom.windows` as one reduction over the kernel and the channels, whose body is `ops.dot` of two loads."""
    batch, *sizes, _ = x.get_size()
    out, inner, *kernel = weight.get_size()
    output = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    grouped = [groups] if groups > 1 else []
    ranges = [batch, *grouped, out // groups, *output]
    for operand in (x, weight):
        if not _is_copy(operand):
            operand.realize()
    load_x, load_weight = x.make_loader(), weight.make_loader()

    def body(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        column = 1 + len(grouped)
        group = index[1] if grouped else 0
        *tap, channel = rindex
        steps = zip(index[column + 1 :], tap, stride, dilation, strict=True)
        place = [o * s + t * d for o, t, s, d in steps]
        left = load_x([index[0], *place, group * inner + channel])
        return ops.dot(left, load_weight([group * (out // groups) + index[column], channel, *tap]))

    product = ir.TensorBox.create(
        ir.Reduction(
            device=x.get_device(),
            dtype=x.get_dtype(),
            inner_fn=body,
            ranges=ranges,
            reduction_ranges=[*kernel, inner],
            reduction_type=str(Windows(1 + len(grouped), 1 if grouped else -1)),
            src_dtype=x.get_dtype(),
            reduction_hint=ir.ReductionHint.DEFAULT,
        )
    )
    product.realize()
    return lowerings[aten.view.default](product, [batch, out, *output])


def _is_copy(x: ir.TensorBox) -> bool:
    """Elements of one buffer in another order or repeated: the product reads them where they are. So it does with
    8-bit elements as numbers of another dtype, which it makes of them as it reads."""
    node: Any = x
    while isinstance(node, (ir.TensorBox, ir.StorageBox, ir.BaseView)):
        node = node.data
    if not isinstance(node, ir.Pointwise):
        return False
    used = set(node.inner_fn_opcount().used_ops)
    return used == {"load"} or (used == {"load", "to_dtype"} and _read_dtypes(node) <= EIGHT_BIT)


def _read_dtypes(node: ir.Pointwise) -> set[torch.dtype]:
    return {V.graph.get_dtype(dep.name) for dep in node.get_reads()}


def _divide(a: Any, b: Any) -> Any:
    """A true division. Inductor multiplies by the reciprocal of a constant, which rounds differently from eager."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
    args, _ = transform_args([a, b], {}, broadcast=True, type_promotion_kind=kind, convert_input_to_bool=False)
    return make_pointwise(ops.truediv)(*promote_constants(args, type_promotion_kind=kind))


def _of_something(original: Callable[..., Any]) -> Callable[..., Any]:
    """The largest and the smallest of no elements do not exist; PyTorch's other devices refuse them too."""

    def lower(x: ir.TensorBox, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(x, *args, **kwargs)
        except AssertionError as error:
            if "zero-dimension" not in str(error):
                raise
            message = f"the largest or smallest element of a tensor of size {list(x.get_size())}: there is none"
            raise InvalidArgument(message) from None

    return lower


def _rounded_divide(original: Callable[..., Any]) -> Callable[..., Any]:
    """Division rounded to whole numbers, of floats. Inductor rounds a stored quotient, which in 16 bits may have become
    the next whole number already."""

    def lower(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        args, _ = transform_args([a, b], {}, broadcast=True, type_promotion_kind=kind, convert_input_to_bool=False)
        a_, b_ = promote_constants(args, type_promotion_kind=kind)
        dtype = a_.get_dtype()
        if rounding_mode is None or not dtype.is_floating_point:
            return original(a, b, rounding_mode=rounding_mode)
        if rounding_mode == "floor":
            return make_pointwise(ops.floordiv)(a_, b_)
        wide = make_pointwise(ops.truediv)(to_dtype(a_, torch.float32), to_dtype(b_, torch.float32))
        return to_dtype(make_pointwise(ops.trunc)(wide), dtype)

    return lower


def _random(size: Sequence[Any], asm: str, device: torch.device, key: Sequence[ir.TensorBox] = ()) -> ir.TensorBox:
    """Random words of one draw, computed once whoever reads them: the element's number decides, not its place."""
    words = [word.make_loader() for word in key]

    def inner(index: Sequence[Any]) -> Any:
        place = sympy.Integer(0)
        for i, n in zip(index, size, strict=True):
            place = place * n + i
        here = ops.index_expr(place, torch.int32)
        return ops.inline_asm_elementwise(here, *(load([]) for load in words), asm=asm, dtype=torch.int32)

    made = ir.Pointwise.create(device=device, dtype=torch.int32, inner_fn=inner, ranges=list(size))
    made.realize()
    return made


def _of_element_type(op: Any, position: int) -> None:
    """Numbers that become elements are rounded to the tensor's type first, as PyTorch and fills in place do."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(*args: Any, **kwargs: Any) -> Any:
            dtype, number = kwargs.get("dtype"), args[position]
            if isinstance(number, float) and dtype in (torch.float16, torch.bfloat16):
                args = (*args[:position], torch.tensor(number, dtype=dtype).item(), *args[position + 1 :])
            return original(*args, **kwargs)

        return lower

    wrapped(op, around, here=makes_spyre)


def _check_inner(a: ir.TensorBox, b: ir.TensorBox) -> None:
    V.graph.sizevars.check_equals(a.get_size()[-1], b.get_size()[-2])


def _with_config(**values: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A lowering under other values of Inductor's config."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(*args: Any, **kwargs: Any) -> Any:
            with inductor_config.patch(values):
                return original(*args, **kwargs)

        return lower

    return around


def register() -> None:
    """Installs the lowerings; called once, when Inductor first asks for the device."""
    # Inductor unrolls short reductions into adds, which would round at every step: keep them reductions.
    for reduction in REDUCTIONS:
        wrapped(reduction, _with_config(unroll_reductions_threshold=1))
    for extreme in (aten.amax, aten.amin, aten.max, aten.min, aten.argmax, aten.argmin):
        wrapped(extreme, _of_something)
    # The mean, then the mean square of the differences: as exact as Welford's and made of sums.
    for variance in (aten.var, aten.var_mean):
        wrapped(variance, _with_config(unroll_reductions_threshold=1, **{"mtia.disable_welford_reduction": True}))

    for division in (aten.div.Tensor, aten.div.Scalar, aten.true_divide):
        guarded(division)(_divide)
    for division in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        wrapped(division, _rounded_divide)

    _of_element_type(aten.full, 1)
    _of_element_type(aten.scalar_tensor, 0)

    for part in (moves, order, scatter, view_writes, whole_functions, overflow):
        part.register()

    @guarded(aten.mm)
    def mm(a: ir.TensorBox, b: ir.TensorBox, **kwargs: Any) -> ir.TensorBox:
        _check_inner(a, b)
        return _dot(a, b)

    @guarded(aten.bmm)
    def bmm(a: ir.TensorBox, b: ir.TensorBox, **kwargs: Any) -> ir.TensorBox:
        _check_inner(a, b)
        return _dot(a, b)

    @register_lowering(custom.matmul, type_promotion_kind=None)
    def matmul(a: ir.TensorBox, b: ir.TensorBox, out_dtype: torch.dtype | None = None) -> ir.TensorBox:
        _check_inner(a, b)
        sizes = [x.get_size() for x in (a, b)]
        batch = broadcast_symbolic_shapes(sizes[0][:-2], sizes[1][:-2])
        expand = lowerings[aten.expand.default]
        for x in (a, b):  # before it becomes a view of something larger
            if not _is_copy(x):
                x.realize()
        return _dot(expand(a, [*batch, *sizes[0][-2:]]), expand(b, [*batch, *sizes[1][-2:]]), out_dtype)

    register_lowering(custom.windows, type_promotion_kind=None)(_windows)

    @register_lowering(custom.kept, type_promotion_kind=None)
    def kept(x: ir.TensorBox) -> ir.TensorBox:
        x.realize()
        return x

    @register_lowering(random_words, type_promotion_kind=None)
    def random(size: Sequence[Any], number: int, device: torch.device) -> ir.TensorBox:
        return _random(size, str(Draw(number)), device)

    @register_lowering(words_of_key, type_promotion_kind=None)
    def random_of(size: Sequence[Any], low: ir.TensorBox, high: ir.TensorBox, device: torch.device) -> ir.TensorBox:
        return _random(size, "random", device, (low, high))

    @guarded(aten.addmm)
    def addmm(bias: Any, a: ir.TensorBox, b: ir.TensorBox, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any) -> Any:
        product = lowerings[aten.mm.default](a, b)
        if alpha != 1:
            product = lowerings[aten.mul.Tensor](product, alpha)
        if beta == 0:
            return product
        if beta != 1:
            bias = lowerings[aten.mul.Tensor](bias, beta)
        return lowerings[aten.add.Tensor](product, bias)
