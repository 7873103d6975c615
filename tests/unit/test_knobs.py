# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_knobs.py
"""The table of knobs: parsing, patching, the config module, and that table, page and source agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torch_spyre"
TABLE_FILES = {PACKAGE / "knobs.py", PACKAGE / "_inductor" / "config.py"}


def test_defaults_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in knobs.TABLE:
        monkeypatch.delenv(row.env or "NONE", raising=False)
        assert row.check(row.default_value()) == row.default_value()


def test_names_are_unique_and_rows_complete() -> None:
    assert len(knobs.ROWS) == len(knobs.TABLE)
    envs = [row.env for row in knobs.TABLE if row.env]
    assert len(envs) == len(set(envs))
    for row in knobs.TABLE:
        assert row.status in ("active", "no effect")
        assert row.group in knobs.GROUPS
        assert row.doc and "\n" not in row.doc


@pytest.mark.parametrize("text", ["0", "33", "-1", "many", "3.5", ""])
def test_sencores_out_of_range(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SENCORES", text)
    with pytest.raises(InvalidArgument, match=rf"invalid SENCORES value {re.escape(text)}.*1\.\.32"):
        knobs.from_env("sencores")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sencores", " 8 ", 8),
        ("lx_planning", "0", False),
        ("lx_planning", "TRUE", True),
        ("downcast_warn", "Off", False),
        ("dump_spyre_code", "2", True),
        ("dxp_lx_frac_avail", "1", 1.0),
        ("isa", "portable", "portable"),
        ("devices", "0, 2", "0, 2"),
        ("world_size", "2", 2),
    ],
)
def test_parse(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv(knobs.ROWS[name].env, text)
    result = knobs.from_env(name)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "legal"),
    [("lx_planning", "maybe", "0 or 1"), ("isa", "sse", "avx2"), ("dxp_lx_frac_avail", "1.5", r"0\.\.1")],
)
def test_parse_errors_name_variable_value_and_legal_values(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, legal: str
) -> None:
    env = knobs.ROWS[name].env
    monkeypatch.setenv(env, text)
    with pytest.raises(ValueError, match=f"invalid {env} value {text}.*{legal}"):
        knobs.from_env(name)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_knob"):
        knobs.get("no_such_knob")
    with pytest.raises(AttributeError, match="no_such_knob"), knobs.patch(no_such_knob=1):
        pass


def test_patch_nests_and_restores() -> None:
    before = knobs.isa, knobs.sencores
    with knobs.patch(isa="portable", sencores=4):
        assert (knobs.isa, knobs.sencores) == ("portable", 4)
        with knobs.patch(sencores=2):
            assert (knobs.isa, knobs.sencores) == ("portable", 2)
        assert knobs.sencores == 4
    assert (knobs.isa, knobs.sencores) == before


def test_patch_checks_before_it_changes_anything() -> None:
    before = knobs.isa
    with pytest.raises(InvalidArgument, match="invalid SENCORES value 33"), knobs.patch(isa="portable", sencores=33):
        pass
    assert knobs.isa == before


def test_config_module_holds_exactly_the_compiler_rows() -> None:
    from torch_spyre._inductor import config

    public = {name for name in config.get_config_copy() if not name.startswith("_")}
    assert public == {row.name for row in knobs.TABLE if row.group == "compiler"}


def test_config_patch_is_seen_by_knobs_and_checked() -> None:
    from torch_spyre._inductor import config

    with config.patch(sencores=4):
        assert knobs.sencores == 4
    with config.patch(sencores=64), pytest.raises(InvalidArgument, match="invalid SENCORES value 64"):
        knobs.get("sencores")


def test_patch_changes_the_cache_key() -> None:
    from torch_spyre._inductor import config

    before = config.get_hash()
    with knobs.patch(sencores=4):
        assert config.get_hash() != before
    assert config.get_hash() == before


def test_cache_dir_follows_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPYRE_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    assert knobs.cache_dir == os.path.join("/somewhere", "spyre")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert knobs.cache_dir == os.path.join("/elsewhere", "torch_spyre")
    monkeypatch.setenv("SPYRE_CACHE_DIR", "/own")
    assert knobs.cache_dir == "/own"


def test_the_table_needs_no_torch() -> None:
    code = (
        "import sys, types, importlib\n"
        "package = types.ModuleType('torch_spyre')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['torch_spyre'] = package\n"
        "importlib.import_module('torch_spyre.knobs')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500)


def test_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text()
    assert page == knobs.markdown(), "run: python -m torch_spyre.knobs > docs/knobs.md"


def _sources() -> dict[Path, str]:
    suffixes = {".py", ".cpp", ".h", ".cc"}
    every = (path for folder in (PACKAGE, ROOT / "sdk") for path in folder.rglob("*"))
    files = (path for path in every if path.suffix in suffixes and path not in TABLE_FILES)
    return {path: path.read_text() for path in files}


def _is_read(row: knobs.Knob, text: str) -> bool:
    spellings = [rf"\b(?:knobs|config)\.{row.name}\b", rf"\bget\(\s*[\"']{row.name}[\"']"]
    if row.env:
        spellings.append(rf"[\"']{row.env}[\"']")
    return re.search("|".join(spellings), text) is not None


@pytest.mark.parametrize("row", knobs.TABLE, ids=lambda row: row.name)
def test_status_tells_whether_something_reads_it(row: knobs.Knob) -> None:
    readers = [path.name for path, text in _sources().items() if _is_read(row, text)]
    assert (row.status == "active") == bool(readers), f"{row.label} is marked {row.status}, read by {readers}"


def test_every_variable_in_the_source_is_in_the_table() -> None:
    known = {row.env for row in knobs.TABLE} | {"TORCHINDUCTOR_CACHE_DIR", "TORCH_COMPILE_DEBUG", "XDG_CACHE_HOME"}
    known |= {"RANK", "SPYRE_SDK_LEAVE_OUT"}  # torchrun's, and what `spyre sdk run` hands to the tests that it starts
    pattern = re.compile(r"(?:getenv|environ(?:\.get)?)\s*[(\[]\s*[\"']([A-Z][A-Z0-9_]+)[\"']")
    found = {(name, path.name) for path, text in _sources().items() for name in pattern.findall(text)}
    assert not [entry for entry in sorted(found) if entry[0] not in known]
