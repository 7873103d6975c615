# SPDX-License-Identifier: Apache-2.0
"""How a tensor lies in card memory (docs/tensors.md): layouts, number formats, the layout of a tensor."""

import torch  # noqa: F401  (the extension needs libtorch in the process)

from torch_spyre._C import DataFormats, SpyreTensorLayout, get_spyre_tensor_layout, set_spyre_tensor_layout

__all__ = ["DataFormats", "SpyreTensorLayout", "get_spyre_tensor_layout", "set_spyre_tensor_layout"]
