# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_paged_attention.py
"""Paged attention of mixed batches against attention in float64, and its promise about bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spyre_inference.attention.tables import Batch, Sizes, tables
from torch_spyre.ops.kernels.paged_attention import Form, PagedTables, paged_attention, write_pages

PAGE = 64
Sequence = tuple[int, int]  # keys before this step, rows of this step


class Case:
    """Sequences with random queries, keys and values; their pages lie in a random order."""

    def __init__(self, sequences: list[Sequence], heads: int, shared: int, depth: int, tile: int) -> None:
        self.sequences, self.tile = sequences, tile
        lengths = np.array([before + rows for before, rows in sequences])
        starts = np.concatenate([[0], np.cumsum([rows for _, rows in sequences])])
        counts = -(-lengths // PAGE)
        numbers = np.random.permutation(counts.sum()) + 1
        self.pages = np.zeros((len(sequences), counts.max()), np.int64)
        for row, count, end in zip(self.pages, counts, np.cumsum(counts), strict=True):
            row[:count] = numbers[end - count : end]
        slots = np.concatenate([self.places(n, before) for n, (before, _) in enumerate(sequences)])
        self.batch = Batch(starts, lengths, self.pages, slots)
        rows = int(starts[-1])
        self.query = torch.randn(rows, heads, depth).half()
        self.key, self.value = torch.randn(2, rows, shared, depth).half().unbind()
        self.keys, self.values = torch.randn(2, (counts.sum() + 1) * PAGE, shared, depth).half().unbind()

    def places(self, number: int, first: int = 0) -> np.ndarray:
        at = np.arange(first, sum(self.sequences[number]))
        return self.pages[number][at // PAGE] * PAGE + at % PAGE

    def on_card(self, form: Form, slopes: torch.Tensor | None = None, spare: int = 0) -> torch.Tensor:
        tiles, pairs = self.batch.counts(self.tile, PAGE)
        sizes = Sizes(
            len(self.batch.slots) + spare, tiles + spare, self.tile, pairs + spare, self.pages.shape[1] + spare
        )
        host = tables(self.batch, sizes, PAGE)
        given = PagedTables(**{name: torch.from_numpy(x).to("spyre") for name, x in host.items()})

        def padded(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x.new_ones(spare, *x.shape[1:])]).to("spyre")

        keys, values = self.keys.to("spyre"), self.values.to("spyre")

        @torch.compile(dynamic=False)
        def step(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            write_pages(key, value, keys, values, given.slots)
            return paged_attention(query, keys, values, given, form, slopes)

        slopes = None if slopes is None else slopes.to("spyre")
        return step(padded(self.query), padded(self.key), padded(self.value)).cpu()[: len(self.query)]

    def exact(self, form: Form, slopes: torch.Tensor | None = None) -> torch.Tensor:
        keys, values = self.keys.double(), self.values.double()
        keys[self.batch.slots], values[self.batch.slots] = self.key.double(), self.value.double()
        group, made = self.query.shape[1] // keys.shape[1], []
        for number, (before, rows) in enumerate(self.sequences):
            at = self.places(number)
            k, v = (x[at].repeat_interleave(group, 1) for x in (keys, values))
            q = self.query[self.batch.starts[number] : self.batch.starts[number + 1]].double()
            scores = torch.einsum("qhd,khd->hqk", q, k) * form.scale
            if form.soft_cap:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            away = (before + torch.arange(rows))[:, None] - torch.arange(before + rows)
            if slopes is not None:
                scores = scores - slopes.double()[:, None, None] * away
            seen = (away >= 0) & (away < (form.window or math.inf))
            made.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v))
        return torch.cat(made)


MIXED: list[Sequence] = [(0, 70), (130, 1), (63, 1), (64, 3), (0, 1), (100, 40)]
SINGLE: list[Sequence] = [(0, 1), (63, 1), (64, 1), (200, 1)]


def close(case: Case, form: Form, slopes: torch.Tensor | None = None) -> None:
    """Four roundings of 2^-10 lie between scores and result: queries, scores, powers, sums. A score's rounding becomes
    a relative error of its weight as large as the score's half ulp; scores stay below 8 here, soft-capped or not."""
    exact = case.exact(form, slopes)
    error = (case.on_card(form, slopes).double() - exact).abs().max()
    assert error <= exact.abs().max() * 4 * 8 * 2.0**-10


@pytest.mark.parametrize(
    "heads, shared, depth", [(4, 4, 64), (6, 2, 32), (6, 2, 64), (6, 2, 80), (6, 2, 128), (6, 2, 256), (4, 1, 64)]
)
def test_heads_and_their_sizes(heads: int, shared: int, depth: int) -> None:
    close(Case(MIXED, heads, shared, depth, 64), Form(PAGE, depth**-0.5))
    close(Case(SINGLE, heads, shared, depth, 1), Form(PAGE, depth**-0.5))


@pytest.mark.parametrize("form", [Form(PAGE, 0.125, window=50), Form(PAGE, 0.125, soft_cap=2.0)], ids=["window", "cap"])
def test_windows_and_soft_caps(form: Form) -> None:
    close(Case(MIXED, 4, 2, 64, 64), form)
    close(Case(SINGLE, 4, 2, 64, 1), form)


def test_slopes() -> None:
    close(Case(MIXED, 4, 2, 64, 64), Form(PAGE, 0.125), torch.tensor([0.5, 0.25, 0.125, 0.0625]).half())


def test_room_that_is_not_used_changes_no_bit() -> None:
    case, form = Case(MIXED, 4, 2, 64, 64), Form(PAGE, 0.125)
    assert torch.equal(case.on_card(form), case.on_card(form, spare=9))


def test_a_row_has_the_same_bits_in_any_tile() -> None:
    case, form = Case(SINGLE, 4, 2, 64, 64), Form(PAGE, 0.125)
    wide = case.on_card(form)
    case.tile = 1
    assert torch.equal(wide, case.on_card(form))


@pytest.mark.parametrize("tile, rows", [(1, 1), (64, 5)])
def test_a_page_keeps_no_nan_for_its_next_user(tile: int, rows: int) -> None:
    form = Form(PAGE, 32**-0.5)
    torch.manual_seed(3)
    case = Case([(70, rows), (3, rows)], 4, 2, 32, tile)
    clean = case.on_card(form, spare=2)
    keys, values = (torch.zeros_like(case.keys).to("spyre") for _ in range(2))
    every = torch.arange(len(keys), dtype=torch.int32).to("spyre")
    bad = torch.full_like(case.keys, torch.nan).to("spyre")
    torch.compile(write_pages, dynamic=False)(bad, bad, keys, values, every)  # by requests that are gone
    assert keys.cpu().isnan().all() and (values.cpu() == 0).all()
    for number, sequence in enumerate(case.sequences):  # and the places that this one has written itself
        at = torch.from_numpy(case.places(number)[: sequence[0]])
        host_keys, host_values = keys.cpu(), values.cpu()
        host_keys[at], host_values[at] = case.keys[at], case.values[at]
        keys, values = host_keys.to("spyre"), host_values.to("spyre")
    case.keys, case.values = keys.cpu(), values.cpu()
    assert torch.equal(case.on_card(form, spare=2), clean)
    case.value[0, 0, 5] = torch.nan  # what a row sees of NaN it does get
    assert case.on_card(form, spare=2)[0, 0].isnan().any()
