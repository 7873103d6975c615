# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(backend="spyre")``: Inductor with this device registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def spyre_backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    from torch_spyre._inductor import registration  # noqa: F401  # late: start-up (registers the device)

    mode = kwargs.get("mode")
    options = {**(list_mode_options(mode) if mode else {}), **(kwargs.get("options") or {})}
    compiled: Callable[..., Any] = compile_fx(gm, example_inputs, config_patches=options)
    return compiled
