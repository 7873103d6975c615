# SPDX-License-Identifier: Apache-2.0
# python tests/nightly/coverage_report.py [--minutes 10] [path of tests ...]
"""Lines of Python and C++ that tests reach, by folder. Needs `pip install -e '.[nightly]'`.

The native parts are built with gcov beside the plain build (`tests/sanitized.py`); the report of single lines is
`.nightly/coverage/index.html`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import history

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import sanitized  # noqa: E402

PATHS = ("tests/tiny", "tests/card", "tests/unit")
FOLDER = history.FOLDER / "coverage"
Counts = dict[str, list[int]]  # folder -> lines, lines reached


def run(folder: Path, minutes: float, paths: list[str]) -> int:
    """Runs the tests on the instrumented build; pytest's own exit status."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "COVERAGE_FILE": str(FOLDER / "data")}
    words = ["-m", "coverage", "run", f"--source={folder / 'torch_spyre'}", "-m", "pytest", "-q", "-m", "not slow"]
    limit = [f"--session-timeout={int(minutes * 60)}"]
    return subprocess.run([sys.executable, *words, *limit, *paths], cwd=ROOT, env=env).returncode


def python_lines(folder: Path) -> Counts:
    file = FOLDER / "python.json"
    base = [sys.executable, "-m", "coverage"]
    data = [f"--data-file={FOLDER / 'data'}"]
    subprocess.run([*base, "json", *data, "-q", "-o", str(file)], check=True)
    subprocess.run([*base, "html", *data, "-q", "-d", str(FOLDER)], check=True)
    found: Counts = defaultdict(lambda: [0, 0])
    for name, entry in json.loads(file.read_text())["files"].items():
        parts = Path(name).relative_to(folder).parts
        room = found["/".join(parts[:2]) if len(parts) > 2 else parts[0]]
        room[0] += entry["summary"]["num_statements"]
        room[1] += entry["summary"]["covered_lines"]
    return found


def native_lines() -> Counts:
    objects = ROOT / "build" / f"ninja-{sys.implementation.cache_tag}-coverage"
    file = FOLDER / "native.json"
    words = ["-m", "gcovr", "--root", str(ROOT), "--filter", "torch_spyre/csrc/", "--gcov-ignore-errors=all"]
    subprocess.run([sys.executable, *words, "--json-summary", str(file), str(objects)], check=True, cwd=ROOT)
    found: Counts = defaultdict(lambda: [0, 0])
    for entry in json.loads(file.read_text())["files"]:
        room = found[str(Path(entry["filename"]).parent)]
        room[0] += entry["line_total"]
        room[1] += entry["line_covered"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("paths", nargs="*", default=PATHS)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = sanitized.build("coverage")
    status = run(folder, options.minutes, list(options.paths))
    for title, counts in (("Python", python_lines(folder)), ("C++", native_lines())):
        print(f"\n{title}")
        for room, (lines, reached) in sorted(counts.items()):
            print(f"  {room:40} {lines:7} lines {reached / max(lines, 1):7.1%} reached")
        lines, reached = (sum(column) for column in zip(*counts.values(), strict=True))
        print(f"  {'all':40} {lines:7} lines {reached / max(lines, 1):7.1%} reached")
    return status


if __name__ == "__main__":
    sys.exit(main())
