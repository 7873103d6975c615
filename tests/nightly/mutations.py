# SPDX-License-Identifier: Apache-2.0
# python tests/nightly/mutations.py --seed 1 --minutes 10
"""Changed programs, KTIR texts, SuperDSC files and bundles, and cache entries, in turns, with a new seed each night.

Each kind has the check of its own tests: nothing crashes, nothing is written outside, every refusal has a name. Ends
when every kind has had 10,000 changes, or the time is over.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), *(str(TESTS / room) for room in ("support", "card", "ktir", "sdsc", "unit"))]
MOST = 10_000


def fuzzers(folder: Path) -> dict[str, tuple[int, Callable[[int], object]]]:
    """By kind: changes in one call, and the call for a seed."""
    cache = folder / "cache"
    os.environ["SPYRE_CACHE_DIR"] = str(cache)
    import test_cache_fuzz
    import test_fuzz_programs
    import test_ktir_fuzz
    import test_sdsc_fuzz

    def bundles(seed: int) -> object:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            return test_sdsc_fuzz.fuzz_bundles(seed, 50, Path(place))

    return {
        "programs": (200, lambda seed: test_fuzz_programs.fuzz(seed, 200)),
        "KTIR texts": (100, lambda seed: test_ktir_fuzz.check(range(100 * seed, 100 * seed + 100))),
        "SuperDSC files": (100, lambda seed: test_sdsc_fuzz.fuzz_files(seed, 100)),
        "bundles": (50, bundles),
        "cache files": (25, lambda seed: test_cache_fuzz.fuzz_cache(seed, 25, cache)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end, failed = time.monotonic() + options.minutes * 60, 0
    with tempfile.TemporaryDirectory() as scratch:
        kinds = fuzzers(Path(scratch))
        done = dict.fromkeys(kinds, 0)
        for turn in range(MOST):
            due = [kind for kind in kinds if done[kind] < MOST]
            for kind in due if time.monotonic() < end else []:
                changes, fuzz = kinds[kind]
                seed = options.seed * 1000 + turn
                try:
                    fuzz(seed)
                except BaseException:
                    failed += 1
                    print(f"{kind}, seed {seed}:")
                    traceback.print_exc(limit=-3, file=sys.stdout)
                done[kind] += changes
            if not due or time.monotonic() >= end:
                break
    print(*(f"{count:6} {kind}" for kind, count in done.items()), sep="\n")
    print(f"{sum(done.values())} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
