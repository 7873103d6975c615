# SPDX-License-Identifier: Apache-2.0
"""The configuration: a TOML file that says how test files are run and what each test is.

    device = "spyre"              # name of the device; {device} in any text below stands for it
    recover = "…"                 # Python, run after a test that failed, so that its fault stays its own

    [limits]                      # of one test; see `Limits`
    [environment]                 # variables of the process that runs a file
    [tolerance]                   # dtype = [rtol, atol]: at least these where a test names none of its own

    [[file]]                      # how some files are run
    match = "inductor/*"          # glob over the path below test/
    environment = {}
    set = { "package.module.NAME" = value }  # set before the file is imported; a list is filled in place
    limits = {}

    [[rule]]                      # what some tests are: the first rule that fits decides
    file, class, test = …         # a glob or a list of globs, or "re:" and a regular expression; absent: any
    dtype = ["float64"]           # any of the dtypes in the test's name
    error = "…"                   # regular expression: fits only a failed test whose exception it finds
    where = "…"                   # regular expression over its traceback: fits only a test that fails there
    verdict = "must pass" | "known gap" | "not applicable"
    reason = "…"                  # for all but "must pass"
    run = false                   # do not run it; the default for "not applicable" without `error` or `where`

A test that no rule fits must pass.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

MUST_PASS, KNOWN_GAP, NOT_APPLICABLE = "must pass", "known gap", "not applicable"
VERDICTS = (MUST_PASS, KNOWN_GAP, NOT_APPLICABLE)


class ConfigError(Exception):
    """The configuration says something that has no meaning."""


@dataclass(frozen=True)
class TestId:
    """One test of one file."""

    __test__ = False  # pytest: not a test class

    file: str  # below test/, with forward slashes
    cls: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}::{self.cls}::{self.name}"


@dataclass(frozen=True)
class Limits:
    """When a test counts as hanging. Time of the processor, so that other work on the machine changes nothing."""

    cpu_seconds: float = 900  # used by the test and its subprocesses
    idle_seconds: float = 180  # in which no thread of them used or wanted the processor
    wall_seconds: float = 7200  # for tests that wake up and sleep for ever
    memory_gib: float = 12  # resident; a process above half of it is replaced between two tests
    tests_per_process: int = 1000  # then the process is replaced


@dataclass(frozen=True)
class Rule:
    verdict: str
    reason: str = ""
    file: tuple[str, ...] = ()
    cls: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    error: str = ""
    where: str = ""
    run: bool = True

    @property
    def after(self) -> bool:
        """Is it about tests that have failed?"""
        return bool(self.error or self.where)

    def fits_test(self, test: TestId, dtypes: Iterable[str]) -> bool:
        return (
            _fits(self.file, test.file)
            and _fits(self.cls, test.cls)
            and _fits(self.test, test.name)
            and (not self.dtype or not set(self.dtype).isdisjoint(dtypes))
        )


@dataclass(frozen=True)
class FileSettings:
    """How one file is run."""

    environment: dict[str, str] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()
    recover: str = ""
    tolerance: dict[str, list[float]] = field(default_factory=dict)

    def key(self) -> str:
        """Changes with everything that may change a result. Limits do not: a finished test stays finished."""
        text = json.dumps(asdict(replace(self, limits=Limits())), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Config:
    device: str
    settings: FileSettings
    files: tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
    rules: tuple[Rule, ...]

    def settings_of(self, file: str) -> FileSettings:
        settings = self.settings
        for patterns, table in self.files:
            if _fits(patterns, file):
                settings = FileSettings(
                    environment={**settings.environment, **table.get("environment", {})},
                    set={**settings.set, **table.get("set", {})},
                    limits=replace(settings.limits, **table.get("limits", {})),
                    recover=table.get("recover", settings.recover),
                    tolerance={**settings.tolerance, **table.get("tolerance", {})},
                )
        return settings

    def rule_before(self, test: TestId) -> Rule:
        """What the test is before it runs."""
        dtypes = dtypes_of(test.name, self.device)
        for rule in self.rules:
            if not rule.after and rule.fits_test(test, dtypes):
                return rule
        return _DEFAULT

    def rule_after(self, test: TestId, error: str, where: str = "") -> Rule:
        """What the test is, given how and where it failed: rules about that come in their place in the list."""
        dtypes = dtypes_of(test.name, self.device)
        for rule in self.rules:
            if rule.fits_test(test, dtypes) and _found(rule.error, error) and _found(rule.where, where):
                return rule
        return _DEFAULT


_DEFAULT = Rule(MUST_PASS)
_DTYPE = re.compile(
    r"bool|float8_\w+?(?=_(?:float|int|bool|complex)|$)|(?:complex|bfloat|float|quint|qint|uint|int)\d+"
)


def dtypes_of(name: str, device: str) -> list[str]:
    """The dtypes that PyTorch appends to a test's name, after the device: test_add_spyre_float32_int64."""
    _, found, suffix = name.rpartition(f"_{device}_")
    if not found:
        return []
    return _DTYPE.findall(suffix)


def load(path: Path, device: str | None = None) -> Config:
    """Reads the file; `device` replaces the one it names."""
    with path.open("rb") as file:
        data = tomllib.load(file)
    name = device or data.get("device")
    if not name:
        raise ConfigError(f'{path}: no device; write device = "name", or give --device')
    data = _named(data, name)
    _known(data, {"device", "recover", "limits", "environment", "tolerance", "file", "rule"}, str(path))
    settings = FileSettings(
        environment=data.get("environment", {}),
        limits=_limits(data.get("limits", {}), str(path)),
        recover=data.get("recover", ""),
        tolerance=data.get("tolerance", {}),
    )
    files = []
    for entry in data.get("file", []):
        where = f"{path}: [[file]] {entry.get('match')}"
        _known(entry, {"match", "environment", "set", "limits", "recover", "tolerance"}, where)
        _limits(entry.get("limits", {}), where)
        files.append((_patterns(entry.get("match", ()), where), entry))
    rules = tuple(_rule(entry, f"{path}: rule {n + 1}") for n, entry in enumerate(data.get("rule", [])))
    return Config(name, settings, tuple(files), rules)


def _rule(entry: dict[str, Any], where: str) -> Rule:
    _known(entry, {"file", "class", "test", "dtype", "error", "where", "verdict", "reason", "run"}, where)
    verdict, reason, error = entry.get("verdict"), entry.get("reason", ""), entry.get("error", "")
    if verdict not in VERDICTS:
        raise ConfigError(f"{where}: verdict {verdict!r} is none of {', '.join(VERDICTS)}")
    if verdict != MUST_PASS and not reason:
        raise ConfigError(f"{where}: a test that need not pass needs a reason")
    for expression in filter(None, (error, entry.get("where", ""))):
        _checked(expression, where)
    return Rule(
        verdict,
        reason,
        file=_patterns(entry.get("file", ()), where),
        cls=_patterns(entry.get("class", ()), where),
        test=_patterns(entry.get("test", ()), where),
        dtype=tuple(entry.get("dtype", ())),
        error=error,
        where=entry.get("where", ""),
        run=entry.get("run", verdict != NOT_APPLICABLE or bool(error or entry.get("where"))),
    )


def _found(expression: str, text: str) -> bool:
    return not expression or bool(_expression(expression).search(text))


def _limits(table: dict[str, Any], where: str) -> Limits:
    _known(table, {f.name for f in fields(Limits)}, f"{where}: limits")
    return Limits(**table)


def _known(table: dict[str, Any], names: set[str], where: str) -> None:
    if strange := sorted(set(table) - names):
        raise ConfigError(f"{where}: unknown {', '.join(strange)}; known are {', '.join(sorted(names))}")


def _patterns(value: Any, where: str) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value)
    for pattern in patterns:
        if pattern.startswith("re:"):
            _checked(pattern[3:], where)
    return patterns


def _checked(expression: str, where: str) -> None:
    try:
        _expression(expression)
    except re.error as fault:
        raise ConfigError(f"{where}: {expression!r} is no regular expression: {fault}") from None


@functools.cache
def _expression(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    """True where there is no pattern or one of them matches."""
    return not patterns or any(
        _expression(p[3:]).search(text) is not None if p.startswith("re:") else fnmatch.fnmatchcase(text, p)
        for p in patterns
    )


def _named(value: Any, device: str) -> Any:
    """The value with {device} and {DEVICE} replaced in every text."""
    if isinstance(value, str):
        return value.replace("{device}", device).replace("{DEVICE}", device.upper())
    if isinstance(value, list):
        return [_named(v, device) for v in value]
    if isinstance(value, dict):
        return {_named(k, device): _named(v, device) for k, v in value.items()}
    return value
