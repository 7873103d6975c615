# SPDX-License-Identifier: Apache-2.0
"""Triton kernels on the card. Triton lives in an environment of its own, which `make test-triton` makes; where it is
missing nothing of this folder is collected. A folder named `triton` on the path would pass for Triton itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_PLUGGED_IN = [point.name for point in importlib.metadata.entry_points(group="triton.backends")]
if importlib.util.find_spec("triton") is None or "spyre" not in _PLUGGED_IN:
    collect_ignore_glob = ["test_*.py"]

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "examples" / "triton_kernels")]
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-tests-")


@pytest.fixture(scope="session")
def interpreter() -> Iterator[object]:
    """Triton's own interpreter, in a process of its own: it is chosen before a kernel is decorated."""
    from interpreted import Interpreter

    with Interpreter() as made:
        yield made
