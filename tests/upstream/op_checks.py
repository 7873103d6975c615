# SPDX-License-Identifier: Apache-2.0
"""One OpInfo sample computed on the card, eager or compiled, forward and backward, against the CPU.

The CPU computes in float32 or float64 from the values that the card holds. A result may be off by a few units in the
last place of the card's format, at the largest magnitude of the result: sums of mixed signs cancel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from rounded import has_sixteen_bits, in_rounded_steps
from samples import Twins, seeded, tensors
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map

ULPS = {torch.float16: 8 * 2.0**-9, torch.bfloat16: 2.0**-6, torch.float32: 64 * 2.0**-23}
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


class Refused(Exception):
    """The CPU itself cannot do this sample."""


def run(op: Any, sample: SampleInput, mode: str) -> Callable[[], Any]:
    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    if mode == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="spyre", dynamic=False)
    return lambda: call(sample.input, tuple(sample.args), dict(sample.kwargs))


def reference(op: Any, sample: SampleInput) -> tuple[Any, Any]:
    """(result in the sample's own dtypes, result from wider inputs or None where the op has no such form)."""
    seeded()
    try:
        plain = op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        raise Refused from error
    try:
        wide = tree_map(_widened, (sample.input, tuple(sample.args), dict(sample.kwargs)))
        seeded()
        return plain, op(wide[0], *wide[1], **wide[2])
    except Exception:
        return plain, None


def _widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(_WIDER.get(x.dtype, x.dtype)).requires_grad_(x.requires_grad)
    return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x


def check_forward(op: Any, sample: SampleInput, device: str, mode: str) -> None:
    host, card = Twins(device).split(op, sample)
    plain, wide = reference(op, host)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeded()
        actual = run(op, card, mode)()
    got, want = tree_flatten(actual)[0], tree_flatten(plain)[0]
    exact = tree_flatten(wide)[0] if wide is not None else want
    assert len(got) == len(want), f"{len(got)} results where {len(want)} were expected"
    for a, e, w in zip(got, want, exact, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{a} where {e} was expected"
            continue
        if op.name in TIED and e.dtype == torch.int64 and host.input.dim() and not (a.cpu() == e).all():
            same_choice(op, host, a.cpu(), e)
            continue
        assert a.device.type == torch.device(device).type, f"result on {a.device}"
        assert a.dtype == e.dtype, f"dtype {a.dtype} where {e.dtype} was expected"
        assert a.shape == e.shape, f"shape {list(a.shape)} where {list(e.shape)} was expected"
        try:
            close(a, w, e)
        except AssertionError as error:
            raise AssertionError(f"{_steps_round(op, host, lambda call, _: call(), got)}{error}") from None


# Ops whose result names elements: any of equal elements is right, unless a stable order is asked for.
TIED = ("argsort", "kthvalue", "median", "msort", "nanmedian", "sort", "topk")
_DIM_PLACE = {"topk": 1, "kthvalue": 1}  # of the dim among the arguments after the input; elsewhere 0


def tied_dim(op: Any, sample: SampleInput) -> int:
    place = _DIM_PLACE.get(op.name, 0)
    given = sample.args[place] if len(sample.args) > place else 0 if op.name == "msort" else -1
    return int(sample.kwargs.get("dim", given))


def same_choice(op: Any, sample: SampleInput, got: torch.Tensor, want: torch.Tensor) -> None:
    """Places that are not the expected ones hold equal values, and none is named twice."""
    assert not sample.kwargs.get("stable"), "a stable order has its ties by place"
    dim, x = tied_dim(op, sample), sample.input
    if got.dim() < x.dim():
        got, want = got.unsqueeze(dim), want.unsqueeze(dim)
    assert ((got >= 0) & (got < x.shape[dim])).all(), "a place that does not exist"
    chosen, expected = x.gather(dim, got), x.gather(dim, want)
    same = (chosen == expected) | (chosen.isnan() & expected.isnan())
    assert same.all(), f"{(~same).sum()} of {same.numel()} places hold another value"
    in_order = got.sort(dim).values
    assert (in_order.diff(dim=dim) > 0).all(), "a place is named twice"


def by_value(x: torch.Tensor, gradient: torch.Tensor, dim: int) -> torch.Tensor:
    """The gradients of a line in order of its values, those of equal values in order of size."""
    order = gradient.argsort(dim=dim, stable=True)
    values = x.detach().cpu().double().gather(dim, order)
    return gradient.gather(dim, order).gather(dim, values.argsort(dim=dim, stable=True))


def close(actual: torch.Tensor, expected: torch.Tensor, plain: torch.Tensor) -> None:
    if not plain.is_floating_point():
        got = actual.cpu()
        bad = (got != plain).nonzero()
        assert not len(bad), (
            f"{len(bad)} of {plain.numel()} values differ, first at {bad[0].tolist()}: {got[tuple(bad[0])].item()} "
            f"where {plain[tuple(bad[0])].item()} was expected"
        )
        return
    if not plain.numel():
        return
    got, want = actual.detach().cpu().double(), expected.detach().to(plain.dtype).double()
    finite = want[want.isfinite()]
    scale = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
    tolerance = ULPS[plain.dtype] * scale
    same = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= tolerance)
    bad = (~same).nonzero()
    assert not len(bad), (
        f"{len(bad)} of {want.numel()} values differ by more than {tolerance:.3g}, first at {bad[0].tolist()}: "
        f"{got[tuple(bad[0])].item():.7g} where {want[tuple(bad[0])].item():.7g} was expected"
    )


# Arguments that the op writes instead of learning them.
_STATISTICS = {"nn.functional.batch_norm": (0, 1)}


def leaves(op: Any, sample: SampleInput) -> list[torch.Tensor]:
    args = [x for i, x in enumerate(sample.args) if i not in _STATISTICS.get(op.name, ())]
    return [x for x in tensors((sample.input, args, sample.kwargs)) if x.is_floating_point()]


def gradients(call: Callable[[], Any], inputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Of the sum of all results, weighted by 1, 2, 3, 1, 2, 3, …; None if no result depends on the inputs."""
    for x in inputs:
        x.requires_grad_()
    results = [r for r in tensors(call()) if r.is_floating_point() and r.requires_grad]
    if not results:
        return None
    weights = [(torch.arange(r.numel()) % 3 + 1).reshape(r.shape).to(r.dtype).to(r.device) for r in results]
    return list(torch.autograd.grad(results, inputs, weights, allow_unused=True))


def check_backward(op: Any, sample: SampleInput, device: str, mode: str) -> bool:
    """False if there is nothing to differentiate."""
    host, card = Twins(device).split(op, sample)
    wide = _wide_sample(host)
    try:
        seeded()
        want = gradients(run(op, wide, "eager"), leaves(op, wide))
    except Exception:
        return False
    if want is None:
        return False
    seeded()
    got = gradients(run(op, card, mode), leaves(op, card))
    assert got is not None, "no result has a gradient"
    for x, a, w in zip(leaves(op, card), got, want, strict=True):
        if w is None:
            assert a is None or not a.cpu().any(), "a gradient where there should be none"
            continue
        assert a is not None, "a gradient is missing"
        assert a.shape == x.shape and a.dtype == x.dtype, f"gradient {a.dtype}{list(a.shape)}"
        if op.name in TIED and x.dim():
            dim = tied_dim(op, host)
            a, w = by_value(x, a.detach().cpu().double(), dim).to(x.dtype), by_value(x, w.detach().double(), dim)
        try:
            close(a, w, w.to(x.dtype))
        except AssertionError as error:
            mark = _steps_round(op, host, lambda call, plain: gradients(call, leaves(op, plain)), got)
            raise AssertionError(f"{mark or _host_error(op, host)}{error}") from None
    return True


def _wide_sample(sample: SampleInput) -> SampleInput:
    parts = tree_map(_widened, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    return SampleInput(parts[0], args=parts[1], kwargs=parts[2])


def _steps_round(op: Any, host: SampleInput, use: Callable[..., Any], got: list[Any]) -> str:
    """Does the CPU's formula give what the card has, if each step is rounded as the card rounds?"""
    if not has_sixteen_bits(host):
        return ""
    try:
        seeded()
        for a, e in zip(got, tree_flatten(in_rounded_steps(op, host, use))[0], strict=True):
            if isinstance(a, torch.Tensor):
                close(a, e, e.to(a.dtype))
    except Exception:
        return ""
    return STEPS_ROUND + ": "


def _host_error(op: Any, host: SampleInput) -> str:
    """Does the CPU, in the dtype of the sample, miss a quarter of the tolerance too?"""
    wide = _wide_sample(host)
    seeded()
    want = gradients(run(op, wide, "eager"), leaves(op, wide)) or []
    seeded()
    for plain, exact in zip(gradients(run(op, host, "eager"), leaves(op, host)) or [], want, strict=True):
        if plain is None or exact is None or plain.dtype not in ULPS:
            continue
        scale = max(1.0, exact.abs().max().item())
        if not (plain.double() - exact.double()).abs().max() <= ULPS[plain.dtype] * scale / 4:
            return HOST_MISSES + ": "
    return ""


# Marks in front of the message of a failed sample; op_list.GAPS says what they mean.
STEPS_ROUND = "rounded steps give the same"
HOST_MISSES = "the CPU in the same dtype misses"
