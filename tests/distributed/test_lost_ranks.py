# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_lost_ranks.py: ranks that die, disagree, come late or are placed wrongly get a named
error; nothing hangs and nothing stays behind."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_python
from ranks import Outcome, Ranks, leave

from torch_spyre.errors import CollectiveMismatch, CollectiveTimeout, InvalidArgument, PeerLost

LINKS = ["auto", "tcp"]


def numbers(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to("spyre")


def segments() -> list[Path]:
    """Shared memory of links that this process holds."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            link = Path("/proc/self/fd") / name
            found += [link] if "spyre-links" in os.readlink(link) else []
    return found


def goes_on() -> list[float]:
    """After a failure: the group can be destroyed, and the card computes."""
    leave()
    assert segments() == []
    return (numbers(3, 4) + numbers(3, 4)).cpu().unique().tolist()


def one_dies(when: str, size: int, victim: int) -> None:
    x = numbers(size)
    dist.all_reduce(x)
    torch.spyre.synchronize()
    if dist.get_rank() == victim:
        if when == "in":
            dist.all_reduce(x, async_op=True)
        elif when == "after":
            dist.all_reduce(x)
            torch.spyre.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        dist.all_reduce(x)
        torch.spyre.synchronize()


def lost(outcome: Outcome | None, rank: int) -> bool:
    return outcome is not None and isinstance(outcome.error, PeerLost) and f"rank {rank} " in str(outcome.error)


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_a_killed_rank_is_named(ranks: Ranks, when: str, links: str) -> None:
    """Of small data, which travels with its letter, or large, which takes several steps."""
    size = 100 if (when == "in") == (links == "tcp") else 400_000
    outcomes = ranks.outcomes(3, one_dies, when, size, 1, links=links)
    assert outcomes[1] is None
    for outcome in (outcomes[0], outcomes[2]):  # the later one may have heard of it from the other
        assert outcome is not None and isinstance(outcome.error, PeerLost), outcome
        assert "rank 1 " in str(outcome.error), outcome.error
    alone(ranks, 1)


def alone(ranks: Ranks, n: int) -> None:
    assert [o and (o.error or o.value) for o in ranks.alone(n, goes_on)] == [[2.0]] * n


def dies_in_a_message(victim: int) -> None:
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(numbers(5), victim)
    torch.spyre.synchronize()


@pytest.mark.parametrize("links", LINKS)
def test_a_killed_sender_is_named(ranks: Ranks, links: str) -> None:
    outcomes = ranks.outcomes(2, dies_in_a_message, 1, links=links)
    assert lost(outcomes[0], 1)


def disagree(how: str) -> None:
    odd = dist.get_rank() == 1
    x = numbers(4, 5)
    if how == "kind":
        dist.all_reduce(x) if odd else dist.broadcast(x, 0)
    elif how == "size":
        dist.all_reduce(numbers(7) if odd else x)
    elif how == "large size":
        dist.all_reduce(numbers(400_000) if odd else x)
    elif how == "two large sizes":
        dist.all_reduce(numbers(400_000 if odd else 400_001))
    elif how == "dtype":
        dist.all_reduce(x.to(torch.int32) if odd else x)
    elif how == "root":
        dist.broadcast(x, 1 if odd else 0)
    elif how == "op":
        dist.all_reduce(x, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
    elif how == "order":
        calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0)]
        for call in reversed(calls) if odd else calls:
            call()
    elif how == "message":
        if odd:
            dist.send(numbers(3), 0)
        elif dist.get_rank() == 0:
            dist.recv(x, 1)
    torch.spyre.synchronize()


BOTH = {
    "kind": ("all_reduce(sum) of Float [4, 5]", "broadcast of Float [4, 5], root 0"),
    "size": ("Float [4, 5]", "Float [7]"),
    "large size": ("Float [4, 5]", "Float [400000]"),
    "two large sizes": ("Float [400000]", "Float [400001]"),
    "dtype": ("Float [4, 5]", "Int [4, 5]"),
    "root": ("root 0", "root 1"),
    "op": ("all_reduce(sum)", "all_reduce(max)"),
    "order": ("all_reduce(sum) of Float [4, 5]", "broadcast of Float [4, 5], root 0"),
    "message": ("Float [4, 5]", "Float [3]"),
}


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("how", BOTH)
def test_ranks_that_disagree(ranks: Ranks, how: str, links: str) -> None:
    """Each hears what the other called; data of neither is mixed up."""
    n = 2 if how == "message" else 3
    outcomes = ranks.outcomes(n, disagree, how, links=links)
    told = [o.error for o in outcomes if o and o.error]
    assert isinstance(told[0], CollectiveMismatch) if told else False, outcomes
    if how != "message":  # its sender has done its part
        assert all(isinstance(e, CollectiveMismatch | PeerLost) for e in told) and len(told) == n, outcomes
    for error in told:
        if isinstance(error, CollectiveMismatch):
            assert all(text in str(error) for text in BOTH[how]), error
    alone(ranks, n)


def disagree_while_one_is_away() -> None:
    """Two disagree, the third never comes."""
    if dist.get_rank() < 2:
        dist.all_reduce(numbers(3 + dist.get_rank()))
        torch.spyre.synchronize()


def test_who_disagrees_need_not_wait_for_the_rest(ranks: Ranks) -> None:
    outcomes = ranks.outcomes(3, disagree_while_one_is_away)
    assert [type(o.error) if o else None for o in outcomes] == [CollectiveMismatch, CollectiveMismatch, type(None)]


def one_is_late(path: str) -> None:
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(numbers(5))
            torch.spyre.synchronize()
        finally:
            Path(path).touch()
    else:
        while not Path(path).exists():
            signal.sigtimedwait([], 0.05)


@pytest.mark.parametrize("links", LINKS)
def test_the_timeout_of_a_group(ranks: Ranks, links: str, tmp_path: Path) -> None:
    """Ten seconds, in which ranks find each other on a busy machine too."""
    outcomes = ranks.outcomes(2, one_is_late, str(tmp_path / "told"), links=links, timeout=10.0)
    assert outcomes[0] and isinstance(outcomes[0].error, CollectiveTimeout), outcomes
    assert "waited 10" in str(outcomes[0].error) and "for rank 1" in str(outcomes[0].error)
    alone(ranks, 2)


def wait_with_a_limit(path: str) -> str:
    x = numbers(5)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait(datetime.timedelta(milliseconds=100))
        except CollectiveTimeout as error:
            Path(path).touch()
            work.wait()
            assert x.cpu()[0] == 2
            return str(error)
        return ""
    while not Path(path).exists():
        signal.sigtimedwait([], 0.05)
    dist.all_reduce(x)
    return str(x.cpu()[0].item())


def test_a_wait_with_a_limit(ranks: Ranks, tmp_path: Path) -> None:
    """The wait ends; the collective goes on."""
    told, value = ranks.run(2, wait_with_a_limit, str(tmp_path / "told"))
    assert "all_reduce did not end within 100 ms" in told and value == "2.0"


def leaves_early() -> None:
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return
    dist.all_reduce(numbers(4))
    torch.spyre.synchronize()


def test_a_rank_that_leaves_is_named(ranks: Ranks) -> None:
    outcomes = ranks.outcomes(2, leaves_early)
    assert lost(outcomes[0], 1) and outcomes[1] and outcomes[1].error is None
    assert "destroy_process_group" in str(outcomes[0] and outcomes[0].error)


def groups_come_and_go() -> tuple[int, int, int]:
    inside = []
    for _ in range(5):
        made = dist.new_group()
        dist.all_reduce(numbers(3), group=made)
        inside.append(len(segments()))
        dist.destroy_process_group(made)
    before = len(segments())
    leave()
    return min(inside) - before, max(inside) - before, len(segments())


def test_no_segment_stays(ranks: Ranks) -> None:
    """Two ranks: a mailbox of one's own and one of the peer."""
    assert ranks.run(2, groups_come_and_go) == [(2, 2, 0)] * 2
    ranks.dissolve()  # the ranks have left it themselves


def owners() -> list[int]:
    return [os.stat(link).st_uid for link in segments()]


def test_segments_are_the_users_own(ranks: Ranks) -> None:
    assert all(owner == os.getuid() for found in ranks.run(2, owners) for owner in found)
    assert not [name for name in os.listdir("/dev/shm") if "spyre-links" in name]


def refused(call: str) -> str:
    """A wrong call of one rank raises at once and leaves the group as it was."""
    x, n = numbers(4), dist.get_world_size()
    own = dist.group.WORLD._get_backend(x.device)
    calls: dict[str, Any] = {
        "float bits": lambda: dist.all_reduce(x, dist.ReduceOp.BAND),
        "bool average": lambda: dist.all_reduce(x.bool(), dist.ReduceOp.AVG),
        "premul": lambda: dist.all_reduce(x, dist._make_nccl_premul_sum(2.0)),
        "overlap": lambda: dist.all_reduce(numbers(1).expand(4)),
        "parts": lambda: dist.all_gather_into_tensor(numbers(9), x),
        "list": lambda: dist.all_gather([numbers(4)], x),
        "splits": lambda: dist.all_to_all_single(x, x, [1] * (n + 1), [1] * (n + 1)),
        "dtypes": lambda: dist.all_gather([numbers(4).to(torch.int32)] * n, x),
        "itself": lambda: own.send([x], dist.get_rank(), 0),
    }
    try:
        calls[call]()
    except Exception as error:
        dist.all_reduce(x)
        assert x.cpu()[0] == n
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        ("float bits", "InvalidArgument", "whole numbers and booleans"),
        ("bool average", "InvalidArgument", "cannot average booleans"),
        ("premul", "UnsupportedOp", "PREMUL_SUM"),
        ("overlap", "RuntimeError", "single memory location"),
        ("parts", "InvalidArgument", "9 elements"),
        ("list", "InvalidArgument", "2"),
        ("splits", "InvalidArgument", "split sizes"),
        ("dtypes", "", ""),
        ("itself", "InvalidArgument", "copy the tensor"),
    ],
)
def test_wrong_calls(ranks: Ranks, call: str, kind: str, text: str) -> None:
    for told in ranks.run(2, refused, call):
        assert told != "no error" and told.startswith(kind) and text in told, told


MAKE = """
    import torch, torch.distributed as dist
    try:
        dist.init_process_group("spyre:spyreccl", init_method="file://{file}", rank=0, world_size=1)
        print("made")
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, ["LOCAL_RANK is not set", "torchrun"]),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"}, ["LOCAL_RANK is 2", "0..1"]),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "one"}, ["LOCAL_RANK", "'one'", "whole number"]),
        (
            {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "AIU_WORLD_SIZE": "2"},
            ["LOCAL_RANK is 3", "2 cards"],
        ),
    ],
)
def test_wrong_variables_of_a_launcher(variables: dict[str, str], texts: list[str], tmp_path: Path) -> None:
    done = run_python(MAKE.format(file=tmp_path / "store"), **variables)
    assert done.stdout.startswith(InvalidArgument.__name__) or done.returncode, done
    assert all(text in done.stdout + done.stderr for text in texts), done
