# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_fuzz_storage.py
"""A sample of the storage fuzzer; `python tests/support/fuzz_storage.py --cases N` runs more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_sample() -> None:
    fuzzer = Path(__file__).parents[1] / "support" / "fuzz_storage.py"
    done = subprocess.run(
        [sys.executable, str(fuzzer), "--cases", "400", "--first", "1000000"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "400 of 400 cases, 0 failures" in done.stdout
