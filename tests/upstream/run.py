# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own test files for a device outside its tree.

    python tests/upstream/run.py --checkout DIR --config tests/upstream/pytorch_2_13.toml [--output DIR] [file …]

DIR holds `test/…` of a PyTorch checkout; nothing in it is changed. A stopped run goes on where it was. Written to
OUTPUT/REVISION: results-*.jsonl, table.md, table.json, difference.md (against the last run) and the logs of the files.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import subprocess
import sys
import zlib
from pathlib import Path

from runner import report
from runner.config import Config, TestId, load
from runner.results import Results, file_key
from runner.supervise import FileRun, NotRunnable


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the process of the present file is ended too
    chosen = options(arguments)
    config = load(chosen.config, chosen.device)
    test_root = (chosen.checkout / "test").resolve()
    files = _files(test_root, chosen.files)
    if not files:
        print(f"{test_root}: no test file matches {chosen.files}", file=sys.stderr)
        return 2
    results = Results(chosen.output.resolve() / chosen.revision, chosen.shard)
    if not chosen.report:
        for file in files:
            _run_file(file, test_root, config, results, chosen)
    found = report.lines(config, results, files)
    last = chosen.baseline or _last_run(results.folder)
    changes = report.write(results.folder, found, f"PyTorch's tests on `{config.device}`, {chosen.revision}", last)
    total = report.as_json(found)["total"]
    print(", ".join(f"{total[c]} {c}" for c in report.CATEGORIES if total[c]))
    for name, tests in changes.items():
        if tests:
            print(f"{len(tests)} {name} (against {last.name if last else ''})")
    print(results.folder / "table.md")
    return 1 if any(total[c] for c in report.BAD) else 0


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkout", type=Path, required=True, help="folder that holds test/")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--device", help="instead of the device that the configuration names")
    parser.add_argument("--output", type=Path, default=Path("upstream-results"))
    parser.add_argument("--revision", default=None, help="name of what is tested; default: the commit of the config")
    parser.add_argument("--baseline", type=Path, help="folder of the run to compare with; default: the last one")
    parser.add_argument("--shard", default="1/1", help="i/n: every n-th test, the i-th part")
    parser.add_argument("--test", action="append", default=[], help="glob over Class::test; several: any of them")
    parser.add_argument("--rerun", default="", help="outcomes to run again: fail,error,crash,timeout,skip")
    parser.add_argument("--report", action="store_true", help="run nothing; write the tables of what has been run")
    parser.add_argument("files", nargs="*", help="globs over paths below test/; default: all test files")
    options = parser.parse_args(arguments)
    options.shard = _shard(parser, options.shard)
    options.revision = options.revision or _revision(options.config)
    return options


def _shard(parser: argparse.ArgumentParser, text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        parser.error(f"--shard {text}: not of the form i/n with 1 <= i <= n")
    return int(part), int(parts)


def _revision(config: Path) -> str:
    """The commit of the project that the configuration belongs to."""
    git = ["git", "-C", str(config.resolve().parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _files(test_root: Path, patterns: list[str]) -> list[str]:
    found = (str(path.relative_to(test_root)) for path in sorted(test_root.rglob("test_*.py")))
    return [file for file in found if not patterns or any(fnmatch.fnmatchcase(file, p) for p in patterns)]


def _last_run(folder: Path) -> Path | None:
    """The most recent other run in the same output folder."""
    others = [path.parent for path in folder.parent.glob("*/table.json") if path.parent != folder]
    return max(others, key=lambda path: (path / "table.json").stat().st_mtime, default=None)


def wanted(tests: list[TestId], config: Config, options: argparse.Namespace) -> list[TestId]:
    """The tests that this shard is to run."""
    part, parts = options.shard
    return [
        test
        for test in tests
        if config.rule_before(test).run
        and zlib.crc32(str(test).encode()) % parts == part - 1
        and (not options.test or any(fnmatch.fnmatchcase(f"{test.cls}::{test.name}", p) for p in options.test))
    ]


def _run_file(file: str, test_root: Path, config: Config, results: Results, options: argparse.Namespace) -> None:
    settings = config.settings_of(file)
    key = file_key(test_root / file, settings)
    results.begin_file(file, key, options.rerun.split(","))

    def choose(tests: list[TestId]) -> list[TestId]:
        results.end_file(file, tests)
        return [t for t in wanted(tests, config, options) if t not in results.records]

    if results.tests_of(file) and not choose(results.tests_of(file)):
        return
    run = FileRun(file, test_root, config.device, settings, results.folder / "logs", choose)
    try:
        for record in run.records():
            results.add(record, key)
            mark = {"pass": ".", "skip": "s", "fail": "F", "error": "E"}.get(record["outcome"], record["outcome"])
            print(mark, end="", flush=True)
        print(f" {file}")
    except NotRunnable as fault:
        results.end_file(file, [], str(fault))
        print(f"{file}: {fault}")


if __name__ == "__main__":
    sys.exit(main())
