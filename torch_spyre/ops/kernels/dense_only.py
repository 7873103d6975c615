# SPDX-License-Identifier: Apache-2.0
"""Sparse, quantized and nested strided tensors: refused by name. PyTorch would list all that it has registered."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre.errors import UnsupportedOp

_KINDS = {
    "SparsePrivateUse1": ("sparse tensors", "use them with .cpu(), or dense ones"),
    "SparseCsrPrivateUse1": ("sparse tensors", "use them with .cpu(), or dense ones"),
    "QuantizedPrivateUse1": ("quantized tensors", "use them with .cpu(), or int8 tensors and a scale"),
    "NestedTensorPrivateUse1": ("nested tensors of layout torch.strided", "make them with layout=torch.jagged"),
}
_libraries: list[Any] = []  # a library that is dropped takes its registrations along


def _refusal(kind: str, advice: str) -> Any:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOp(f"{op} meets {kind}, which the card has not: {advice}")

    return refuse


def register() -> None:
    """Called once, when the device is loaded."""
    for key, (kind, advice) in _KINDS.items():
        library = torch.library.Library("_", "IMPL", key)
        library.fallback(_refusal(kind, advice))
        _libraries.append(library)
