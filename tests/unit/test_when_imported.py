# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_when_imported.py
"""Libraries are changed when they are imported, whenever that is; none of them has to be installed here."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from torch_spyre import integrations
from torch_spyre.integrations.when_imported import when_imported


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `some_library` with the module `some_library.part`."""
    package = tmp_path / "some_library"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [n for n in sys.modules if n.split(".")[0] == "some_library"]:
        del sys.modules[name]


def add_one(module: ModuleType) -> None:
    module.value += 1


def part() -> ModuleType:
    return importlib.import_module("some_library.part")


def test_before_the_import(library: Path) -> None:
    when_imported("some_library.part", add_one)
    assert part().value == 2
    assert part().value == 2


def test_after_the_import(library: Path) -> None:
    part()
    when_imported("some_library.part", add_one)
    assert part().value == 2


def test_two_changes_of_one_module(library: Path) -> None:
    when_imported("some_library.part", add_one)
    when_imported("some_library.part", add_one)
    assert part().value == 3


def test_a_question_whether_it_is_installed_is_no_import(library: Path) -> None:
    when_imported("some_library.part", add_one)
    assert importlib.util.find_spec("some_library.part") is not None
    assert importlib.util.find_spec("some_library.part") is not None
    assert part().value == 2


def test_in_the_middle_of_the_import(library: Path) -> None:
    """The library is the one that imports torch, which imports this package."""
    (library / "part.py").write_text(
        "from test_when_imported import add_one, when_imported\n"
        "when_imported('some_library.part', add_one)\n"
        "value = 1\n"
    )
    (library / "__init__.py").write_text("from some_library import part\nimport some_library.later\n")
    (library / "later.py").write_text("")
    assert part().value == 2


def test_a_module_that_fails_is_changed_when_it_works(library: Path) -> None:
    when_imported("some_library.part", add_one)
    (library / "part.py").write_text("raise ImportError('something is missing')\n")
    with pytest.raises(ImportError, match="something is missing"):
        part()
    (library / "part.py").write_text("value = 1\n")
    importlib.invalidate_caches()
    assert part().value == 2


def test_an_unknown_version_of_a_library_gives_a_warning(library: Path) -> None:
    with pytest.warns(UserWarning, match="does not know this version of some_library.*name the device 'spyre'"):
        integrations._apply("accelerate.choose_card", part())


def test_every_change_names_the_missing_hook() -> None:
    for change in {*integrations.ACCEPT.values(), *integrations.CHOOSE.values()}:
        file, function = change.split(".")
        module = importlib.import_module(f"torch_spyre.integrations.{file}")
        text = f"{module.__doc__} {getattr(module, function).__doc__}"
        assert "issing hook" in text or "hook that is missing" in text, change


def test_start_up_imports_no_library() -> None:
    libraries = {name.split(".")[0] for name in (*integrations.ACCEPT, *integrations.CHOOSE)} - {"torch"}
    text = f"import sys, torch; print(sorted({libraries!r} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["[]"], done.stderr
