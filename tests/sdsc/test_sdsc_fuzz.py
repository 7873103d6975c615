# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_fuzz.py            (10,000 more: -m slow)

Mutated files and bundles end in named errors or in runs that agree with NumPy: nothing else escapes, nothing hangs.
"""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from sdsc_files import FP8, FP16, FP32, INT32, UINT32, T, rows, sdsc, write_files
from test_sdsc_bundles import layer_norm, looped, one_block, softmax, symbolic_files
from test_sdsc_ops import CASES

from torch_spyre.errors import SpyreError
from torch_spyre.ir.superdsc.bundle import Bundle, lone
from torch_spyre.optable import PUBLISHED, Kind, lookup
from torch_spyre.sdsc import load
from torch_spyre.sdsc.reference import compare, evaluate
from torch_spyre.sdsc.run import compile_launch, execute, random_inputs
from torch_spyre.sdsc.slots import bind, slot_bytes

SMALL = {"mb": 8, "out": 128}
SEEDS = [
    sdsc("add", SMALL, [rows(0), rows(1), rows(2)], {"mb": 2}),
    sdsc("exp", {"mb": 7, "out": 128}, [rows(0, gap={"mb": 3}), rows(1)], {"mb": 2}),
    sdsc("relufwd", SMALL, [rows(lx=True), rows(lx=True, at=4096)], {"mb": 4}),
    sdsc("ReStickifyOpHBM", {"mb": 64, "out": 128}, [rows(0), T("out mb", "mb", 1)], {"out": 2}),
    *(CASES[name] for name in ("masked max", "gather on one core", "topkvalue 4", "layernormscale", "clip")),
    sdsc(
        "batchmatmul",
        {"mb": 4, "out": 64, "in": 128},
        [T("mb in", "in", 0), T("in out", "out", 1), T("mb out", "out", 2)],
        {"in": 2},
    ),
]
ODD: list[Any] = [0, 1, -1, 2, 63, 64, 65, 128, -64, 1 << 31, 1 << 40, 1 << 70, 0.5, -0.0, "", "x", "mb", "out", "17"]
ODD += [None, True, [], {}, [1], {"a": 1}, "hbm", "lx", "SEN169_FP16", "IEEE_FP32", "nan", float("inf")]
ODD += ["sum", "exp", "add", "batchmatmul", 16 << 30, (16 << 30) - 128, 2 << 20, 4096]
MAX_BYTES = 8 << 20


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside."""
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def mutate_json(data: Any, draw: random.Random) -> Any:
    """A few changes at random places: drop, replace, nudge, copy from elsewhere, or exchange names everywhere."""
    data = copy.deepcopy(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        paths = places(data)
        if not paths:
            break
        *way, last = draw.choice(paths)
        node = data
        for key in way:
            node = node[key]
        action = draw.randrange(6)
        value = node[last]
        if action == 0:
            del node[last]
        elif action == 1:
            node[last] = copy.deepcopy(draw.choice(ODD))
        elif action in (2, 3) and isinstance(value, int | str) and str(value).lstrip("-").isdigit():
            number = int(value) + draw.choice([1, -1, 64, -64, 128, -128, 4096, int(value)])
            node[last] = str(number) if isinstance(value, str) else number
        elif action == 4:
            other = data
            for key in draw.choice(paths):
                other = other[key]
            node[last] = copy.deepcopy(other)
        else:
            text = json.dumps(data)
            if draw.random() < 0.5:
                old, new = draw.sample(["mb", "out", "in", "x", "Tensor0", "Tensor1", "hbm", "lx", "core"], 2)
                data = json.loads(text.replace(f'"{old}', f'"{new}'))
            else:
                old, new = draw.sample(["64", "128", "8", "2", "4", "256", "-1", "1"], 2)
                data = json.loads(re.sub(rf"(?<=: ){old}(?=[,}}])|(?<=\\[){old}(?=\\])", new, text))
    return data


def random_file(draw: random.Random) -> Any:
    """A file that agrees with itself, whatever it says: any opfunc, dims, orders, sticks, splits, formats, places."""
    name = draw.choice([*PUBLISHED, "sumnonstick", "maxnonstick", "meannonstick"])
    func = lookup(name, PUBLISHED)
    dims = draw.sample(["mb", "out", "in", "x", "y"], draw.choice([1, 2, 2, 3, 3, 4]))
    units = {d: draw.choice([1, 1, 2, 3, 32, 64, 64, 128]) for d in dims}
    splits = {d: draw.choice([1, 1, 1, 2, 3, 4]) for d in dims}
    sizes = {d: units[d] * splits[d] - draw.choice([0, 0, 0, 1]) * (units[d] > 1 and splits[d] > 1) for d in dims}
    tensors = []
    wide = draw.choice([FP16, FP16, FP16, FP32])
    for i in range(func.tensors + 1):
        order = draw.sample(dims, len(dims) if draw.random() < 0.7 else draw.randint(1, len(dims)))
        stick = draw.choice(order) if draw.random() < 0.4 else order[-1]
        lacks = {d: -2 if d == stick else -1 for d in order if draw.random() < 0.15}
        if func.kind is Kind.CAST:
            format = draw.choice(sorted(func.formats[i]))
        else:
            format = wide if draw.random() < 0.9 else draw.choice([FP16, FP32, FP8, INT32, UINT32])
        gap = {d: draw.choice([1, 64]) for d in order if draw.random() < 0.1}
        place = {"lx": True, "at": draw.choice([0, 4096, 65536]) * (i + 1)} if draw.random() < 0.2 else {"seg": i}
        tensors.append(T(" ".join(order), stick, lacks=lacks, format=format, gap=gap, **place))  # type: ignore[arg-type]
    constants = {n: draw.uniform(-1, 1) for n in func.constants if draw.random() < 0.8}
    mask = {d: draw.randint(1, n) for d, n in sizes.items() if draw.random() < 0.15}
    reduces = func.kind in (Kind.REDUCTION, Kind.NORM)
    return sdsc(name, sizes, tensors, splits, constants=constants, mask=mask, accumulate=reduces).to_json()


def mutate_text(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(draw.choice([1, 1, 2, 4])):
        if not lines:
            break
        at = draw.randrange(len(lines))
        action = draw.randrange(5)
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(at, draw.choice(lines))
        elif action == 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            line = list(lines[at])
            if line:
                spot = draw.randrange(len(line))
                line[spot : spot + draw.randrange(3)] = draw.choice(
                    ["", "0", "-", "%", "(", "}", '"', "9999999999", "é"]
                )
            lines[at] = "".join(line)
    return "".join(lines)


def check_bundle(bundle: Bundle) -> str:
    bundle.verify()
    launch = bind(bundle)
    if sum(slot_bytes(s) for s in launch.slots) > MAX_BYTES or any(s.base > 1 << 30 for s in launch.slots):
        compile_launch(launch)
        return "compiled"
    inputs = random_inputs(launch)
    got, want = execute(launch, inputs), evaluate(launch, inputs)
    for slot in launch.slots:
        if slot.name in want.outputs:
            assert compare(got.outputs[slot.name], want.outputs[slot.name], slot) <= 4, slot.name
    return "ran"


def outcome(make: Any) -> str:
    """How one mutant ended; any exception but ours passes through."""
    try:
        result = check_bundle(make())
    except SpyreError as error:
        assert str(error)
        result = "refused"
    return result


def fuzz_files(seed: int, count: int) -> dict[str, int]:
    draw, ends = random.Random(seed), {"ran": 0, "refused": 0, "compiled": 0}
    texts = [made.to_json() for made in SEEDS]
    for i in range(count):
        data = random_file(draw) if draw.random() < 0.4 else mutate_json(draw.choice(texts), draw)
        try:
            ends[outcome(lambda data=data: lone(data))] += 1  # type: ignore[misc]
        except Exception as error:
            pytest.fail(f"mutant {i} of seed {seed}: {type(error).__name__}: {error}\n{json.dumps(data)[:3000]}")
    return ends


def fuzz_bundles(seed: int, count: int, folder: Path) -> dict[str, int]:
    draw, ends = random.Random(seed), {"ran": 0, "refused": 0, "compiled": 0}
    sources = [
        write_files(folder / "softmax", softmax(True)),
        write_files(folder / "pool", softmax(False)),
        write_files(folder / "norm", layer_norm(True)),
        symbolic_files(folder / "loop", [one_block()], looped(3, 4096)),
    ]
    originals = [{p.name: p.read_text() for p in source.iterdir()} for source in sources]
    target = folder / "mutant"
    target.mkdir()
    for i in range(count):
        files = dict(draw.choice(originals))
        name = draw.choice(list(files))
        if name.endswith(".json") and draw.random() < 0.7:
            files[name] = json.dumps(mutate_json(json.loads(files[name]), draw))
        else:
            name = "bundle.mlir" if draw.random() < 0.6 else name
            files[name] = mutate_text(files[name], draw)
        for old in target.iterdir():
            old.unlink()
        for file, text in files.items():
            (target / file).write_text(text)
        try:
            ends[outcome(lambda: load(target))] += 1
        except Exception as error:
            pytest.fail(f"mutant {i} of seed {seed} in {name}: {type(error).__name__}: {error}")
    return ends


def test_mutated_files() -> None:
    ends = fuzz_files(1, 250)
    assert ends["refused"] > 50 and ends["ran"] > 10


def test_mutated_bundles(tmp_path: Path) -> None:
    ends = fuzz_bundles(1, 100, tmp_path)
    assert ends["refused"] > 20 and ends["ran"] > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_files() -> None:
    print(fuzz_files(2, 8000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_bundles(tmp_path: Path) -> None:
    print(fuzz_bundles(2, 2000, tmp_path))
