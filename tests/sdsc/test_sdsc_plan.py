# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_plan.py                (all priority models: -m slow)

SPYRE_PLAN=sdsc: every kernel is bundles that obey the rules, with steps between them only for ops that no word is for.
Run by the SuperDSC reader, they give the bits of the ordinary plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ktir_kernels import memory_tensor, operand
from sdsc_steps import compare, kernels
from torch import Tensor
from torch.nn import functional

from torch_spyre import knobs
from torch_spyre._inductor.compile import compiled_as
from torch_spyre._inductor.debug.bundles import ordinary
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Dim,
    Kernel,
    KernelArg,
    Operand,
    Positions,
    Space,
    Tensor as Placed,
    Term,
    TileOp,
)
from torch_spyre.ir.superdsc.operand_tensors import positions_as_tensors
from torch_spyre.ir.superdsc.steps import in_steps, write_steps
from torch_spyre.ir.superdsc.vocabulary import CLOSEST
from torch_spyre.numerics import priority
from torch_spyre.numerics.models import Runner, _on_card
from torch_spyre.runtime import cache
from torch_spyre.sdsc import cli, read_bundle, steps


def half(*size: int) -> Tensor:
    return torch.randn(size).half()


def rotated(x: Tensor) -> Tensor:
    """Halves of 32 change places inside a stick."""
    return torch.cat([-x[..., 32:], x[..., :32]], -1)


def cached_step(x: Tensor, w: Tensor, keys: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """A decode step: the new key goes into the cache, where the query reads it."""
    q = (x @ w).view(1, 1, 4, 64).transpose(1, 2)
    keys.index_copy_(2, place, rotated(q))
    scores = q @ keys.transpose(-1, -2)
    return torch.softmax(scores, -1) @ keys, keys


def into_part(x: Tensor, y: Tensor) -> Tensor:
    x[:, 10:40] = y
    return x + 1


CASES: dict[str, Callable[[], tuple[Callable[..., object], list[Tensor]]]] = {
    "reshape across sticks": lambda: (lambda x: x.reshape(-1).exp(), [half(5, 200)]),
    "slice inside a stick": lambda: (lambda x: x[:, 3:67].exp(), [half(8, 128)]),
    "halves of a stick": lambda: (lambda x: rotated(x) * 2, [half(2, 4, 10, 64)]),
    "part of a tensor that exists": lambda: (into_part, [half(8, 64), half(8, 30)]),
    "joined inside a stick": lambda: (lambda a, b: torch.cat([a, b], 1), [half(8, 100), half(8, 50)]),
    "decode step": lambda: (cached_step, [half(1, 256), half(256, 256), half(1, 4, 64, 64), torch.tensor([7])]),
    "rows of a tied table": lambda: (lambda w, i, x: w[i] + x, [half(64, 128), torch.tensor([[3, 0], [63, 9]]), half(128)]),
    "positions": lambda: (lambda x: torch.where(torch.arange(40, device=x.device) < 17, x, -x), [half(3, 40)]),
    "top 2": lambda: (lambda x: torch.topk(x, 2, -1), [half(30, 8)]),
    "one matrix for a batch": lambda: (lambda a, b: a.expand(3, 16, 64) @ b, [half(1, 16, 64), half(3, 64, 64)]),
    "uneven rows": lambda: (lambda x: torch.softmax(x, -1), [half(67, 256)]),
    "parts of k": lambda: (lambda a, b: a @ b, [half(1, 9 * 64), half(9 * 64, 64)]),
    "layer norm": lambda: (lambda x, w: functional.layer_norm(x, (256,), w), [half(33, 256), half(256)]),
}


def on_card(name: str) -> list[tuple[str, object]]:
    torch.manual_seed(0)
    fn, inputs = CASES[name]()
    found = kernels(lambda: torch.compile(fn, dynamic=False)(*(x.to("spyre") for x in inputs)))
    return [k for k in found if "eager" not in json.loads(k[0]).get("name", "")]


@pytest.mark.parametrize("name", CASES)
def test_bundles_give_the_bits_of_the_ordinary_plan(name: str, tmp_path: Path) -> None:
    found = on_card(name)
    assert found
    for i, (graph, inputs) in enumerate(found):
        made, differ, _ = compare(graph, inputs, tmp_path / str(i))
        assert not differ
        assert not made.wordless
        for bundle in steps.load(tmp_path / str(i)).bundles():
            bundle.verify()
        assert all(d.even or d.size % d.extent for op in made.kernel.ops for d in op.dims)
        assert all(d.slices <= -(-d.size // (d.extent or 1)) for op in made.kernel.ops for d in op.dims)
