# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_groups.py: subgroups, coalesced calls, messages, objects, and what a call returns."""

from __future__ import annotations

import ctypes
import datetime
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import MOVING, REDUCING, Case, difference, perform
from processes import run_python
from ranks import Ranks, second_store

from torch_spyre.distributed.groups import groups


def numbers(*shape: int, start: float = 0.0) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + start).to("spyre")


def in_subgroups(cases: list[Case], members: list[list[int]]) -> list[list[torch.Tensor] | None]:
    """All ranks make all groups; members call."""
    made = [dist.new_group(ranks) for ranks in members]
    rank = dist.get_rank()
    return [
        perform(case, group) if rank in ranks else None
        for case in cases
        for group, ranks in zip(made, members, strict=True)
    ]


@pytest.mark.parametrize("links", ["auto", "tcp"])
def test_subgroups(ranks: Ranks, links: str) -> None:
    """Groups that overlap, of one rank, and of all in one call after the other."""
    members = [[0, 2], [1, 3], [3], [0, 1, 2, 3], [1, 2, 3]]
    cases = [Case(kind, torch.float16, (3, 35), seed=5) for kind in (*REDUCING, *MOVING)]
    by_rank = ranks.run(4, in_subgroups, cases, members, links=links)
    for i, case in enumerate(cases):
        for g, here in enumerate(members):
            results = [by_rank[r][i * len(members) + g] for r in here]
            assert difference(case, len(here), results) == "", here


def split(backend: str) -> list[Any]:
    dist.destroy_process_group()
    device = torch.device("spyre", torch.spyre.current_device())
    dist.init_process_group(backend, store=second_store(), rank=_rank(), world_size=4, device_id=device)
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    x = torch.full((3,), float(_rank() + 1)).to("spyre")
    dist.all_reduce(x, group=half)
    part = dist.split_group(split_ranks=[[1, 3]])
    y = torch.full((3,), float(_rank() + 1)).to("spyre")
    if part is not None:
        dist.all_reduce(y, group=part)
    plain = dist.new_group([0, 3])  # made while a device is bound, which makes PyTorch split too
    z = torch.full((3,), float(_rank() + 1)).to("spyre")
    if _rank() in (0, 3):
        dist.all_reduce(z, group=plain)
    return [x.cpu()[0].item(), y.cpu()[0].item(), z.cpu()[0].item(), dist.get_world_size(half)]


def _rank() -> int:
    return int(os.environ["RANK"])


@pytest.mark.parametrize("backend", ["spyreccl", "cpu:gloo,spyre:spyreccl"])
def test_split_group(ranks: Ranks, backend: str) -> None:
    assert ranks.run(4, split, backend) == [
        [3.0, 1.0, 5.0, 2],
        [3.0, 6.0, 2.0, 2],
        [7.0, 3.0, 3.0, 2],
        [7.0, 6.0, 5.0, 2],
    ]


def many_groups() -> int:
    """More ways than a card has streams for links."""
    x = torch.ones(3).to("spyre")
    made = [dist.new_group([0, 1]) for _ in range(40)]
    works = [dist.all_reduce(x, group=g, async_op=True) for g in made]
    other = 1 - dist.get_rank()
    for g in made:
        y = torch.ones(2).to("spyre")
        calls = [dist.P2POp(dist.isend, x, other, g), dist.P2POp(dist.irecv, torch.empty_like(x), other, g)]
        works += dist.batch_isend_irecv(calls)
        works.append(dist.all_reduce(y, group=g, async_op=True))
    for work in works:
        work.wait()
    torch.spyre.synchronize()
    for g in made:
        dist.destroy_process_group(g)
    return int(y.cpu()[0])


def test_many_groups(ranks: Ranks) -> None:
    assert ranks.run(2, many_groups) == [2, 2]


def coalesced() -> list[Any]:
    rank, n = dist.get_rank(), dist.get_world_size()
    tensors = [numbers(3, 5, start=rank), numbers(70, start=10 * rank), numbers(2, 2, start=-rank)]
    dist.all_reduce_coalesced(tensors)
    found = [t.cpu() for t in tensors]
    ins, outs = [numbers(2, 3, start=rank), numbers(5, start=rank)], [torch.zeros(2 * n, 3), torch.zeros(5 * n)]
    outs = [o.to("spyre") for o in outs]
    with dist._coalescing_manager(device=torch.device("spyre"), async_ops=True) as manager:
        for o, i in zip(outs, ins, strict=True):
            dist.all_gather_into_tensor(o, i)
    manager.wait()
    found += [o.cpu() for o in outs]
    outs = [torch.zeros(2).to("spyre") for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("spyre")):
        for o in outs:
            dist.reduce_scatter_tensor(o, numbers(2 * n, start=rank))
    found += [o.cpu() for o in outs]
    together = [numbers(3, start=rank), numbers(4, start=rank)]
    with dist._coalescing_manager(device=torch.device("spyre")):
        for t in together:
            dist.all_reduce(t)
    return found + [t.cpu() for t in together]


@pytest.mark.parametrize("n", [2, 3])
def test_coalesced(ranks: Ranks, n: int) -> None:
    def host(*shape: int, start: float = 0.0) -> torch.Tensor:
        return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + start

    def total(*shape: int, factor: float = 1.0) -> torch.Tensor:
        return sum((host(*shape, start=factor * r) for r in range(n)), torch.zeros(shape))

    for rank, found in enumerate(ranks.run(n, coalesced)):
        part = total(2 * n)[2 * rank : 2 * rank + 2]
        want = [total(3, 5), total(70, factor=10), total(2, 2, factor=-1)]
        want += [torch.cat([host(2, 3, start=r) for r in range(n)]), torch.cat([host(5, start=r) for r in range(n)])]
        want += [part, part, total(3), total(4)]
        assert len(found) == len(want)
        assert all(torch.equal(f, w) for f, w in zip(found, want, strict=True))


def gathered_together() -> list[list[Any]]:
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [numbers(3, start=rank), numbers(0), numbers(2, 2, start=10 * rank)]
    outs = [[torch.zeros_like(t) for t in mine] for _ in range(n)]
    dist.all_gather_coalesced(outs, mine)
    return [[t.cpu() for t in of_rank] for of_rank in outs]


@pytest.mark.filterwarnings("ignore:.*all_gather_coalesced:FutureWarning")
def test_all_gather_coalesced(ranks: Ranks) -> None:
    """Its lists are by rank, those of all_gather by tensor."""
    want = [[torch.arange(3.0) + r, torch.zeros(0), torch.arange(4.0).reshape(2, 2) + 10 * r] for r in range(3)]
    for found in ranks.run(3, gathered_together):
        assert all(torch.equal(f, w) for a, b in zip(found, want, strict=True) for f, w in zip(a, b, strict=True))


def uneven() -> list[Any]:
    rank, n = dist.get_rank(), dist.get_world_size()
    outs = [torch.zeros(r + 1, 3).to("spyre") for r in range(n)]
    dist.all_gather(outs, numbers(rank + 1, 3, start=100 * rank))
    found = [o.cpu() for o in outs]
    give, take = [r + rank for r in range(n)], [r + rank for r in range(n)]
    out = torch.zeros(sum(take), 2).to("spyre")
    dist.all_to_all_single(out, numbers(sum(give), 2, start=100 * rank), take, give)
    return [*found, out.cpu()]


def test_parts_of_different_sizes(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(3, uneven)):
        for peer in range(3):
            assert torch.equal(found[peer], (torch.arange(3.0 * (peer + 1)) + 100 * peer).reshape(-1, 3))
        rows = []
        for peer in range(3):
            sizes = [r + peer for r in range(3)]
            whole = (torch.arange(2.0 * sum(sizes)) + 100 * peer).reshape(-1, 2)
            rows.append(whole.split(sizes)[rank])
        assert torch.equal(found[3], torch.cat(rows))


def messages(size: int) -> list[Any]:
    """Tags out of order, both ways at once, more than a ring holds, anyone's message."""
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    out = [numbers(size, start=rank + tag) for tag in range(3)]
    works = [dist.isend(t, right, tag=tag) for tag, t in enumerate(out)]
    into = [torch.zeros(size).to("spyre") for _ in range(3)]
    for tag in (2, 0, 1):
        works.append(dist.irecv(into[tag], left, tag=tag))
    for work in works:
        work.wait()
    found = [(t.cpu() - torch.arange(size)).unique().tolist() for t in into]
    dist.barrier()
    sources = []
    if rank == 0:
        for _ in range(n - 1):
            t = torch.zeros(2, 3).to("spyre")
            sources.append((dist.recv(t), t.cpu()[0, 0].item()))
    else:
        dist.send(numbers(2, 3, start=rank), 0)
    return [found, sorted(sources)]


@pytest.mark.parametrize("links", ["auto", "tcp"])
@pytest.mark.parametrize("size", [7, 300_001])
def test_messages(ranks: Ranks, size: int, links: str) -> None:
    for rank, (found, sources) in enumerate(ranks.run(3, messages, size, links=links)):
        left = (rank - 1) % 3
        assert found == [[left], [left + 1], [left + 2]]
        assert sources == ([(1, 1.0), (2, 2.0)] if rank == 0 else [])


def swap_views() -> list[Any]:
    """A message fills a view in another form than it left."""
    rank = dist.get_rank()
    base = torch.zeros(9, 70).to("spyre")
    mine, theirs = numbers(70, 4).t() if rank else numbers(4, 70), base[2:6]
    ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [mine.cpu(), base.cpu()]


def test_messages_between_views(ranks: Ranks) -> None:
    (first, in_first), (second, in_second) = ranks.run(2, swap_views)
    assert torch.equal(in_first[2:6], second) and torch.equal(in_second[2:6], first)
    assert not in_first[:2].any() and not in_first[6:].any()


def objects() -> list[Any]:
    rank, n = dist.get_rank(), dist.get_world_size()
    everyone: list[Any] = [None] * n
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 100 * rank})
    told = [{"from": rank}, (1, "two")]
    dist.broadcast_object_list(told, src=1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    gathered: list[Any] | None = [None] * n if rank == 2 else None
    dist.gather_object(rank * 11, gathered, dst=2)
    return [[len(e["text"]) for e in everyone], told, mine, gathered]


def test_objects(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(3, objects)):
        assert found == [[0, 100, 200], [{"from": 1}, (1, "two")], [f"for {rank}"], [0, 11, 22] if rank == 2 else None]


def objects_over_cards() -> list[Any]:
    """In a group that has cards only, objects travel as bytes on the card."""
    dist.destroy_process_group()
    dist.init_process_group(store=second_store(), rank=_rank(), world_size=2, device_id=torch.device("spyre", _rank()))
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, ["a" * (70 * _rank() + 1)])
    told = [_rank()]
    dist.broadcast_object_list(told, src=1)
    dist.send_object_list([5], 1) if _rank() == 0 else dist.recv_object_list(told, 0)
    dist.barrier()
    return [[len(e[0]) for e in everyone], told, dist.get_backend()]


def test_objects_over_cards(ranks: Ranks) -> None:
    found = ranks.run(2, objects_over_cards)
    assert [f[:2] for f in found] == [[[1, 71], [1]], [[1, 71], [5]]]
    assert "spyreccl" in found[0][2]


def monitored() -> str:
    """PyTorch keeps it to Gloo; the CPU half of a group has it."""
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).monitored_barrier(
        datetime.timedelta(seconds=100), wait_all_ranks=True
    )
    return "passed"


def test_monitored_barrier(ranks: Ranks) -> None:
    assert ranks.run(3, monitored) == ["passed"] * 3


def early(path: str) -> list[Any]:
    """The first rank's call returns, and other streams compute, while its peer has not come."""
    came = Path(path)
    if dist.get_rank() == 1:
        while not came.exists():
            time.sleep(0.01)
        x = numbers(300, 300)
        dist.all_reduce(x)
        return [x.cpu()[0, :2].tolist()]
    x = numbers(300, 300, start=1)
    work = dist.all_reduce(x, async_op=True)
    before = work.is_completed()
    side = torch.spyre.Stream()
    with torch.spyre.stream(side):
        y = numbers(64, 64) @ torch.eye(64).to("spyre")
        side.synchronize()
        computed = torch.equal(y.cpu(), torch.arange(64.0 * 64).reshape(64, 64))
    work.wait()  # orders the stream; the host goes on
    after = x + 1
    waited = work.is_completed()
    came.touch()
    return [before, computed, waited, after.cpu()[0, :2].tolist(), work.is_completed(), work.is_success()]


def test_a_call_returns_before_its_peer_comes(ranks: Ranks, tmp_path: Any) -> None:
    first, second = ranks.run(2, early, str(tmp_path / "came"))
    assert first == [False, True, False, [2.0, 4.0], True, True]
    assert second == [[1.0, 3.0]]


def barrier_waits(path: str) -> bool:
    """Of the cards: in a group that has Gloo too, PyTorch asks Gloo."""
    if dist.get_rank() == 1:
        time.sleep(0.3)
        Path(path).touch()
    work = dist.barrier(dist.new_group(backend="spyreccl"), async_op=True)
    work.wait()
    return Path(path).exists()


def test_a_barrier_stops_the_host(ranks: Ranks, tmp_path: Any) -> None:
    assert ranks.run(2, barrier_waits, str(tmp_path / "there")) == [True, True]


def futures() -> list[Any]:
    x = numbers(5, start=dist.get_rank())
    work = dist.all_reduce(x, async_op=True)
    then = work.get_future().then(lambda f: f.value()[0] + 1)
    y = then.wait()
    return [y.cpu().tolist(), len(work.result())]


def test_futures(ranks: Ranks) -> None:
    assert ranks.run(2, futures) == [[[2.0, 4.0, 6.0, 8.0, 10.0], 1]] * 2


def counts() -> list[dict[str, int]]:
    made = dist.new_group([0, 1], backend="spyreccl")
    x = numbers(1000)
    dist.all_reduce(x, group=made)
    dist.barrier(made)
    name = made.group_name
    return [g.links.traffic() for g in groups() if g.name == name]


def test_traffic_is_counted(ranks: Ranks) -> None:
    for found in ranks.run(2, counts):
        assert found == [{"collectives": 2, "messages": 0, "sent_bytes": 4000, "received_bytes": 4000}]


def names_after_a_new_world() -> list[str]:
    dist.new_group([0, 1])
    dist.destroy_process_group()
    dist.init_process_group("spyreccl", store=second_store(), rank=_rank(), world_size=2)
    return [*[group.name for group in groups()][-1:], dist.group.WORLD.group_name]


def test_a_world_made_again_comes_last(ranks: Ranks) -> None:
    """It has the name of the first one."""
    for last, world in ranks.run(2, names_after_a_new_world):
        assert last == world


def bytes_kept_by_calls(calls: int) -> int:
    """By the C++ part of this process, in the thread that makes the calls."""
    x = numbers(3)

    def call() -> None:
        dist.all_reduce(x)
        torch.spyre.synchronize()

    def used() -> int:
        return int(_mallinfo().uordblks)

    for _ in range(100):
        call()
    before = used()
    for _ in range(calls):
        call()
    return used() - before


def _mallinfo() -> ctypes.Structure:
    fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    info = type("Mallinfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields]})
    function = ctypes.CDLL(None).mallinfo2
    function.restype = info
    return function()


def test_calls_without_computation_keep_no_memory(ranks: Ranks) -> None:
    """The clock of a stream that only waits for collectives forgets those that have ended."""
    calls = 1000
    assert sum(ranks.run(2, bytes_kept_by_calls, calls)) < 50 * calls


@pytest.mark.parametrize("backend", [None, "spyreccl", "cpu:gloo,spyre:spyreccl"])
def test_a_destroyed_group_says_nothing(backend: str | None) -> None:
    """PyTorch warns of groups whose default backend is one that they do not have."""
    ended = run_python(
        f"""
        import torch, torch.distributed as dist
        dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)
        dist.new_group([0])
        dist.all_reduce(torch.ones(2, device="spyre"))
        dist.destroy_process_group()
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")
