# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.explain`` is ``spyre explain``."""

from __future__ import annotations

import sys

from torch_spyre.explain.cli import main

sys.exit(main())
