# SPDX-License-Identifier: Apache-2.0
"""Plans that were made for one combination of sizes, because no bucket of sizes gives the same results.

The planners of compiled graphs and of eager ops count here; `torch_spyre.report()` reads it without importing them.
"""

from __future__ import annotations

from collections import Counter

exact_plans: Counter[tuple[str, str, str]] = Counter()  # (kernel, first operation of it, why no bucket) -> plans
