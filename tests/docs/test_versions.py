# SPDX-License-Identifier: Apache-2.0
# pytest tests/docs/test_versions.py
"""The version stands in one place, and the changelog has an entry for it; what `make lint` and tests use is pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from torch_spyre import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Bounds that packages of others set, for people who install this one next to them.
OPEN = {"torch_spyre[models]", "setuptools>=77"}


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"] and "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "torch_spyre.__version__"}
    initial = (ROOT / "torch_spyre/__init__.py").read_text()
    assert initial.count(f'"{__version__}"') == 1


def test_the_changelog_begins_with_this_version() -> None:
    entries = re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert entries[0] == __version__


def test_development_tools_are_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert [tool for tool in extras["dev"] + extras["wheel"] if "==" not in tool and tool not in OPEN] == []
