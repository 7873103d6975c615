# SPDX-License-Identifier: Apache-2.0
"""Host fallbacks: an eager op that the compiler refuses with `UnsupportedOp` runs on the CPU, warned about and counted.

Enters: an op call on spyre tensors. Leaves: the eager plan if the compiler has one, else results on the card again.
Holds: which signatures were refused, so that no call is compiled twice in vain, and the counts behind
``torch_spyre.report()``. Errors in the call itself stay errors: the CPU raises what PyTorch raises.

``with disabled():`` or SPYRE_FALLBACK=0 raises the compiler's UnsupportedOp instead.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor.debug.provenance import MARK
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions.random_words import ON_CARD
from torch_spyre.errors import UnsupportedOp, first_line
from torch_spyre.ops import checks
from torch_spyre.ops.eager import compile_op, in_trace_of
from torch_spyre.ops.kernels import masks

_MAX_SIGNATURES = 16384  # a growing size (a cache, a loop counter) must not grow the table for ever
_HOST = torch.device("cpu")
_NOT_THE_USER = tuple(str(Path(file).resolve().parent) for file in (_C.__file__, torch.__file__))


class FallbackWarning(UserWarning):
    """An op runs on the CPU because the compiler has no device operation for it."""


@dataclass
class Fallback:
    """One row of the report. `moved_bytes` counts both directions, in host bytes; `line` is that of the first call."""

    op: str
    reason: str
    calls: int = 0
    moved_bytes: int = 0
    line: str = ""


_lock = threading.Lock()
_generator_lock = threading.Lock()
_rows: dict[str, Fallback] = {}
_refused: dict[tuple[Any, ...], str] = {}
_off: ContextVar[bool] = ContextVar("spyre_fallbacks_off", default=False)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Inside, an op that would fall back raises UnsupportedOp."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def report() -> tuple[Fallback, ...]:
    """What ran on the CPU so far, by falling traffic; torch_spyre.report() prints it."""
    with _lock:
        rows = [replace(row) for row in _rows.values() if row.calls]
    return tuple(sorted(rows, key=lambda row: (-row.moved_bytes, row.op)))


def reset() -> None:
    """Empties the report; each op warns again."""
    with _lock:
        _rows.clear()


@torch.compiler.disable(reason="the compiler itself, which Dynamo would trace after a graph break")
def compile_or_run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The eager compiler as the dispatcher sees it: an `_C.EagerPlan`, or ``("result", value)``."""
    with torch._C.DisableTorchFunction():  # a default device is none of our business
        whole = checks.numbers_as_tensors(op, args, kwargs)
    checks.check_overlap(op, args, kwargs)
    reason, signature = _without_compiler(op, *whole), None
    if reason is None:
        signature = _signature(op, *whole)
        reason = _refused.get(signature) if signature is not None else None
    if reason is None:
        checks.check(op, *whole)
        if masks.takes(op, args):
            return "result", masks.run(op, args)
        try:
            return compile_op(op, args, kwargs)
        except Exception as error:
            cause = _cause(error)
            if not isinstance(cause, UnsupportedOp) or not _enabled() or in_trace_of(op):
                raise cause from None
            reason = first_line(cause)
            _remember(signature, reason)
    if not _enabled():
        raise UnsupportedOp(f"{op} would run on the cpu, and fallbacks are off: {reason}")
    return "result", _run(op, *whole, reason)


_registered: dict[Any, Callable[..., Any]] = {}


def register_fallback(ops: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: eager calls of these ops run the function on the CPU. It gets the call's arguments there; results,
    and what it writes to ``out=`` or in place, come back to the card. Warned about and counted like any fallback."""
    wanted = [ops] if isinstance(ops, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else list(ops)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _registered.update((overload, function) for op in wanted for overload in _overloads(op))
        _C.clear_eager_cache()  # plans that are known for these ops
        return function

    return register


def register_fallback_default(ops: Sequence[Any]) -> None:
    """Eager calls of these ops run on the CPU as they are."""
    for op in [ops] if isinstance(ops, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else ops:
        for overload in _overloads(op):
            register_fallback([overload])(overload)


def unregister_fallback(ops: Sequence[Any]) -> None:
    """The card takes these ops again."""
    for op in ops:
        for overload in _overloads(op):
            _registered.pop(overload, None)


def _overloads(op: Any) -> list[Any]:
    return [op] if isinstance(op, torch._ops.OpOverload) else [getattr(op, name) for name in op.overloads()]


def _enabled() -> bool:
    return bool(knobs.get("fallback")) and not _off.get()


def _without_compiler(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Ops that never have a plan: the value of a result, or the draw of a generator, cannot be part of one."""
    if op in _registered:
        return "register_fallback has a function for it"
    if torch.Tag.nondeterministic_seeded in op.tags and op._schema.name.split("::")[-1] not in ON_CARD:
        return "random numbers of this distribution are drawn on the host"
    returns = [str(r.type) for r in op._schema.returns]
    if torch.Tag.data_dependent_output in op.tags or (returns and not any("Tensor" in r for r in returns)):
        return "its result is a number on the host"
    if not _card_tensors(args, kwargs):
        return "it makes a tensor from numbers alone"
    if any(map(checks.overlaps_itself, checks.written(op, args, kwargs))):
        return "it writes elements that lie in one place, one after the other"
    return None


def _cause(error: BaseException) -> BaseException:
    """What went wrong, without the exception in which Inductor wraps it while it lowers."""
    from torch._inductor.exc import LoweringException

    inner = error.__context__ if isinstance(error, LoweringException) else None
    return error if inner is None else inner


def _remember(signature: tuple[Any, ...] | None, reason: str) -> None:
    if signature is None:
        return
    with _lock:
        if len(_refused) >= _MAX_SIGNATURES:
            _refused.clear()
        _refused[signature] = reason


def _signature(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What the compiler's answer depends on; None for a call that cannot be a key."""
    key = (op, *map(_of_value, args), *kwargs, *map(_of_value, kwargs.values()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _of_value(x: Any) -> tuple[Any, ...]:
    if isinstance(x, (list, tuple)):
        return tuple(map(_of_value, x))
    if not isinstance(x, torch.Tensor):
        return (type(x), x)
    if x.device.type != DEVICE_NAME:
        return (x.device, x.dtype, x.shape)
    layout = _C.get_spyre_tensor_layout(x)
    offset, _ = _C.view_start(layout, list(x.shape), list(x.stride()), x.storage_offset())
    return (x.device, x.dtype, x.shape, x.stride(), offset, layout)


# The call on the host


def _map(fn: Callable[[Any], Any], x: Any) -> Any:
    """Values of an op call nest in lists and tuples only; pytree takes ten times as long."""
    if isinstance(x, (list, tuple)):
        return type(x)([_map(fn, item) for item in x])
    return fn(x)


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _leaves(item)
    else:
        yield x


def _card_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [x for x in _leaves([*args, *kwargs.values()]) if _on_card(x)]


class _Host:
    """The call's arguments on the CPU. Tensors that share a storage on the card share one here."""

    def __init__(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.moved_bytes = 0
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # (on the card, on the host)
        self.device: torch.device | None = None
        self.spans = _shared_spans(_card_tensors(args, kwargs))
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        outputs = {a.name for a in op._schema.arguments if a.is_out}
        self.args = _map(self.move, list(args))
        self.kwargs = {
            name: _map(functools.partial(self.move, written_only=name in outputs), x) for name, x in kwargs.items()
        }

    def move(self, x: Any, written_only: bool = False) -> Any:
        if isinstance(x, torch.device) and x.type == DEVICE_NAME:
            self.device = x
            return _HOST
        if not _on_card(x):
            return x
        self.device = self.device or x.device
        for card, host in self.pairs:
            if card is x:
                return host
        host = self._copy(x, written_only)
        self.pairs.append((x, host))
        return host

    def _copy(self, x: torch.Tensor, written_only: bool) -> torch.Tensor:
        key = (x.untyped_storage()._cdata, x.dtype)
        if key not in self.spans:
            if written_only:
                return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
            self.moved_bytes += x.nbytes
            return x.cpu()
        first, last = self.spans[key]
        if key not in self.bases:
            self.bases[key] = x.as_strided((last - first,), (1,), first).cpu()
            self.moved_bytes += self.bases[key].nbytes
        return self.bases[key].as_strided(x.shape, x.stride(), x.storage_offset() - first)

    def back(self, host: Any) -> Any:
        """A result on the card: the argument that it is, or a new tensor."""
        if not isinstance(host, torch.Tensor):
            return host
        for card, known in self.pairs:
            if known is host:
                return card
        if self.device is None:
            return host
        card = host.to(self.device)
        self.moved_bytes += host.nbytes
        self.pairs.append((card, host))
        return card

    def write_back(self, op: Any) -> None:
        """Arguments that the op wrote. An out= tensor that it resized is resized on the card too."""
        for i, argument in enumerate(op._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = self.kwargs.get(argument.name) if argument.kwarg_only else self.args[i]
            for card, host in self.pairs:
                if any(host is x for x in _leaves(written)):
                    if card.shape != host.shape:
                        card.resize_(host.shape)
                    self._write(card, host)

    def _write(self, card: torch.Tensor, host: torch.Tensor) -> None:
        if checks.overlaps_itself(card):
            key = (card.untyped_storage()._cdata, card.dtype)
            first, last = self.spans[key]
            card, host = card.as_strided((last - first,), (1,), first), self.bases[key]
        card.copy_(host)
        self.moved_bytes += host.nbytes


def _on_card(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME


def _shared_spans(tensors: Sequence[torch.Tensor]) -> checks.Spans:
    """The part of each storage that several different views of the call cover, or one that overlaps itself."""
    views: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
    for x in tensors:
        group = views.setdefault((x.untyped_storage()._cdata, x.dtype), [])
        if x.numel() and all(x is not y for y in group):
            group.append(x)
    shared = [group for group in views.values() if len(group) > 1 or any(map(checks.overlaps_itself, group))]
    return checks.spans(shared)


def _run(op: Any, args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
        raise UnsupportedOp(f"{op} returns a view, which cannot be made on the host: {reason}")
    # Kernels stand below autograd, so what happens here must not be recorded, and below any default device.
    with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
        if op is torch.ops.aten._copy_from.default:  # its schema does not say that it writes
            source, target = args[:2]
            target.copy_(source.cpu())
            _warn(op, reason)
            _count(op, reason, source.nbytes + target.nbytes)
            return target
        host = _Host(op, args, kwargs)
        with _random_numbers(op, host):
            result = _call_on_host(op, host)
        moved = _map(functools.partial(_back, op, host), result)
        _warn(op, reason)  # of a call that the host takes, before it changes anything
        host.write_back(op)
    _count(op, reason, host.moved_bytes)
    return moved


def _call_on_host(op: Any, host: _Host) -> Any:
    own = _registered.get(op, op)
    out = host.kwargs.get("out")
    if own is op or out is None:
        return (_HOST_FORMS.get(op, op) if own is op else own)(*host.args, **host.kwargs)
    # A user's function makes its result; that it goes to out= is our business.
    made = own(*host.args, **{name: x for name, x in host.kwargs.items() if name != "out"})
    return out.resize_(made.shape).copy_(made)


def _back(op: Any, host: _Host, result: Any) -> Any:
    """A result on the card, if the card can hold it."""
    kept = not isinstance(result, torch.Tensor) or (result.layout == torch.strided and not result.is_quantized)
    try:
        if kept:
            return host.back(result)
        why = f"the card has no {'quantized tensors' if result.is_quantized else f'tensors of layout {result.layout}'}"
    except UnsupportedOp as error:
        why = first_line(error).split(";")[0]
    raise UnsupportedOp(f"{op} gives what cannot be on the card ({why}): move its tensors with .cpu() to run it there")


def _histc(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """The CPU counts floats only, where other devices count integers too; float64 holds all that the card has."""
    if x.is_floating_point():
        return torch.ops.aten.histc.default(x, *args)
    return torch.ops.aten.histc.default(x.double(), *args).to(x.dtype)


# Ops that accept more on other devices than on the CPU.
_HOST_FORMS: dict[Any, Callable[..., Any]] = {torch.ops.aten.histc.default: _histc}


@contextlib.contextmanager
def _random_numbers(op: Any, host: _Host) -> Iterator[None]:
    """Lets the device's generator draw: its next key seeds a host generator for this call."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        yield
        return
    place = next(((i, a.kwarg_only) for i, a in enumerate(op._schema.arguments) if a.name == "generator"), None)
    given = None if place is None else host.kwargs.get("generator") if place[1] else host.args[place[0]]
    if given is not None and given.device.type == "cpu":
        yield
        return
    index = host.device.index if host.device is not None and host.device.index is not None else -1
    low, high = _C.draw_key(index, given)
    # An op that takes no generator draws from the process-wide one of the host.
    substitute = torch.default_generator if place is None else torch.Generator()
    with _generator_lock:
        before = substitute.get_state()
        substitute.manual_seed((low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32)
        if place is not None and place[1]:
            host.kwargs["generator"] = substitute
        elif place is not None:
            host.args[place[0]] = substitute
        try:
            yield
        finally:
            substitute.set_state(before)


# Warning and counting


def warn_fallback(op: Any) -> None:
    """Warns that an op runs on the CPU, once for each op."""
    _warn(op, "a user's function warns")


def _warn(op: Any, reason: str) -> None:
    if str(op) in _rows:
        return
    file, line = user_place()
    with _lock:
        if str(op) in _rows:
            return
        _rows[str(op)] = Fallback(str(op), reason, line=f"{file}:{line}")
    if knobs.get("fallback_warn"):
        why = reason.replace(f"{op} ", "it ", 1).partition(": move its tensors")[0]
        text = (
            f"{op} is falling back to cpu: {why}. print(torch_spyre.report()) lists all; SPYRE_FALLBACK=0 makes it an "
            "error, SPYRE_FALLBACK_WARN=0 switches this warning off"
        )
        warnings.warn_explicit(FallbackWarning(text), None, file, line)


def _count(op: Any, reason: str, moved_bytes: int) -> None:
    with _lock:
        row = _rows.setdefault(str(op), Fallback(str(op), reason))
        row.calls += 1
        row.moved_bytes += moved_bytes


def user_place() -> tuple[str, int]:
    """File and line of the innermost frame outside this package and torch. Code that Inductor generated is not the
    user's either, but says in a comment which line asked for the call."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    frame, generated = sys._getframe(1), cache_dir() + os.sep
    while True:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith(generated):
            said = _said_in_front(file, line)
            if said is not None:
                return said
        elif not file.startswith(_NOT_THE_USER):
            return file, line
        if frame.f_back is None:
            return file, line
        frame = frame.f_back


def _said_in_front(file: str, line: int) -> tuple[str, int] | None:
    """The place that the comment in front of a call in generated code names, the last if there are several."""
    for above in range(line - 1, max(line - 4, 0), -1):
        text = linecache.getline(file, above).strip()
        if text.startswith(MARK):
            name, number = re.findall(r'"([^"]+)", line (\d+)', text)[-1]
            return name, int(number)
    return None
