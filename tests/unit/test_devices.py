# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_devices.py

Which cards a process sees, and several of them in one process. Every test starts a fresh interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

NAMES = ("AIU_WORLD_SIZE", "SPYRE_DEVICES", "FLEX_DEVICE", "LOCAL_RANK")


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**clean, **environment},
    )


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"AIU_WORLD_SIZE": "4"}, 4),
        ({"AIU_WORLD_SIZE": " 3 "}, 3),
        ({"AIU_WORLD_SIZE": "0"}, 0),
        ({"AIU_WORLD_SIZE": "4", "SPYRE_DEVICES": " 0, 2 ,2, 9,-1,x"}, 2),
        ({"AIU_WORLD_SIZE": "2", "SPYRE_DEVICES": "0"}, 1),
        ({"AIU_WORLD_SIZE": "2", "SPYRE_DEVICES": " "}, 2),
        ({"SPYRE_DEVICES": "0,1"}, 1),
        ({"FLEX_DEVICE": "PF", "AIU_WORLD_SIZE": "2"}, 2),
        ({"FLEX_DEVICE": "vf", "AIU_WORLD_SIZE": "2", "SPYRE_DEVICES": "1"}, 1),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "3", "SPYRE_DEVICES": "1"}, 3),
        ({"FLEX_DEVICE": "MOCK"}, 1),
    ],
)
def test_count(environment: dict[str, str], count: int) -> None:
    """Counting starts nothing."""
    source = """
        import torch
        print(torch.spyre.device_count(), torch.accelerator.device_count())
        assert torch.spyre.is_available() == (torch.spyre.device_count() > 0)
        assert not torch.spyre.is_initialized()
        """
    done = run_python(source, **environment)
    assert done.stdout == f"{count} {count}\n", done.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FLEX_DEVICE": "TPU"}, ("FLEX_DEVICE", "TPU", "MOCK")),
        ({"AIU_WORLD_SIZE": "many"}, ("AIU_WORLD_SIZE", "many")),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "0"}, ("MOCK", "AIU_WORLD_SIZE")),
    ],
)
def test_values_that_mean_nothing(environment: dict[str, str], words: tuple[str, ...]) -> None:
    source = """
        import torch
        from torch_spyre.errors import InvalidArgument
        for attempt in (torch.spyre.device_count, lambda: torch.ones(2, device="spyre")):
            try:
                attempt()
            except InvalidArgument as error:
                print(error)
        """
    done = run_python(source, **environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(word in line for line in lines for word in words), done


def test_local_rank_chooses_the_device() -> None:
    source = """
        import threading, torch
        assert torch.spyre.current_device() == 2
        x = torch.ones(3, device="spyre")
        assert x.device.index == 2 and torch.spyre.memory_allocated(2) == 128
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_device()))
        thread.start(); thread.join()
        assert seen == [2]
        torch.spyre.set_device(0)
        assert torch.ones(3, device="spyre").device.index == 0
        """
    done = run_python(source, LOCAL_RANK="2", AIU_WORLD_SIZE="4")
    assert done.returncode == 0, done.stderr


def test_local_rank_past_the_last_card() -> None:
    source = """
        import torch
        assert torch.spyre.device_count() == 2
        try:
            torch.ones(3, device="spyre")
        except RuntimeError as error:
            assert "logical_device_id=5, number of visible devices=2" in str(error), error
        else:
            raise SystemExit("a card that does not exist was used")
        """
    done = run_python(source, LOCAL_RANK="5", AIU_WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr


def test_cards_are_separate() -> None:
    source = """
        import torch
        tensors = [torch.full((64, 64), float(i), dtype=torch.float16, device=f"spyre:{i}") for i in range(3)]
        assert [torch.spyre.memory_allocated(i) for i in range(3)] == [8192] * 3
        assert [int((t + t).cpu()[3, 5]) for t in tensors] == [0, 2, 4]
        del tensors[1]
        assert [torch.spyre.memory_allocated(i) for i in range(3)] == [8192, 0, 8192]
        with torch.spyre.device(1):
            assert torch.empty(2, device="spyre").device.index == 1
            assert torch.spyre.current_device() == 1
        assert torch.spyre.current_device() == 0
        try:
            torch.ones(2, device="spyre:3")
        except RuntimeError as error:
            assert "out of range" in str(error), error
        else:
            raise SystemExit("a fourth card was used")
        """
    done = run_python(source, AIU_WORLD_SIZE="3")
    assert done.returncode == 0, done.stderr
