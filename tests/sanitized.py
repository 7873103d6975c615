# SPDX-License-Identifier: Apache-2.0
# python tests/sanitized.py address tests/support/fuzz_storage.py --cases 1000
# python tests/sanitized.py undefined -m pytest tests/card
"""Runs a Python program with the native parts built for a sanitizer: address, undefined or thread.

The build goes to build/<sanitizer>, beside the plain one, and is made again where sources have changed. Python and
PyTorch themselves are not instrumented: reports are about csrc/, and about host memory that it was handed. The exit
code is that of the program, or 99 after a report.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# Huge requests fail as they do without the sanitizer. What Python keeps until its end is not a leak of ours.
OPTIONS = {
    "address": "ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0:quarantine_size_mb=64:exitcode=99",
    "undefined": "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99",
    "thread": "TSAN_OPTIONS=halt_on_error=1:exitcode=99:ignore_noninstrumented_modules=1",
}


def build(sanitizer: str) -> Path:
    """The folder to import from."""
    folder = ROOT / "build" / sanitizer
    shutil.rmtree(folder / "torch_spyre", ignore_errors=True)  # a file that is gone from the sources must go here too
    command = [sys.executable, "setup.py", "--quiet", "build", f"--build-lib={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "SPYRE_BUILD_SANITIZER": sanitizer})
    return folder


def library(name: str) -> str:
    """A library of the compiler. libstdc++ goes along: a sanitizer looks for its functions when the process starts."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))[-1]
    return subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def environment(sanitizer: str, folder: Path) -> dict[str, str]:
    variable, _, options = OPTIONS[sanitizer].partition("=")
    given = os.environ.get(variable)
    return {
        **os.environ,
        "LD_PRELOAD": f"{library(LIBRARIES[sanitizer])} {library('libstdc++.so.6')}",
        variable: f"{options}:{given}" if given else options,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "PYTHONSAFEPATH": "1",  # or the plain build in the current folder would be imported
    }


def main() -> int:
    sanitizer, *program = sys.argv[1:] or [""]
    if sanitizer not in LIBRARIES or not program:
        print(f"usage: python {sys.argv[0]} {{{','.join(LIBRARIES)}}} program arguments…")
        return 2
    folder = build(sanitizer)
    return subprocess.run([sys.executable, *program], env=environment(sanitizer, folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
