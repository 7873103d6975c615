# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tools/test_logging.py

Log components: where a level comes from, what TORCH_LOGS means, and that the loggers of the packages obey.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_spyre import logging_config as lc
from torch_spyre.logging_config import LogLevel

SAY = """
for name in ("torch_spyre.runtime.cache", "torch_spyre._inductor.passes.division", "torch_spyre.backend"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), level)("%s of %s", level, name)
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for variable in ("TORCH_LOGS", "TORCH_SPYRE_DEBUG", "SPYRE_INDUCTOR_LOG", "SPYRE_INDUCTOR_LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("SPYRE_LOG_FILE", raising=False)
    lc.initialize(force=True)
    yield monkeypatch
    monkeypatch.undo()
    lc.initialize(force=True)


def said(**env: str) -> set[str]:
    """Messages of a fresh process with torch."""
    base = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "SPYRE_LOG_FILE")}
    run = subprocess.run(
        [sys.executable, "-c", "import logging, torch\n" + SAY],
        env={**base, **env},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert run.returncode == 0, run.stderr
    return {line.rpartition("] ")[2] for line in run.stderr.splitlines() if " of torch_spyre" in line}


def test_importable_without_torch() -> None:
    code = "import sys; import torch_spyre.logging_config as lc; assert lc._initialized and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500)


def test_defaults() -> None:
    assert lc.list_components()[0] == "spyre" and len(lc.list_components()) == 9
    assert set(lc.get_effective_config().values()) == {LogLevel.WARNING}
    assert lc.get_config_source("spyre.runtime") == "default"
    assert lc.get_config_for_cpp()["spyre.device"] == 30
    assert lc.get_output_config()["format"] == "[%(levelname)s] [%(name)s] %(message)s"
    assert LogLevel.DISABLED == 60


@pytest.mark.parametrize(
    ("settings", "component", "level"),
    [
        ("spyre.runtime:DEBUG", "spyre.runtime", LogLevel.DEBUG),
        ("+spyre", "spyre", LogLevel.INFO),
        ("spyre", "spyre.inductor.codegen", LogLevel.INFO),
        ("-spyre.inductor", "spyre.inductor.passes", LogLevel.DISABLED),
        ("+dynamo, spyre:error", "spyre.device", LogLevel.ERROR),
        ("+spyre,spyre.inductor:DEBUG", "spyre.inductor.lowering", LogLevel.DEBUG),
        ("+dynamo", "spyre", LogLevel.WARNING),
    ],
)
def test_torch_logs(fresh: pytest.MonkeyPatch, settings: str, component: str, level: LogLevel) -> None:
    fresh.setenv("TORCH_LOGS", settings)
    lc.initialize(force=True)
    assert lc.get_log_level(component) == level
    assert lc.get_config_source(component) == ("default" if level == LogLevel.WARNING else "TORCH_LOGS")


def test_the_rest_of_torch_logs_is_pytorchs() -> None:
    assert lc.parse_torch_logs("+dynamo,spyre:DEBUG,graph_code")[1] == "+dynamo,graph_code"


@pytest.mark.parametrize(
    ("variable", "value", "component", "level"),
    [
        ("TORCH_SPYRE_DEBUG", "1", "spyre.runtime", LogLevel.DEBUG),
        ("SPYRE_INDUCTOR_LOG", "1", "spyre.inductor.codegen", LogLevel.INFO),
        ("SPYRE_INDUCTOR_LOG_LEVEL", "ERROR", "spyre.inductor", LogLevel.ERROR),
    ],
)
def test_legacy_variables(
    fresh: pytest.MonkeyPatch, variable: str, value: str, component: str, level: LogLevel
) -> None:
    fresh.setenv(variable, value)
    with pytest.warns(DeprecationWarning, match=f"{variable} is deprecated; use TORCH_LOGS"):
        lc.initialize(force=True)
    assert lc.get_log_level(component) == level
    assert lc.get_config_source(component) == f"legacy:{variable}"


def test_precedence(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("SPYRE_INDUCTOR_LOG_LEVEL", "ERROR")
    fresh.setenv("TORCH_LOGS", "spyre.inductor:INFO")
    with pytest.warns(DeprecationWarning):
        lc.initialize(force=True)
    assert lc.get_log_level("spyre.inductor") == LogLevel.INFO
    lc.set_log_level("spyre.inductor", "DEBUG")
    assert (lc.get_log_level("spyre.inductor"), lc.get_config_source("spyre.inductor")) == (10, "programmatic")


def test_set_enable_disable() -> None:
    lc.enable("spyre.runtime")
    assert logging.getLogger("torch_spyre.runtime.cache").getEffectiveLevel() == logging.INFO
    lc.set_log_level("spyre", logging.DEBUG)
    assert logging.getLogger("torch_spyre.backend.compile").getEffectiveLevel() == logging.DEBUG
    lc.disable("spyre.runtime")
    assert not logging.getLogger("torch_spyre.runtime").isEnabledFor(logging.CRITICAL)
    with pytest.raises(ValueError, match=r"unknown log component 'spyre\.nothing'"):
        lc.set_log_level("spyre.nothing", "INFO")
    with pytest.raises(ValueError, match="unknown log level 'LOUD'"):
        lc.set_log_level("spyre", "LOUD")


def test_log_file(tmp_path: Path) -> None:
    file = tmp_path / "spyre.log"
    lc.set_log_file(str(file))
    logging.getLogger("torch_spyre.runtime.cache").warning("hello")
    lc.set_log_file(None)
    logging.getLogger("torch_spyre.runtime.cache").warning("not there")
    assert file.read_text() == "[WARNING] [torch_spyre.runtime.cache] hello\n"
    assert lc.get_log_file() is None


def test_in_a_process_with_torch() -> None:
    runtime, passes, backend = (
        "torch_spyre.runtime.cache",
        "torch_spyre._inductor.passes.division",
        "torch_spyre.backend",
    )
    warnings = {f"warning of {name}" for name in (runtime, passes, backend)}
    assert said() == warnings
    assert said(TORCH_LOGS="+spyre") == warnings | {f"info of {name}" for name in (runtime, passes, backend)}
    debug = {f"{level} of {runtime}" for level in ("debug", "info")}
    assert said(TORCH_LOGS="spyre.runtime:DEBUG,+dynamo") == warnings | debug
    assert said(TORCH_LOGS="-spyre.inductor") == {f"warning of {runtime}"}
    assert said(SPYRE_INDUCTOR_LOG_LEVEL="ERROR") == {f"warning of {runtime}"}


def test_the_api_of_torch_logging_works() -> None:
    code = "import logging, torch\ntorch._logging.set_logs(modules={'spyre.runtime': logging.DEBUG})\n" + SAY
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500)
    assert "debug of torch_spyre.runtime.cache" in run.stderr, run.stderr
    assert "debug of torch_spyre.backend" not in run.stderr
