# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_nightly_stages.py
"""The nightly run keeps its promise on paper: three hours, and every stage calls something that exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "nightly"))

from stages import STAGES, Stage  # noqa: E402

TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_three_hours_together() -> None:
    assert sum(stage.minutes for stage in STAGES) <= 180


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_calls_what_exists(stage: Stage) -> None:
    program, *words = stage.command
    if program == "make":
        assert words[0] in TARGETS
        return
    assert program == "{python}"
    files = [word for word in words if word.startswith("tests/")]
    assert "tests" in words or files
    assert all((ROOT / file).exists() for file in files)
