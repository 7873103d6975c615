# SPDX-License-Identifier: Apache-2.0
"""Random numbers as functions of random words that the card makes: one word per element, by the element's number.

``spyre::random`` stands in traced graphs for the words of one draw. Its key comes with each launch, from the device's
generator, so a plan holds no random state and the numbers do not depend on how the work is cut. Where a backward pass
computes the forward one again (activation checkpointing), the key is a value of the graph that the forward pass keeps:
``spyre::random_key`` draws it, ``spyre::random_of`` makes the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from torch_spyre import _C
from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
_library = torch.library.Library("spyre", "FRAGMENT")
_library.define("random(SymInt[] size, int number, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))


@torch.library.register_fake("spyre::random", lib=_library)
def _fake(size: Sequence[int], number: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int32, device=device)


_library.define("random_key(int number, Device device) -> (Tensor, Tensor)", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("random_of(SymInt[] size, Tensor low, Tensor high, Device device) -> Tensor")


@torch.library.register_fake("spyre::random_key", lib=_library)
def _fake_key(number: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty((), dtype=torch.int32) for _ in range(2))


@torch.library.impl("spyre::random_key", "CompositeExplicitAutograd", lib=_library)
def _key(number: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(word, dtype=torch.int32) for word in _C.draw_key(device.index or 0))


@torch.library.register_fake("spyre::random_of", lib=_library)
def _fake_of(size: Sequence[int], low: torch.Tensor, high: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int32, device=device)


# int32 words; `number` tells the draws of one graph apart.
random_words = torch.ops.spyre.random.default
random_key = torch.ops.spyre.random_key.default
words_of_key = torch.ops.spyre.random_of.default


def _words(size: Sequence[int], device: torch.device) -> torch.Tensor:
    mode = get_proxy_mode()
    again = mode is not None and "recompute" in traceback.get_current_meta()
    draw = random_key if again else random_words
    number = 0 if mode is None else len(mode.tracer.graph.find_nodes(op="call_function", target=draw))
    if not again:
        return random_words(list(size), number, device)
    low, high = random_key(number, device)  # which _inductor/lowering/recompute.py keeps
    return words_of_key(list(size), low, high, device)


def _high_bits(size: Sequence[int], device: torch.device, bits: int) -> torch.Tensor:
    """Whole numbers below 2**bits."""
    return (_words(size, device) >> (32 - bits)) & ((1 << bits) - 1)


def _fraction(size: Sequence[int], device: torch.device, bits: int = 24) -> torch.Tensor:
    """In [0, 1), fp32."""
    return _high_bits(size, device, bits).to(torch.float32) * 2.0**-bits


def _inside(size: Sequence[int], device: torch.device) -> torch.Tensor:
    """In (0, 1), fp32: neither end, so that logarithms are finite and not 0."""
    return (_high_bits(size, device, 23).to(torch.float32) + 0.5) * 2.0**-23


def _standard(size: Sequence[int], device: torch.device) -> torch.Tensor:
    """Normal with mean 0 and deviation 1, fp32 (Box and Muller)."""
    radius = (_inside(size, device).log() * -2.0).sqrt()
    return radius * (_fraction(size, device) * (2 * math.pi)).cos()


def _unit(size: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """In [0, 1), in as many bits as the dtype holds on the card: no number may round up to 1."""
    return _fraction(size, device, 24 if dtype == torch.float32 else 10).to(dtype)


# Filled tensors: the first argument gives size, dtype and device.


def _uniform(x: Any, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Any:
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    unit = _unit(x.shape, x.device, x.dtype)
    return unit if (low, high) == (0.0, 1.0) else (unit.to(torch.float32) * (high - low) + low).to(x.dtype)


def _normal(x: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return (_standard(x.shape, x.device) * std + mean).to(x.dtype)


def _bernoulli_p(x: Any, p: float = 0.5, generator: Any = None) -> Any:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return (_high_bits(x.shape, x.device, 24) < round(p * 2**24)).to(x.dtype)


def _bernoulli_tensor(x: Any, p: Any, generator: Any = None) -> Any:
    return (_fraction(x.shape, x.device) < p.to(torch.float32)).to(x.dtype)


def _bernoulli(p: Any, generator: Any = None) -> Any:
    return _bernoulli_tensor(p, p)


def _exponential(x: Any, lambd: float = 1.0, generator: Any = None) -> Any:
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return (_inside(x.shape, x.device).log() / -lambd).to(x.dtype)


def _geometric(x: Any, p: float, generator: Any = None) -> Any:
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return (_inside(x.shape, x.device).log() / math.log1p(-p)).ceil().to(x.dtype)


def _log_normal(x: Any, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> Any:
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return (_standard(x.shape, x.device) * std + mean).exp().to(x.dtype)


def _cauchy(x: Any, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> Any:
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return (((_inside(x.shape, x.device) - 0.5) * math.pi).tan() * sigma + median).to(x.dtype)


# Whole numbers that a dtype holds one after the other: those that random_() without bounds draws from.
_WHOLE = {
    torch.float32: 2**24 + 1, torch.float16: 2**11 + 1, torch.bfloat16: 2**8 + 1, torch.bool: 2, torch.uint8: 2**8,
    torch.int8: 2**7, torch.int16: 2**15, torch.int32: 2**31, torch.int64: 2**31,
}  # fmt: skip


_NAMES = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16"}


def _integers(size: Sequence[int], device: torch.device, low: int, high: int) -> torch.Tensor:
    count = high - low
    if count <= 0:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if low < -(2**31) or high > 2**31 or count > 2**31:
        raise UnsupportedOp(f"random integers from {low} to {high}: the card keeps 32 bits, at most 2**31 numbers")
    words = _high_bits(size, device, 31)
    return (words if count == 2**31 else words % count) + low


def _random(x: Any, generator: Any = None) -> Any:
    return _integers(x.shape, x.device, 0, _WHOLE[x.dtype]).to(x.dtype)


def _random_from(x: Any, low: int, high: int | None = None, generator: Any = None) -> Any:
    return _integers(x.shape, x.device, low, low + _WHOLE[x.dtype] if high is None else high).to(x.dtype)


def _random_to(x: Any, high: int, generator: Any = None) -> Any:
    return _random_from(x, 0, high)


# New tensors


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


def _rand(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _unit(size, device, _dtype(dtype))


def _randn(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _standard(size, device).to(_dtype(dtype))


def _randint(high: int, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _integers(size, device, 0, high).to(dtype or torch.int64)


def _randint_low(low: int, high: int, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _integers(size, device, low, high).to(dtype or torch.int64)


def _like(x: Any, drawn: torch.Tensor, format: torch.memory_format | None) -> torch.Tensor:
    """In the strides that PyTorch's `_like` functions give: those of x, without gaps, unless a format is named."""
    if format not in (None, torch.preserve_format):
        return drawn.contiguous(memory_format=format)
    order, _ = torch._prims_common.compute_elementwise_output_logical_to_physical_perm(x)
    if order == sorted(order):
        return drawn
    return drawn.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


def _rand_like(x: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
    return _like(x, _unit(x.shape, device or x.device, dtype or x.dtype), memory_format)


def _randn_like(x: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
    return _like(x, _standard(x.shape, device or x.device).to(dtype or x.dtype), memory_format)


def _randint_like(x: Any, high: int, **options: Any) -> Any:
    return _randint_like_low(x, 0, high, **options)


def _randint_like_low(
    x: Any, low: int, high: int, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
) -> Any:
    return _like(x, _integers(x.shape, device or x.device, low, high).to(dtype or x.dtype), memory_format)


def _randperm(n: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """The order of n random words."""
    kind = dtype or torch.int64
    if n > _WHOLE[kind]:
        raise RuntimeError(f"n cannot be greater than {_WHOLE[kind]} for {_NAMES.get(kind, kind)} type.")
    return _words([n], device).sort().indices.to(dtype or torch.int64)


def _normal_of(mean: Any, std: Any = 1.0, generator: Any = None) -> Any:
    if isinstance(std, torch.Tensor):
        aten._assert_async.msg((std >= 0).all(), "normal expects all elements of std >= 0.0")
    elif std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    like = mean if isinstance(mean, torch.Tensor) else std
    size = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, torch.Tensor)))
    return (_standard(size, like.device) * std + mean).to(like.dtype)


def _native_dropout(x: Any, p: float, train: bool | None = None) -> Any:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = _high_bits(x.shape, x.device, 24) >= round(p * 2**24)
    return x * kept * (1.0 / (1.0 - p)), kept


def _demand_probabilities(weights: torch.Tensor, one_by_one: bool) -> None:
    """PyTorch's kernels have other words where they draw with replacement."""
    finite, negative, demand = weights.isfinite(), weights < 0, aten._assert_async.msg
    invalid = "invalid multinomial distribution"
    if one_by_one:
        demand((finite & ~negative).all(), "probability tensor contains either `inf`, `nan` or element < 0")
    else:
        demand(finite.all(), f"{invalid} (encountering probability entry = infinity or NaN)")
        demand((~negative).all(), f"{invalid} (encountering probability entry < 0)")
    demand((weights.sum(-1) > 0).all(), f"{invalid} (sum of probabilities <= 0)")


def _multinomial(x: Any, num_samples: int, replacement: bool = False, generator: Any = None) -> Any:
    """Without replacement, and for one sample: the largest of weight / exponential, which fall in the order of a draw
    one after the other (Efraimidis and Spirakis, 2006). Else by the running sum of the weights."""
    categories = x.shape[-1]
    if not replacement and num_samples > categories:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    weights = x.to(torch.float32)
    one_by_one = not replacement or num_samples == 1
    _demand_probabilities(weights, one_by_one)
    if one_by_one:
        race = weights / -_inside(x.shape, x.device).log()
        return race.topk(num_samples, -1).indices if num_samples > 1 else race.argmax(-1, keepdim=True)
    running = weights.cumsum(-1)
    drawn = _fraction([*x.shape[:-1], num_samples], x.device) * running[..., -1:]
    below = (running.unsqueeze(-2) <= drawn.unsqueeze(-1)).sum(-1)
    # Rounding may put a draw at the very end: the last category with a weight takes it.
    last = categories - 1 - (weights.flip(-1) > 0).to(torch.int32).argmax(-1, keepdim=True)
    return torch.minimum(below, last)


def _rrelu(
    x: Any, noise: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2)), noise  # as it was, and perhaps never written
    slope = (_fraction(x.shape, x.device) * (upper - lower) + lower).to(x.dtype)
    slope = torch.where(x <= 0, slope, 1.0)
    return x * slope, slope


TABLE: dict[Any, Callable[..., Any]] = {
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli_p,
    aten.bernoulli.Tensor: _bernoulli_tensor,
    aten.exponential.default: _exponential,
    aten.geometric.default: _geometric,
    aten.log_normal.default: _log_normal,
    aten.cauchy.default: _cauchy,
    aten.random.default: _random,
    getattr(aten.random, "from"): _random_from,
    aten.random.to: _random_to,
    aten.rand.default: _rand,
    aten.randn.default: _randn,
    aten.rand.generator: _rand,
    aten.randn.generator: _randn,
    aten.randint.generator: _randint,
    aten.randint.low_generator: _randint_low,
    aten.randint.default: _randint,
    aten.randint.low: _randint_low,
    aten.rand_like.default: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like_low,
    aten.randperm.default: _randperm,
    aten.randperm.generator: _randperm,
    aten.normal.Tensor_float: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.native_dropout.default: _native_dropout,
    aten.multinomial.default: _multinomial,
}
# Packets whose eager forms (in place, out=) come down to the entries above.
ON_CARD = {
    "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_", "log_normal_", "cauchy_", "random_", "bernoulli",
    "normal", "native_dropout", "multinomial", "randperm", "rand_like", "randn_like", "randint_like", "rand", "randn",
    "randint", "rrelu_with_noise", "rrelu_with_noise_",
}  # fmt: skip
