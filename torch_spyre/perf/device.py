# SPDX-License-Identifier: Apache-2.0
"""Device descriptions: TOML files in which every constant has a unit, a source and a confidence."""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument

_FIELDS = ("value", "unit", "source", "confidence")
_CONFIDENCE = ("H", "M", "L")
_LEAST_SHARE = 0.01  # of LX: the back end buffers something even if the knob leaves it nothing


@dataclass(frozen=True)
class Constant:
    value: float
    unit: str
    source: str
    confidence: str


@dataclass(frozen=True)
class Device:
    """A described card. ``device["memory.bandwidth"]`` is the value of that constant."""

    name: str
    description: str
    constants: dict[str, Constant]
    _values: dict[str, float] = field(init=False, repr=False, compare=False)

    def with_values(self, **changes: float) -> Device:
        """A what-if copy: ``device.with_values(memory__bandwidth=300.0)`` (two underscores for the dot)."""
        constants = dict(self.constants)
        for key, value in changes.items():
            name = key.replace("__", ".")
            old = constants.get(name)
            if old is None:
                near = difflib.get_close_matches(name, constants, 1)
                hint = f": did you mean {near[0]}?" if near else "; `spyre perf devices` lists them"
                raise InvalidArgument(f"device description {self.name} has no constant {name}{hint}")
            constants[name] = Constant(value, old.unit, "what-if", old.confidence)
        return Device(self.name, self.description, constants)

    @property
    def lx_share(self) -> float:
        """Bytes of each core's LX in which the back end buffers operands; planned temporaries get the rest."""
        return self["cores.lx"] * self["cores.lx_fraction"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", {name: c.value for name, c in self.constants.items()})

    def __getitem__(self, key: str) -> float:
        try:
            return self._values[key]
        except KeyError:
            raise InvalidArgument(f"device description {self.name} has no constant {key}") from None


def parse(text: str, where: str = "description") -> Device:
    """A description from TOML text; says which constant lacks what."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise InvalidArgument(f"{where} is not a TOML file: {e}") from None
    constants = {}
    for section, entries in data.items():
        if not isinstance(entries, dict):
            continue
        for name, entry in entries.items():
            constants[f"{section}.{name}"] = _constant(f"{where}: {section}.{name}", entry)
    return Device(data.get("name", where), data.get("description", ""), constants)


def _constant(where: str, entry: object) -> Constant:
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{where} is {entry!r}; write {{ value, unit, source, confidence }}")
    missing = [f for f in _FIELDS if f not in entry]
    if missing:
        raise InvalidArgument(f"{where} lacks {', '.join(missing)}")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidArgument(f"{where} has value {value!r}; a constant is a positive number")
    if entry["confidence"] not in _CONFIDENCE:
        raise InvalidArgument(f"{where} has confidence {entry['confidence']!r}; use one of {', '.join(_CONFIDENCE)}")
    return Constant(float(value), entry["unit"], entry["source"], entry["confidence"])


def described() -> dict[str, Path]:
    """Descriptions that come with the package, by name."""
    return {file.stem: file for file in sorted(Path(__file__).parent.glob("*.toml"))}


_assumed: Device | None = None


@contextlib.contextmanager
def assume(device: Device) -> Iterator[None]:
    """What if: for a ``with`` block, plans and durations are made for this device instead of the real card's.

    The program cache keeps such programs apart; plans that the process made before are used as they are.
    """
    global _assumed
    before, _assumed = _assumed, device
    try:
        yield
    finally:
        _assumed = before


def assumed() -> Device | None:
    """The device of the `assume` block, if there is one."""
    return _assumed


def load(name: str | None = None) -> Device:
    """A description by name (`spyre`, `half_spyre`) or by path; by default the real card's, or what `assume` says.

    A description that names another with `based_on` changes only the constants it lists. The real card is set up as the
    knob for the back end's LX share says.
    """
    if name is not None:
        return _load(name)
    return _assumed if _assumed is not None else _set_up(float(knobs.get("dxp_lx_frac_avail")))


@functools.cache
def _set_up(lx_fraction: float) -> Device:
    device = _load(None)
    if lx_fraction == device["cores.lx_fraction"]:
        return device
    return device.with_values(cores__lx_fraction=max(_LEAST_SHARE, lx_fraction))


@functools.cache
def _load(name: str | None) -> Device:
    file = described().get(name or "spyre") or Path(name or "")
    if not file.is_file():
        raise InvalidArgument(f"no device description {name!r}; known are {', '.join(described())}, or give a path")
    device = parse(file.read_text(), file.name)
    base = tomllib.loads(file.read_text()).get("based_on")
    if base is None:
        return device
    return Device(device.name, device.description, {**_load(base).constants, **device.constants})
