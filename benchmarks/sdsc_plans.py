# SPDX-License-Identifier: Apache-2.0
"""What planning for SuperDSC costs: priority models, prompt and token, planned with SPYRE_PLAN=sdsc and ordinarily.

    python benchmarks/sdsc_plans.py [MODEL ...] [--size tiny]

A line per model: kernels, their ops, those in bundles, bundles, and the card's time of all kernels under the
restriction and without it. Then the ops that no word is for, by count, with the closest published construct.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

import torch

from torch_spyre import knobs
from torch_spyre._inductor.debug import bundles, inspect
from torch_spyre.ir.superdsc.vocabulary import CLOSEST
from torch_spyre.numerics import priority
from torch_spyre.numerics.models import Runner, _on_card


def measured(name: str, size: str) -> list[bundles.Cost]:
    """The distinct kernels of a model's prompt and one token after it."""
    model = priority.PRIORITY[name]
    module = priority.build(model, size)
    inspect.start()
    before = len(inspect.records())
    with torch.no_grad(), knobs.patch(plan="sdsc"):
        priority.to_card(module)
        runner = Runner(module, model)
        runner.compile()
        runner(_on_card(model.inputs(module.config)))
    inspect.stop()
    found = {(r.graph_json, r.inputs): r for r in inspect.records()[before:]}
    return [bundles.cost(r) for r in found.values()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What planning for SuperDSC costs on the card.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="priority models; all unless given")
    parser.add_argument("--size", default="tiny", choices=priority.SIZES)
    args = parser.parse_args(argv)
    wordless: Counter[str] = Counter()
    print("| model | kernels | ops | in bundles | bundles | card, us | ordinary, us | cost |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in args.models or priority.PRIORITY:
        found = measured(name, args.size)
        missing = [op.op for cost in found for op, _ in cost.steps.wordless]
        wordless.update(missing)
        ops, us, free = (sum(x) for x in zip(*((c.ops, c.us, c.ordinary_us) for c in found), strict=True))
        share = f"{1 - len(missing) / ops:.1%}"
        count = sum(c.bundles for c in found)
        print(f"| {name} | {len(found)} | {ops} | {share} | {count} | {us:.0f} | {free:.0f} | {us / free - 1:+.0%} |")
        sys.stdout.flush()
    print("\n| op | times | closest published construct |\n|---|---:|---|")
    for op, count in wordless.most_common():
        print(f"| {op} | {count} | {CLOSEST.get(op, '')} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
