# SPDX-License-Identifier: Apache-2.0
"""Inductor: patterns and rules that a device cannot decline, and its config modules, which tell nobody of changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_spyre import knobs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions import custom


def changes_of_config() -> None:
    """Plans that are kept outside of Inductor's caches must know when a value of `torch_spyre._inductor.config`
    changes. Missing hook: a config module that announces a change. The class of ours, which PyTorch chooses, is
    replaced by a subclass of it."""
    knobs.when_attached(_announcing)


def _announcing(config: ModuleType) -> None:
    class Announcing(type(config)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            knobs.changed()

    ModuleType.__setattr__(config, "__class__", Announcing)  # a config module takes values of its table only


def keep_scaled_softmax() -> None:
    """Inductor moves the scale of softmax(x * s) past the maximum, which rounds differently from the eager operation.

    Missing hook: a pattern that a device can decline. We put the device into the check of those two patterns.
    """
    from torch._inductor.fx_passes import joint_graph

    handlers = (joint_graph.mul_softmax_pattern, joint_graph.div_softmax_pattern)
    for entries in joint_graph.pass_patterns[1].patterns.values():
        for entry in entries:
            if getattr(entry, "handler", None) in handlers:
                entry.extra_check = _unless_on_spyre(entry.extra_check)


def _unless_on_spyre(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def decide(match: Any) -> bool:
        example = match.output_node().meta.get("val")
        if isinstance(example, torch.Tensor) and example.device.type == DEVICE_NAME:
            return False
        return check(match)

    return decide


def keep_attention() -> None:
    """Inductor replaces softmax(q @ k.T) @ v by one attention op, whose decomposition rounds differently and differs in
    fully masked rows.

    Missing hook: as above. Patterns are registered at the first compilation for each device: those to come consult the
    check in their module, those already there get it now.
    """
    from torch._inductor.fx_passes import fuse_attention, joint_graph
    from torch._inductor.pattern_matcher import ReplacementPatternEntry

    fuse_attention._sfdp_params_check = _unless_on_spyre(fuse_attention._sfdp_params_check)
    for entries in joint_graph.patterns.patterns.values():
        for entry in entries:
            if isinstance(entry, ReplacementPatternEntry):
                entry.extra_check = _unless_on_spyre(entry.extra_check)


def results_on_the_card() -> None:
    """A pointwise op with a 0-d host tensor as its first operand would be placed on the host, where its generated code
    reads a card tensor by its address.

    Missing hook: the list of devices that win over the host, which `make_pointwise` asks for by `is_gpu`.
    """
    from torch._inductor import lowering

    upstream = lowering.is_gpu
    lowering.is_gpu = lambda device: device == DEVICE_NAME or upstream(device)


def leave_fusion_to_the_planner() -> None:
    """Inductor compares each pair of nodes that touch the same buffer before it asks the back end, which always says
    no: an eighth of the time that a large graph takes.

    Missing hook: a back end that fuses nothing.
    """
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler

    upstream = Scheduler.unfusable_node

    @functools.wraps(upstream)
    def unfusable_node(self: Scheduler, node: BaseSchedulerNode) -> bool:
        device = node.get_device()
        return (device is not None and device.type == DEVICE_NAME) or bool(upstream(self, node))

    Scheduler.unfusable_node = unfusable_node


def write_in_place() -> None:
    """A write at given places is functional in a graph. Where nobody needs the old tensor, Inductor puts the form in
    place there, which costs as much as is written; otherwise the tensor is copied. Of such ops it knows ``x[i] = v``.

    Missing hook: a device's own ops in the table of those with a form in place.
    """
    from torch._inductor.fx_passes import reinplace

    aten = torch.ops.aten
    forms = {
        custom.put: custom.put_,
        custom.write_view: custom.write_view_,
        aten.scatter.src: aten.scatter_.src,
        aten.scatter.value: aten.scatter_.value,
        aten.scatter_add.default: aten.scatter_add_.default,
    }
    for op, form in forms.items():
        reinplace.inplaceable_ops[op] = reinplace.InplaceableOp(form, 0, extra_check=_on_spyre)


def _on_spyre(node: torch.fx.Node) -> bool:
    return bool(node.meta["val"].device.type == DEVICE_NAME)
