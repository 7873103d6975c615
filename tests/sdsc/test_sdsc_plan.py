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
from ktir_kernels import lx_tensor, memory_tensor, operand
from sdsc_steps import Described, compare, kernels
from torch import Tensor
from torch.nn import functional

from torch_spyre import knobs
from torch_spyre._inductor.compile import compiled_as
from torch_spyre._inductor.debug.bundles import ordinary
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.tilegraph.graph import Graph
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
    Term,
    TileOp,
)
from torch_spyre.ir.superdsc.op_writer import write_sdsc
from torch_spyre.ir.superdsc.operand_tensors import positions_as_tensors
from torch_spyre.ir.superdsc.steps import in_steps, write_steps
from torch_spyre.ir.superdsc.vocabulary import CLOSEST
from torch_spyre.numerics import priority
from torch_spyre.numerics.models import Runner, _on_card
from torch_spyre.runtime import cache
from torch_spyre.sdsc import cli, run_steps


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


def reordered(x: Tensor, y: Tensor) -> Tensor:
    """A part inside sticks is written before whole sticks of the same tensor."""
    out = y * 2
    out[:, 10:40] = x
    out[:, 64:] = y[:, :64]
    return out


def conv1d(x: Tensor, w: Tensor, groups: int = 1) -> Tensor:
    return functional.conv1d(x, w, groups=groups)


CASES: dict[str, Callable[[], tuple[Callable[..., object], list[Tensor]]]] = {
    "reshape across sticks": lambda: (lambda x: x.reshape(-1).exp(), [half(5, 200)]),
    "slice inside a stick": lambda: (lambda x: x[:, 3:67].exp(), [half(8, 128)]),
    "halves of a stick": lambda: (lambda x: rotated(x) * 2, [half(2, 4, 10, 64)]),
    "part of a tensor that exists": lambda: (into_part, [half(8, 64), half(8, 30)]),
    "joined inside a stick": lambda: (lambda a, b: torch.cat([a, b], 1), [half(8, 100), half(8, 50)]),
    "unaligned part before aligned ones": lambda: (reordered, [half(8, 30), half(8, 128)]),
    "decode step": lambda: (cached_step, [half(1, 256), half(256, 256), half(1, 4, 64, 64), torch.tensor([7])]),
    "rows of a tied table": lambda: (
        lambda w, i, x: w[i] + x,
        [half(64, 128), torch.tensor([[3, 0], [63, 9]]), half(128)],
    ),
    "positions": lambda: (lambda x: torch.where(torch.arange(40, device=x.device) < 17, x, -x), [half(3, 40)]),
    "top 2": lambda: (lambda x: torch.topk(x, 2, -1), [half(30, 8)]),
    "one matrix for a batch": lambda: (lambda a, b: a.expand(3, 16, 64) @ b, [half(1, 16, 64), half(3, 64, 64)]),
    "uneven rows": lambda: (lambda x: torch.softmax(x, -1), [half(67, 256)]),
    "parts of k": lambda: (lambda a, b: a @ b, [half(1, 9 * 64), half(9 * 64, 64)]),
    "overlapping windows": lambda: (conv1d, [half(2, 16, 20), half(8, 16, 3)]),
    "patches": lambda: (lambda x, w: functional.conv2d(x, w, stride=4), [half(1, 3, 16, 16), half(64, 3, 4, 4)]),
    "windows of single channels": lambda: (lambda x, w: conv1d(x, w, 6), [half(1, 6, 12), half(6, 1, 4)]),
    "layer norm": lambda: (lambda x, w: functional.layer_norm(x, (256,), w), [half(33, 256), half(256)]),
}


def on_card(name: str) -> list[tuple[str, Described]]:
    torch.manual_seed(0)
    fn, inputs = CASES[name]()
    return planned(fn, *(x.to("spyre") for x in inputs))


def planned(fn: Callable[..., object], *inputs: Tensor) -> list[tuple[str, Described]]:
    """The kernels of a compiled call, without those of copies to the card."""
    found = kernels(lambda: torch.compile(fn, dynamic=False)(*inputs))
    return [k for k in found if not Graph.from_json(k[0]).name.startswith("eager")]


@pytest.mark.parametrize("name", CASES)
def test_bundles_give_the_bits_of_the_ordinary_plan(name: str, tmp_path: Path) -> None:
    found = on_card(name)
    assert found
    for i, (graph, inputs) in enumerate(found):
        made, differ, _ = compare(graph, inputs, tmp_path / str(i))
        assert not differ
        assert not made.wordless
        for bundle in run_steps.load(tmp_path / str(i)).bundles():
            bundle.verify()
            assert not any(step.sdsc.last_sizes for step in bundle.steps), "slices of one size"


def test_ops_without_a_word_stand_between_bundles(tmp_path: Path) -> None:
    """Their results go through memory, and the launches' arguments hold what a step leaves for the next."""
    x = half(4, 100).to("spyre")
    ((graph, inputs),) = planned(lambda x: torch.cos(x + 1) * x, x)
    made, differ, _ = compare(graph, inputs, tmp_path)
    assert not differ
    assert [step.is_bundle for step in made.steps] == [True, False, True]
    assert [op.op for op, _ in made.wordless] == ["cos"]
    listed = json.loads((tmp_path / "steps.json").read_text())
    assert listed["steps"][1]["ops"][0]["closest"] == CLOSEST["cos"]


def test_positions_are_an_argument_with_a_file(tmp_path: Path) -> None:
    (case,) = on_card("positions")
    plan, _ = compiled_as(*case, replace(ordinary(), for_sdsc=True))
    write_steps(plan.kernel, tmp_path)
    (constant,) = (a for a in run_steps.load(tmp_path).arguments if a["role"] == "constant")
    assert np.array_equal(np.fromfile(tmp_path / constant["file"], np.int32)[:40], np.arange(40))
    with pytest.raises(Exception, match=r"argument 0 .* is missing"):
        run_steps.run(tmp_path, [])


def test_positions_have_the_sticks_of_the_result() -> None:
    """Digits of two dims and a constant; a dim that the position does not depend on is left out."""
    value = Coord((Term("d0", 3), Term("d2", 1, 2, 5)), 4)
    out = operand(memory_tensor("out", (3, 2, 40), 0, "IEEE_INT32"), ("d0", "d1", "d2"))
    op = TileOp("p", "identity", (Dim("d0", 3), Dim("d1", 2), Dim("d2", 40)), (Positions(value),), out)
    kernel, (constant,) = positions_as_tensors(Kernel("k", (KernelArg("out", 4096, Access.WRITE),), (op,)))
    (source,) = kernel.ops[0].inputs
    assert isinstance(source, Operand) and source.tensor.device_size == (3, 2, 32)
    want = 4 + 3 * np.arange(3)[:, None] + np.arange(40) // 2 % 5
    assert np.array_equal(constant.values.reshape(3, 64)[:, :40], want)


def test_scratchpads_hold_nothing_between_steps() -> None:
    a, b, c = (operand(lx_tensor(n, (4, 64), at), ("d0", "d1")) for n, at in (("a", 0), ("b", 512), ("c", 1024)))
    dims = (Dim("d0", 4), Dim("d1", 64))
    ops = tuple(TileOp(n, n, dims, (x,), y) for n, x, y in (("neg", a, b), ("cos", b, c)))
    assert a.tensor.space is Space.LX
    with pytest.raises(NotExpressible, match="stays in a scratchpad"):
        in_steps(Kernel("k", (), ops))


def test_the_plan_is_in_the_keys_of_caches() -> None:
    (case,) = on_card("uneven rows")
    ordinary_key = cache.key(*case)
    with knobs.patch(plan="sdsc"):
        assert PlanOptions.from_knobs().for_sdsc
        assert cache.key(*case) != ordinary_key


def test_a_dump_has_bundles_and_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = half(5, 200).clamp(-1, 1).to("spyre")
    with knobs.patch(plan="sdsc", dump=str(tmp_path)):
        torch._dynamo.reset()
        got = torch.compile(lambda x: torch.sin(x.reshape(-1).exp()) + 1, dynamic=False)(x).cpu()
    assert torch.allclose(got, torch.sin(x.cpu().float().reshape(-1).exp()).half() + 1, atol=2**-7)
    (folder,) = (p.parent for p in tmp_path.rglob("report.txt") if "spyre_kernel" in str(p))
    text = (folder / "report.txt").read_text()
    assert "1 of" in text and "(sin)" in text and "without the restriction" in text
    assert cli.main(["check", str(folder)]) == 0
    assert capsys.readouterr().out.count("bundle_") >= 2


def test_a_table_is_written_as_the_published_files_write_it() -> None:
    """A scatter is an identity whose result is the value tensor, with one row per index."""
    (case,) = [k for k in on_card("decode step") if '"scatter"' in k[0]]
    plan, _ = compiled_as(*case, replace(ordinary(), for_sdsc=True))
    made = in_steps(plan.kernel)
    (scatter,) = (op for op in made.kernel.ops if op.op == "scatter")
    sdsc = write_sdsc(scatter)
    (index,), (result,) = sdsc.compute.indices, sdsc.compute.outputs
    assert (sdsc.opfunc, sdsc.allocations[index].indirect, sdsc.allocations[result].indirect) == (
        "identity",
        "index_tensor",
        "value_tensor",
    )
    (rows,) = sdsc.gathered(result)
    assert sdsc.valid(rows) == 1 and sdsc.geometry(result).extents[rows] == 64


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", priority.PRIORITY)
def test_every_kernel_of_the_priority_models(name: str, tmp_path: Path) -> None:
    """Prompt and token: all ops are in bundles but those for which the published vocabulary has no word."""
    model = priority.PRIORITY[name]
    module = priority.build(model)
    runner = Runner(module, model)
    runner.compile()
    with torch.no_grad():
        priority.to_card(module)
        found = kernels(lambda: runner(_on_card(model.inputs(module.config))))
    assert found
    for i, (graph, inputs) in enumerate(found):
        made, differ, _ = compare(graph, inputs, tmp_path / str(i))
        assert not differ
        unlisted = {(op.op, reason) for op, reason in made.wordless if op.op not in CLOSEST}
        assert not unlisted
        for bundle in run_steps.load(tmp_path / str(i)).bundles():
            bundle.verify()
