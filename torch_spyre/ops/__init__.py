# SPDX-License-Identifier: Apache-2.0
"""What the ops of PyTorch become on the device: decompositions, the eager compiler, host fallbacks."""

import torch  # noqa: F401  (PyTorch loads the device, which needs every module of this package whole)
