# SPDX-License-Identifier: Apache-2.0
"""What cards do, beside vLLM's own metrics.

Workers have the cards, and another process answers `/metrics`. Each process with a card writes a status file every
second, which `spyre-smi` reads too (torch_spyre/status_files.py); a worker adds what it knows about serving to its own,
and the server reads the files of its workers when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from torch_spyre import status_files
from torch_spyre.device import publish
from torch_spyre.ops import fallbacks

_SECTION = "serving"
_NS = 1e-9
# Name, what it is, where it is in the record of a card, factor.
_OF_CARDS: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("spyre:card_seconds", "Time of the card's clock", ("counters", "clock_ns"), _NS),
    ("spyre:card_busy_seconds", "Time in which the card computed", ("counters", "busy_ns"), _NS),
    ("spyre:launches", "Programs that the card ran", ("counters", "launches"), 1),
    ("spyre:lx_read_bytes", "Bytes that cores read from their scratchpads", ("counters", "lx_read_bytes"), 1),
    ("spyre:lx_write_bytes", "Bytes that cores wrote to their scratchpads", ("counters", "lx_write_bytes"), 1),
    ("spyre:memory_read_bytes", "Bytes read from the card's memory", ("counters", "memory_read_bytes"), 1),
    ("spyre:memory_write_bytes", "Bytes written to the card's memory", ("counters", "memory_write_bytes"), 1),
)
_MEMORY = (("spyre:memory_used_bytes", "memory_used_bytes"), ("spyre:memory_total_bytes", "memory_total_bytes"))
_OF_SERVING = (
    ("spyre:steps", "Steps of the model", "steps"),
    ("spyre:compiles_in_service", "Steps that were compiled while requests waited", "compiles"),
    ("spyre:host_fallbacks", "Operations that ran on the host for want of one on the card", "fallbacks"),
)


def publish_worker(instance: str, rank: int, numbers: Callable[[], dict[str, int]]) -> None:
    """Adds a worker of a server to the status file of this process."""
    publish.sections[_SECTION] = lambda: {
        "instance": instance,
        "rank": rank,
        "fallbacks": sum(row.calls for row in fallbacks.report()),
        **numbers(),
    }


class CardMetrics(Collector):
    """The metrics of all servers that this process has made."""

    instances: set[str]

    def __init__(self) -> None:
        self.instances = set()

    def collect(self) -> Iterator[Any]:
        found = [p for p in status_files.processes() if p.get(_SECTION, {}).get("instance") in self.instances]
        for name, text, path, factor in _OF_CARDS:
            counter = CounterMetricFamily(name, text, labels=["card"])
            for process in found:
                for card in process["cards"]:
                    counter.add_metric([_card(process)], (card[path[0]][path[1]] or 0) * factor)
            yield counter
        for name, key in _MEMORY:
            gauge = GaugeMetricFamily(name, f"The card's {key.replace('_', ' ')}", labels=["card"])
            for process in found:
                for card in process["cards"]:
                    gauge.add_metric([_card(process)], card[key])
            yield gauge
        for name, text, key in _OF_SERVING:
            counter = CounterMetricFamily(name, text, labels=["card"])
            for process in found:
                counter.add_metric([_card(process)], process[_SECTION][key])
            yield counter

    def describe(self) -> list[Any]:
        """Nothing: asking for names alone reads no files."""
        return []


def _card(process: dict[str, Any]) -> str:
    return str(process[_SECTION]["rank"])


_metrics = CardMetrics()


def answer_for(instance: str) -> None:
    """From now on the metrics of this process have those of the workers of `instance`."""
    if not _metrics.instances:
        REGISTRY.register(_metrics)
    _metrics.instances.add(instance)
