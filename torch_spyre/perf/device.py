# SPDX-License-Identifier: Apache-2.0
"""Device descriptions: TOML files in which every constant has a unit, a source and a confidence."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from torch_spyre.errors import InvalidArgument

_FIELDS = ("value", "unit", "source", "confidence")


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

    def __getitem__(self, key: str) -> float:
        try:
            return self.constants[key].value
        except KeyError:
            raise InvalidArgument(f"device description {self.name} has no constant {key}") from None


def parse(text: str, where: str = "description") -> Device:
    """A description from TOML text; says which constant lacks what."""
    data = tomllib.loads(text)
    constants = {}
    for section, entries in data.items():
        if not isinstance(entries, dict):
            continue
        for name, entry in entries.items():
            missing = [f for f in _FIELDS if f not in entry]
            if missing:
                raise InvalidArgument(f"{where}: {section}.{name} lacks {', '.join(missing)}")
            constants[f"{section}.{name}"] = Constant(*(entry[f] for f in _FIELDS))
    return Device(data.get("name", where), data.get("description", ""), constants)


@functools.cache
def load(path: str | None = None) -> Device:
    """The description in a file; the real card's by default."""
    file = Path(path) if path else Path(__file__).parent / "spyre.toml"
    return parse(file.read_text(), file.name)
