# SPDX-License-Identifier: Apache-2.0
# .venv-serving/bin/python -m pytest tests/serving/test_buckets.py
"""Sizes of steps: every batch that the scheduler may ask for finds one that is compiled before requests come."""

from __future__ import annotations

import numpy as np
import pytest

from spyre_inference.attention.tables import TILE, Batch
from spyre_inference.steps.buckets import Buckets, Limits

PAGE = 64


def batch(parts: list[tuple[int, int]]) -> Batch:
    """Sequences of so many keys before the step, and rows of it."""
    rows = np.array([n for _, n in parts])
    lengths = np.array([before + n for before, n in parts])
    pages = np.zeros((len(parts), int(lengths.max()) // PAGE + 1), np.int64)
    return Batch(np.concatenate([[0], np.cumsum(rows)]), lengths, pages, np.zeros(rows.sum(), np.int64))


@pytest.mark.parametrize("limits", [Limits(512, 8, 768, PAGE), Limits(64, 1, 64, PAGE), Limits(2048, 16, 4096, PAGE)])
def test_any_batch_has_a_compiled_size(limits: Limits) -> None:
    buckets, rng = Buckets(limits), np.random.default_rng(limits.rows)
    compiled = set(buckets.all())
    for _ in range(300):
        room, parts = limits.rows, []
        for _ in range(rng.integers(1, limits.sequences + 1)):
            rows = int(rng.integers(1, min(room, limits.length) + 1)) if rng.random() < 0.5 else 1
            parts.append((int(rng.integers(0, limits.length - rows + 1)), rows))
            room -= rows
            if room == 0:
                break
        given = batch(parts)
        sizes = buckets.sizes(given)
        tiles, pairs = given.counts(sizes.tile, PAGE)
        assert sizes in compiled
        assert sizes.rows >= len(given.slots) and sizes.tiles >= tiles and sizes.pairs >= pairs


def test_a_prompt_alone_has_no_pairs_to_spare() -> None:
    sizes = Buckets(Limits(512, 8, 768, PAGE)).sizes(batch([(0, 512)]))
    assert (sizes.tile, sizes.pairs) == (TILE, 36)
    assert Buckets(Limits(512, 8, 768, PAGE)).sizes(batch([(16, 1)])).pairs == 2
