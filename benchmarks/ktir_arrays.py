# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/ktir_arrays.py [--strict]: KTIR with NumPy arrays against the same run on placed tensors.

The target of a kernel that takes a millisecond or more is three times the placed run; of a shorter one the placed run
and twice a NumPy copy of the bytes of all its arrays. All are measured in turn, in one run.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from common import ROOT, Figure, finish, interleaved, machine_line

from torch_spyre import ktir
from torch_spyre.ktir import sample

FOLDER = ROOT / "tests" / "support" / "ktir"
LONG_S = 1e-3
SCALARS = {"n": 300, "length": 2500, "rows": 4}


def figure(path: Path) -> Figure | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ktir.load(path)
    function = module.function()
    if function.literals:
        return None
    known = {a.name: SCALARS[a.name] for a in function.arguments if a.name in SCALARS}
    arguments, _ = sample.random_arguments(module, function, known, 0)
    arrays = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    held = [v for v in arrays.values() if isinstance(v, np.ndarray)]
    copies = [np.empty_like(v) for v in held]
    placed = module.place(**arguments)

    def on_card() -> None:
        module.run(**placed)
        torch.spyre.synchronize()

    def copy() -> None:
        for target, source in zip(copies, held, strict=True):
            np.copyto(target, source)

    times = interleaved({"placed": on_card, "arrays": lambda: module.run(**arrays), "copy": copy})
    base, both = times["placed"], times["arrays"]
    target = 3.0 if base >= LONG_S else (base + 2 * times["copy"]) / base
    size = sum(v.nbytes for v in held)
    note = (
        f"placed {base * 1e3:.3f} ms, arrays {both * 1e3:.3f} ms, copy of {size >> 10} KiB {times['copy'] * 1e3:.3f} ms"
    )
    return Figure(path.stem, both / base, "x", "<=", round(target, 2), note)


def main() -> int:
    print(machine_line())
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    files = [p for p in sorted(FOLDER.glob("*.mlir")) if not wanted or p.stem in wanted]
    return finish([found for path in files if (found := figure(path)) is not None])


if __name__ == "__main__":
    sys.exit(main())
