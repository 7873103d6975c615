# SPDX-License-Identifier: Apache-2.0
"""Every change to Inductor's own objects, each with the upstream hook that is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.fx_passes import fuse_attention, joint_graph
from torch._inductor.pattern_matcher import ReplacementPatternEntry

from torch_spyre.constants import DEVICE_NAME


def _keep_scaled_softmax() -> None:
    """Inductor moves the scale of softmax(x * s) past the maximum, which rounds differently from the eager operation.

    Missing hook: a pattern that a device can decline. We put the device into the check of those two patterns.
    """
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


def _keep_attention() -> None:
    """Inductor replaces softmax(q @ k.T) @ v by one attention op, whose decomposition rounds differently and differs in
    fully masked rows.

    Missing hook: as above. Patterns are registered at the first compilation for each device: those to come consult the
    check in their module, those already there get it now.
    """
    fuse_attention._sfdp_params_check = _unless_on_spyre(fuse_attention._sfdp_params_check)
    for entries in joint_graph.patterns.patterns.values():
        for entry in entries:
            if isinstance(entry, ReplacementPatternEntry):
                entry.extra_check = _unless_on_spyre(entry.extra_check)


def _results_on_the_card() -> None:
    """A pointwise op with a 0-d host tensor as its first operand would be placed on the host, where its generated code
    reads a card tensor by its address.

    Missing hook: the list of devices that win over the host, which `make_pointwise` asks for by `is_gpu`.
    """
    upstream = lowering.is_gpu
    lowering.is_gpu = lambda device: device == DEVICE_NAME or upstream(device)


def apply() -> None:
    _keep_scaled_softmax()
    _keep_attention()
    _results_on_the_card()
