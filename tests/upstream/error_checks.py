# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch refuses, made on the card: the error inputs of OpInfo and ModuleInfo, and out= that cannot be
written.

The samples are made on the CPU and moved, because some are of dtypes that the card does not have; those are left out,
and so is what the CPU takes after all.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from samples import DTYPES, Twins, on_card, tensors
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo.core import SampleInput

from torch_spyre.errors import IndexOutOfRange, UnsupportedOp

_COMPLEX = (UnsupportedOp, "does not support dtype complex64")
_LATER = (IndexOutOfRange, r"index \d+ lies outside")  # the launch fails, and names the index and its bound
# Errors that the card has other words for: by op and the CPU's words.
OTHER_WORDS = {
    ("gather", "is out of bounds"): _LATER,
    ("scatter", "is out of bounds"): _LATER,
    ("scatter_add", "is out of bounds"): _LATER,
    ("nn.Embedding", "index out of range"): _LATER,
    ("fft.hfft", "has no dimensions"): _COMPLEX,
    ("fft.irfft", "has no dimensions"): _COMPLEX,
}


@dataclass
class Refusal:
    """A call and what it must raise."""

    call: Callable[[], Any]
    kind: type[BaseException] | tuple[type[BaseException], ...]
    words: str


def ops_with_errors() -> list[Any]:
    return [op for op in op_db if op.error_inputs_func is not None]


def ops_with_out() -> list[Any]:
    return [op for op in op_db if op.supports_out and torch.float32 in op.supported_dtypes("cpu")]


def modules_with_errors() -> list[Any]:
    return [info for info in module_db if info.module_error_inputs_func is not None]


def refused_inputs(op: Any, device: str) -> Iterator[Refusal]:
    for wanted in op.error_inputs("cpu"):
        sample = wanted.sample_input
        if not on_card(sample) or any(x.is_meta for x in tensors(sample)):
            continue
        _without_garbage(sample)
        words = _raised(lambda s=sample: op(s.input, *s.args, **s.kwargs))
        if words is None:
            continue
        card = Twins(device).split(op, sample)[1]
        kind, pattern = _expected(op.name, str(words), wanted)
        yield Refusal(lambda s=card: op(s.input, *s.args, **s.kwargs), kind, pattern)


def _expected(name: str, words: str, wanted: Any) -> tuple[Any, str]:
    other = (found for (op, said), found in OTHER_WORDS.items() if op == name and said in words)
    return next(other, (wanted.error_type, wanted.error_regex))


def _without_garbage(sample: SampleInput) -> None:
    """An out= of int64 holds whatever was there, and the card has no place for large values."""
    for x in tensors(sample):
        if x.dtype == torch.int64 and x.numel() and not torch._debug_has_internal_overlap(x):
            x.clamp_(-(2**31), 2**31 - 1)


def _raised(call: Callable[[], Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            return error
    return None


def refused_outputs(op: Any, sample: SampleInput, device: str) -> Iterator[Refusal]:
    """out= whose elements lie in one place, that is on the host, or that the CPU refuses for its dtype."""
    host, card = Twins(device).split(op, sample)
    try:
        result = op(host.input, *host.args, **host.kwargs)
    except Exception:
        return
    if not isinstance(result, torch.Tensor) or result.numel() < 2 or not on_card(SampleInput(result)):
        return
    named = {name for name in ("device", "dtype", "requires_grad") if name in host.kwargs}
    host_kwargs, card_kwargs = ({k: v for k, v in s.kwargs.items() if k not in named} for s in (host, card))

    def written_to(out: torch.Tensor) -> Callable[[], Any]:
        return lambda: op(card.input, *card.args, out=out, **card_kwargs)

    once = torch.zeros(1, dtype=result.dtype, device=device)
    yield Refusal(written_to(once.expand(result.shape)), RuntimeError, "more than one element of the written-to tensor")
    if tensors(card):
        yield Refusal(written_to(torch.empty_like(result)), RuntimeError, "[Dd]evice")
    other = torch.int32 if result.is_floating_point() else torch.bool
    wrong = result.new_zeros(result.shape, dtype=other)
    words = _raised(lambda: op(host.input, *host.args, out=wrong, **host_kwargs))
    if words is not None:
        yield Refusal(written_to(wrong.to(device)), type(words), re.escape(str(words)[:60]))


def refused_modules(info: Any, device: str) -> Iterator[Refusal]:
    form = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
    for wanted in info.module_error_inputs_func(info, **form):
        made, called = (getattr(wanted.module_error_input, name) for name in ("constructor_input", "forward_input"))
        if called is not None and not all(x.dtype in DTYPES for x in tensors((called.args, called.kwargs))):
            continue

        def call(made: Any = made, called: Any = called) -> Any:
            module = info.module_cls(*made.args, **made.kwargs).to(device)
            return None if called is None else module(*_to_card(called.args, device), **called.kwargs)

        yield Refusal(call, *_expected(info.name, wanted.error_regex, wanted))


def _to_card(x: Any, device: str) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(_to_card(item, device) for item in x)
    return x.to(device) if isinstance(x, torch.Tensor) else x


def check(refusal: Refusal) -> None:
    """The call raises at once, or when its results are waited for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refusal.call()
        torch.spyre.synchronize()
    except Exception as error:
        torch.spyre.reset()
        assert isinstance(error, refusal.kind), f"{type(error).__name__}: {error}, where {refusal.kind} was expected"
        assert re.search(refusal.words, str(error)), f"{str(error)!r} does not say {refusal.words!r}"
        return
    raise AssertionError(f"accepted; PyTorch says {refusal.words!r}")
