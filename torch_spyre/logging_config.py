# SPDX-License-Identifier: Apache-2.0
"""Logs, one component per part of the project. Imports no torch; importing it reads the environment.

Components are named ``spyre.*``; the loggers behind them are those of the packages (``torch_spyre.runtime`` and so
on). Precedence: defaults, legacy variables (deprecated), TORCH_LOGS, calls of `set_log_level`.

In TORCH_LOGS, ``spyre.runtime:DEBUG`` names a level, ``+spyre`` and ``spyre`` mean INFO, ``-spyre`` switches off; other
names are PyTorch's. `register_with_torch` tells PyTorch about ours, from then on its handlers and formats are used.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from enum import IntEnum
from pathlib import Path
from typing import Any

from torch_spyre import knobs


class LogLevel(IntEnum):
    NOTSET = 0
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50
    DISABLED = 60


# component -> loggers that belong to it
COMPONENTS: dict[str, tuple[str, ...]] = {
    "spyre": ("torch_spyre",),
    "spyre.inductor": ("torch_spyre._inductor", "torch_spyre.decompositions", "torch_spyre.ops"),
    "spyre.inductor.lowering": ("torch_spyre._inductor.lowering", "torch_spyre._inductor.tilegraph"),
    "spyre.inductor.stickify": ("torch_spyre._inductor.passes.layouts", "torch_spyre._inductor.planning.layout_rules"),
    "spyre.inductor.codegen": (
        "torch_spyre._inductor.codegen",
        "torch_spyre.ir",
        "torch_spyre.ktir",
        "torch_spyre.sdsc",
        "torch_spyre.backend",
    ),
    "spyre.inductor.passes": ("torch_spyre._inductor.passes", "torch_spyre._inductor.planning"),
    "spyre.runtime": ("torch_spyre.runtime",),
    "spyre.execution": ("torch_spyre.runtime.driver", "torch_spyre.runtime.jobplan", "torch_spyre._inductor.kernel"),
    "spyre.device": ("torch_spyre.device", "torch_spyre.smi"),
}
# Forms of each compiled kernel that TORCH_LOGS can ask for by name.
ARTIFACTS: dict[str, str] = {
    "spyre_tilegraph": "The planned TileGraph of each kernel: ops, accesses, layouts, core split",
    "spyre_plan": "What the planner chose for each kernel and why, as torch_spyre.explain prints it",
    "spyre_ktir": "The KTIR module of each kernel",
    "spyre_program": "The disassembled card program of each kernel",
}
DEFAULT_LEVEL = LogLevel.WARNING
FORMAT = "[%(levelname)s] [%(name)s] %(message)s"

_TORCH_LOGS = "TORCH_LOGS"

_initialized = False
_python_logging_configured = False
_config: dict[str, LogLevel] = {}
_config_source: dict[str, str] = {}
_log_file: str | None = None
_handler: logging.Handler | None = None
_torch_owns_handlers = False


def initialize(force: bool = False) -> None:
    """Reads the environment once; again with `force`."""
    global _initialized, _log_file
    if _initialized and not force:
        return
    _config.clear()
    _config_source.clear()
    _log_file = None
    _read_legacy()
    for component, level in parse_torch_logs(os.environ.get(_TORCH_LOGS, ""))[0].items():
        _set(component, level, _TORCH_LOGS)
    _initialized = True
    configure_python_logging(force=True)


def _read_legacy() -> None:
    """The published variables from before TORCH_LOGS. An illegal value raises the knob's error."""
    global _log_file
    if knobs.get("debug") == 1:
        _legacy("debug", "spyre", LogLevel.DEBUG)
    if knobs.get("inductor_log"):
        _legacy("inductor_log", "spyre.inductor", LogLevel.INFO)
    variable = knobs.ROWS["inductor_log_level"].env
    if variable in os.environ:
        _legacy("inductor_log_level", "spyre.inductor", LogLevel[knobs.get("inductor_log_level")])
    _log_file = knobs.get("log_file") or None


def _legacy(knob: str, component: str, level: LogLevel) -> None:
    variable = knobs.ROWS[knob].env
    warnings.warn(
        f"{variable} is deprecated; use {_TORCH_LOGS}={component}:{level.name}", DeprecationWarning, stacklevel=4
    )
    _set(component, level, f"legacy:{variable}")


def parse_torch_logs(settings: str) -> tuple[dict[str, LogLevel], str]:
    """(our components with their levels, the settings that are left for PyTorch)."""
    ours: dict[str, LogLevel] = {}
    rest = []
    for item in settings.split(","):
        name, _, level = item.strip().partition(":")
        bare = name.lstrip("+-")
        if bare not in COMPONENTS:
            rest.append(item)
        elif level:
            ours[bare] = _level(level)
        else:
            ours[bare] = LogLevel.DISABLED if name.startswith("-") else LogLevel.INFO
    return ours, ",".join(rest)


def _level(level: LogLevel | int | str) -> LogLevel:
    try:
        return LogLevel[level.strip().upper()] if isinstance(level, str) else LogLevel(level)
    except (KeyError, ValueError):
        known = ", ".join(x.name for x in LogLevel)
        raise ValueError(f"unknown log level {level!r}; legal levels are {known}") from None


def _check(component: str) -> None:
    if component not in COMPONENTS:
        raise ValueError(f"unknown log component {component!r}; known are {', '.join(COMPONENTS)}")


def _set(component: str, level: LogLevel, source: str) -> None:
    _config[component] = level
    _config_source[component] = source


def set_log_level(component: str, level: LogLevel | int | str) -> None:
    _check(component)
    _set(component, _level(level), "programmatic")
    configure_python_logging(force=True)


def get_log_level(component: str) -> LogLevel:
    """Level in force: the component's own, else that of the nearest parent."""
    return _config.get(_origin(component), DEFAULT_LEVEL)


def get_config_source(component: str) -> str:
    """Where the level comes from: TORCH_LOGS, legacy:<variable>, programmatic or default."""
    return _config_source.get(_origin(component), "default")


def _origin(component: str) -> str:
    """The component itself or its nearest parent that has a level; empty if none has."""
    while component and component not in _config:
        component = component.rpartition(".")[0]
    return component


def enable(component: str, level: LogLevel | int | str = LogLevel.INFO) -> None:
    set_log_level(component, level)


def disable(component: str) -> None:
    set_log_level(component, LogLevel.DISABLED)


def get_log_file() -> str | None:
    return _log_file


def set_log_file(path: str | None) -> None:
    """Sends the log to a file; None: back to stderr."""
    global _log_file
    _log_file = path
    configure_python_logging(force=True)


def list_components() -> list[str]:
    return list(COMPONENTS)


def get_effective_config() -> dict[str, LogLevel]:
    return {component: get_log_level(component) for component in COMPONENTS}


def get_output_config() -> dict[str, Any]:
    return {"file": _log_file, "format": FORMAT, "torch_handlers": _torch_owns_handlers}


def get_config_for_cpp() -> dict[str, int]:
    """Levels as numbers."""
    return {component: int(level) for component, level in get_effective_config().items()}


def configure_python_logging(force: bool = False) -> None:
    """Puts levels on the loggers, and a handler where PyTorch has none."""
    global _python_logging_configured
    if _python_logging_configured and not force:
        return
    for name, level in logger_levels().items():
        logging.getLogger(name).setLevel(level)
    _place_handler()
    _python_logging_configured = True


def logger_levels() -> dict[str, LogLevel]:
    """The level of every logger of ours."""
    return {name: get_log_level(component) for component, names in COMPONENTS.items() for name in names}


def _place_handler() -> None:
    """One handler: the log file if there is one, else stderr unless PyTorch prints there.

    It is on every logger, because PyTorch stops the propagation of those it knows.
    """
    global _handler
    loggers = [logging.getLogger(name) for names in COMPONENTS.values() for name in names]
    if _handler is not None:
        for logger in loggers:
            logger.removeHandler(_handler)
        _handler.close()
        _handler = None
    if _log_file:
        _handler = logging.FileHandler(_log_file, delay=True)
    elif not _torch_owns_handlers:
        _handler = logging.StreamHandler()
    if _handler is not None:
        _handler.setFormatter(logging.Formatter(FORMAT))
        for logger in loggers:
            logger.addHandler(_handler)
            logger.propagate = False


def enable_in(state: Any) -> None:
    """Puts our levels into a state of torch._logging."""
    for name, level in logger_levels().items():
        state.enable_log(name, int(level))


def register_with_torch() -> None:
    """Names our components to torch._logging, which then places handlers. Call before PyTorch sets up its logs."""
    global _torch_owns_handlers
    from torch._logging import _internal

    for component, names in COMPONENTS.items():
        _internal.register_log(component, list(names))
    for artifact, description in ARTIFACTS.items():
        _internal.register_artifact(artifact, description, visible=True, off_by_default=True)
    enable_in(_internal.log_state)
    _torch_owns_handlers = True
    _place_handler()


initialize()


def warn_user(message: str) -> None:
    """Warns at the innermost line outside of this package and torch. The extension's warnings come here."""
    folders = [Path(sys.modules[name].__file__ or "/").parent for name in ("torch_spyre", "torch")]
    ours = tuple(str(path) + os.sep for folder in folders for path in (folder, folder.resolve()))
    frame = sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)
