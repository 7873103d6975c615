# SPDX-License-Identifier: Apache-2.0
"""A checkout of the public torch-spyre in an environment of its own, built against the SDK. Imports no torch.

The environment is a venv in the cache, named after the checkout's path. It sees the packages of this one (torch,
pytest, ...) behind its own, and the checkout is installed into it in place, so that a change of its Python files needs
no build. Its extension is built again when its C++ files, its build files or the SDK have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument

ROOT = Path(__file__).parents[2]
_BUILT_FROM = ("setup.py", "pyproject.toml", "setup.cfg")
_CPP = (".cpp", ".h", ".hpp", ".cc", ".c")
_JSON = Path("nlohmann/include/nlohmann/json.hpp")

# Python 3.11 does not know a keyword that the checkout's fallbacks pass; without it a warning names another line.
_BRIDGE = """\
import sys
import warnings

if sys.version_info < (3, 12):
    _warn = warnings.warn

    def warn(message, category=None, stacklevel=1, source=None, *, skip_file_prefixes=()):
        return _warn(message, category, stacklevel + 1, source)

    warnings.warn = warn
"""


class Checkout:
    """Enters: the folder of a checkout and of the SDK. Leaves: an environment to run commands in."""

    def __init__(self, folder: Path, sdk: Path, json_header: Path | None = None) -> None:
        self.folder, self.sdk, self.json_header = folder.resolve(), sdk.resolve(), json_header
        if not (self.folder / "setup.py").is_file():
            raise InvalidArgument(f"{self.folder} is no checkout of torch-spyre: it has no setup.py")
        if not (self.sdk / "env.sh").is_file():
            raise InvalidArgument(f"{self.sdk} is no SDK: it has no env.sh; make one with `make sdk PREFIX=<dir>`")
        key = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
        self.place = Path(knobs.get("cache_dir")).expanduser() / "checkouts" / key
        self.venv = self.place / "venv"

    def run(self, command: Sequence[str]) -> int:
        """Makes what is not there or out of date, then runs the command in the checkout's folder."""
        self.prepare()
        return self.run_prepared(command, self.environment())

    def run_prepared(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        return subprocess.run(list(command), cwd=self.folder, env=environment).returncode

    def prepare(self) -> None:
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_venv()
        self._place_json()
        built, now = self.place / "built", self.fingerprint()
        if built.is_file() and built.read_text() == now:
            return
        built.unlink(missing_ok=True)
        pip = [str(self.venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        # compat: a path of its own in front of our packages, where another torch_spyre may be. --ignore-installed:
        # that other one is not touched.
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--ignore-installed"]
        install = ["install", *options, "--config-settings=editable_mode=compat", "--editable", str(self.folder)]
        subprocess.run([*pip, *install], check=True, env=self.environment())
        self._check_package()
        built.write_text(now)

    def _check_package(self) -> None:
        """The two packages have the same name; it must be the checkout's that is found."""
        ask = "import importlib.util; print(importlib.util.find_spec('torch_spyre').origin)"
        command = [str(self.venv / "bin" / "python"), "-c", ask]
        found = subprocess.run(command, cwd="/", env=self.environment(), capture_output=True, text=True).stdout.strip()
        if not Path(found).is_relative_to(self.folder):
            raise InvalidArgument(f"in {self.venv}, torch_spyre is {found or 'not found'}, not {self.folder}'s")

    def fingerprint(self) -> str:
        """What the extension is built from: names, sizes and times of the files."""
        mine = [self.folder / name for name in _BUILT_FROM]
        mine += [f for top in ("csrc", "torch_spyre") for f in (self.folder / top).rglob("*") if f.suffix in _CPP]
        theirs = [f for f in (self.sdk / "include").rglob("*") if f.is_file()]
        digest = hashlib.sha256(str(self.sdk).encode())
        for file in sorted([*mine, *theirs]):
            if file.is_file():
                status = file.stat()
                content = file.read_bytes() if file in theirs else b""  # `make sdk` copies them each time
                time = 0 if content else status.st_mtime_ns
                digest.update(f"{file} {status.st_size} {time}\n".encode() + content)
        return digest.hexdigest()

    def environment(self) -> dict[str, str]:
        """That of this process, with the SDK's script and the venv in front."""
        script = 'set -a; . "$1/env.sh"; env -0'
        base = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
        if self.json_header is not None:
            base["SHARED_DEPS_DIR"] = str(self.place / "deps")
        done = subprocess.run(["bash", "-c", script, "bash", str(self.sdk)], env=base, capture_output=True, check=True)
        found: Mapping[bytes, bytes] = dict(line.split(b"=", 1) for line in done.stdout.split(b"\0") if b"=" in line)
        environment = {os.fsdecode(k): os.fsdecode(v) for k, v in found.items()}
        environment["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{environment['PATH']}"
        return environment | {"VIRTUAL_ENV": str(self.venv)}

    def _make_venv(self) -> None:
        if (self.venv / "made").is_file():
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        # With our pip and setuptools: those that come with Python may be too old for the checkout.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self.venv / "lib" / version / "site-packages"
        # A line of a .pth file goes behind the venv's own packages; our package is found there by no such line.
        (packages / "spyre_sdk_packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        (packages / "sitecustomize.py").write_text(_BRIDGE)
        (self.venv / "made").touch()

    def _place_json(self) -> None:
        if self.json_header is None:
            return
        if not self.json_header.is_file():
            raise InvalidArgument(f"{self.json_header} is no file; give json.hpp of nlohmann/json 3.11.2")
        target = self.place / "deps" / _JSON
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.json_header, target)
