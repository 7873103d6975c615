# SPDX-License-Identifier: Apache-2.0
"""``torch.spyre``: `api` is the module PyTorch shows under that name; the others hold its parts.

Asking questions (availability, count, properties, seeds) starts nothing; the first allocation opens the card.
"""

import torch  # noqa: F401  (PyTorch loads the device, which needs every module of this package whole)
