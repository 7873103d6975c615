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
from hosts import FIRST, Host, two_hosts
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


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with two_hosts() as both:
        yield both


def test_two_hosts(hosts: list[Host], tmp_path: Path) -> None:
    started = []
    for host, local in itertools.product((0, 1), (0, 1)):
        rank = 2 * host + local
        variables = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": 2}
        variables |= {"MASTER_ADDR": FIRST, "MASTER_PORT": 29511, "GLOO_SOCKET_IFNAME": hosts[host].device}
        command = hosts[host].command(sys.executable, "-c", RANK, str(tmp_path / f"{rank}.pt"))
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
