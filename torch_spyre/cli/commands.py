# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `spyre`: which module does it, and one line for the list.

A module has ``main(words) -> exit status``, and ``make_parser()`` for completion. A package above this one names its
module in the group "torch_spyre.commands".
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

GROUP = "torch_spyre.commands"


@dataclass(frozen=True)
class Command:
    name: str
    module: str
    text: str

    def load(self) -> Any:
        return importlib.import_module(self.module)


_OWN = (
    Command("doctor", "torch_spyre.cli.doctor", "this installation: versions, caches, an op, a compile, a KTIR file"),
    Command("smi", "torch_spyre.smi.cli", "the cards of all your processes"),
    Command("chat", "torch_spyre.models.chat", "a language model in a terminal, on the card"),
    Command("explain", "torch_spyre.explain.cli", "run a script; time, traffic, cores and bottleneck by user line"),
    Command("ktir", "torch_spyre.ktir.cli", "check, run, time and dump KTIR files"),
    Command("sdsc", "torch_spyre.sdsc.cli", "check, explain, run and dump SuperDSC bundles"),
    Command("trace", "torch_spyre.profiler.cli", "tables and pictures of a torch.profiler trace"),
    Command("predict", "torch_spyre.predict.cli", "how fast a language model would run on the real card"),
    Command("numerics", "torch_spyre.numerics.cli", "where a model on the card departs from the CPU in fp32"),
    Command("perf", "torch_spyre.perf.cli", "the clock against measurements; device descriptions"),
    Command("serve", "torch_spyre.cli.serve", "serve a model over HTTP (needs the package spyre_inference)"),
    Command("sdk", "torch_spyre.sdk.cli", "run a checkout of the public torch-spyre on this card"),
    Command("completion", "torch_spyre.cli.completion", "print the completion script of a shell"),
)


def commands() -> dict[str, Command]:
    """By name; those of other packages stand in for ours of the same name."""
    found = {command.name: command for command in _OWN}
    for point in entry_points(group=GROUP):
        text = found[point.name].text if point.name in found else f"of the package {point.value.split('.')[0]}"
        found[point.name] = Command(point.name, point.value, text)
    return found
