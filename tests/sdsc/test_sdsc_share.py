# SPDX-License-Identifier: Apache-2.0
"""pytest -s tests/sdsc/test_sdsc_share.py            (over all kernels of the compiler's tests: -m slow)

Which share of planned kernels SuperDSC can express; those that it can give the same program, the rest say why not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sdsc_planned import FULL, HALF, Case, check, one, planned, values
from test_sdsc_programs import normal
from torch.nn import functional

from torch_spyre import knobs
from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.decoder import decode
from torch_spyre.errors import NotExpressible
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.ktir.text import parse
from torch_spyre.ir.superdsc.steps import in_steps
from torch_spyre.ir.superdsc.unroll import without_loops
from torch_spyre.ir.superdsc.writer import bundle_files, scalars_as_tensors
from torch_spyre.sdsc import read_bundle

# Test files whose kernels are counted, and the share that is expressible at least.
COUNTED = ("test_compile.py", "test_random_graphs.py", "test_index.py", "test_bits.py")
FLOOR, SMALL_FLOOR = 0.8, 0.75


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


CASES: dict[str, Callable[[], Case]] = {
    "layer norm": lambda: (norm, [values(33, 256), values(256), values(256)]),
    "attention": lambda: (attention, [values(2, 4, 32, 64) for _ in range(3)]),
    "gelu": lambda: one(lambda x: functional.gelu(x), 33, 200),
    "silu": lambda: one(lambda x: functional.silu(x), 33, 200),
    "rows in 32 uneven slices": lambda: one(lambda x: x.exp(), 67, 128),
    "slice of rows": lambda: one(lambda x: x[3:40].exp(), 67, 128),
    "slice of sticks": lambda: one(lambda x: x[:, 64:192].exp(), 8, 256),
    "slice inside a stick": lambda: one(lambda x: x[:, 3:67].exp(), 8, 128),
    "every second row": lambda: one(lambda x: x[::2] + 1, 64, 128),
    "one of a batch": lambda: one(lambda x: x[1] * 2, 3, 20, 128),
    "cat": lambda: (lambda a, b: torch.cat([a, b], 1), [values(8, 128), values(8, 64)]),
    "cat of rows": lambda: (lambda a, b: torch.cat([a, b]), [values(8, 100), values(5, 100)]),
    "reshape across sticks": lambda: one(lambda x: x.reshape(-1).exp(), 5, 200),
    "clamp": lambda: one(lambda x: x.clamp(-0.5, 0.5), 8, 100),
    "mixed dtypes": lambda: (lambda a, b: a + b, [values(8, 64), values(8, 64, dtype=FULL)]),
    "mean": lambda: one(lambda x: x.mean(-1), 33, 100),
    "variance": lambda: one(lambda x: x.var(-1), 33, 100, dtype=HALF),
    "transpose": lambda: one(lambda x: x.t().contiguous(), 100, 70),
}


def test_share_of_some_kernels() -> None:
    total, reasons = 0, {}
    for name, make in CASES.items():
        for record in planned(*make()):
            total += 1
            try:
                kernel = scalars_as_tensors(without_loops(record.plan.kernel))
                bundle_files(kernel)
            except NotExpressible as error:
                reasons[f"{name} {record.name}"] = str(error)
                continue
            check(kernel)
    share = 1 - len(reasons) / total
    print(f"\nSuperDSC expresses {total - len(reasons)} of {total} kernels, {share:.0%}")
    for name, reason in reasons.items():
        print(f"  {name}: {reason}")
    assert share >= SMALL_FLOOR
    assert all("has no SuperDSC form" in reason for reason in reasons.values())


@pytest.mark.parametrize("name", CASES)
def test_a_plan_for_superdsc_has_bundles_for_all_of_them(name: str) -> None:
    """Only an op that no word is for stands between bundles, and none of these cases has one."""
    with knobs.patch(plan="sdsc"):
        records = planned(*CASES[name]())
    assert records
    assert not [op.op for record in records for op, _ in in_steps(record.plan.kernel).wordless]


CONTROL = (asm.BarrierInst, asm.IfInst, asm.EndIfInst)


def work(module: Any) -> tuple[list[asm.Instruction], int, bool]:
    """What a program computes, its cores, and whether it has launch scalars or loops.

    Barriers stand where names of dims differ, and a bundle has names of its own.
    """
    found = decode(compile_module(module).binary)
    instructions = [normal(i) for i in found.instructions if not isinstance(i, CONTROL)]
    other = bool(found.scalars) or any(isinstance(i, asm.LoopInst) for i in found.instructions)
    return instructions, found.cores, other


def same_work(folder: Path) -> bool | None:
    """Does the bundle compute the same as the kernel it was written from? None if they differ in form by design."""
    direct, cores, other = work(parse((folder / "kernel.ktir").read_text()))
    return None if other else work(emit(read_bundle(folder / "sdsc", cores)))[0] == direct


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_share_of_the_compiler_tests(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        *(str(next(folder.rglob(name))) for name in COUNTED),
    ]
    environment = {**os.environ, "SPYRE_DUMP": str(tmp_path)}
    subprocess.run(command, env=environment, cwd=folder.parent, capture_output=True, timeout=1700, check=False)
    written = len([p for p in tmp_path.rglob("sdsc") if p.is_dir()])
    refused = [p.read_text() for p in tmp_path.rglob("sdsc_not_expressible.txt")]
    total = written + len(refused)
    print(f"\nSuperDSC expresses {written} of {total} kernels of the compiler's tests, {written / total:.0%}")
    kinds = Counter(re.sub(r"\d+", "N", r.split("has no SuperDSC form: ")[-1].strip()) for r in refused)
    for reason, count in kinds.most_common():
        print(f"  {count:4} {reason}")
    assert total > 100 and written / total >= FLOOR
    results = {p: same_work(p.parent) for p in tmp_path.rglob("sdsc") if p.is_dir()}
    print(f"  {Counter(results.values())} compute the same instructions; None: launch scalars or loops")
    assert False not in results.values(), [p for p, same in results.items() if same is False]
