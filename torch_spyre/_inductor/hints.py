# SPDX-License-Identifier: Apache-2.0
"""Hints: a user's own choice of core splits and tile loops, given by the names of tensor dims.

    declare_tensor_dim("M", 512); declare_tensor_dim("K", 1024); declare_tensor_dim("N", 2048)
    name_tensor_dims(x, ["M", "K"]); name_tensor_dims(w, ["K", "N"])

    def f(x, w):
        with spyre_hint(work_div={"M": 4, "N": 8}):
            return x @ w

`work_div` says how many cores share a dim, `num_tiles_per_dim` (or `tiles`, `slices`) how many trips a tile loop makes
over it. Inner hints win over outer ones. Of nested tile loops an op takes the outermost that it can, because a loop has
one dim; the notes of its node name the others. ``named_dims=["M", "N"]`` names the dims of what ops without operands
(``torch.ones``, ``torch.arange``) make inside the block; a dim without a name is "". Names belong to tensors, not to
graphs: they are looked up when a kernel is planned, and follow the data from the inputs through every node.
``SPYRE_INDUCTOR_IGNORE_HINTS=1`` turns hints off.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from torch_spyre._inductor import config
from torch_spyre.errors import InvalidArgument

_PREFIX = "spyre_hint:"
_NAMED_DIMS = "named_dims"
_KINDS = {"work_div": "work_div", "num_tiles_per_dim": "tiles", "tiles": "tiles", "slices": "tiles"}
_declared: dict[str, int] = {}
_named: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, ...]]] = {}  # address of the storage -> names


def declare_tensor_dim(name: str, size: int) -> None:
    """Says how long the dims called `name` are; a tensor that is named otherwise is refused."""
    if not isinstance(name, str) or not name or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidArgument(f"declare_tensor_dim({name!r}, {size!r}): give a name and a positive size")
    if _declared.get(name, size) != size:
        raise InvalidArgument(f"dim {name!r} is declared with size {_declared[name]}, not {size}; use another name")
    _declared[name] = size


def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """Names the dims of a tensor on the card; returns the tensor."""
    if len(names) != tensor.dim():
        raise InvalidArgument(f"{len(names)} names for a tensor of {tensor.dim()} dims: name every dim")
    for name, size in zip(names, tensor.shape, strict=True):
        if name not in _declared:
            raise InvalidArgument(f"dim {name!r} is not declared; call declare_tensor_dim({name!r}, {size}) first")
        if _declared[name] != size:
            raise InvalidArgument(f"dim {name!r} is declared with size {_declared[name]}; the tensor has {size}")
    _named[tensor.data_ptr()] = (weakref.ref(tensor), tuple(names))
    return tensor


def clear_tensor_dims() -> None:
    """Forgets all names and declarations."""
    _declared.clear()
    _named.clear()


def names_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The dim names of a tensor, () if it has none."""
    if not _named:
        return ()
    owner, names = _named.get(tensor.data_ptr(), (lambda: None, ()))
    known = owner()
    if known is None or known.shape != tensor.shape or known.stride() != tensor.stride():
        return ()
    return names


def spyre_hint(**hints: Mapping[str, int] | Sequence[str]) -> AbstractContextManager[None]:
    """Hints for the operations inside the ``with`` block of a compiled function."""
    content: list[tuple[str, str, int]] = []
    for key, counts in hints.items():
        if key == _NAMED_DIMS:
            content.extend(_positions(counts))
            continue
        if key not in _KINDS:
            raise InvalidArgument(f"spyre_hint({key}=…): use one of {', '.join((*_KINDS, _NAMED_DIMS))}")
        if not isinstance(counts, Mapping):
            raise InvalidArgument(f"spyre_hint({key}={counts!r}): give the counts by the names of dims")
        if _KINDS[key] == "tiles" and len(counts) > 1:
            raise InvalidArgument(f"spyre_hint({key}={dict(counts)}): one dim for each tile loop; nest hints for more")
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InvalidArgument(f"spyre_hint({key}): {name!r} has count {count!r}; use an integer of at least 1")
            content.append((_KINDS[key], name, count))
    noted: AbstractContextManager[None] = torch.fx.traceback.annotate({_noted(tuple(content)): tuple(content)})
    return noted


def _positions(names: Any) -> list[tuple[str, str, int]]:
    if isinstance(names, (str, Mapping)) or not all(isinstance(n, str) for n in names):
        raise InvalidArgument(f"spyre_hint(named_dims={names!r}): give a list with the name of each dim")
    given = [n for n in names if n]
    if len({*given}) < len(given):
        raise InvalidArgument(f"spyre_hint(named_dims={list(names)}): two dims have the same name")
    rank = (_NAMED_DIMS, "", len(names))  # no dim is called "", so its place holds how many there are
    return [rank, *((_NAMED_DIMS, n, i) for i, n in enumerate(names) if n)]


@torch._dynamo.assume_constant_result
def _noted(content: tuple[tuple[str, str, int], ...]) -> str:
    """A key for an annotation. Runs while a function is traced and makes the hint part of Inductor's cache key."""
    from torch._dynamo.callback import callback_handler

    key = f"{_PREFIX}{content}"
    config._active_hints = f"{config._active_hints}{key};"
    if _forget not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_forget)
    return key


def _forget(_: Any) -> None:
    config._active_hints = ""


def collect(nodes: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Hints of the FX nodes that a buffer comes from: kind -> dim name -> count."""
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        for key, content in (node.meta.get("custom") or {}).items():
            if str(key).startswith(_PREFIX):
                if any(kind == _NAMED_DIMS for kind, _, _ in content):
                    found[_NAMED_DIMS] = {}  # the names of an inner block are all there are
                for kind, name, count in content:
                    found.setdefault(kind, {})[name] = count
    return found
