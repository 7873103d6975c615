# SPDX-License-Identifier: Apache-2.0
"""Every run starts with empty caches of its own and fixed seeds."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE / "support")]  # tests of any folder say `import oracle`

collect_ignore = ["upstream/data"]  # test files for a runner of their own

# Set here and not in a fixture: torch and the autoloaded device read them as soon as a test module is collected.
_SCRATCH = Path(tempfile.mkdtemp(prefix="spyre-tests-"))
os.environ["SPYRE_CACHE_DIR"] = str(_SCRATCH / "programs")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_SCRATCH / "inductor")


# A busy machine draws slowly and computes slowly; neither is a fault.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Same random numbers in every test, whatever ran before. Tests of the card alone run without torch."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """A command that a test calls in this process may set variables: later tests do not see them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    """Plans that are recorded are made anew each time: a test that starts recording them does so for itself alone."""
    yield
    if inspect := sys.modules.get("torch_spyre._inductor.debug.inspect"):
        inspect.stop()


@pytest.fixture
def fresh_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty program cache for one test; returns its directory."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, fresh_caches: Path) -> Iterator[list[str]]:
    """Names of the graphs that were planned; starts with nothing known."""
    from torch_spyre import _C
    from torch_spyre._inductor import compile as stages

    names: list[str] = []
    original = stages.compile_graph

    def counting(graph_json: str, inputs: Any, displaced: bool = True) -> Any:
        made = original(graph_json, inputs, displaced)
        names.append(made.name)
        return made

    monkeypatch.setattr(stages, "compile_graph", counting)
    _C.clear_eager_cache()
    yield names
    _C.clear_eager_cache()
