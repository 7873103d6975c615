# SPDX-License-Identifier: Apache-2.0
# pytest tests/docs/test_pages_run.py
"""Every code block of README and docs runs and prints what the page says, or is marked as no program."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import doc_blocks
import pytest
from processes import LONG

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages about packages that have an environment of their own.
NEEDS = {"triton": "triton", "serving": "spyre_inference", "serve-a": "vllm", "ecosystem": "accelerate"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> set[str]:
    return {block.run for block in doc_blocks.blocks(page.read_text()) if block.is_program} - {"no", "setup"}


def run(page: Path, *options: str) -> None:
    for start, package in NEEDS.items():
        if page.name.startswith(start) and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    words = [sys.executable, doc_blocks.__file__, str(page), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    if any(page.name.startswith(start) for start in NEEDS):
        pytest.skip("its blocks run where its packages are")
    assert doc_blocks.faults(page.read_text()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if "yes" in programs(page)], ids=name)
def test_blocks_run(page: Path) -> None:
    run(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "slow" in programs(page)], ids=name)
def test_slow_blocks_run(page: Path) -> None:
    run(page, "--slow")


PAGE = """
```python
x = 3
```

<!-- run first: x = x + 1 -->
```python
print(x, "and more")
```

```text output
4 and …
```

```text
a drawing
```

```python title="a.py"
print("from a file")
```

```console
$ python a.py
from a …
```
"""


def run_text(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "page.md").write_text(text)
    words = [sys.executable, doc_blocks.__file__, str(folder / "page.md")]
    return subprocess.run(words, capture_output=True, text=True, timeout=LONG)


def test_a_page_runs_in_order(tmp_path: Path) -> None:
    done = run_text(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert doc_blocks.faults(PAGE) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("4 and …", "5 and …", "and it prints"),
        ("x = 3", "x = y", 'page.md", line 3'),
        ("from a …", "from b …", "and it prints"),
        ("python a.py", "python b.py", "exit status 2"),
    ],
)
def test_a_page_that_is_wrong_fails(before: str, after: str, said: str, tmp_path: Path) -> None:
    done = run_text(PAGE.replace(before, after), tmp_path)
    assert done.returncode != 0 and said in done.stderr


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```\nx\n```\n", "is it python"),
        ("<!-- run: no -->\n```sh\nx\n```\n", "why not"),
        ("```text output\nx\n```\n", "output of what"),
        ("```json\n{\n```\n", "Expecting"),
    ],
)
def test_marks_that_are_wrong_are_named(page: str, said: str) -> None:
    assert any(said in fault for fault in doc_blocks.faults(page))
