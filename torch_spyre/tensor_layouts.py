# SPDX-License-Identifier: Apache-2.0
"""How a tensor is stored in card memory (docs/tensors.md): layouts, number formats, the layout of a tensor."""

import torch  # noqa: F401  (the extension needs libtorch in the process)

from torch_spyre._C import (
    DataFormats,
    SpyreTensorLayout,
    as_strided_with_layout,
    get_spyre_tensor_layout,
    reinterpret_tensor_with_layout,
    set_spyre_tensor_layout,
    view_start,
)

__all__ = [
    "DataFormats",
    "SpyreTensorLayout",
    "as_strided_with_layout",
    "get_spyre_tensor_layout",
    "reinterpret_tensor_with_layout",
    "set_spyre_tensor_layout",
    "view_start",
]
