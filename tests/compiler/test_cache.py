# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_cache.py
"""Program cache: a second process compiles nothing, and the key holds all that decides what a program looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor import compile as stages
from torch_spyre._inductor import config
from torch_spyre._inductor.kernel import launch_plan
from torch_spyre.ops.reuse import lowered_calls
from torch_spyre.perf import device
from torch_spyre.runtime import cache

FP16 = torch.float16

PROCESS = """
    import hashlib, json, sys
    import torch

    def fn(x, w, b):
        return torch.softmax(torch.relu(x @ w + b), -1)

    torch.manual_seed(1)
    args = [torch.randn(s).to(torch.float16).to("spyre") for s in ((33, 100), (100, 70), (70,))]
    eager = fn(*args).cpu()
    compiled = torch.compile(fn, dynamic=False)(*args).cpu()
    assert torch.equal(eager, compiled)
    stages = ("xdsl", "torch_spyre.ir.ktir.emit", "torch_spyre.backend", "torch_spyre._inductor.compile")
    print(json.dumps({
        "imported": [m for m in stages if m in sys.modules],
        "bits": hashlib.sha256(compiled.numpy().tobytes()).hexdigest(),
    }))
"""


def process(programs: Path, inductor: Path, **environment: str) -> dict[str, Any]:
    env = {**os.environ, "SPYRE_CACHE_DIR": str(programs), "TORCHINDUCTOR_CACHE_DIR": str(inductor), **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROCESS)], capture_output=True, text=True, timeout=1500, env=env
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """No planning, no KTIR, no assembly: those modules are not even imported. Same bits."""
    programs = tmp_path / "programs"
    first = process(programs, tmp_path / "inductor")
    assert "xdsl" in first["imported"]
    entries = sorted(programs.glob("??/*"))
    times = [e.stat().st_mtime_ns for e in entries]
    # Inductor's own cache is not what makes it: programs are found by content.
    second = process(programs, tmp_path / "elsewhere")
    assert second == {"imported": [], "bits": first["bits"]}
    assert [e.stat().st_mtime_ns for e in sorted(programs.glob("??/*"))] == times
    # Another knob is another program, with both caches warm.
    third = process(programs, tmp_path / "inductor", SENCORES="2")
    assert "xdsl" in third["imported"] and third["bits"] == first["bits"]
    assert len(list(programs.glob("??/*"))) == 2 * len(entries)


# The key


GRAPH = '{"some": "graph"}'
LAYOUT = ((2, 33, 64), (64, 100, 1), "SEN169_FP16", 0)


def changed(layout: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*layout[:at], value, *layout[at + 1 :])


def test_the_key_holds_graph_layouts_and_offsets() -> None:
    keys = [
        cache.key(GRAPH, [LAYOUT, LAYOUT]),
        cache.key('{"another": "graph"}', [LAYOUT, LAYOUT]),
        cache.key(GRAPH, [LAYOUT]),
        cache.key(GRAPH, [LAYOUT, ()]),
        cache.key(GRAPH, [(), LAYOUT]),
        cache.key(GRAPH, [LAYOUT, changed(LAYOUT, 0, (2, 34, 64))]),
        cache.key(GRAPH, [LAYOUT, changed(LAYOUT, 1, (64, 101, 1))]),
        cache.key(GRAPH, [LAYOUT, changed(LAYOUT, 2, "IEEE_FP32")]),
        cache.key(GRAPH, [LAYOUT, changed(LAYOUT, 3, 64)]),
        cache.key(GRAPH, [changed(LAYOUT, 3, 64), LAYOUT]),
    ]
    assert len(set(keys)) == len(keys)
    assert cache.key(GRAPH, [LAYOUT, LAYOUT]) == keys[0]


def another_value(row: knobs.Knob) -> Any:
    now = knobs.get(row.name)
    if row.type is bool:
        return not now
    if row.choices:
        return next(c for c in row.choices if c != now)
    return now / 2 if row.type is float else now - 1


def keys_of_caches() -> list[object]:
    """What each cache makes of the knobs: programs, plans of eager ops, Inductor's graphs, Dynamo's."""
    portable = config.save_config_portable(ignore_private_configs=False)  # as Inductor asks for it
    return [cache.key(GRAPH, [LAYOUT]), lowered_calls.knobs_word(), portable, config.get_hash()]


@pytest.mark.parametrize("row", [k for k in knobs.TABLE if k.group == "compiler"], ids=lambda k: k.name)
def test_keys_hold_the_compiler_knobs_that_have_an_effect(row: knobs.Knob) -> None:
    before = keys_of_caches()
    with config.patch(**{row.name: another_value(row)}):
        same = [a == b for a, b in zip(keys_of_caches(), before, strict=True)]
    assert set(same) == {row.status != "active"}
    assert keys_of_caches() == before


@pytest.mark.parametrize(
    "file",
    [
        "_inductor/planning/planner.py",
        "_inductor/passes/layouts.py",
        "ir/ktir/emit/kernel_function.py",
        "decompositions/collected.py",
        "perf/spyre.toml",
        "backend/program/assembler.py",
        "constants.py",
        "dl16.py",
        "formats.py",
        "patches/inductor.py",
        "csrc/card/include/spyre/vops.def",
    ],
)
def test_the_key_holds_the_compiler_itself(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of one source file is another fingerprint, and another fingerprint another key."""
    real, root = Path.read_bytes, Path(cache.__file__).parents[1]
    assert (root / file).is_file()
    before, key = cache.compiler_fingerprint.__wrapped__(), cache.key(GRAPH, [LAYOUT])
    monkeypatch.setattr(Path, "read_bytes", lambda p: real(p) + (b"\n" if p == root / file else b""))
    after = cache.compiler_fingerprint.__wrapped__()
    assert after != before
    monkeypatch.setattr(cache, "compiler_fingerprint", lambda: after)
    assert cache.key(GRAPH, [LAYOUT]) != key


def test_the_key_holds_the_device_that_is_assumed() -> None:
    card, half = device.load("spyre"), device.load("half_spyre")
    before = cache.key(GRAPH, [LAYOUT])
    with device.assume(half):
        other = cache.key(GRAPH, [LAYOUT])
        with device.assume(card):
            third = cache.key(GRAPH, [LAYOUT])
    assert len({before, other, third}) == 3 and cache.key(GRAPH, [LAYOUT]) == before


def test_inductors_own_cache_key_holds_the_compiler() -> None:
    """It keeps generated code with our TileGraphs in it: those must not outlive the compiler that built them."""
    from torch._inductor.codecache import FxGraphHashDetails

    import torch_spyre._inductor.registration  # noqa: F401

    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    details = FxGraphHashDetails(gm, [], {}, [])
    assert cache.compiler_fingerprint() in repr(details.custom_backend_codegen_configs)


# Hits and misses in one process


def test_layouts_and_lanes_are_planned_apart(fresh_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[list[tuple[Any, ...]]] = []
    original = stages.compile_graph

    def counting(graph_json: str, inputs: Any, displaced: bool = True) -> Any:
        if "spyre_kernel" in graph_json:  # Inductor itself copies a scalar or two on the device
            compiled.append(list(inputs))
        return original(graph_json, inputs, displaced)

    monkeypatch.setattr(stages, "compile_graph", counting)
    base = torch.randn(40, 192).to(FP16)
    x = base.to("spyre")
    torch._dynamo.reset()
    fn = torch.compile(lambda v: v * 2, dynamic=False)
    for row, column in ((0, 0), (10, 0), (11, 64), (30, 128), (7, 5), (9, 69), (0, 0)):
        part = slice(row, row + 10), slice(column, column + 32)
        assert torch.equal(fn(x[part]).cpu(), x.cpu()[part] * 2)
    other = _C.SpyreTensorLayout([40, 192], [192, 1], FP16, [1, 0])
    swapped = _C.spyre_empty_with_layout([40, 192], [192, 1], FP16, other)
    swapped.copy_(base)
    assert torch.equal(fn(swapped[:10, :32]).cpu(), x.cpu()[:10, :32] * 2)
    assert [inputs[0][3] for inputs in compiled] == [0, 5, 0]
    assert compiled[0][0][:2] != compiled[2][0][:2]


def test_a_hit_makes_no_second_entry(fresh_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(9, 70).to(FP16).to("spyre")
    _C.clear_eager_cache()
    want = (x + x).cpu()
    entries = list(fresh_caches.glob("??/*"))
    assert len(entries) == 1 and not list(fresh_caches.glob("??/tmp*"))
    monkeypatch.setattr(stages, "compile_graph", None)  # would fail if it were called
    _C.clear_eager_cache()
    assert torch.equal((x + x).cpu(), want)
    assert list(fresh_caches.glob("??/*")) == entries


def test_writers_race_and_all_win(fresh_caches: Path) -> None:
    """Several writers of one entry: one is kept whole, nobody fails, nothing is left behind."""
    kernel = cache.CachedKernel("k", b"program" * 1000, (("input", 0),), (), (), 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.store("ab" * 32, kernel), range(32)))
    found = cache.load("ab" * 32)
    assert found is not None and found.program == kernel.program
    assert len(list((fresh_caches / "ab").iterdir())) == 1


def test_inspection_recompiles_but_keeps_the_entry(fresh_caches: Path) -> None:
    from torch_spyre._inductor.debug import inspect

    x = torch.randn(9, 71).to(FP16).to("spyre")
    _C.clear_eager_cache()
    x - x
    before = len(inspect.records())
    inspect.start()
    try:
        _C.clear_eager_cache()
        x - x
    finally:
        inspect.stop()
    assert len(inspect.records()) == before + 1
    assert len(list(fresh_caches.glob("??/*"))) == 1


def test_the_launcher_needs_only_the_entry(fresh_caches: Path) -> None:
    """An entry read back launches the same program on other tensors."""
    from torch_spyre._inductor.debug import inspect

    x = torch.randn(9, 72).to(FP16).to("spyre")
    _C.clear_eager_cache()
    inspect.start()
    want = torch.relu(x).cpu()
    inspect.stop()
    graph = inspect.records()[-1].graph_json
    launcher = _C.KernelLauncher("again", lambda inputs: launch_plan(graph, inputs))
    (got,) = launcher(x)
    assert torch.equal(got.cpu(), want) and launcher.variants == 1
