# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_hosts.py: two hosts of two ranks each, as two network namespaces: TCP between hosts,
shared memory within one, and the bits of the model."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cases import MOVING, REDUCING, Case, difference
from processes import LONG

HERE = Path(__file__).parent
CASES = [Case(kind, dtype, (3, 70), seed=9) for kind in (*REDUCING, *MOVING) for dtype in (torch.float16, torch.int32)]
CASES += [Case("all_reduce", torch.float16, (300_001,), seed=9)]

RANK = f"""
import sys
sys.path[:0] = {[str(HERE), str(HERE.parent), str(HERE.parent / "support")]!r}
import torch, torch.distributed as dist
from test_hosts import CASES
from cases import execute
from torch_spyre.distributed.groups import groups
dist.init_process_group("cpu:gloo,spyre:spyreccl")
results = execute(CASES)
links = [groups()[0].links.link_name(peer) for peer in range(4)]
dist.barrier()
dist.destroy_process_group()
torch.save((results, links), sys.argv[1])
"""


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def ends() -> list[str]:
    """Of the cable between the hosts."""
    return [f"sp{os.getpid() % 100000}{i}" for i in (1, 2)]


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two namespaces that see each other at 10.213.97.1 and .2."""
    names = [f"spyre-{os.getpid()}-{i}" for i in (1, 2)]
    try:
        made = [ip("netns", "add", name) for name in names]
    except FileNotFoundError:
        pytest.skip("two hosts: this machine has no `ip` command")
    made.append(ip("link", "add", ends()[0], "type", "veth", "peer", "name", ends()[1]))
    for i, (name, end) in enumerate(zip(names, ends(), strict=True), 1):
        made.append(ip("link", "set", end, "netns", name))
        made.append(ip("-n", name, "addr", "add", f"10.213.97.{i}/24", "dev", end))
        made += [ip("-n", name, "link", "set", device, "up") for device in (end, "lo")]
    try:
        if failed := [m.stderr for m in made if m.returncode]:
            pytest.skip(f"two hosts: this machine lets nobody make network namespaces: {failed[0].strip()}")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def test_two_hosts(hosts: list[str], tmp_path: Path) -> None:
    started = []
    for host, local in itertools.product((0, 1), (0, 1)):
        rank = 2 * host + local
        variables = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": 2}
        variables |= {"MASTER_ADDR": "10.213.97.1", "MASTER_PORT": 29511, "GLOO_SOCKET_IFNAME": ends()[host]}
        command = ["ip", "netns", "exec", hosts[host], sys.executable, "-c", RANK, str(tmp_path / f"{rank}.pt")]
        environment = {**os.environ, **{k: str(v) for k, v in variables.items()}}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    told = [process.communicate(timeout=LONG)[1] for process in started]
    assert not any(process.returncode for process in started), "\n".join(told)
    by_rank = [torch.load(io.BytesIO((tmp_path / f"{r}.pt").read_bytes()), weights_only=False) for r in range(4)]
    assert [links for _, links in by_rank] == [
        ["itself", "shared memory", "tcp", "tcp"],
        ["shared memory", "itself", "tcp", "tcp"],
        ["tcp", "tcp", "itself", "shared memory"],
        ["tcp", "tcp", "shared memory", "itself"],
    ]
    for i, case in enumerate(CASES):
        assert difference(case, 4, [results[i] for results, _ in by_rank]) == ""
