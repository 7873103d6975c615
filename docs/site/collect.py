# SPDX-License-Identifier: Apache-2.0
# python docs/site/collect.py build/site-pages
"""Collects the pages of the site in one folder: those of docs/, README and its like with their links turned, and those
that come from the code (docs/site/generated.py)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path.insert(0, str(SITE))

import generated  # noqa: E402

# Files of the repository's root, as pages of the site.
OF_ROOT = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]*)(#[^)\s]*)?(\))")


def turned(text: str, page: Path) -> str:
    """Links from a page of the repository to another one, as they are in the site's folder."""

    def target(match: re.Match[str]) -> str:
        before, path, anchor, after = match.groups(default="")
        if not path:
            return match[0]
        file = (page.parent / path).resolve().relative_to(ROOT)
        found = place(file)
        if found is None:
            return match[0]
        here = place(page.relative_to(ROOT))
        up = "../" * (len(Path(here or "").parts) - 1)
        return f"{before}{up}{found}{anchor}{after}"

    return _LINK.sub(target, text)


def place(file: Path) -> str | None:
    """Where a file of the repository is in the site's folder; None: it is no page."""
    if str(file) in OF_ROOT:
        return OF_ROOT[str(file)]
    return str(file.relative_to("docs")) if file.parts[:1] == ("docs",) and file.suffix == ".md" else None


def collect(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages = [ROOT / name for name in OF_ROOT] + sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        to = folder / (place(page.relative_to(ROOT)) or page.name)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(turned(page.read_text(), page))
    for name, text in generated.pages().items():
        (folder / name).write_text(text)
    shutil.copytree(ROOT / "docs/pictures", folder / "pictures", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in ("site.css", "filter.js"):
        shutil.copy(SITE / name, folder / name)


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
