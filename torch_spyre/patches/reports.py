# SPDX-License-Identifier: Apache-2.0
"""What PyTorch prints and logs."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import logging_config
from torch_spyre.constants import DEVICE_NAME


def print_from_host() -> None:
    """Printing computes on the tensor (abs, isfinite, masked_select). PyTorch copies tensors of a fixed list of devices
    to the host first; a device cannot put itself on that list."""
    original = torch._tensor_str._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> Any:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    torch._tensor_str._tensor_str = tensor_str


def levels_in_torch_logs() -> None:
    """``TORCH_LOGS=spyre.runtime:DEBUG``. PyTorch rejects the whole variable if one of its entries names a level.
    Missing hook: a parser for the names that a package registered."""
    from torch._logging import _internal

    original = _internal._parse_log_settings

    def parse(settings: str) -> Any:
        _, rest = logging_config.parse_torch_logs(settings)
        state = _internal.LogState()
        if rest:
            theirs = original(rest)
            state.log_qname_to_level.update(theirs.log_qname_to_level)
            state.artifact_names.update(theirs.artifact_names)
        logging_config.enable_in(state)
        return state

    _internal._parse_log_settings = parse
