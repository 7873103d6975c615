# SPDX-License-Identifier: Apache-2.0
"""Ops of PyTorch as formulas over ops that the compiler lowers.

Enters: an op in a traced graph, with fake tensors. Leaves: the ops it is made of, or NotImplemented for tensors that
the formula is not for. Holds: nothing here knows the compiler; `table` collects all formulas for it.
"""

import torch  # noqa: F401  (PyTorch loads the device, which needs every module of this package whole)
