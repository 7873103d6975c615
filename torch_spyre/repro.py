# SPDX-License-Identifier: Apache-2.0
"""Reproducers: one Python file per kernel that rebuilds it, runs it on the card and compares it with a reference.

``SPYRE_DUMP=<directory>`` writes a `kernel_repro.py` for every kernel before it is planned, so that one that fails to
compile has it too. The file holds the TileGraph, the layout and offset of each input, and the knobs; this module does
the rest. With ``SPYRE_DUMP_INPUTS=1`` the values of the last launch are beside it in `inputs.pt`.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor.compile import compile_graph
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.reproducer import VALUES
from torch_spyre._inductor.tilegraph.evaluate import evaluate, written
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph
from torch_spyre.ir.ktir.text import parse
from torch_spyre.runtime import driver

# Of the last place, relative to a value; bf16 keeps fewer bits on the host than the card does.
_ULP = {"float16": 2.0**-9, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float8_e4m3fn": 2.0**-3, "float8_e5m2fnuz": 0.25}


def main(
    script: str,
    graph_json: str,
    inputs: Sequence[tuple[Any, ...]],
    planning: Mapping[str, Any],
    ktir: str | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Runs a reproducer: 0 if card and reference agree, else 1. Errors of compiler and card are raised."""
    options = _options(script, argv)
    saved = Path(script).parent / VALUES
    with knobs.patch(**planning, dump=""):
        graph = Graph.from_json(graph_json)
        values = _saved(graph, saved) if saved.exists() and not options.random else random_inputs(graph, options.seed)
        where = f"of {saved}" if saved.exists() and not options.random else f"random, seed {options.seed}"
        print(f"{graph.name}: {len(graph.nodes)} ops, {len(inputs)} input{'s' * (len(inputs) != 1)} ({where})")
        text = ktir if options.dumped else Path(options.ktir).read_text() if options.ktir else None
        launcher, program = _compile(graph, graph_json, inputs, text, ktir)
        tensors = [on_card(graph.buffers[n], d, v) for n, d, v in zip(graph.inputs, inputs, values, strict=True)]
        results = launcher(*tensors)
        torch.spyre.synchronize()
        good = compare(graph, values, tensors, results)
        _times(launcher, tensors, program, options.repeat)
    print("card and reference agree" if good else "MISMATCH")
    return 0 if good else 1


def _options(script: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=Path(script).name, description="Runs one kernel and checks its results.")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument("--random", action="store_true", help=f"random inputs even if {VALUES} is there")
    parser.add_argument("--dumped", action="store_true", help="run the KTIR in this file instead of planning again")
    parser.add_argument("--ktir", metavar="FILE", help="run this KTIR, which must have the same arguments")
    parser.add_argument("--repeat", type=int, default=5, help="launches to time")
    return parser.parse_args(argv)


def _compile(
    graph: Graph, graph_json: str, inputs: Sequence[tuple[Any, ...]], given: str | None, before: str | None
) -> tuple[Any, Any]:
    """A launcher and its program, from the graph or from KTIR that stands for its plan."""
    inspect.start()
    begin = time.perf_counter()
    kernel = compile_graph(graph_json, inputs)
    seconds = time.perf_counter() - begin
    inspect.stop()
    if given is not None:
        kernel = dataclasses.replace(kernel, program=driver.build_ktir(parse(given)).binary)
    elif before is not None and inspect.records()[-1].ktir() != before:
        print("the plan differs from the one in this file (--dumped runs that)")
    loaded = driver.load(kernel)
    print(f"compiled in {seconds:.2f} s: program of {len(kernel.program):,} bytes")
    return driver.launcher(loaded), loaded.program


def _times(launcher: Any, tensors: Sequence[Any], program: Any, repeat: int) -> None:
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        launcher(*tensors)
        torch.spyre.synchronize()
        best = min(best, time.perf_counter() - begin)
    wall = f", {best * 1e6:,.0f} us here (best of {repeat})" if repeat > 0 else ""
    print(f"time of one launch: {program.duration_ns / 1e3:,.1f} us on the device clock{wall}")


# Inputs


def _saved(graph: Graph, file: Path) -> list[Any]:
    values: list[Any] = torch.load(file, weights_only=True)
    for name, value in zip(graph.inputs, values, strict=True):
        want = graph.buffers[name].size
        if isinstance(value, torch.Tensor) and tuple(value.shape) != want:
            raise ValueError(f"{file}: input {name} has shape {tuple(value.shape)}, the kernel takes {want}")
    return values


def random_inputs(graph: Graph, seed: int = 0) -> list[Any]:
    """Normal floats; integers that index a table are inside it, others are small; a mutated input is filled too."""
    generator = torch.Generator().manual_seed(seed)
    limits = _index_limits(graph)
    values: list[Any] = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        dtype = getattr(torch, buffer.dtype)
        if dtype.is_floating_point:
            value = torch.randn(buffer.size, generator=generator).to(dtype)
        else:
            end = 2 if dtype == torch.bool else limits.get(name, 8)
            value = torch.randint(0, end, buffer.size, generator=generator).to(dtype)
        values.append(value)
    return values


def _index_limits(graph: Graph) -> dict[str, int]:
    """Bounds of the inputs that some gather's or scatter's index is computed from."""
    sources: dict[str, set[str]] = {name: {name} for name in graph.inputs}
    limits: dict[str, int] = {}
    for node in graph.nodes:
        made = {name for load in node.loads() for name in sources.get(load.buffer, ())}
        sources[node.output.buffer] = sources.get(node.output.buffer, set()) | made
        for operand, limit in zip(node.inputs[1:], node.limits, strict=False):
            for name in sources.get(getattr(operand, "buffer", ""), ()):
                limits[name] = min(limit, limits.get(name, limit))
    return limits


def on_card(buffer: Buffer, described: Sequence[Any], value: Any) -> Any:
    """A tensor of this value with the layout, strides and offset that the kernel was made for."""
    if not described:
        return value
    device_size, stride_map, format, offset = described[:4]
    layout = _C.SpyreTensorLayout(list(device_size), list(stride_map), getattr(_C.DataFormats, format))
    host = torch.as_tensor(value).contiguous().reshape(buffer.size)
    flat = torch.zeros(offset + buffer.span, dtype=host.dtype)
    if host.numel():
        places = sum(
            (torch.arange(n) * s).reshape([-1] + [1] * (len(buffer.size) - 1 - i))
            for i, (n, s) in enumerate(zip(buffer.size, buffer.stride, strict=True))
        )
        flat[torch.as_tensor(places).expand(buffer.size) + offset] = host
    whole = _C.spyre_empty_with_layout([flat.numel()], [1], host.dtype, layout)
    whole.copy_(flat)
    return whole.as_strided(buffer.size, buffer.stride, offset)


# Comparison


def compare(graph: Graph, values: Sequence[Any], tensors: Sequence[Any], results: Sequence[torch.Tensor]) -> bool:
    """Prints one line per result; True if each is as near to the reference as its format and the roundings allow."""
    host = [_numpy(torch.as_tensor(v)) for v in values]
    want, exact = evaluate(graph, host), evaluate(graph, host, rounded=False)
    fresh = dict(zip((n for n in graph.outputs if graph.buffers[n].kind == "output"), results, strict=True))
    passed = dict(zip(graph.inputs, tensors, strict=True))
    terms = max((_terms(n) for n in graph.nodes), default=1)
    good = True
    for name in written(graph):
        got = (fresh[name] if name in fresh else passed[name]).cpu()
        good &= _compare_one(graph.buffers[name], got, want[name], exact[name], terms)
    return good


def _terms(node: Any) -> int:
    """Numbers that one result of a node is summed from."""
    count = 1
    for name, size in node.dims:
        count *= size if name in node.reduced or name == node.along else 1
    return count


def _numpy(value: torch.Tensor) -> Any:
    return value.double().numpy() if value.is_floating_point() else value.numpy()


def _compare_one(buffer: Buffer, tensor: torch.Tensor, want: Any, exact: Any, terms: int) -> bool:
    got = _numpy(tensor)
    want = _numpy(torch.from_numpy(np.ascontiguousarray(want)).to(getattr(torch, buffer.dtype)).reshape(tensor.shape))
    label = f"{buffer.name}: {buffer.dtype}{list(tensor.shape)}"
    if not got.size:
        print(f"{label}: empty")
        return True
    if not tensor.is_floating_point():
        bad = got != want
        error, bound = np.abs(got.astype(np.int64) - want.astype(np.int64)), 0.0
    else:
        error, bound = _float_error(buffer.dtype, got, want, exact.reshape(got.shape), terms)
        bad = ~(error <= bound)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), got.shape)
    place = f"[{', '.join(map(str, map(int, worst)))}]"
    values = f"card {got[worst]:.6g}, reference {want[worst]:.6g}"
    detail = f"largest difference {float(error[worst]):.3g} at {place} ({values})"
    print(f"{label}: {'equal' if not np.any(error) else detail}")
    if bad.any():
        print(f"  {int(bad.sum())} of {got.size} elements differ by more than their format and the roundings explain")
    return not bool(bad.any())


def _float_error(dtype: str, got: Any, want: Any, exact: Any, terms: int) -> tuple[Any, Any]:
    """Differences, and what may be: two units in the last place, and the effect that all roundings have together.

    Sums of the card are in fp32: `terms` roundings of values that may be as large as the largest result.
    """
    with np.errstate(all="ignore"):
        special = ~(np.isfinite(got) & np.isfinite(want))
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(special, np.where(same, 0.0, np.inf), np.abs(got - want))
        size = np.where(np.isfinite(want), np.abs(want), 0.0)
        drift = np.where(np.isfinite(exact) & ~special, np.abs(exact - want), 0.0).max()
    return error, 2 * _ULP[dtype] * size + 4 * drift + terms * 2.0**-24 * size.max() + 2.0**-31
