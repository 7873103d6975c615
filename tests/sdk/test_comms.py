# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_comms.py

spyre_comms between processes: every call, with values that say which rank they come from.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import FIRST, Host, two_hosts
from processes import LONG
from sdk_client import ROOT, Sdk

from torch_spyre.sdk import costs


def ranks(sdk: Sdk, size: int, port: int, *case: str, **variables: str) -> list[subprocess.Popen[str]]:
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
    return [
        subprocess.Popen(
            [str(sdk.program), *case],
            env={**sdk.environment, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def several_hosts() -> dict[str, str]:
    """As if every rank had a host of its own: they meet at a port. Those that share memory use it all the same."""
    return {"LOCAL_WORLD_SIZE": "1", "SPYRE_COMMS_PORT": str(free_port())}


TCP = {"SPYRE_LINKS": "tcp"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(sdk: Sdk, size: int) -> None:
    running = ranks(sdk, size, 29500 + size, "collectives", str(size))
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * size, errors
    assert not list(Path(sdk.environment["SPYRE_RUNTIME_DIR"]).glob("comms-*"))


@pytest.mark.parametrize("meeting", ["files", "port"])
@pytest.mark.parametrize("links", ["auto", "tcp"])
def test_collectives_as_between_hosts(sdk: Sdk, links: str, meeting: str) -> None:
    how = {"SPYRE_LINKS": links} | (several_hosts() if meeting == "port" else {})
    running = ranks(sdk, 3, 29520, "collectives", "3", **how)
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 3, errors


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with two_hosts() as both:
        yield both


def test_two_hosts_of_two_ranks(sdk: Sdk, hosts: list[Host]) -> None:
    running = []
    for rank in range(4):
        world = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
        where = {"MASTER_ADDR": FIRST, "MASTER_PORT": "29550"}
        command = hosts[rank // 2].command(str(sdk.program), "collectives", "4")
        environment = {**sdk.environment, **world, **where}
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors


@pytest.mark.parametrize("variables", [{}, TCP], ids=["auto", "tcp"])
def test_a_killed_rank_is_named(sdk: Sdk, variables: dict[str, str]) -> None:
    running = ranks(sdk, 3, 29530, "killed_rank", **variables)
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0, -signal.SIGKILL, 0], errors


def test_collectives_take_time_on_the_clock(sdk: Sdk) -> None:
    running = ranks(sdk, 2, 29540, "collective_time")
    told = [process.communicate(timeout=LONG) for process in running]
    assert [process.returncode for process in running] == [0] * 2, told
    for output, _ in told:
        took, price = map(float, output.split())
        assert took == pytest.approx(price, rel=0.01)


def test_written_times_are_those_of_the_description() -> None:
    written = (ROOT / "sdk/src/comms/costs.def").read_text()
    assert written == costs.text(), "python -m torch_spyre.sdk.costs > sdk/src/comms/costs.def"


def test_a_port_that_is_taken(sdk: Sdk) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost"}
        sdk.client("wrong_world", **world, SPYRE_COMMS_PORT=port)


def test_two_jobs_at_once(sdk: Sdk) -> None:
    running = [*ranks(sdk, 2, 29510, "collectives", "2"), *ranks(sdk, 2, 29511, "collectives", "2")]
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors


def test_a_job_after_one_that_was_killed(sdk: Sdk) -> None:
    """Its files are still there; their process is not."""
    (alone,) = ranks(sdk, 1, 29512, "count")
    alone.wait(LONG)
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513", "RANK": "1"}
    waiting = subprocess.Popen([str(sdk.program), "nobody_comes"], env={**sdk.environment, **world})
    runtime = Path(sdk.environment["SPYRE_RUNTIME_DIR"])
    while not list(runtime.glob("comms-*/rank-1")):
        assert waiting.poll() is None
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait(LONG)
    running = ranks(sdk, 2, 29513, "collectives", "2")
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 2, errors


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_rank_that_does_not_come(sdk: Sdk, hosts: int, rank: str) -> None:
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29514"}
    where = several_hosts() if hosts == 2 else {}
    sdk.client("nobody_comes", **world, **where, RANK=rank, SPYRE_COMMS_TIMEOUT_S="1")


@pytest.mark.parametrize(
    "world",
    [
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "two"},
        {"WORLD_SIZE": "2", "RANK": "2"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "2", "SPYRE_LINKS": "pigeons"},
    ],
)
def test_wrong_worlds(sdk: Sdk, world: dict[str, str]) -> None:
    sdk.client("wrong_world", **world)
