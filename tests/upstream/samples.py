# SPDX-License-Identifier: Apache-2.0
"""One OpInfo sample on the card and on the CPU, and the rules that compare the two.

The CPU runs on inputs that hold what the card holds (`oracle.dl16`), so a result that only moves elements is equal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oracle
import torch
from groups import COMPUTED, DTYPES, HOST_ARGUMENTS, MAX_SAMPLES, UNINITIALIZED
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map

SIXTEEN_BIT = (torch.float16, torch.bfloat16, torch.bool)


@dataclass
class Outcome:
    """What happened to the samples of one (op, dtype)."""

    samples: int = 0
    passed: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, error: Exception | None) -> None:
        self.samples += 1
        self.passed += error is None
        if error is not None:
            self.reasons.append(describe(error))


def describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def samples(op: Any, dtype: torch.dtype, limit: int) -> Iterator[SampleInput]:
    """The op's samples on the CPU that the CPU can run; a long list is thinned evenly."""
    seeded()
    converts = op.name == "to" or op.variant_test_name == "with_dtype"
    found = [representable(x) if converts else x for x in op.sample_inputs("cpu", dtype) if not drops(x)]
    step = max(1, -(-len(found) // min(limit, MAX_SAMPLES)))
    for sample in found[::step]:
        if on_card(sample):
            yield sample


def drops(sample: SampleInput) -> bool:
    """Attention with dropout: each device draws its own numbers, so there is nothing to compare."""
    return bool(sample.kwargs.get("dropout_p"))


def representable(sample: SampleInput) -> SampleInput:
    """Conversions are sampled with float64 alone, which the card does not have: float32 in its place."""
    parts = tree_map(
        lambda x: torch.float32 if x is torch.float64 else x, (sample.input, tuple(sample.args), dict(sample.kwargs))
    )
    return SampleInput(parts[0], args=parts[1], kwargs=parts[2])


def on_card(sample: SampleInput) -> bool:
    """Whether every tensor and dtype of the sample has a place on the card."""
    parts = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    dtypes = [
        x.dtype if isinstance(x, torch.Tensor) else x for x in parts if isinstance(x, (torch.Tensor, torch.dtype))
    ]
    strided = all(x.layout is torch.strided for x in parts if isinstance(x, torch.Tensor))
    return strided and all(dtype in DTYPES for dtype in dtypes)


def tensors(value: Any) -> list[torch.Tensor]:
    parts = (value.input, value.args, value.kwargs) if isinstance(value, SampleInput) else value
    return [x for x in tree_flatten(parts)[0] if isinstance(x, torch.Tensor)]


class Twins:
    """Equal arguments on both sides: same strides, offsets and sharing, on storages that hold the card's values."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.bases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.keep: list[torch.Tensor] = []

    def pair(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(on the host, on the card)."""
        key = x.untyped_storage()._cdata
        if key not in self.bases:
            whole = torch.empty(0, dtype=x.dtype).set_(x.detach().untyped_storage())
            host = as_on_card(whole)
            self.bases[key] = (host, host.to(self.device))
            self.keep.append(x)  # so that no other storage gets this address
        host, card = (b.as_strided(x.shape, x.stride(), x.storage_offset()) for b in self.bases[key])
        return host, card

    def split(self, op: Any, sample: SampleInput) -> tuple[SampleInput, SampleInput]:
        parts = (sample.input, tuple(sample.args), dict(sample.kwargs))
        host = tree_map(lambda x: self.pair(x)[0] if isinstance(x, torch.Tensor) else x, parts)
        card = tree_map(self.to_card, parts)
        if op.name in HOST_ARGUMENTS:
            card = (card[0], *host[1:])
        if op.is_factory_function and not tensors(parts):
            card[2]["device"] = self.device
        return tuple(SampleInput(x[0], args=x[1], kwargs=x[2]) for x in (host, card))

    def to_card(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.pair(x)[1]
        names_host = x == "cpu" if isinstance(x, str) else isinstance(x, torch.device)
        return self.device if names_host else x


def as_on_card(x: torch.Tensor) -> torch.Tensor:
    """The host tensor with the values that arrive on the card."""
    if x.dtype not in SIXTEEN_BIT or x.numel() == 0:
        return x.clone()
    return torch.from_numpy(oracle.dl16(x).reshape(-1)).reshape(x.shape).to(x.dtype)


def check_sample(op: Any, group: str, sample: SampleInput, device: str) -> Exception | bool | None:
    """None: passed. An exception: why not. False: the CPU itself refuses the sample."""
    twins = Twins(device)
    host, card = twins.split(op, sample)
    try:
        seeded()
        expected = op(host.input, *host.args, **host.kwargs)
    except Exception:
        return False
    try:
        if group == "rng":
            check_random(op, card, expected, device)
            return None
        actual = op(card.input, *card.args, **card.kwargs)
        compare(op, actual, expected, device)
        if group == "views":
            check_aliasing(host, card, actual, expected)
        check_inputs(host, card)
        if op.supports_out:
            check_out(op, host, card, device)
        if op.inplace_variant is not None:
            check_inplace(op, host, card, device)
    except Exception as error:
        return error
    return None


def compare(op: Any, actual: Any, expected: Any, device: str) -> None:
    got, want = tree_flatten(actual)[0], tree_flatten(expected)[0]
    assert len(got) == len(want), f"{len(got)} results where {len(want)} were expected"
    for a, e in zip(got, want, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{a} where {e} was expected"
            continue
        same_metadata(a, e, device)
        if op.name not in UNINITIALIZED:
            same_values(a, e, computed=op.name in COMPUTED)


def same_metadata(a: torch.Tensor, e: torch.Tensor, device: str) -> None:
    assert a.device.type == torch.device(device).type, f"result on {a.device}"
    assert a.dtype == e.dtype, f"dtype {a.dtype} where {e.dtype} was expected"
    assert a.shape == e.shape, f"shape {list(a.shape)} where {list(e.shape)} was expected"


def same_values(a: torch.Tensor, e: torch.Tensor, computed: bool = False) -> None:
    if not e.is_floating_point():
        got, want = a.cpu(), e
        bad = (got != want).nonzero()
        assert not len(bad), (
            f"{len(bad)} of {want.numel()} values differ, first at {bad[0].tolist()}: "
            f"{got[tuple(bad[0])].item()} where {want[tuple(bad[0])].item()} was expected"
        )
    elif not computed:
        oracle.assert_same(a, oracle.dl16(e.contiguous()))
    else:
        steps = oracle.half_ulp_dl16 if a.dtype in SIXTEEN_BIT else lambda x: oracle.half_ulp_ieee(x, torch.float32)
        size = np.abs(oracle.to64(e))
        oracle._compare(
            a, oracle.to64(e), 4 * steps(size) + oracle.host_error(size, a.dtype), "two units in last place"
        )


def check_aliasing(host: SampleInput, card: SampleInput, actual: Any, expected: Any) -> None:
    """A result shares its storage with the inputs exactly where it does on the CPU, and what is written shows there."""
    for a, e in zip(tensors(actual), tensors(expected), strict=True):
        sources = [(h, c) for h, c in zip(tensors(host), tensors(card), strict=True) if shares(h, e)]
        assert bool(sources) == any(shares(c, a) for c in tensors(card)), "shares storage on one side only"
        if not sources:
            continue
        assert a.stride() == e.stride(), f"stride {a.stride()} where {e.stride()} was expected"
        assert a.storage_offset() == e.storage_offset(), f"offset {a.storage_offset()}, expected {e.storage_offset()}"
        write_through(a, e)


def write_through(a: torch.Tensor, e: torch.Tensor) -> None:
    """Reads and writes the view by a kernel, then writes it from the host."""
    same_values(a.clone(), e)
    if not e.numel() or torch._debug_has_internal_overlap(e):
        return
    values = as_on_card((torch.arange(e.numel()) % 5 + 1).reshape(e.shape).to(e.dtype))
    a.copy_(values.to(a.device))
    same_values(a, values)
    e.copy_(values.flip(0) if e.dim() else values)
    a.copy_(e)


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage()._cdata == y.untyped_storage()._cdata


def check_inputs(host: SampleInput, card: SampleInput) -> None:
    """Inputs are untouched, or written as on the CPU."""
    for h, c in zip(tensors(host), tensors(card), strict=True):
        if c.shape == h.shape:
            same_values(c, h)


def check_out(op: Any, host: SampleInput, card: SampleInput, device: str) -> None:
    """out= of the right size is written and returned; an empty one is resized."""
    expected = op(host.input, *host.args, **host.kwargs)
    if not isinstance(expected, torch.Tensor):
        return
    kwargs = {name: x for name, x in card.kwargs.items() if name not in ("device", "dtype", "requires_grad")}
    for out in (torch.empty(expected.shape, dtype=expected.dtype, device=device),
                torch.empty(0, dtype=expected.dtype, device=device)):  # fmt: skip
        result = op(card.input, *card.args, out=out, **kwargs)
        assert result is out, "out= is not what the call returns"
        compare(op, out, expected, device)


def check_inplace(op: Any, host: SampleInput, card: SampleInput, device: str) -> None:
    if not isinstance(host.input, torch.Tensor) or torch._debug_has_internal_overlap(host.input):
        return
    try:
        op.inplace_variant(host.input, *host.args, **host.kwargs)
    except Exception:
        return  # a result that does not fit the input: no in-place form
    result = op.inplace_variant(card.input, *card.args, **card.kwargs)
    assert result is card.input, "the in-place form returns another tensor"
    compare(op, result, host.input, device)
    check_inputs(host, card)


def check_random(op: Any, card: SampleInput, expected: Any, device: str) -> None:
    """Place, dtype and shape; the device's generator decides the values and no other generator moves."""
    draws, host_state = [], torch.default_generator.get_state()
    torch.spyre.manual_seed(11)
    before = torch.spyre.get_rng_state()
    for _ in range(2):
        torch.spyre.set_rng_state(before)
        result = op(card.input, *card.args, **card.kwargs)
        draws.append([x.cpu() for x in tensors(result)])
    for a, e in zip(tensors(result), tensors(expected), strict=True):
        same_metadata(a, e, device)
    assert torch.equal(torch.default_generator.get_state(), host_state), "the host's generator was used"
    for x, y in zip(*draws, strict=True):
        assert torch.equal(x.nan_to_num(), y.nan_to_num()), "equal seeds give different values"
