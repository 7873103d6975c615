# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_checkout.py

``spyre-sdk run`` on a small project that has the name, the layout and the build variables of the public torch-spyre.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import LONG
from sdk_client import Sdk

SETUP = """\
import os
from setuptools import Extension, setup

runtime = os.environ["RUNTIME_INSTALL_DIR"]
for name in ("SENLIB_INSTALL_DIR", "DEEPTOOLS_INSTALL_DIR"):
    os.environ[name]
assert os.path.isdir(os.path.join(os.environ["SPYRE_COMMS_INSTALL_DIR"], "include"))
json = os.path.join(os.environ["SHARED_DEPS_DIR"], "nlohmann/include/nlohmann/json.hpp")
assert open(json).read() == "// json"
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "builds"), "a") as log:
    log.write("x" if "editable_wheel" in os.sys.argv or "build_ext" in os.sys.argv else "")
setup(
    name="torch_spyre",
    version="9",
    packages=["torch_spyre"],
    ext_modules=[
        Extension(
            "torch_spyre._C",
            [os.path.join("torch_spyre", "csrc", "module.cpp")],
            include_dirs=[runtime + "/include"],
            library_dirs=[runtime + "/lib"],
            libraries=["sendnn", "sendnn_interface", "aiupti", "flex", "spyre_comms"],
            extra_compile_args=["-std=c++20"],
        )
    ],
)
"""

MODULE = """\
#include <Python.h>

#include "flex/flex.hpp"
#include "libaiupti/aiupti_activity.h"
#include "spyre_comms.hpp"

static PyObject* count(PyObject*, PyObject*) { return PyLong_FromLong(flex::getNumDevices()); }
static PyMethodDef methods[] = {{"count", count, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "torch_spyre" / "csrc").mkdir(parents=True)
    (folder / "setup.py").write_text(SETUP)
    (folder / "torch_spyre" / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (folder / "torch_spyre" / "csrc" / "module.cpp").write_text(MODULE)
    (tmp_path / "json.hpp").write_text("// json")
    return folder


def run(sdk: Sdk, checkout: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {"SPYRE_CACHE_DIR": str(checkout.parent / "cache"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables}
    where = ["--checkout", str(checkout), "--sdk", str(sdk.prefix), "--json", str(checkout.parent / "json.hpp")]
    return subprocess.run(
        [sys.executable, "-m", "torch_spyre.sdk.cli", "run", *where, "--", *command],
        env={**sdk.environment, **own},
        capture_output=True,
        text=True,
        timeout=LONG,
    )


@pytest.mark.slow
def test_a_checkout_is_built_once(sdk: Sdk, checkout: Path) -> None:
    code = "import torch_spyre, torch_spyre._C as c, numpy; print(torch_spyre.WHOSE, c.count(), numpy.__name__)"
    done = run(sdk, checkout, "python", "-c", code, AIU_WORLD_SIZE="3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "theirs 3 numpy"
    builds = (checkout / "builds").read_text()
    assert builds

    (checkout / "torch_spyre" / "__init__.py").write_text("WHOSE = 'changed'\n")
    done = run(sdk, checkout, "python", "-c", code)
    assert done.stdout.splitlines()[-1] == "changed 8 numpy", done.stderr
    assert (checkout / "builds").read_text() == builds

    source = checkout / "torch_spyre" / "csrc" / "module.cpp"
    source.write_text(MODULE.replace("flex::getNumDevices()", "flex::getNumDevices() + 100"))
    done = run(sdk, checkout, "python", "-c", code)
    assert done.stdout.splitlines()[-1] == "changed 108 numpy", done.stderr
    assert (checkout / "builds").read_text() != builds

    # What it needs from Python 3.12, the compile command, and its own status.
    warn = "import warnings; warnings.warn('w', UserWarning, skip_file_prefixes=('x',)); print('told')"
    done = run(sdk, checkout, "python", "-W", "always", "-c", warn)
    assert done.stdout.splitlines()[-1] == "told" and "UserWarning: w" in done.stderr
    assert run(sdk, checkout, "dxp_standalone", "--help").returncode == 0
    assert run(sdk, checkout, "python", "-c", "raise SystemExit(7)").returncode == 7


def test_what_is_not_there_is_named(sdk: Sdk, checkout: Path) -> None:
    done = run(sdk, checkout.parent, "true")
    assert done.returncode == 2 and "no setup.py" in done.stderr
    done = run(Sdk(checkout, checkout, sdk.environment), checkout, "true")
    assert done.returncode == 2 and "no SDK" in done.stderr
    (checkout.parent / "json.hpp").unlink()
    done = run(sdk, checkout, "true")
    assert done.returncode == 2 and "json.hpp" in done.stderr
