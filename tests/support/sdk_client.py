# SPDX-License-Identifier: Apache-2.0
"""The SDK, built into build/sdk, and the client of tests/sdk/client, which calls it as the public torch-spyre does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import LONG

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "tests" / "sdk" / "client"
SANITIZER = os.environ.get("SPYRE_SDK_SANITIZER", "")  # "address": the libraries and the client are built with it
CHOSEN = ("AIU_WORLD_SIZE", "SPYRE_DEVICES", "FLEX_DEVICE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SPYRE_SANITIZE")


@dataclass(frozen=True)
class Sdk:
    prefix: Path
    program: Path
    environment: dict[str, str]

    def client(self, *arguments: object, **variables: str) -> str:
        """Runs a case in a process of its own; what it prints."""
        done = self.run(self.program, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def compile(self, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.prefix / "bin" / "dxp_standalone", "-d", folder, **variables)

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=LONG,
            env={**self.environment, **variables},
        )


def _build(build: Path) -> Path:
    command = ["make", "-C", str(ROOT / "sdk"), "-j2", f"BUILD={build}", f"PYTHON={sys.executable}"]
    plain = ROOT / "build" / "sdk" / "lib" / "libspyre_card.so"
    if SANITIZER:
        _run([*command[:4], f"BUILD={plain.parents[1]}", str(plain)])
        command += [f"SANITIZER={SANITIZER}", f"CARD={plain}"]
    _run(command)
    return build / "prefix"


def _build_client(build: Path, prefix: Path) -> Path:
    program, flags = build / "client", [f"-fsanitize={SANITIZER}", "-g1"] if SANITIZER else []
    newest = max(f.stat().st_mtime for f in [*CLIENT.iterdir(), *(prefix / "lib").iterdir()])
    if program.exists() and program.stat().st_mtime > newest:
        return program
    includes = [f"-I{prefix}/include", f"-I{ROOT}/sdk/src", f"-I{ROOT}/torch_spyre/csrc/card/include"]
    names = ["flex", "spyre_comms", "aiupti", "sendnn", "sendnn_interface", "spyre_card"]
    libraries = [f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", *(f"-l{name}" for name in names)]
    # The flags of the checkout's own build, and every warning is an error: its users see them.
    compiler = shlex.split(os.environ.get("CXX", "g++"))  # as in CXX="ccache g++"
    for source in CLIENT.glob("*.cpp"):
        made = build / f"{source.stem}.o"
        warnings = ["-Wall", "-Wno-deprecated", "-Werror"]
        _run([*compiler, "-std=c++20", *warnings, *flags, *includes, "-c", str(source), "-o", str(made)])
    objects = [str(build / f"{source.stem}.o") for source in CLIENT.glob("*.cpp")]
    _run([*compiler, *flags, *objects, "-pthread", *libraries, "-o", str(program)])
    return program


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def build(own: Path) -> Sdk:
    """Both, up to date; `own` is a folder for caches and sockets."""
    place = ROOT / "build" / ("sdk" + (f"-{SANITIZER}" if SANITIZER else ""))
    prefix = _build(place)
    environment = {k: v for k, v in os.environ.items() if k not in CHOSEN}
    environment |= {
        "SPYRE_CACHE_DIR": str(own / "cache"),
        "SPYRE_RUNTIME_DIR": str(own / "run"),
        "SPYRE_SDK_IDLE_S": "30",  # nothing stays behind for long
    }
    return Sdk(prefix, _build_client(place, prefix), environment)
