# SPDX-License-Identifier: Apache-2.0
"""Builds the native parts with an own ninja file.

Three shared objects: lib/libspyre_card.so (the card, no PyTorch), _card (its test bindings) and _C (the PyTorch
device). torch is found by path and never imported, so an isolated build needs only setuptools and ninja.

SPYRE_BUILD_SANITIZER=address|undefined|thread|coverage builds all of them with that sanitizer, or for gcov, in a ninja
directory of its own; tests/sanitized.py makes such a build and runs programs with it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "torch_spyre" / "csrc"
SANITIZER = os.environ.get("SPYRE_BUILD_SANITIZER", "")
NINJA_DIR = ROOT / "build" / "-".join(filter(None, ("ninja", sys.implementation.cache_tag, SANITIZER)))
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
TORCH_VERSION = "2.13."
IS_X86 = platform.machine() in ("x86_64", "AMD64")

WARNINGS = "-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers"
COMMON = f"-std=c++20 -fPIC -pthread {WARNINGS}"
KERNEL = "-O3 -ffp-contract=off -fno-math-errno"
# Extra flags by the end of a kernel file's name.
ISA = {
    "_avx2": "-mavx2 -mfma -mf16c -Wno-psabi",
    # -O3 unrolls vectors that are arrays here for minutes.
    "_portable": "-O2 -Wno-psabi",
    "_avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mfma -mf16c -mavx2",
}


# `vptr` asks for type information of PyTorch's own classes; with checks of null pointers, GCC takes the address of a
# function for no constant, which PyTorch's headers need.
NOT_CHECKED = "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute"
# Frames and lines in reports; -O1 comes last and wins.
SANITIZER_FLAGS = {
    "": "",
    "address": "-fsanitize=address -fno-omit-frame-pointer -g1 -O1",
    "undefined": f"-fsanitize=undefined {NOT_CHECKED} -fno-omit-frame-pointer -g1 -O1",
    "thread": "-fsanitize=thread -fno-omit-frame-pointer -g1 -O1",
    "coverage": "--coverage -fprofile-update=atomic -g1 -O1",
}


def sanitizer_flags() -> str:
    if SANITIZER not in SANITIZER_FLAGS:
        known = ", ".join(filter(None, SANITIZER_FLAGS))
        raise SystemExit(f"SPYRE_BUILD_SANITIZER is '{SANITIZER}'; known are {known}")
    return SANITIZER_FLAGS[SANITIZER]


def find_torch() -> Path:
    """The installed torch, by path: importing it would take longer than compiling a file."""
    torch = Path(sysconfig.get_paths()["purelib"]) / "torch"
    version_file = torch / "version.py"
    if not version_file.exists():
        raise SystemExit(f"torch is not installed in {torch.parent}: pip install torch==2.13.0 first")
    found = re.search(r"__version__ = '([^']+)'", version_file.read_text())
    version = found.group(1) if found else "unknown"
    if not version.startswith(TORCH_VERSION):
        raise SystemExit(f"torch {version} found in {torch}, but torch_spyre needs 2.13.*: pip install torch==2.13.0")
    return torch


def card_flags(source: Path) -> str:
    if source.parent.name != "kernels":
        return "-O2"
    isa = next((flags for suffix, flags in ISA.items() if source.stem.endswith(suffix)), "")
    return f"{KERNEL} {isa}".strip()


def card_sources() -> list[Path]:
    sources = [s for s in sorted(CSRC.glob("card/**/*.cpp")) if s.name != "bindings.cpp"]
    return [s for s in sources if IS_X86 or not s.stem.endswith(("_avx2", "_avx512"))]


# Files compiled as one unit: most of their compile time is the same PyTorch headers.
UNITS = {
    "python": (
        "aten/bind_eager_buckets",
        "aten/bind_launch",
        "aten/bind_layout",
        "aten/bind_monitor",
        "aten/bind_recording",
        "aten/errors",
        "aten/module",
    ),
    "kernels": ("aten/copy", "aten/device", "aten/dma", "aten/factory", "aten/serialization"),
    "distributed": (
        "distributed/backend",
        "distributed/bind_distributed",
        "distributed/gloo_link",
        "distributed/work",
    ),
}


def aten_units() -> list[Path]:
    """The sources above the card, with each unit as one generated file that includes its members."""
    sources = sorted([*CSRC.glob("aten/*.cpp"), *CSRC.glob("distributed/*.cpp")])
    units = []
    for name, members in UNITS.items():
        unit = NINJA_DIR / "units" / f"aten_{name}.cpp"
        unit.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f'#include "{CSRC}/{member}.cpp"\n' for member in members)
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        units.append(unit)
    together = {f"{member}.cpp" for members in UNITS.values() for member in members}
    return [*units, *(s for s in sources if s.relative_to(CSRC).as_posix() not in together)]


class NinjaFile:
    """The text of build.ninja: paths are absolute, outputs lie beside it."""

    def __init__(self) -> None:
        cxx = os.environ.get("CXX", "g++")
        flags = " ".join(filter(None, ("$flags", sanitizer_flags())))
        self.lines = [
            "ninja_required_version = 1.3",
            "rule cxx",
            f"  command = {cxx} {flags} -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  description = CXX $out",
            "rule link",
            f"  command = {cxx} -shared -pthread -o $out $in {flags}",
            "  description = LINK $out",
        ]
        self.outputs: list[str] = []

    def library(self, out: str, sources: list[tuple[Path, str]], link: str, after: str = "") -> None:
        objects = []
        for source, flags in sources:
            folder = source.parent.relative_to(CSRC) if source.is_relative_to(CSRC) else source.parent.name
            obj = f"obj/{folder}/{source.stem}.o"
            self.lines += [f"build {obj}: cxx {source}", f"  flags = {flags}"]
            objects.append(obj)
        order = f" || {after}" if after else ""
        self.lines += [f"build {out}: link {' '.join(objects)}{order}", f"  flags = {link}"]
        self.outputs.append(out)

    def write(self, path: Path) -> None:
        text = "\n".join([*self.lines, ""])
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def make_ninja_file() -> NinjaFile:
    torch = find_torch()
    python_include = sysconfig.get_paths()["include"]
    card_include = f"-I{CSRC}/card/include -I{CSRC}/card"
    binding = f"{COMMON} -O2 -fvisibility=hidden -isystem {python_include} -isystem {torch}/include"
    # Kineto's headers come with torch and use fmt, which torch does not export.
    kineto = f"-isystem {torch}/include/kineto -DUSE_KINETO -DFMT_HEADER_ONLY=1"
    c10d = "-DUSE_DISTRIBUTED -DUSE_C10D_GLOO"
    own = f"-I{CSRC} -I{CSRC}/aten -I{CSRC}/card/include"
    aten = f"{binding} {kineto} {c10d} {own} -isystem {torch}/include/torch/csrc/api/include"

    ninja = NinjaFile()
    card = "lib/libspyre_card.so"
    sources = [(s, f"{COMMON} {card_flags(s)} {card_include}") for s in card_sources()]
    ninja.library(card, sources, "-Wl,-soname,libspyre_card.so -Wl,-z,defs")
    with_card = "-Llib -lspyre_card -Wl,-rpath,'$$ORIGIN/lib'"
    bindings = CSRC / "card" / "bindings.cpp"
    if bindings.exists():
        ninja.library(f"_card{EXT_SUFFIX}", [(bindings, f"{binding} {card_include}")], with_card, after=card)
    aten_sources = [(s, aten) for s in aten_units()]
    if aten_sources:
        torch_libs = "-ltorch_python -ltorch -ltorch_cpu -lc10"
        link = f"{with_card} -L{torch}/lib {torch_libs} -Wl,-rpath,'$$ORIGIN/../torch/lib' -Wl,--as-needed"
        ninja.library(f"_C{EXT_SUFFIX}", aten_sources, link, after=card)
    return ninja


HELPER = "use tests/sanitized.py, or setup.py build --build-lib=DIRECTORY"


def ninja_command() -> list[str]:
    try:
        import ninja
    except ImportError:
        return ["ninja"]
    return [str(Path(ninja.BIN_DIR) / "ninja")]


def install(source: Path, target: Path) -> None:
    """Replaces the file in one step: a process that has the old one mapped keeps it."""
    if target.exists() and target.stat().st_mtime_ns == source.stat().st_mtime_ns:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    shutil.copy2(source, partial)
    os.replace(partial, target)


class NinjaBuildExt(build_ext):
    """`build_ext` that runs ninja and puts the results into the package (or beside its sources when in place)."""

    def run(self) -> None:
        if SANITIZER and self.inplace:
            raise SystemExit(f"a build for the {SANITIZER} sanitizer in place would replace the plain one: {HELPER}")
        ninja = make_ninja_file()
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        NINJA_DIR.mkdir(parents=True, exist_ok=True)
        with open(NINJA_DIR / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two ninjas in one directory would spoil its log
            ninja.write(NINJA_DIR / "build.ninja")
            subprocess.run([*ninja_command(), "-C", str(NINJA_DIR), "-j", jobs], check=True)
        package = (ROOT if self.inplace else Path(self.build_lib)) / "torch_spyre"
        for out in ninja.outputs:
            install(NINJA_DIR / out, package / out)

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / "torch_spyre" / out) for out in make_ninja_file().outputs]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return {}
        outputs = make_ninja_file().outputs
        return {str(Path(self.build_lib) / "torch_spyre" / o): str(ROOT / "torch_spyre" / o) for o in outputs}


# The Extension only marks the wheel as platform dependent; NinjaBuildExt knows the sources.
setup(ext_modules=[Extension("torch_spyre._C", sources=[])], cmdclass={"build_ext": NinjaBuildExt})
