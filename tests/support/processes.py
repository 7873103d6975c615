# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

LONG = 1500  # seconds after which a process hangs for certain, on however busy a machine


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with these variables added to the environment."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environment},
    )
