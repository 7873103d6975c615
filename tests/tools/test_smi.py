# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tools/test_smi.py

spyre-smi: one process opens a card, this one looks at it; dead processes and foreign files do not count.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_spyre import files, status_files
from torch_spyre.smi import cli

CHILD = """
import os, sys, torch
x = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")
y = x + x
torch.spyre.synchronize()
from torch_spyre.device import publish
publish.publish()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPYRE_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def child(runtime_dir: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "torch_spyre.smi.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=1500).stdout


def test_another_process_sees_the_card(child: subprocess.Popen[str]) -> None:
    (card,) = json.loads(run("--json"))["cards"]
    assert (card["pid"], card["device"]) == (child.pid, 0)
    assert card["memory_used_bytes"] == 2 * (2 << 20)
    assert card["memory_total_bytes"] == 112 << 30
    for name in status_files.COUNTERS:
        assert card[name] is None or card[name] >= 0
    table = run()
    assert str(child.pid) in table and "spyre:0" in table and "4.0 MiB" in table


RANK = """
import sys, torch, torch.distributed as dist
dist.init_process_group(rank=int(sys.argv[2]), world_size=2, store=dist.FileStore(sys.argv[1], 2))
x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
dist.all_reduce(x)
torch.spyre.synchronize()
from torch_spyre.device import publish
publish.publish()
print("ready", flush=True)
sys.stdin.readline()
dist.destroy_process_group()
"""


def test_ranks_links_and_traffic(runtime_dir: Path, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", RANK, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(r)], stdin=pipe, stdout=pipe, text=True) for r in range(2)]
    try:
        assert [process.stdout and process.stdout.readline() for process in ranks] == ["ready\n"] * 2
        groups = {group["pid"]: group for group in json.loads(run("--json"))["groups"]}
        for number, process in enumerate(ranks):
            group = groups[process.pid]
            assert (group["rank"], group["ranks"], group["collectives"]) == (number, [0, 1], 1)
            assert sorted(group["links"]) == ["itself", "shared memory"]
            assert (group["sent_bytes"], group["received_bytes"]) == (512, 512)
        table = run()
        assert "1 shared memory" in table and "0 of 2" in table and "1 of 2" in table
        for process in ranks:
            process.communicate("\n", timeout=1500)
        assert [process.returncode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_the_file_goes_when_the_process_ends(child: subprocess.Popen[str], runtime_dir: Path) -> None:
    assert (runtime_dir / f"{child.pid}.json").exists()
    child.communicate("\n", timeout=1500)
    assert child.returncode == 0
    assert list(runtime_dir.glob("*.json")) == []
    assert json.loads(run("--json"))["cards"] == []
    assert "No process" in run()


def test_a_killed_process_does_not_count(child: subprocess.Popen[str], runtime_dir: Path) -> None:
    child.kill()
    child.wait()
    assert status_files.processes() == []
    assert list(runtime_dir.glob("*.json")) == []


def test_a_forked_child_leaves_the_file_of_its_parent(runtime_dir: Path) -> None:
    fork = """
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
assert publish._path.exists()
"""
    code = CHILD.replace("sys.stdin.readline()", fork)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500, stdout=subprocess.DEVNULL)


def test_dmon(child: subprocess.Popen[str]) -> None:
    lines = run("dmon", "-d", "0.1", "-c", "2").splitlines()
    assert lines[0].startswith("#") and lines[0].split()[:3] == ["#", "pid", "dev"]
    assert [line.split()[:2] for line in lines[1:]] == [[str(child.pid), "0"]] * 2
    rows = [json.loads(line) for line in run("dmon", "-d", "0.1", "-c", "2", "--json").splitlines()]
    assert [row["cards"][0]["memory_mib"] for row in rows] == [4.0, 4.0]


def test_the_command_imports_no_torch(runtime_dir: Path) -> None:
    code = "import sys; from torch_spyre.smi import cli; cli.main(['--json']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500, stdout=subprocess.DEVNULL)


def record(pid: int, **changes: Any) -> dict[str, Any]:
    counters: dict[str, int | None] = dict.fromkeys(status_files.COUNTERS)
    card = {
        "device": 0,
        "name": "card",
        "memory_total_bytes": 2**30,
        "memory_used_bytes": 2**20,
        "memory_peak_bytes": 2**20,
        "counters": counters,
    }
    ticks = status_files.start_ticks(pid)
    return {"pid": pid, "start_ticks": ticks, "name": "x", "time": time.time(), "cards": [card], **changes}


def test_foreign_and_stale_files(runtime_dir: Path) -> None:
    folder = status_files.directory(create=True)
    me = os.getpid()
    status_files.write(folder / f"{me}.json", record(me, start_ticks=1))  # the pid was used again
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text('{"pid": 1}')
    assert status_files.processes() == []
    status_files.write(folder / f"{me}.json", record(me))
    assert [r["pid"] for r in status_files.processes()] == [me]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def link(path: Path) -> None:
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to(path.parent / "real")


def plain_file(path: Path) -> None:
    path.touch(mode=0o600)


def readable(path: Path) -> None:
    path.mkdir(mode=0o755)


def foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "make", [link, plain_file, readable, foreign] if os.geteuid() == 0 else [link, plain_file, readable]
)
def test_only_a_private_directory_of_this_user_counts(
    make: Callable[[Path], None], runtime_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(runtime_dir)
    for create in (False, True):
        with pytest.raises(PermissionError, match=r"SPYRE_RUNTIME_DIR to a directory of your own with mode 0700"):
            status_files.directory(create)
    assert cli.main(["--json"]) == 1
    assert str(runtime_dir) in capsys.readouterr().err
    code = CHILD.replace("sys.stdin.readline()", "assert publish._path is None or not publish._path.exists()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0 and "spyre-smi will not see this process" in done.stderr


def fifo(path: Path) -> None:
    os.mkfifo(path)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def incomplete(path: Path) -> None:
    me = os.getpid()
    path.write_text(json.dumps(record(me, cards=[{"device": 0}])))


@pytest.mark.parametrize("make", [fifo, nested, endless, incomplete])
def test_files_that_kill_or_hang_a_reader(make: Callable[[Path], None], runtime_dir: Path) -> None:
    folder = status_files.directory(create=True)
    me = os.getpid()
    status_files.write(folder / f"{me}.json", record(me))
    make(folder / "1.json")
    assert [row["pid"] for row in cli.cards()] == [me]


def test_a_failed_write_leaves_nothing(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = status_files.directory(create=True)
    monkeypatch.setattr(files, "write_private", full)
    with pytest.raises(OSError, match="No space"):
        status_files.write(folder / "1.json", {})
    assert list(folder.iterdir()) == []


def test_rates_and_missing_counters() -> None:
    row: dict[str, Any] = {"pid": 1, "device": 0, "memory_used_bytes": 2**20, "time": 10.0}
    row |= dict.fromkeys(status_files.COUNTERS)
    assert cli._sample(row, row)["busy_percent"] is None
    before = row | {name: 0 for name in status_files.COUNTERS}
    now = before | {"time": 12.0, "dma_in_bytes": 4_000_000, "launches": 10, "busy_ns": 25, "clock_ns": 100}
    sample = cli._sample(now, before)
    assert (sample["dma_in_mb_s"], sample["launches_s"], sample["busy_percent"]) == (2.0, 5.0, 25.0)
    assert cli._sample(now, None)["launches_s"] is None


def test_publishing_can_be_switched_off(runtime_dir: Path) -> None:
    code = CHILD.replace("sys.stdin.readline()", "assert publish._path is None")
    env = {**os.environ, "SPYRE_SMI_INTERVAL": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=1500, stdout=subprocess.DEVNULL)
    assert not runtime_dir.exists()


def test_a_directory_that_cannot_be_made_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPYRE_RUNTIME_DIR", str(tmp_path / "file" / "run"))
    code = CHILD.replace("sys.stdin.readline()", "")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500, stdout=subprocess.DEVNULL)
