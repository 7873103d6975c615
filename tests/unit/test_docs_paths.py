# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_docs_paths.py
"""Files that pages and comments name exist, and the index names all pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("torch_spyre", "spyre_inference", "sdk", "tests", "docs", "examples", "benchmarks")
NAMED = re.compile(r"(?<![\w./<-])((?:[\w-]+/)+[\w-]+\.(?:py|cpp|h|md|toml|def))\b")
# By a run, or a file of PyTorch's.
MADE = re.compile(r"kernel_repro\.py|first/table\.md|^(inductor|distributed|torch)/")


def test_named_files_exist() -> None:
    folders = [f for f in ROOT.iterdir() if f.is_dir() and f.name in PARTS]
    files = [str(f.relative_to(ROOT)) for top in folders for f in top.rglob("*") if f.is_file()]
    files += [f.name for f in ROOT.iterdir() if f.is_file()]
    ends = {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(len(parts))}
    missing = [
        f"{file}:{number}: {name}"
        for file in files
        if file.endswith((".md", ".py", ".cpp", ".h", ".toml"))
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1)
        for name in NAMED.findall(line)
        if name not in ends and not MADE.search(name) and not ((ROOT / file).parent / name).exists()
    ]
    assert not missing


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]
