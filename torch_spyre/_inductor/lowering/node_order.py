# SPDX-License-Identifier: Apache-2.0
"""The order of a graph's nodes such that work on the card comes in as few runs as possible: each run is one launch.

Inductor orders nodes for memory and puts an operation of the host wherever it is ready, which ends a run. Here all
work of the card that is ready goes first, then all of the host's, and so on; matrix products of one activation come
together. What other orders could tell apart stays in order: nodes outside the card among each other, and nodes that
draw random numbers.

A collective with other cards runs beside the card's work between its call and the wait for it. So it is called as soon
as what it needs is there, everything that does not need its result follows, and the wait comes when nothing else is
left to do. Work that is shorter than a launch goes before the call, into the launch that is there already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode
from torch._inductor.utils import contains_collective, contains_wait, sympy_product

from torch_spyre.constants import DEVICE_NAME

_ELEMENTS_OF_A_LAUNCH = 1 << 20  # 2 MB of float16: about 15 µs at 150 GB/s
Nodes = set[BaseSchedulerNode]
Before = dict[BaseSchedulerNode, Nodes]  # the nodes that must come before each


def in_few_runs(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """The nodes in another legal order."""
    waiting = _dependencies(nodes)
    done: Nodes = set()
    order: list[BaseSchedulerNode] = []

    def place(wanted: Callable[[BaseSchedulerNode], bool], most: int | None = None) -> bool:
        """Those of the wanted that are ready, at most so many; whether there was one."""
        before = len(order)
        for node in nodes:
            if node not in done and wanted(node) and waiting[node] <= done:
                order.append(node)
                done.add(node)
                if len(order) - before == most:
                    break
        return len(order) > before

    while len(order) < len(nodes):
        run = place(functools.partial(_on_card_and_in, _before_next_call(nodes, waiting, done)))
        called = place(lambda node: not _on_card(node) and not contains_wait(node))
        if not run and not called:
            place(contains_wait, most=1)
    return _siblings_together(order, waiting)


def _before_next_call(nodes: list[BaseSchedulerNode], waiting: Before, done: Nodes) -> Nodes:
    """What is to be done before the next collective: what it needs, or everything if it has to wait for another one or
    there is nothing worth doing while it runs."""
    everything = set(nodes)
    if not any(contains_collective(node) for node in everything - done):
        return everything
    needs = {node: _needs(node, waiting, done) for node in nodes if node not in done}
    free = [node for node, needed in needs.items() if not any(contains_wait(n) for n in needed)]
    call = next((node for node in free if contains_collective(node)), None)
    if call is None or not any(_worth_a_launch(node) for node in free if node not in needs[call]):
        return everything
    return needs[call]


def _needs(node: BaseSchedulerNode, waiting: Before, done: Nodes) -> Nodes:
    """The node and all that is left to do before it."""
    needed, reached = {node}, [node]
    while reached:
        more = waiting[reached.pop()] - done - needed
        needed |= more
        reached += more
    return needed


def _worth_a_launch(node: BaseSchedulerNode) -> bool:
    """A product, or more elements than the card moves in the time of a launch."""
    if not _on_card(node):
        return False
    sizes = [sympy_product(n.node.get_size()) for n in node.get_nodes() if isinstance(n.node, ir.ComputedBuffer)]
    return _is_product(node) or any(bool(n.is_Integer) and n >= _ELEMENTS_OF_A_LAUNCH for n in sizes)


def _siblings_together(order: list[BaseSchedulerNode], waiting: Before) -> list[BaseSchedulerNode]:
    """Matrix products of one activation follow each other, as far as they can: it is read while it is at hand.

    Inductor moves nodes to where their results are used, which puts the product that makes the values of an attention
    behind its scores.
    """
    reads = {node: {d.name for d in node.read_writes.reads} for node in order if _is_product(node)}
    for product in reads:
        at = order.index(product)
        first = max((order.index(before) + 1 for before in waiting[product]), default=0)
        first = max(first, _end_of_last_exchange(order, at))
        siblings = [i for i in range(first, at) if reads[product] & reads.get(order[i], set())]
        if siblings:
            order.insert(siblings[-1] + 1, order.pop(at))
    return order


def _end_of_last_exchange(order: list[BaseSchedulerNode], at: int) -> int:
    """Behind the last call of a collective, or wait for one, before this place; what stands there may overlap."""
    return next((i + 1 for i in reversed(range(at)) if contains_collective(order[i]) or contains_wait(order[i])), 0)


def _is_product(node: BaseSchedulerNode) -> bool:
    return _on_card(node) and any(
        isinstance(data := getattr(n.node, "data", None), ir.Reduction) and data.reduction_type == "dot"
        for n in node.get_nodes()
    )


def _dependencies(nodes: list[BaseSchedulerNode]) -> Before:
    """The nodes that must come before each node."""
    maker = {name: node for node in nodes for name in node.get_buffer_names()}
    found: Before = {}
    last_outside = last_draw = None
    for node in nodes:
        before = {maker[d.name] for d in node.unmet_dependencies if d.name in maker} - {node}
        if not _on_card(node) and not contains_wait(node):
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


def _on_card_and_in(wanted: Nodes, node: BaseSchedulerNode) -> bool:
    return node in wanted and _on_card(node)


def _targets(node: BaseSchedulerNode) -> Iterator[Any]:
    return (o.target for n in node.get_nodes() if n.node is not None for o in n.node.get_origins())


def _draws(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
