# SPDX-License-Identifier: Apache-2.0
"""KTIR text that copies a tensor between two views of the same shape."""

from __future__ import annotations

from collections.abc import Sequence

_TEXT = """
  %a = ktdp.construct_memory_view {first}, sizes: {shape}, strides: {dense}
    {{memory_space = #ktdp.memory_space<global>}} : memref<{type}>
  %b = ktdp.construct_memory_view {second}, sizes: {shape}, strides: {strides}
    {{memory_space = #ktdp.memory_space<{space}>}} : memref<{type}>
  %at = ktdp.construct_access_tile %a[{zeros}] {{access_tile_set = {box}, access_tile_order = {order}}}
    : memref<{type}> -> <{tile}>
  %bt = ktdp.construct_access_tile %b[{zeros}] {{access_tile_set = {box}, access_tile_order = {order}}}
    : memref<{type}> -> <{tile}>
  %x = ktdp.load %{source}t : <{tile}> -> tensor<{type}>
  ktdp.store %x, %{target}t : tensor<{type}>, <{tile}>
"""


def move(
    first: str,
    dense: Sequence[int],
    second: str,
    strides: Sequence[int],
    space: str,
    shape: Sequence[int],
    element: str,
    forward: bool,
) -> str:
    """From the view at value `first` with strides `dense`, in memory, to that at `second`, or back."""
    names = [f"d{i}" for i in range(len(shape))]
    limits = [f"{n} >= 0, {size - 1} - {n} >= 0" for n, size in zip(names, shape, strict=True)]
    sizes = "".join(f"{size}x" for size in shape)
    dims = ", ".join(names)
    return _TEXT.format(
        first=first,
        second=second,
        space=space,
        shape=list(shape),
        dense=list(dense),
        strides=list(strides),
        type=f"{sizes}{element}",
        tile=f"{sizes}index",
        zeros=", ".join("0" for _ in shape),
        box=f"affine_set<({dims}) : ({', '.join(limits)})>",
        order=f"affine_map<({dims}) -> ({dims})>",
        source="a" if forward else "b",
        target="b" if forward else "a",
    )
