# SPDX-License-Identifier: Apache-2.0
"""A model of vLLM on the card: a step goes there as tables and comes back as rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from spyre_inference import adapters, experts
from spyre_inference.attention.backend import CardAttention, Current
from spyre_inference.attention.tables import NOWHERE, Batch, Sizes, tables
from spyre_inference.steps.blocks import Blocks
from spyre_inference.steps.buckets import Buckets, Limits
from spyre_inference.steps.recorded import RecordedStep
from spyre_inference.vllm_api import Attention, init_logger
from spyre_inference.weights import off_card, onto_card
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.models.lengths import own_code
from torch_spyre.ops.kernels.paged_attention import PagedTables, places_and_distances

logger = init_logger(__name__)
_TOGETHER = 8  # pages that are cleared or moved at once


class CardModel:
    """Every size of a step is made at the start; `compiled_in_service` counts those that were not."""

    def __init__(self, model: nn.Module, limits: Limits, width: int, slots: int = 0, generates: bool = True) -> None:
        self.card = torch.device(DEVICE_NAME, torch.spyre.current_device())
        self.model, self.width, self.slots, self.page = model, width, slots, limits.page
        self.forward: Callable[..., Any] = model.forward
        self.head: Callable[..., Any] | None = model.compute_logits if generates else None
        experts.become(model)
        self.adapters = adapters.become(model, self.card) if slots else None
        self.current = Current()
        self.layers: list[Any] = [m for m in model.modules() if isinstance(m, Attention)]
        onto_card(model, self.card)
        for layer in self.layers:
            CardAttention.become(layer, self.current, self.card)
        self.blocks = Blocks(model)
        self.buckets = Buckets(limits)
        self.pages = 0
        self.moves_pages = False  # to the host and back
        self.serving = False
        self.steps_made = self.compiled_in_service = 0
        self.work_out: dict[Sizes, Callable[..., Any]] = {}  # of the tables of a step; compiled once
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Recorded launches name places in the card's memory."""
        self.steps: dict[Sizes, RecordedStep] = {}
        self.heads: dict[tuple[int, bool], RecordedStep] = {}
        self.page_steps: dict[str, RecordedStep] = {}

    def take_pages(self, count: int) -> None:
        """Room for keys and values of `count` pages in each layer, [pages * page size, heads, head size]: a head has
        a run of memory. None of it is committed before a page is cleared for its first use."""
        self.pages = count
        self.cleared = np.zeros(count, bool)
        for layer in (layer for layer in self.layers if layer.cached):
            sizes = ((count * self.page, layer.num_kv_heads, n) for n in (layer.head_size, layer.head_size_v))
            layer.take_pages(*(torch.empty(size, dtype=torch.float16, device=self.card) for size in sizes))

    def warm_up(self) -> None:
        """Makes all steps: with what is compiled already, their launches alone."""
        if self.pages:
            self._clear(np.zeros(1, np.int64))  # what pads tables writes there
        if self.moves_pages:
            self.write_pages(np.zeros(1, np.int64), self.read_pages(np.zeros(1, np.int64)))
        for size in self.buckets.all():
            self._step(size)
        for count in self.buckets.heads if self.head is not None else []:
            for best in (False, True):
                self._head(count, best)
        self.serving = True

    def rows(self, ids: np.ndarray, positions: np.ndarray, batch: Batch) -> torch.Tensor:
        """Runs a step; the states of its rows, on the host. A slot below 0 is that of a draft which was not taken: its
        keys go where those of padding go."""
        batch = replace(batch, slots=np.maximum(batch.slots, 0))
        sizes = self.buckets.sizes(batch)
        count = len(batch.slots)
        if self.pages and batch.causal:
            written = np.unique(batch.slots // self.page)
            self._clear(written[~self.cleared[written]])
        values = tables(batch, sizes, self.page)
        values["ids"] = _filled(ids[:count], sizes.rows)
        values["positions"] = _filled(positions[:count], sizes.rows)
        if self.adapters is not None:
            values["adapters"] = self.adapters.slots_of_rows(count, sizes.rows, self.slots)
        self.steps_made += 1
        return self._step(sizes).run(values).cpu()[:count]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of any number of rows, on the host."""
        return self._of_rows(hidden, best=False)

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """The token with the largest logit of each row, chosen on the card; the first of equal ones."""
        return self._of_rows(hidden, best=True)

    def _of_rows(self, hidden: torch.Tensor, best: bool) -> torch.Tensor:
        parts = []
        for part in hidden.split(self.buckets.heads[-1]):
            count = self.buckets.logit_rows(len(part))
            rows = torch.zeros(count, self.width, dtype=torch.float16)
            rows[: len(part)] = part
            parts.append(self._head(count, best).run({"rows": rows.numpy()}).cpu()[: len(part)])
        return torch.cat(parts)

    def sleep(self, keep: bool) -> None:
        """Gives the card's memory back. Weights stay on the host, or nowhere."""
        self._forget_steps()
        for layer in self.layers:
            layer.keys = layer.values = None
        off_card(self.model, keep)
        torch.spyre.synchronize()
        torch.accelerator.memory.empty_cache()  # vLLM takes away the shorter name
        self.serving = False

    def wake(self) -> None:
        """From the host, to other places than before: launches are recorded again, nothing is compiled."""
        onto_card(self.model, self.card)
        self.take_pages(self.pages)
        self.warm_up()

    def page_values(self) -> int:
        """Keys and values of a page, of all layers."""
        return sum(self.page * x.shape[1] * x.shape[2] for x in self._caches())

    def read_pages(self, pages: np.ndarray) -> torch.Tensor:
        """[pages, values] in fp32, on the host."""
        found = []
        for part in _parts(pages):
            read = self._page_step("read").run({"slots": self._slots_of(part)})
            found.append(torch.cat([x.cpu().view(_TOGETHER, -1) for x in read], 1)[: len(part)])
        return torch.cat(found)

    def write_pages(self, pages: np.ndarray, values: torch.Tensor) -> None:
        """The inverse of `read_pages`."""
        self.cleared[pages] = True
        widths = [self.page * x.shape[1] * x.shape[2] for x in self._caches()]
        for part, given in zip(_parts(pages), values.split(_TOGETHER), strict=True):
            rows = given[torch.arange(_TOGETHER) % len(part)].split(widths, 1)
            shaped = (x.reshape(-1, *cache.shape[1:]) for x, cache in zip(rows, self._caches(), strict=True))
            step = self._page_step("write")
            step.run({"slots": self._slots_of(part), **{str(n): x.numpy() for n, x in enumerate(shaped)}})

    def _clear(self, pages: np.ndarray) -> None:
        """Zeros for what the card's memory held before: a NaN there would go through any mask."""
        self.cleared[pages] = True
        for part in _parts(pages):
            self._page_step("clear").run({"slots": self._slots_of(part)})

    def _slots_of(self, pages: np.ndarray) -> np.ndarray:
        """Of `_TOGETHER` pages; fewer are named again."""
        numbers = np.resize(pages, _TOGETHER)[:, None] * self.page + np.arange(self.page)
        return numbers.reshape(-1).astype(np.int32)

    def _caches(self) -> list[torch.Tensor]:
        return [x for layer in self.layers if layer.cached for x in (layer.keys, layer.values)]

    def _page_step(self, what: str) -> RecordedStep:
        """Clears pages, reads them, or writes them."""
        if what not in self.page_steps:
            caches = self._caches()
            slots = torch.arange(_TOGETHER * self.page, dtype=torch.int32) % self.page
            inputs = {"slots": slots.to(self.card)}
            if what == "write":
                sizes = ((len(slots), *x.shape[1:]) for x in caches)
                inputs |= {str(n): torch.zeros(size).to(self.card) for n, size in enumerate(sizes)}
            compiled = torch.compile({"clear": _cleared, "read": _read, "write": _written}[what], dynamic=False)

            def forward() -> Any:
                at = inputs["slots"]
                if what == "write":
                    return [compiled(x, at, inputs[str(n)]) for n, x in enumerate(caches)]
                return [compiled(x, at) for x in caches]

            self.page_steps[what] = RecordedStep(inputs, forward)
            self._ready(self.page_steps[what], f"pages: {what}")
        return self.page_steps[what]

    def _step(self, sizes: Sizes) -> RecordedStep:
        found = self.steps.get(sizes)
        if found is not None:
            return found
        empty = {
            "slots": np.zeros(sizes.rows, np.int32),
            "pages": np.zeros(sizes.pairs, np.int32),
            "tiles": np.zeros(sizes.pairs, np.int32),
            "starts": np.full(sizes.pairs, NOWHERE, np.int32),
            "tile_rows": np.zeros(sizes.tiles * sizes.tile, np.int32),
            "limits": np.zeros((sizes.tiles, sizes.tile), np.int32),
            "pairs": np.zeros((sizes.tiles, sizes.most), np.int32),
            "places": np.zeros(sizes.rows, np.int32),
        }
        on_card = {name: torch.from_numpy(value).to(self.card) for name, value in empty.items()}
        paged = PagedTables(**on_card)
        if sizes not in self.work_out:
            self.work_out[sizes] = torch.compile(own_code(places_and_distances), dynamic=False)
        work_out = self.work_out[sizes]
        inputs = {
            **on_card,
            **{n: torch.zeros(sizes.rows, dtype=torch.int32).to(self.card) for n in ("ids", "positions")},
        }
        if self.adapters is not None:
            inputs["adapters"] = torch.zeros(sizes.rows, self.slots, dtype=torch.float16).to(self.card)

        def forward() -> torch.Tensor:
            self.current.tables = paged.located(self.page, work_out)
            self.blocks.size = sizes
            if self.adapters is not None:
                self.adapters.chosen = inputs["adapters"]
            return self.forward(inputs["ids"], inputs["positions"], None, None)

        step = self.steps[sizes] = RecordedStep(inputs, forward)
        self._ready(step, sizes)
        return step

    def _head(self, count: int, best: bool) -> RecordedStep:
        found = self.heads.get((count, best))
        if found is None:
            assert self.head is not None
            head = self.head
            rows = torch.zeros(count, self.width, dtype=torch.float16).to(self.card)

            def logits() -> torch.Tensor:
                return head(rows)

            def largest() -> torch.Tensor:
                return head(rows).argmax(-1).to(torch.int32)

            found = self.heads[count, best] = RecordedStep({"rows": rows}, largest if best else logits)
            self._ready(found, f"{count} rows of logits")
        return found

    def _ready(self, step: RecordedStep, what: Any) -> None:
        if self.serving:
            self.compiled_in_service += 1
            logger.error("a step of %s was compiled while requests waited: warm-up missed it; please report this", what)
        with torch.inference_mode():
            step.warm_up()
        if step.refused:
            logger.warning("steps of %s run without a recording: %s", what, step.refused)


def _filled(x: np.ndarray, count: int) -> np.ndarray:
    made = np.zeros(count, np.int32)
    made[: len(x)] = x
    return made


def _parts(pages: np.ndarray) -> list[np.ndarray]:
    return [pages[n : n + _TOGETHER] for n in range(0, len(pages), _TOGETHER)]


def _cleared(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, slots, torch.zeros(len(slots), *cache.shape[1:], dtype=cache.dtype, device=cache.device))
    return slots


def _read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return cache.index_select(0, slots).to(torch.float32)


def _written(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, slots, values.to(cache.dtype))
    return slots
