# SPDX-License-Identifier: Apache-2.0
"""The order of a graph's nodes such that work on the card comes in as few runs as possible: each run is one launch.

Inductor orders nodes for memory and puts an operation of the host wherever it is ready, which ends a run. Here all
work of the card that is ready goes first, then all of the host's, and so on; matrix products of one activation come
together. What other orders could tell apart stays in order: nodes outside the card among each other, and nodes that
draw random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode

from torch_spyre.constants import DEVICE_NAME


def in_few_runs(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """The nodes in another legal order."""
    waiting = _dependencies(nodes)
    done: set[BaseSchedulerNode] = set()
    order: list[BaseSchedulerNode] = []
    on_card = True
    while len(order) < len(nodes):
        for node in nodes:
            if node not in done and _on_card(node) == on_card and waiting[node] <= done:
                order.append(node)
                done.add(node)
        on_card = not on_card
    return _siblings_together(order, waiting)


def _siblings_together(
    order: list[BaseSchedulerNode], waiting: dict[BaseSchedulerNode, set[BaseSchedulerNode]]
) -> list[BaseSchedulerNode]:
    """Matrix products of one activation follow each other, as far as they can: it is read while it is at hand.

    Inductor moves nodes to where their results are used, which puts the product that makes the values of an attention
    behind its scores.
    """
    reads = {node: {d.name for d in node.read_writes.reads} for node in order if _is_product(node)}
    for product in reads:
        at = order.index(product)
        first = max((order.index(before) + 1 for before in waiting[product]), default=0)
        siblings = [i for i in range(first, at) if reads[product] & reads.get(order[i], set())]
        if siblings:
            order.insert(siblings[-1] + 1, order.pop(at))
    return order


def _is_product(node: BaseSchedulerNode) -> bool:
    return _on_card(node) and any(
        isinstance(data := getattr(n.node, "data", None), ir.Reduction) and data.reduction_type == "dot"
        for n in node.get_nodes()
    )


def _dependencies(nodes: list[BaseSchedulerNode]) -> dict[BaseSchedulerNode, set[BaseSchedulerNode]]:
    """The nodes that must come before each node."""
    maker = {name: node for node in nodes for name in node.get_buffer_names()}
    found: dict[BaseSchedulerNode, set[BaseSchedulerNode]] = {}
    last_outside = last_draw = None
    for node in nodes:
        before = {maker[d.name] for d in node.unmet_dependencies if d.name in maker} - {node}
        if not _on_card(node):
            before |= {last_outside} if last_outside is not None else set()
            last_outside = node
        if any(_draws(target) for target in _targets(node)):
            before |= {last_draw} if last_draw is not None else set()
            last_draw = node
        found[node] = before
    return found


def _on_card(node: BaseSchedulerNode) -> bool:
    device = node.get_device()
    return (
        device is not None
        and device.type == DEVICE_NAME
        and all(isinstance(n, SchedulerNode) for n in node.get_nodes())
    )


def _targets(node: BaseSchedulerNode) -> Iterator[Any]:
    return (o.target for n in node.get_nodes() if n.node is not None for o in n.node.get_origins())


def _draws(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
