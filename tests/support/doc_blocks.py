# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a documentation page, and a program that runs them: ``python doc_blocks.py PAGE [--slow]``.

What a block is stands in its first line:

=============================  =======================================================================
```` ```python ````            runs in the namespace of the page's earlier blocks
```` ```python title="a.py" `` is saved as that file (any language), for the blocks that follow
```` ```sh ````                runs in bash, in the page's folder
```` ```console ````           lines behind ``$`` run in bash; the others are what they print
```` ```text output ````       what the block above prints, exactly, but for ``…``, which stands for anything
```` ```text ````, json, toml  is not a program; JSON has to parse
=============================  =======================================================================

A comment on the line before changes that:

* ``<!-- run: slow -->`` leaves a block to the slow tests,
* ``<!-- run: setup -->`` to whoever starts with nothing (tests/docs/paste_readme.py),
* ``<!-- run: no, <why> -->`` leaves it out,
* ``<!-- run first: <statements> -->`` runs statements that a reader has no use for (a small model).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- run(?P<mark>.*?)-->\n)?(?P<fence>```+)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.S | re.M
)
_TITLE = re.compile(r'title="([^"]+)"')
DATA = ("text", "json", "toml", "ebnf")
KINDS = ("python", "sh", "console", *DATA)


@dataclasses.dataclass(frozen=True)
class Block:
    """`line` is that of the first line of code. `run`: yes, slow, setup or no. `first`: statements to run before it."""

    line: int
    info: str
    code: str
    run: str
    why_not: str
    first: str

    @property
    def kind(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def file(self) -> str:
        found = _TITLE.search(self.info)
        return found[1] if found else ""

    @property
    def is_output(self) -> bool:
        return self.info == "text output"

    @property
    def is_program(self) -> bool:
        return self.kind not in DATA and not self.file


def blocks(page: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(page):
        mark = (match["mark"] or "").strip()
        run, why_not, first = "yes", "", ""
        if mark.startswith("first:"):
            first = mark.removeprefix("first:")
        elif mark.startswith(":"):
            run, _, why_not = mark.removeprefix(":").strip().partition(", ")
        line = page[: match.start("code")].count("\n") + 1
        found.append(Block(line, match["info"].strip(), match["code"], run, why_not, first))
    return found


def faults(page: str) -> list[str]:
    """What is wrong with the marks of a page."""
    wrong = []
    before: Block | None = None
    for block in blocks(page):
        if block.kind not in KINDS and not block.file:
            wrong.append(f"{block.line}: ```{block.info}: is it {', '.join(KINDS)}?")
        if block.run not in ("yes", "slow", "setup", "no") or (block.run == "no" and not block.why_not):
            wrong.append(f"{block.line}: run: slow, run: setup, or run: no, and why not")
        if block.is_output and (before is None or not before.is_program):
            wrong.append(f"{block.line}: output of what?")
        if block.kind == "json" and not block.file:
            try:
                json.loads(block.code)
            except ValueError as error:
                wrong.append(f"{block.line}: {error}")
        before = block
    return wrong


def same(said: str, printed: str) -> bool:
    """``…`` stands for anything; runs of blanks count as one."""
    pattern = ".*?".join(re.escape(" ".join(part.split())) for part in said.split("…")).replace(r"\ .*?", r"\s*.*?")
    return re.fullmatch(rf"\s*{pattern}\s*", " ".join(printed.split()), re.S) is not None


def commands_of(console: str) -> list[tuple[str, str]]:
    """Commands behind ``$`` with what they print."""
    found = []
    for part in re.split(r"^\$ ", console, flags=re.M)[1:]:
        command, _, said = part.partition("\n")
        found.append((command, said))
    return found


class Runner:
    """Runs blocks of one page in this process, whose working directory is the page's folder."""

    def __init__(self, page: Path) -> None:
        self._page = page
        module = types.ModuleType("__main__")
        module.__file__ = str(page)
        sys.modules["__main__"] = module  # Dynamo looks the globals of a function up there
        self._names = vars(module)

    def run(self, slow: bool) -> None:
        printed: str | None = None  # by the block above, if it ran
        for block in blocks(self._page.read_text()):
            if block.file:
                Path(block.file).write_text(block.code)
            elif block.is_output:
                if printed is not None:
                    self._compare(block.line, block.code, printed)
            elif block.is_program:
                left_out = block.run in ("no", "setup") or (block.run == "slow" and not slow)
                printed = None if left_out else self._one(block)

    def _one(self, block: Block) -> str:
        print(f"{self._page.name}:{block.line}", file=sys.stderr, flush=True)
        if block.first:
            exec(compile(textwrap.dedent(block.first.lstrip(" ")), "<run first>", "exec"), self._names)
        if block.kind == "python":
            with _captured() as read:
                # The page is the file, so that tracebacks and user lines of kernels name it.
                exec(compile("\n" * (block.line - 1) + block.code, str(self._page), "exec"), self._names)
                sys.stdout.flush()
            return read()
        if block.kind == "sh":
            return self._shell(block.line, block.code)
        for command, said in commands_of(block.code):
            printed = self._shell(block.line, command)
            if said.strip():
                self._compare(block.line, said, printed)
        return ""

    def _shell(self, line: int, code: str) -> str:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{self._page}:{line}: exit status {done.returncode} of\n{code}\n{done.stdout}")
        return done.stdout

    def _compare(self, line: int, said: str, printed: str) -> None:
        if not same(said, printed):
            sys.exit(f"{self._page}:{line}: the page says\n{said}\nand it prints\n{printed}")


@contextlib.contextmanager
def _captured() -> Iterator[object]:
    """What this process and its children print, also what native code does."""
    sys.stdout.flush()
    before = os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        text = ""
        try:
            yield lambda: text
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)
            file.seek(0)
            text = file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    page = options.page.resolve()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["HOME"] = folder  # shell completion is installed there
        sys.path[0] = folder  # as for a script in that folder
        try:
            Runner(page).run(options.slow)
        finally:
            os.chdir("/")


if __name__ == "__main__":
    main()
