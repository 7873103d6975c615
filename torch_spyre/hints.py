# SPDX-License-Identifier: Apache-2.0
"""Hints to the planner (docs/planner.md#hints): names for the dims of tensors, core splits and tile loops by name."""

from torch_spyre._inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint

__all__ = ["declare_tensor_dim", "name_tensor_dims", "spyre_hint"]
