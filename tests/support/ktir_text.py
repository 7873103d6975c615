# SPDX-License-Identifier: Apache-2.0
"""Builds small KTIR functions for tests: views, tiles that cover them, loads and stores."""

from __future__ import annotations

from collections.abc import Sequence


def box(sizes: Sequence[int | str], origin: Sequence[int] | None = None) -> str:
    """A set of that many points per dim; a name in place of a size is a symbol."""
    dims = [f"d{i}" for i in range(len(sizes))]
    symbols = [s for s in sizes if isinstance(s, str)]
    starts = origin or [0] * len(sizes)
    limits = [f"{d} - {o} >= 0, {s} - 1 + {o} - {d} >= 0" for d, s, o in zip(dims, sizes, starts, strict=True)]
    names = f"[{', '.join(symbols)}]" if symbols else ""
    return f"affine_set<({', '.join(dims)}){names} : ({', '.join(limits)})>"


def order(rank: int, permutation: Sequence[int] | None = None) -> str:
    dims = [f"d{i}" for i in range(rank)]
    results = [dims[p] for p in permutation] if permutation else dims
    return f"affine_map<({', '.join(dims)}) -> ({', '.join(results)})>"


def shape(sizes: Sequence[int], element: str) -> str:
    return "".join(f"{'?' if s < 0 else s}x" for s in sizes) + element


def strides_of(sizes: Sequence[int]) -> list[int]:
    found, step = [], 1
    for size in reversed(sizes):
        found.append(step)
        step *= size
    return found[::-1]


def view(
    name: str,
    base: str,
    sizes: Sequence[int],
    element: str = "f16",
    *,
    strides: Sequence[int] | None = None,
    domain: str | None = None,
    space: str = "global",
) -> str:
    steps = list(strides) if strides is not None else strides_of(sizes)
    return (
        f"%{name} = ktdp.construct_memory_view {base}, sizes: {list(sizes)}, strides: {steps} "
        f"{{coordinate_set = {domain or box(sizes)}, memory_space = #ktdp.memory_space<{space}>}} "
        f": memref<{shape(sizes, element)}>\n"
    )


def tile(
    name: str,
    base: str,
    base_sizes: Sequence[int],
    at: Sequence[str],
    sizes: Sequence[int],
    element: str = "f16",
    *,
    permutation: Sequence[int] | None = None,
) -> str:
    result = [sizes[p] for p in permutation] if permutation else sizes
    return (
        f"%{name} = ktdp.construct_access_tile %{base}[{', '.join(at)}] {{access_tile_set = {box(sizes)}, "
        f"access_tile_order = {order(len(sizes), permutation)}}} : memref<{shape(base_sizes, element)}> "
        f"-> <{shape(result, 'index')}>\n"
    )


def load(name: str, tile_name: str, sizes: Sequence[int], element: str = "f16") -> str:
    return f"%{name} = ktdp.load %{tile_name} : <{shape(sizes, 'index')}> -> tensor<{shape(sizes, element)}>\n"


def store(value: str, tile_name: str, sizes: Sequence[int], element: str = "f16") -> str:
    return f"ktdp.store %{value}, %{tile_name} : tensor<{shape(sizes, element)}>, <{shape(sizes, 'index')}>\n"


def whole(name: str, sizes: Sequence[int], element: str = "f16", base: str | None = None) -> str:
    """View %V<name> of argument %<name> and tile %t<name> of all of it."""
    zeros = ["0"] * len(sizes)
    return view(f"V{name}", base or f"%{name}", sizes, element) + tile(
        f"t{name}", f"V{name}", sizes, zeros, sizes, element
    )


def function(body: str, args: str, grid: str = "[1]", name: str = "k") -> str:
    return f"func.func @{name}({args}) attributes {{grid = {grid}}} {{\n{body}return\n}}\n"


def unary(op: str, sizes: Sequence[int], element: str = "f16", result: str | None = None) -> str:
    """A function of %x and %y: y = op(x); `op` names its operand %v and its result %r."""
    out = result or element
    body = whole("x", sizes, element) + whole("y", sizes, out) + load("v", "tx", sizes, element)
    return function(body + op + "\n" + store("r", "ty", sizes, out), "%x: index, %y: index")
