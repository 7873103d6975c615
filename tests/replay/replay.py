# SPDX-License-Identifier: Apache-2.0
"""Compares what two commits compile: lists every program that is not byte-identical and every card time that changed.

make replay BASE=<commit>
python tests/replay/replay.py BASE [--part NAME ...] [--again] [--report]

The working tree is compared with BASE, which gets a worktree and an environment of its own below `.replay/`: the
packages of this environment, and its own build of torch_spyre. Both compile the corpus of the working tree
(`corpus.py`). Exit status 1 if something differs, unless a report is all
that is wanted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORPUS = (HERE / "corpus.py", HERE / "functions.py")

Result = dict[str, dict[str, dict[str, Any]]]  # part -> item -> outcome


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def environment(commit: str) -> Path:
    """The interpreter of a commit: made once, then kept."""
    folder = ROOT / ".replay" / commit
    tree, python = folder / "tree", folder / "venv" / "bin" / "python"
    if (folder / "ready").exists():
        return python
    git("worktree", "prune")
    if not tree.exists():
        git("worktree", "add", "--detach", str(tree), commit)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "venv")], check=True)
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        link = Path(purelib) / entry.name
        if not link.exists() and "torch_spyre" not in entry.name:
            link.symlink_to(entry)
    build = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", "."]
    subprocess.run(build, cwd=tree, check=True)
    subprocess.run([str(python), "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree, check=True)
    (folder / "ready").touch()
    return python


def write_bundles(python: Path, folder: Path) -> None:
    """SuperDSC bundles of some functions, as the first of the two commits writes them."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import torch, functions as f\n"
        "for name in ('add', 'matmul', 'softmax', 'layer_norm', 'transpose', 'mlp', 'attention'):\n"
        "    call, shapes = f.FUNCTIONS[name]\n"
        "    torch.compile(call, dynamic=False)(*(f.make(s, torch.float16) for s in shapes))\n"
    )
    settings = {"SPYRE_DUMP": str(folder), "SPYRE_TIMING_ONLY": "1", "SPYRE_CACHE_DIR": str(folder / "cache")}
    subprocess.run([str(python), "-c", code], env={**os.environ, **settings}, check=True, capture_output=True)


def run_corpus(python: Path, bundles: Path, parts: list[str], result: Path) -> Result:
    with tempfile.TemporaryDirectory() as scratch:
        words = [word for part in parts for word in ("--part", part)]
        command = [str(python), str(CORPUS[0]), str(result), "--scratch", scratch, "--bundles", str(bundles), *words]
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env["PYTHONHASHSEED"] = "0"  # programs name the files that they come from; those of random graphs are hashes
        subprocess.run(command, env=env, cwd=scratch, check=True)
    return json.loads(result.read_text())


def differences(base: Result, head: Result) -> Iterator[str]:
    """Lines that say what changed. An item that finds a program of an earlier item makes none, so programs are
    compared over a whole part, and by item only to say where they come from."""
    for part, items in base.items():
        others = head.get(part, {})
        old, new = programs(items), programs(others)
        for name, outcome in items.items():
            other = others.get(name)
            if other is None:
                yield f"{part}: {name}: gone"
            else:
                yield from item_differences(f"{part}: {name}", outcome, other, set(old), set(new))
        yield from (f"{part}: {name}: new" for name in others if name not in items)


def item_differences(label: str, old: dict[str, Any], new: dict[str, Any], olds: set, news: set) -> Iterator[str]:
    if old["error"] != new["error"]:
        yield f"{label}: {old['error'] or 'ran'} -> {new['error'] or 'runs'}"
    gone = [name for name, code in old["programs"] if code not in news]
    made = [name for name, code in new["programs"] if code not in olds]
    if gone or made:
        yield f"{label}: program changed: {', '.join(gone) or 'none'} -> {', '.join(made) or 'none'}"
    if old["card_us"] != new["card_us"]:
        yield f"{label}: card time {old['card_us']} -> {new['card_us']} us"


def programs(items: dict[str, dict[str, Any]]) -> Counter[str]:
    return Counter(code for outcome in items.values() for _, code in outcome["programs"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--report", action="store_true", help="differences are no failure")
    parser.add_argument("--again", action="store_true", help="compile BASE's side again")
    options = parser.parse_args()
    commit = git("rev-parse", "--short=12", f"{options.base}^{{commit}}")
    folder = ROOT / ".replay" / commit
    folder.mkdir(parents=True, exist_ok=True)
    python = environment(commit)
    bundles = folder / "bundles"
    if not bundles.exists():
        write_bundles(python, bundles)
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in CORPUS) + repr(options.part).encode()).hexdigest()[:12]
    kept = folder / f"result-{digest}.json"
    if options.again or not kept.exists():
        run_corpus(python, bundles, options.part, kept)
    base = json.loads(kept.read_text())
    head = run_corpus(Path(sys.executable), bundles, options.part, folder / "head.json")
    lines = list(differences(base, head))
    total = sum(len(items) for items in base.values())
    print(*lines, f"{total} items, {len(lines)} differences against {commit}", sep="\n")
    return bool(lines) and not options.report


if __name__ == "__main__":
    sys.exit(main())
