# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_readme.py
"""README's first program, pasted into a file, prints what README says."""

from __future__ import annotations

import re
from pathlib import Path

from processes import run_python

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_first_program_prints_what_is_said() -> None:
    program, said = (re.search(rf"```{kind}\n(.*?)```", README, re.S) for kind in ("python", "text"))
    assert program is not None and said is not None
    done = run_python(program[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout == said[1]
