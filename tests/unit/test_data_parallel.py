# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_data_parallel.py
"""`torch.nn.DataParallel` over one card and over two, and the functions of torch.nn.parallel below it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import comm

# One FMA chain of at most 16 terms on either side.
TOLERANCE = 16 * 2.0**-23


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def check_network(cards: int) -> None:
    """Results and gradients are those of the CPU, for inputs on the host and on the card."""
    x = torch.randn(7, 8)
    reference = network()
    expected = reference(x)
    expected.square().sum().backward()
    parallel = nn.DataParallel(network().to("spyre:0"))
    assert parallel.device_ids == list(range(cards))
    for given in (x, x.to("spyre:0")):
        parallel.zero_grad()
        found = parallel(given)
        assert found.device == torch.device("spyre", 0)
        found.square().sum().backward()
        close(found, expected)
        for ours, theirs in zip(parallel.module.parameters(), reference.parameters(), strict=True):
            close(ours.grad, theirs.grad)


def close(found: Tensor | None, expected: Tensor | None) -> None:
    assert found is not None and expected is not None
    assert (found.cpu() - expected).abs().max() <= TOLERANCE * expected.abs().max() * 8


def test_one_card() -> None:
    check_network(1)


def check_functions() -> None:
    x = torch.arange(10, dtype=torch.float32).view(5, 2)
    here, there = torch.device("spyre", 0), torch.device("spyre", 1)
    parts = comm.scatter(x, [0, 1])
    assert [p.device for p in parts] == [here, there] and [len(p) for p in parts] == [3, 2]
    assert [p.tolist() for p in comm.scatter(x, [1, 0], [1, 4])] == [x[:1].tolist(), x[1:].tolist()]
    assert torch.equal(comm.gather(parts, destination="cpu"), x)
    whole = comm.gather(parts, destination=1)
    assert whole.device == there and torch.equal(whole.cpu(), x)
    out = (torch.empty(3, 2, device=here), torch.empty(2, 2, device=there))
    assert torch.equal(comm.gather(comm.scatter(x, out=out), out=torch.empty(5, 2, device=here)).cpu(), x)
    copies = comm.broadcast(x.to(here), [0, 1])
    assert [c.device for c in copies] == [here, there] and all(torch.equal(c.cpu(), x) for c in copies)
    assert torch.equal(comm.broadcast(x.to(here), out=[torch.zeros(5, 2, device=there)])[0].cpu(), x)
    assert torch.equal(comm.reduce_add([*copies], 0).cpu(), 2 * x)
    assert copy.deepcopy(copies[1]).device == there


@pytest.mark.parametrize("check", ["check_network(2)", "check_functions()"])
def test_two_cards(check: str) -> None:
    run = f"import sys; sys.path[:0] = {sys.path!r}; from test_data_parallel import *; {check}"
    environment = {**os.environ, "AIU_WORLD_SIZE": "2", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_a_card_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match=r"index 1"):
        nn.DataParallel(network().to("spyre"), device_ids=[0, 1])(torch.randn(4, 8).to("spyre"))
