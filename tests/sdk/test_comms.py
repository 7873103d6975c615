# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_comms.py

spyre_comms between processes: every call, with values that say which rank they come from.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import LONG
from sdk_client import Sdk


def ranks(sdk: Sdk, size: int, port: int, *case: str) -> list[subprocess.Popen[str]]:
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [str(sdk.program), *case],
            env={**sdk.environment, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(sdk: Sdk, size: int) -> None:
    running = ranks(sdk, size, 29500 + size, "collectives", str(size))
    errors = [process.communicate(timeout=LONG)[1] for process in running]
    assert [process.returncode for process in running] == [0] * size, errors
    assert not list(Path(sdk.environment["SPYRE_RUNTIME_DIR"]).glob("comms-*"))


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


def test_a_rank_that_does_not_come(sdk: Sdk) -> None:
    sdk.client("nobody_comes", WORLD_SIZE="2", RANK="0", MASTER_PORT="29514", SPYRE_COMMS_TIMEOUT_S="1")


@pytest.mark.parametrize(
    "world",
    [
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "two"},
        {"WORLD_SIZE": "2", "RANK": "2"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0"},
    ],
)
def test_wrong_worlds(sdk: Sdk, world: dict[str, str]) -> None:
    sdk.client("wrong_world", **world)
