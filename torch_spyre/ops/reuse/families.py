# SPDX-License-Identifier: Apache-2.0
"""Eager calls that differ in sizes only, and the programs that serve many of them.

Enters: a call that no plan is known for. Leaves: an `_C.BucketPlan` that was made before, here or in another process,
or is made now because the call differs in one size from one that was seen; None if the call is to be planned for its
own sizes. What is known of a family is an entry of the eager cache.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from torch_spyre import _C, knobs
from torch_spyre.buckets import KERNEL_SIZES
from torch_spyre.ops.reuse import lowered_calls, varying_sizes
from torch_spyre.ops.reuse.varying_sizes import Pattern
from torch_spyre.runtime import cache, driver
from torch_spyre.sanitizer import enabled as sanitizing

log = logging.getLogger("torch_spyre._inductor.dynamic.launcher")

_FAMILIES = 2048  # kept in memory
_SEEN = 16  # calls that a new one is compared with
_PATTERNS = 256  # per family
_PROGRAMS = 64  # per pattern
_TRIALS = 4  # buckets and layouts of a pattern that are refused before none is tried any more


@dataclass
class Lowered:
    """An op with n as a symbol: plain data, as the eager cache stores it."""

    recipe: str
    given: list[int]  # the tensor of the call that each given buffer is; below 0: a word of a random key
    outputs: list[tuple[str, int]]
    results: list[list[Any]]  # size and stride of each new tensor
    guards: list[Any]  # what the lowering took for granted about n


@dataclass
class Refusal:
    """Why the sizes from `low` to `high` are planned one by one."""

    low: int
    high: int
    layouts: list[Any]
    reason: str


@dataclass
class Known:
    """A pattern of calls, with its programs."""

    pattern: Pattern
    lowered: Lowered | None  # None: `refused` says why
    refused: str = ""
    programs: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    kernel: Any = None

    def plain(self) -> dict[str, Any]:
        lowered = None if self.lowered is None else asdict(self.lowered)
        refusals = [asdict(r) for r in self.refusals]
        pattern = self.pattern.plain()
        return {"pattern": pattern, "lowered": lowered, "refused": self.refused, "programs": self.programs,
                "refusals": refusals}  # fmt: skip

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Known:
        lowered = None if plain["lowered"] is None else Lowered(**plain["lowered"])
        refusals = [Refusal(**r) for r in plain["refusals"]]
        return Known(Pattern.of_plain(plain["pattern"]), lowered, plain["refused"], plain["programs"], refusals)

    def reason(self, n: int, layouts: Sequence[Any]) -> str | None:
        """Why a size is planned by itself, if that is known."""
        found = (r.reason for r in self.refusals if r.low <= n <= r.high and r.layouts == layouts)
        return self.refused or next(found, None)


class Family:
    """What is known of calls that differ in sizes only."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.seen: deque[varying_sizes.Call] = deque(maxlen=_SEEN)
        record = lowered_calls.load(entry) or {"known": []}
        self.known = [Known.of_plain(k) for k in record["known"]]

    def note(self, call: varying_sizes.Call) -> None:
        if call not in self.seen:
            self.seen.append(call)

    def recall(self, tensors: Sequence[torch.Tensor], call: varying_sizes.Call) -> Any:
        """A program that was made before."""
        for known in self.known:
            n = known.pattern.matches(call)
            if n is None or known.lowered is None:
                continue
            for made in reversed(known.programs):
                if made["range"][0] <= n <= made["range"][1]:
                    plan = bucket_plan(known.lowered, made)
                    if plan is not None and plan.serves(list(tensors)):
                        return plan
        return None

    def make(
        self, tensors: Sequence[torch.Tensor], call: varying_sizes.Call, lower: Callable[[Pattern, int], Lowered]
    ) -> tuple[Any, str]:
        """A program for the bucket of a call that is not the first of its kind; else None, and why if that is worth
        telling."""
        known = next((k for k in self.known if k.pattern.matches(call) is not None), None) or self._new(call, lower)
        if known is None:
            return None, ""
        n = known.pattern.matches(call)
        assert n is not None
        layouts = _layouts(tensors)
        reason = known.reason(n, layouts)
        if reason is None:
            plan, reason = self._planned(known, tensors, layouts, n)
            self._store()
            if plan is not None:
                return plan, ""
        return None, reason

    def _new(self, call: varying_sizes.Call, lower: Callable[[Pattern, int], Lowered]) -> Known | None:
        """The pattern of the call and of those that were seen before, if one program would serve them."""
        from torch_spyre._inductor.dynamic.space import NotBucketed  # late: start-up

        for before in reversed(self.seen):
            pattern = varying_sizes.pattern(before, call)
            if pattern is None or not self._varies(pattern, before, call):
                continue
            n = pattern.matches(call)
            assert n is not None
            try:
                known = Known(pattern, lower(pattern, n))
            except NotBucketed as error:
                known = Known(pattern, None, str(error))
            except Exception as error:  # whatever it is: without a symbol the op may well be lowered
                known = Known(pattern, None, _first_line(error))
            self.known = [*self.known, known][-_PATTERNS:]
            self._store()
            return known
        return None

    def _varies(self, pattern: Pattern, before: varying_sizes.Call, call: varying_sizes.Call) -> bool:
        """Do sizes vary, or is there but another layer with another width? One more than before varies; of other sizes
        it takes three. And one program must serve two of them."""
        old, new = pattern.matches(before), pattern.matches(call)
        if old is None or new is None or KERNEL_SIZES.capacity(old) != KERNEL_SIZES.capacity(new):
            return False
        others = {n for n in map(pattern.matches, self.seen) if n is not None} - {new}
        return abs(new - old) == 1 or len(others) > 1

    def _planned(self, known: Known, tensors: Sequence[torch.Tensor], layouts: list[Any], n: int) -> tuple[Any, str]:
        from torch_spyre._inductor.dynamic.space import NotBucketed  # late: start-up
        from torch_spyre.ops.reuse.call_buckets import BucketKernel, refused_range  # late: start-up

        assert known.lowered is not None
        try:
            if known.kernel is None:
                known.kernel = BucketKernel(known.lowered)
            made = known.kernel.plan(known.pattern, tensors, n)
            plan = bucket_plan(known.lowered, made)
            if plan is None or not plan.serves(list(tensors)):
                raise NotBucketed("a tensor is stored otherwise than its sizes say")
            known.programs = [*known.programs, made][-_PROGRAMS:]
            return plan, ""
        except NotBucketed as error:
            why = str(error)
        except Exception as error:  # the op may still have a plan for its own sizes
            log.info("no program for a bucket of sizes", exc_info=True)
            why = _first_line(error)
        low, high = refused_range(n, why)
        known.refusals = [*known.refusals, Refusal(low, high, layouts, why)][-_PROGRAMS:]
        if len(known.refusals) >= _TRIALS and not known.programs:
            known.refused = why
        return None, why

    def _store(self) -> None:
        lowered_calls.store(self.entry, {"known": [k.plain() for k in self.known]})


def _layouts(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What a refusal may depend on beside the sizes: the order of the device dims of each tensor."""
    return [_order(_C.get_spyre_tensor_layout(t).stride_map) if t.device.type != "cpu" else [] for t in tensors]


def _order(strides: Sequence[int]) -> list[int]:
    return sorted(range(len(strides)), key=lambda i: strides[i])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def bucket_plan(lowered: Lowered, made: Mapping[str, Any]) -> Any:
    """The `_C.BucketPlan` of a program; None if it is no longer in the program cache."""
    kernel = cache.load(made["entry"])
    if kernel is None:
        return None
    tensors = [None if t is None else (*t[:4], _layout(t[4])) for t in made["tensors"]]
    results = [(size, stride, getattr(torch, dtype), _roomy(layout)) for size, stride, dtype, layout in made["results"]]
    return _C.BucketPlan(
        driver.launch_plan(driver.load(kernel)),
        lowered.given,
        [(kind, i) for kind, i in lowered.outputs],
        tuple(made["place"]),
        tuple(made["range"]),
        tensors,
        results,
        [tuple(pair) for pair in made["numbers"]],
    )


def _layout(code: Any) -> Any:
    if code is None:
        return None
    kind, extents, strides, name = code
    if kind == "roomy":
        return _roomy((extents, strides, name))
    return _C.SpyreTensorLayout(extents, strides, getattr(_C.DataFormats, name))


def _roomy(code: Sequence[Any]) -> tuple[Any, ...]:
    extents, strides, name = code
    return extents, strides, getattr(_C.DataFormats, name)


# All families

_lock = threading.RLock()
_families: OrderedDict[str, Family] = OrderedDict()
_cleared = 0


def family_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Family | None:
    """The family of a call; None for a call that is planned for its own sizes whatever happens."""
    global _cleared
    if not knobs.get("dynamic_buckets") or knobs.get("sanitize") or sanitizing():
        return None
    entry = lowered_calls.family(op, args, kwargs)
    if entry is None:
        return None
    with _lock:
        cleared = _C._eager_cache_state()[2]
        if cleared != _cleared:
            _families.clear()
            _cleared = cleared
        found = _families.get(entry)
        if found is None:
            found = _families[entry] = Family(entry)
        _families.move_to_end(entry)
        while len(_families) > _FAMILIES:
            _families.popitem(last=False)
        return found
