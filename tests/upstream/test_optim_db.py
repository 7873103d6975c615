# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_optim_db.py [-m slow]
"""Three steps of every optimiser of PyTorch's own list, plain, foreach and fused, against the CPU; none on the host."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

from torch_spyre.ops import fallbacks

# SparseAdam takes sparse gradients, which the card does not have.
INFOS = {info.optim_cls.__name__: info for info in optim_db if info.optim_cls.__name__ != "SparseAdam"}
SHAPES: dict[str, list[tuple[int, ...]]] = {"Muon": [(6, 70), (70, 6)]}  # matrices only
TOLERANCE = {"Muon": 2**-8}  # its matrices are bfloat16
QUICK = ("SGD",)


def forms(name: str) -> Iterator[dict[str, Any]]:
    """The hyperparameters that PyTorch tests, in each way to take a step; a tensor as lr; steps counted on the card."""
    info = INFOS[name]
    ways: list[dict[str, Any]] = [{}]
    if "foreach" in info.supported_impls:
        ways += [{"foreach": True}, {"foreach": False}]
    if "fused" in info.supported_impls:
        ways.append({"fused": True})
    given = [dict(i.kwargs) for i in info.optim_inputs_func(device="cpu")]
    if "capturable" in inspect.signature(info.optim_cls).parameters:
        given.append({"capturable": True})
        if info.has_capturable_arg and isinstance(given[0].get("lr", 0.0), float):
            given.append({"capturable": True, "lr": torch.tensor(0.01)})
    for kwargs in given:
        yield from ({**kwargs, **way} for way in ways if not kwargs.get("differentiable") or not any(way.values()))


def steps(name: str, kwargs: dict[str, Any], device: str) -> list[torch.Tensor]:
    seeds = torch.Generator().manual_seed(0)
    shapes = SHAPES.get(name, [(5,), (4, 70), (3, 2, 5), ()])
    learned = [nn.Parameter(torch.randn(s, generator=seeds).to(device)) for s in shapes]
    there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    optimiser = INFOS[name].optim_cls(learned, **there)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = sum(((p**2 + p.sin()).sum() for p in learned), torch.zeros((), device=device))
        loss.backward()
        return loss

    for _ in range(3):
        for p in learned:
            p.grad = torch.randn(p.shape, generator=seeds).to(device)
        optimiser.step(closure if name == "LBFGS" else None)
    return [p.detach().cpu() for p in learned]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in INFOS])
def test_optimiser(name: str) -> None:
    for kwargs in forms(name):
        plain = {k: v for k, v in kwargs.items() if k != "capturable"}  # refused for tensors of the CPU
        try:
            wanted = steps(name, plain, "cpu")
        except ValueError:  # a tensor as lr, with foreach: only where steps are counted on the device
            wanted = steps(name, {**plain, "lr": float(plain["lr"])}, "cpu")
        with fallbacks.disabled():
            found = steps(name, kwargs, "spyre")
        for got, want in zip(found, wanted, strict=True):
            scale = max(1.0, want.abs().max().item())
            off = (got - want).abs().max().item()
            assert off <= TOLERANCE.get(name, 2**-16) * scale, f"{kwargs}: off by {off:.3g}"
