# SPDX-License-Identifier: Apache-2.0
"""The oracle of graph fuzzing: every ATen call of an eager run, on its actual operands, against the CPU in float64.

Operands are taken from the card as it holds them, so that no error is carried from one op to the next: a result may be
off by one rounding into its element type plus the op's own fp32 error, which is measured by moving the operands by a
few fp32 units. Whatever has integer or bool results is exact. A compiled run is then compared with the eager one by
bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from graph_fuzz_program import FLOATS, FP8
from oracle import MAX, MIN, U32, gamma, half_ulp_dl16, half_ulp_ieee
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Nothing to check: no values, or values of another op's making.
UNCHECKED = {"detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "as_strided"}
# Results are sums: the fp32 error is that of adding, which cancellation leaves as large as the terms are.
SUMS = {
    "_scaled_mm", "mm", "bmm", "addmm", "baddbmm", "mv", "dot",
    "sum", "mean", "cumsum", "cumprod", "index_add", "index_add_",
    "scatter_add", "scatter_add_", "index_put", "index_put_", "_unsafe_index_put", "embedding_dense_backward",
    "convolution", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "upsample_nearest1d_backward", "upsample_nearest2d_backward", "trace", "unfold_backward",
    "constant_pad_nd", "reflection_pad1d_backward", "reflection_pad2d_backward", "replication_pad1d_backward",
    "replication_pad2d_backward", "select_backward", "slice_backward", "max_pool2d_with_indices_backward",
    "gather_backward", "_unsafe_masked_index_put_accumulate", "diagonal_backward", "prod",
}  # fmt: skip
# Decomposed into steps that each store their result in the element type.
STEPWISE = {"pow", "logaddexp", "hypot"}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
FILLS = {"full", "full_like", "new_full"}
# (values, indices): equal values may come in any order.
ORDERED = {"sort", "topk", "kthvalue", "median"}


class Mismatch(AssertionError):
    """`kind` is what shrinking preserves."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def on_card(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "spyre"


def host_values(x: torch.Tensor) -> torch.Tensor:
    """What the card holds, exactly: 16-bit floats have codes outside of what the host's type can say."""
    x = x.detach()
    return x.to("cpu", torch.float32) if x.dtype in FLOATS else x.cpu().float() if x.dtype in FP8 else x.cpu()


def wide(x: Any) -> Any:
    """An operand for the CPU: floats in float64, strides as on the card where elements do not overlap."""
    if isinstance(x, torch.dtype):
        return torch.float64 if x in FLOATS else x
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if not isinstance(x, torch.Tensor):
        return x
    values = host_values(x) if on_card(x) else x
    values = values.double() if values.dtype in FLOATS and x.dtype not in FP8 else values.to(x.dtype, copy=True)
    if values.stride() == x.stride() or torch._debug_has_internal_overlap(x) == 1:
        return values
    placed = torch.empty_strided(x.shape, x.stride(), dtype=values.dtype)
    return placed.copy_(values)


def promoted(operands: Any) -> Any:
    """A tensor without dims takes the type of those that have some, if they are floats too: it is rounded first."""
    floats = [x for x in tree_leaves(operands) if on_card(x) and x.dtype in FLOATS]
    kinds = {x.dtype for x in floats if x.ndim}
    if len(kinds) != 1 or torch.float32 in kinds:
        return operands
    (dtype,) = kinds
    rounded = {id(x) for x in floats if not x.ndim and x.dtype == torch.float32}
    return tree_map(lambda x: x.to(dtype) if id(x) in rounded else x, operands)


def size_of_bias(bias: torch.Tensor, want: Any) -> Any:
    return np.abs(want) + np.abs(bias.numpy())


def leaves(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


@contextmanager
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = 0, *rest: Any, **kwargs: Any) -> torch.Tensor:
    """What the CPU's kernel, which takes no float64, is to compute."""
    return a.double() @ b.double() * scale_a * scale_b + (0 if bias is None else bias)


def saturated(x: Any, dtype: torch.dtype) -> Any:
    """fp8 has no infinity on the card: what is larger than the largest number becomes that."""
    return x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max) if x.dtype == torch.float64 else x


class Lockstep(TorchDispatchMode):
    """Checks every op that runs on the card under it; `counts` tells how many, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.places: dict[int, torch.Tensor] = {}  # storage -> its elements that were written

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        operands = [x for x in tree_leaves((args, kwargs)) if on_card(x)]
        if name in UNCHECKED or not operands:
            return func(*args, **kwargs)
        call = Call(func, name, *tree_map(wide, promoted((args, kwargs))))
        written = [
            a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
        ]
        outs = [x for s in func._schema.arguments if s.is_out for x in tree_leaves(kwargs.get(s.name)) if on_card(x)]
        around = Surroundings([x for x in tree_leaves((written, outs)) if on_card(x)])
        result = func(*args, **kwargs)
        if written:
            call.check(written)
        else:
            call.check(result)
        around.check(call, self.places)
        self.counts[name] += 1
        return result

    def written(self, x: torch.Tensor) -> torch.Tensor:
        """Where a tensor was written by a call under this mode, itself or a view of its memory."""
        places = self.places.get(x.untyped_storage().data_ptr())
        if places is None or not x.numel():
            return torch.zeros(x.shape, dtype=torch.bool)
        missing = max(reach(x) - len(places), 0)
        return part_of(torch.cat([places, torch.zeros(missing, dtype=torch.bool)]), x)


def reach(x: torch.Tensor) -> int:
    """Elements of a storage from its begin to the last one of a tensor."""
    return x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))


def part_of(places: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return places.as_strided(x.shape, x.stride(), x.storage_offset())


class Surroundings:
    """What the tensors that a call writes are parts of, from before the call."""

    def __init__(self, written: list[torch.Tensor]) -> None:
        self.written = [x for x in written if x.numel()]
        wholes = [x if x._base is None else x._base for x in self.written]
        self.wholes = [(x, host_values(x)) for x in wholes]

    def check(self, call: Call, places: dict[int, torch.Tensor]) -> None:
        mine: dict[int, torch.Tensor] = {}
        for x, (whole, _) in zip(self.written, self.wholes, strict=True):
            storage, most = x.untyped_storage().data_ptr(), max(reach(x), reach(whole))
            for table in (mine, places):
                known = table.get(storage, torch.zeros(0, dtype=torch.bool))
                missing = torch.zeros(max(most - len(known), 0), dtype=torch.bool)
                table[storage] = torch.cat([known, missing])
                part_of(table[storage], x).fill_(True)
        for whole, before in self.wholes:
            if whole.shape != before.shape:  # `out=` of another size
                continue
            kept = ~part_of(mine[whole.untyped_storage().data_ptr()], whole)
            after = host_values(whole)
            bad = kept & (after != before) & ~(after.isnan() & before.isnan())
            if bad.any():
                at = bad.nonzero()[0].tolist()
                raise Mismatch("eager around", f"{call} changed {int(bad.sum())} elements that it does not write: {at}")


class Call:
    """One op on the CPU, from copies of the card's operands."""

    def __init__(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs
        self.written = [
            i for i, s in enumerate(func._schema.arguments[: len(args)]) if s.alias_info and s.alias_info.is_write
        ]
        self.is_view = any(s.alias_info and not s.alias_info.is_write for s in func._schema.arguments)

    def run(self, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Results, or the written operands; `change` is applied to every float operand first."""

        def copied(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return change(x) if change is not None and x.dtype == torch.float64 else x.clone()

        args, kwargs = (self.args, self.kwargs) if self.is_view else tree_map(copied, (self.args, self.kwargs))
        if self.name == "_to_copy" and kwargs.get("dtype") in FP8:
            args = [saturated(args[0], kwargs["dtype"])]
        elif self.name == "copy_" and args[0].dtype in FP8:
            args = [args[0], saturated(args[1], args[0].dtype), *args[2:]]
        with float64_by_default(), torch.no_grad():
            result = scaled_mm(*args, **kwargs) if self.name == "_scaled_mm" else self.func(*args, **kwargs)
        results = [args[i] for i in self.written] if self.written else result
        return leaves(results)

    def check(self, got: Any) -> None:
        try:
            expected = self.run()
        except RuntimeError as error:
            # A view of an overlapping tensor, whose strides the copy does not have; or what only the card computes.
            if self.is_view or "not implemented for 'Bool'" in str(error):
                return
            raise Mismatch("harness", f"{self}: the CPU refuses: {error}") from error
        actual = leaves(got)
        if len(actual) != len(expected):
            raise Mismatch("eager", f"{self}: {len(actual)} results where {len(expected)} were expected")
        if self.name in ORDERED and len(actual) == 2 and actual[0].shape == expected[0].shape:
            self.check_order(actual, expected)
            return
        if self.name in ("native_group_norm", "native_layer_norm") and not self.args[0].numel():
            return  # the mean of no values is 0 in the CPU's kernel and NaN in PyTorch's own decomposition
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if not isinstance(a, torch.Tensor) or not isinstance(e, torch.Tensor):  # a gradient that nobody asked for
                continue
            if a.shape != e.shape:
                raise Mismatch("eager", f"{self}: shape {list(a.shape)} where {list(e.shape)} was expected")
            self.check_values(i, a, e)

    def check_order(self, actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        self.check_values(0, actual[0], expected[0])
        dim = self.named("dim", -1)
        source = self.args[0]
        if source.ndim and source.numel():
            taken = torch.gather(source, dim, host_values(actual[1]).reshape(expected[1].shape))
            self.check_values(0, actual[0], taken)

    def check_values(self, place: int, actual: torch.Tensor, expected: torch.Tensor) -> None:
        got = host_values(actual)
        if self.name.rstrip("_") in COMPARISONS and isinstance(self.args[1], (int, float)):
            # The number is rounded to the tensor's element type first.
            near = (self.args[0] - self.args[1]).abs() <= max(2.0**-9 * abs(self.args[1]), MIN)
            got = torch.where(near, expected.to(got.dtype), got)
        if actual.dtype not in FLOATS:
            self.compare(got.double().numpy(), expected.double().numpy(), 0.0, "exact")
            return
        if self.name in FILLS:  # the host's number, rounded to the tensor's type as that of any tensor from the host
            expected = expected.to(actual.dtype)
        inputs = [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.dtype == torch.float64 and not bool((x.abs() < MAX).all()) for x in inputs):
            return  # infinities are the largest finite number on the card: another arithmetic
        want = expected.double().numpy()
        error = self.own_error(place, expected) if expected.numel() else np.zeros_like(want)
        if self.name.rstrip("_") in ("addmm", "baddbmm") and actual.dtype != torch.float32:
            # The product is stored before the bias is added; a factor is one more step.
            terms = size_of_bias(self.args[0] * self.named("beta", 1), want)
            factors = sum(self.named(name, 1) != 1 for name in ("alpha", "beta"))
            error = error + (1 + factors) * half_ulp_dl16(terms)
        elif self.name.rstrip("_") in STEPWISE and actual.dtype != torch.float32 and expected.numel():
            error = error + 4 * self.spread(place, want, 2.0**-10)
        size = np.abs(want) + error
        if actual.dtype == torch.float32:
            step = half_ulp_ieee(size, torch.float32) + 2.0**-147  # inner steps of an op may be subnormal as well
            limit = torch.finfo(torch.float32).max
        else:
            step = np.where(np.abs(want) - error < MIN, np.maximum(half_ulp_dl16(size), MIN), half_ulp_dl16(size))
            limit = MAX
        values = got.double().numpy()
        if not np.isfinite(want).all():  # from finite operands: a division by zero
            return
        want = np.where(
            (size + step >= limit) & (np.abs(values) >= limit * (1 - 2.0**-7)) & (want * values > 0), values, want
        )
        self.compare(values, want, error + step, "own fp32 error and one rounding")

    def own_error(self, place: int, expected: torch.Tensor) -> Any:
        """Bound on the error before the store."""
        want = expected.double().numpy()
        if self.is_view:
            return np.zeros_like(want)
        n = self.terms(expected)
        if self.name in SUMS:
            return (gamma(n) + 4 * U32) * self.run(torch.abs)[place].abs().numpy()
        floor: Any = 0.0
        if "log_softmax" in self.name or self.name in ("logsumexp", "special_erfc"):
            floor = 1.0  # a logarithm of a sum near 1, or 1 less something near it
        elif self.name == "_softmax_backward_data":  # y * gradient less y times their sum cancels near y = 1
            floor = (self.args[0] * self.args[1]).abs().numpy()
        elif "gelu" in self.name:  # (gradient times) x * (1 + something near -1)
            factors = [x.abs().numpy() for x in self.args if isinstance(x, torch.Tensor)]
            floor = math.prod(factors[1:], start=factors[0])
        spread = self.spread(place, want, 4 * U32)
        return (2 + math.sqrt(n)) * spread + (16 + n) * U32 * (np.abs(want) + floor)

    def spread(self, place: int, want: Any, step: float) -> Any:
        """How far the result moves when every operand moves by a fraction of itself: the sum of what each one does."""
        generator = torch.Generator().manual_seed(0)
        floats = [
            x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]
        total = np.zeros_like(want)
        for mine in floats:

            def moved(x: torch.Tensor, mine: torch.Tensor = mine) -> torch.Tensor:
                if x is not mine:
                    return x.clone()
                signs = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.float64) * 2 - 1
                return x * (1 + step * signs)

            runs = [self.run(moved)[place].double().numpy() for _ in range(2)]
            total = total + np.max([np.abs(r - want) for r in runs], axis=0)
        return total

    def named(self, name: str, default: Any) -> Any:
        named = dict(zip((a.name for a in self.func._schema.arguments), self.args, strict=False))
        return {**named, **self.kwargs}.get(name, default)

    def terms(self, expected: torch.Tensor) -> int:
        """Most products or values that one result adds up."""
        floats = [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, torch.Tensor)]
        if self.name in ("mm", "bmm", "_scaled_mm"):
            return floats[0].shape[-1]
        if self.name in ("addmm", "baddbmm"):
            return floats[1].shape[-1] + 1
        most = max((x.numel() for x in floats), default=1)
        if self.name in ("cumsum", "cumprod"):
            return max(expected.shape, default=1)
        if most == expected.numel() and self.name not in SUMS:
            return max(expected.shape, default=1) if "norm" in self.name or "softmax" in self.name else 1
        return max(1, most // max(1, expected.numel())) if self.name in ("sum", "mean", "prod") else most

    def compare(self, got: Any, want: Any, bound: Any, rule: str) -> None:
        with np.errstate(invalid="ignore"):
            error = np.where(got == want, 0.0, np.abs(got - want))
        bad = ~(np.isnan(got) & np.isnan(want)) & ~(error <= bound)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            box = ", ".join(f"{c.min()}..{c.max()}" for c in np.argwhere(bad).T)
            limit = np.broadcast_to(bound, got.shape)[at]
            raise Mismatch(
                "eager",
                f"{self}: {int(bad.sum())} of {bad.size} values outside the bound ({rule}), in [{box}]; "
                f"first at {list(at)}: {got[at]:.9g} where {want[at]:.9g} was expected, "
                f"error {error[at]:.3g}, bound {limit:.3g}",
            )

    def __str__(self) -> str:
        def text(x: Any) -> str:
            return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

        parts = [str(tree_map(text, x)) for x in self.args] + [
            f"{k}={tree_map(text, v)}" for k, v in self.kwargs.items()
        ]
        return f"{self.func}({', '.join(parts)})"
