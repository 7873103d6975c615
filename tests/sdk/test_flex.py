# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_flex.py

libflex by the clauses of its interface: each case of the client is one process, as the runtime starts once in each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import LONG
from sdk_client import Sdk

ALONE = (
    "addresses",
    "addresses_outlive_the_runtime",
    "codes_of_constants",
    "constants",
    "conversion_as_text",
    "convert_checks",
    "count_opens_nothing",
    "fill",
    "fork_after_the_start",
    "fork_before_the_start",
    "freed_memory_comes_back",
    "hcm",
    "host_callbacks",
    "lost_card",
    "memory_pressure",
    "more_than_eight_dims",
    "seventy_three_streams",
    "start_once",
    "sticky_errors",
    "transfer_callbacks",
    "wrong_arguments",
)


@pytest.mark.parametrize("case", ALONE)
def test_case(sdk: Sdk, case: str) -> None:
    sdk.client(case)


def test_every_case_is_run(sdk: Sdk) -> None:
    with_arguments = {
        "bound_tensors", "collective_time", "collectives", "convert", "count", "job_errors", "killed_rank", "launches",
        "nobody_comes", "profile", "run", "sanitized", "time_copies", "time_launches", "uint8", "wait_for_the_end",
        "wrong_world",
    }  # fmt: skip
    assert set(sdk.client().split()) == with_arguments | set(ALONE)


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 8),
        ({"AIU_WORLD_SIZE": "2"}, 2),
        ({"AIU_WORLD_SIZE": "0"}, 0),
        ({"AIU_WORLD_SIZE": "9"}, 8),
        ({"AIU_WORLD_SIZE": "many"}, 8),
        ({"AIU_WORLD_SIZE": "-3"}, 8),
        ({"SPYRE_DEVICES": "0,2,2, 5,99,-1,x"}, 3),
        ({"SPYRE_DEVICES": "0,1,2,3", "AIU_WORLD_SIZE": "2"}, 2),
        ({"SPYRE_DEVICES": "7", "AIU_WORLD_SIZE": "2"}, 0),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "20"}, 20),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "3", "SPYRE_DEVICES": "0"}, 3),
        ({"FLEX_DEVICE": "PF"}, 8),
    ],
)
def test_count(sdk: Sdk, variables: dict[str, str], count: int) -> None:
    assert int(sdk.client("count", **variables)) == count


def test_env_script(sdk: Sdk) -> None:
    """Everything the checkout's build looks for exists in the prefix."""
    names = "RUNTIME SENLIB DEEPTOOLS SPYRE_COMMS LIBAIUPTI".split()
    text = " ".join(f"${name}_INSTALL_DIR" for name in names)
    done = sdk.run(
        "bash", "-c", f". {sdk.prefix}/env.sh; echo {text}; command -v dxp_standalone; echo $LD_LIBRARY_PATH"
    )
    folders, command, path = done.stdout.splitlines()
    assert set(folders.split()) == {str(sdk.prefix)} and command == str(sdk.prefix / "bin" / "dxp_standalone")
    assert path.split(":")[0] == str(sdk.prefix / "lib")
    libraries = {file.name for file in (sdk.prefix / "lib").iterdir()}
    wanted = {f"lib{name}.so" for name in ("flex", "spyre_comms", "aiupti", "sendnn", "sendnn_interface", "spyre_card")}
    assert libraries == wanted


def test_spyre_smi_shows_the_process(sdk: Sdk, tmp_path: Path) -> None:
    environment = {**sdk.environment, "SPYRE_RUNTIME_DIR": str(tmp_path / "run"), "SPYRE_SMI_INTERVAL": "0.05"}
    command = [sys.executable, "-m", "torch_spyre.smi.cli", "--json"]
    with subprocess.Popen([str(sdk.program), "wait_for_the_end"], stdin=subprocess.PIPE, env=environment) as process:
        shown: list[dict[str, object]] = []
        while not shown:
            assert process.poll() is None
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG)
            shown = json.loads(done.stdout)["cards"] if done.returncode == 0 and done.stdout else []
            shown = [card for card in shown if card["memory_used_bytes"] == 1 << 20]
    (card,) = shown
    assert (card["pid"], card["device"], card["launches"]) == (process.pid, 0, 0)
    assert process.returncode == 0


def test_timed_cases_print_seconds(sdk: Sdk) -> None:
    """What benchmarks/sdk.py reads: a name and seconds in each line."""
    lines = [line.split() for line in sdk.client("time_copies", 1, 1).splitlines()]
    assert len(lines) == 12 and len({name for name, _ in lines}) == 12
    assert all(float(seconds) > 0 for _, seconds in lines)
