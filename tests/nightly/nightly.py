# SPDX-License-Identifier: Apache-2.0
# make nightly  ·  python tests/nightly/nightly.py [--only STAGE ...] [--scale 0.1] [--list]
"""The nightly run: every suite, each within its own time, together in three hours on two cores.

`stages.py` lists the suites. What cannot finish in a night (the slow tests, the op table, the fuzzers) takes what is
oldest first and stops when its time is over, so that a few nights see all of it. Each stage leaves a log in
`.nightly/logs/`, one line in `.nightly/history.jsonl`, and a line of the table that is printed at the end with pass
rates and durations. Exit status 1 if a stage failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import history
from stages import STAGES, Stage

ROOT = Path(__file__).resolve().parents[2]
GRACE = 120  # seconds that a stage which watches its own time may take to finish


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def run(stage: Stage, values: dict[str, str], log: Path, limit: float) -> str:
    """Runs the stage; how it ended: passed, failed, or stopped at its limit."""
    command = [word.format(**values) for word in stage.command]
    with log.open("w") as out:
        print(*command, file=out, flush=True)
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return "passed" if process.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "stopped"


def chosen(names: list[str]) -> list[Stage]:
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        raise SystemExit(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in STAGES)}")
    return [stage for stage in STAGES if not names or stage.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="STAGE")
    parser.add_argument("--scale", type=float, default=1.0, help="of every stage's time")
    parser.add_argument("--base", help="commit to compare with; the last night's, else the one before HEAD")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) // 86400, help="of the fuzzers; a new one each day"
    )
    parser.add_argument("--list", action="store_true", help="print the stages and their minutes")
    options = parser.parse_args()
    stages = chosen(options.only)
    if options.list:
        print(*(f"{stage.minutes:5.0f} min  {stage.name:12} {stage.what}" for stage in stages), sep="\n")
        print(f"{sum(stage.minutes for stage in stages):5.0f} min  together")
        return 0
    commit = git("rev-parse", "--short=12", "HEAD")
    base = options.base or history.last_commit(other_than=commit) or git("rev-parse", "--short=12", "HEAD~1")
    logs = history.FOLDER / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for stage in stages:
        seconds = stage.minutes * 60 * options.scale
        values = {
            "python": sys.executable,
            "minutes": f"{seconds / 60:.2f}",
            "seed": str(options.seed),
            "base": base,
        }
        print(f"== {stage.name}: {stage.what}", flush=True)
        log, start = logs / f"{stage.name}.log", time.monotonic()
        outcome = run(stage, values, log, seconds + GRACE)
        result = history.Result.of(
            stage.name, commit, outcome, time.monotonic() - start, log.read_text(errors="replace")
        )
        print(f"   {result.line()}", flush=True)
        if outcome != "passed":
            print(*log.read_text(errors="replace").splitlines()[-15:], f"   {log}", sep="\n", flush=True)
        results.append(result)
        history.add(result)
    print("\n" + history.table(results))
    return int(any(result.outcome != "passed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
