# SPDX-License-Identifier: Apache-2.0
"""Two hosts as two network namespaces that a cable connects. Skips where the machine does not allow them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

FIRST = "10.213.97.1"  # the address of the first host


@dataclass(frozen=True)
class Host:
    name: str
    device: str  # its end of the cable

    def command(self, *words: str) -> list[str]:
        """Runs it there."""
        return ["ip", "netns", "exec", self.name, *words]


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    both = [Host(f"spyre-{os.getpid()}-{i}", f"sp{os.getpid() % 100000}{i}") for i in (1, 2)]
    try:
        made = [_ip("netns", "add", host.name) for host in both]
    except FileNotFoundError:
        pytest.skip("two hosts: this machine has no `ip` command")
    made.append(_ip("link", "add", both[0].device, "type", "veth", "peer", "name", both[1].device))
    for i, host in enumerate(both, 1):
        made.append(_ip("link", "set", host.device, "netns", host.name))
        made.append(_ip("-n", host.name, "addr", "add", f"10.213.97.{i}/24", "dev", host.device))
        made += [_ip("-n", host.name, "link", "set", device, "up") for device in (host.device, "lo")]
    try:
        if failed := [m.stderr for m in made if m.returncode]:
            pytest.skip(f"two hosts: this machine lets nobody make network namespaces: {failed[0].strip()}")
        yield both
    finally:
        for host in both:
            _ip("netns", "del", host.name)
