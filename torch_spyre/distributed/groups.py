# SPDX-License-Identifier: Apache-2.0
"""How ranks find each other: every rank writes into the store where it is, reads where the others are, and connects to
each by the shortest way: shared memory on the same host, TCP else."""

from __future__ import annotations

import atexit
import datetime
import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from torch_spyre import _C, knobs
from torch_spyre.device import publish
from torch_spyre.distributed.launcher_variables import check_environment
from torch_spyre.distributed.weights import place_parts
from torch_spyre.perf.fabric import Fabric, collective_costs


@dataclass(frozen=True)
class Here:
    """Where a rank is: what others must know to reach it."""

    host: str  # equal for processes that can share memory
    process: int
    fd: int
    bytes: int


@dataclass
class Group:
    """A group of this process, for tools."""

    name: str
    rank: int
    ranks: list[int]  # of the world
    links: _C.LinkGroup


def create(store: Any, rank: int, size: int, timeout: float, name: str, world_ranks: list[int]) -> Any:
    """The c10d backend of this rank in a new group. All ranks of the group call it."""
    check_environment()
    place_parts()
    store = _fresh(store, rank)
    links = _C.LinkGroup(
        rank, size, name or "world", world_ranks or list(range(size)), timeout, _costs(size), _may_spin()
    )
    peers = _meet(store, rank, size, Here(_host(), *links.address()))
    gloo = None
    if any(peer.host != peers[rank].host for peer in peers):
        prefix = dist.PrefixStore("gloo", store)
        gloo = dist.ProcessGroupGloo(prefix, rank, size, datetime.timedelta(seconds=timeout))
    for peer, there in enumerate(peers):
        if peer == rank:
            continue
        if there.host == peers[rank].host:
            links.connect(peer, (there.process, there.fd, there.bytes))
        else:
            links.connect_gloo(peer, gloo)
    _wait_for_all(store, size)
    backend = links.backend(timeout)
    group = Group(name or "world", rank, world_ranks or list(range(size)), links)
    _kept.pop(name, None)  # names are given again once a world has been destroyed
    _kept[name] = group
    return backend


# Groups until the process ends; destroyed ones keep their counts.
_kept: dict[str, Group] = {}


def groups() -> list[Group]:
    """The groups that this process is or was a member of, in the order in which they were made."""
    return list(_kept.values())


def status() -> list[dict[str, Any]]:
    """What spyre-smi shows of the groups."""
    return [
        {
            "name": group.name,
            "rank": group.rank,
            "ranks": group.ranks,
            "links": [group.links.link_name(peer) for peer in range(len(group.ranks))],
            **group.links.traffic(),
        }
        for group in groups()
    ]


publish.sections["groups"] = status


def prepare_split() -> None:
    """Gives groups what split_group, which asks for options first, crashes without: a default backend, which groups
    with Gloo and a backend from outside PyTorch's tree may lack; and Gloo's list of ranks, which PyTorch leaves empty
    for every world of a process but the first."""
    for group, ranks in dist.distributed_c10d._world.pg_group_ranks.items():
        if group.name() == "undefined":
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in group._device_types:
            gloo = group._get_backend(device)
            if isinstance(gloo, dist.ProcessGroupGloo) and not gloo.options.global_ranks_in_group:
                gloo.options.global_ranks_in_group = list(ranks)


def _fresh(store: Any, rank: int) -> Any:
    """A part of the store for this round: a world that is destroyed and made again finds what it wrote before."""
    return dist.PrefixStore(f"spyreccl/{store.add(f'spyreccl/rounds/{rank}', 1)}", store)


def _meet(store: Any, rank: int, size: int, here: Here) -> list[Here]:
    store.set(f"here/{rank}", json.dumps(asdict(here)))
    return [Here(**json.loads(store.get(f"here/{peer}"))) for peer in range(size)]


def _wait_for_all(store: Any, size: int) -> None:
    """Until all have opened each other's memory: a rank that ends before would take its own along."""
    if store.add("connected", 1) == size:
        store.set("all_connected", "1")
    store.get("all_connected")


def _host() -> str:
    """The same for processes that see each other's memory: one boot of one machine, one user, one view of processes."""
    if knobs.get("links") == "tcp":
        return f"{socket.gethostname()}/{os.getpid()}"
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = "/".join(os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net"))
    return f"{boot}/{spaces}/{os.getuid()}"


def _may_spin() -> bool:
    """Is there a CPU for each process that may wait here?"""
    return bool(knobs.get("local_processes") <= len(os.sched_getaffinity(0)))


def _costs(cards: int) -> dict[str, tuple[float, float, float, str]]:
    """By kind: start and time per byte in ns, bytes on wires per byte, and the name of the algorithm."""
    costs = collective_costs(cards, Fabric.of())
    return {**costs, "recv": costs["send"]}


@atexit.register
def _leave_groups() -> None:
    """A rank that ends without destroying its groups tells the others."""
    for group in _kept.values():
        group.links.abort("its process ended without destroying the group")
