# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_entry_points.py

The ways into the compiler: both backends reach the same kernels, `mode=` is accepted, exported programs run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_spyre._inductor import kernel


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float16)


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scores = torch.softmax((x @ w) * 0.5, -1)
    return torch.nn.functional.layer_norm(scores, (scores.shape[-1],)) + torch.nn.functional.silu(x @ w)


def drawing(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def graphs(
    fn: Callable[..., Any], args: list[torch.Tensor], backend: str, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """The TileGraphs of a compiled call, without the user's lines."""
    seen: list[Any] = []
    original = kernel.launch_plan

    def planning(graph_json: str, inputs: Any) -> Any:
        seen.append(json.loads(graph_json))
        return original(graph_json, inputs)

    monkeypatch.setattr(kernel, "launch_plan", planning)
    torch._dynamo.reset()
    torch.compile(fn, backend=backend, dynamic=False)(*args)
    return [g for g in seen if g["name"].startswith("spyre_kernel")]


@pytest.mark.parametrize("case", ["block", "drawing"])
def test_both_backends_reach_the_same_tilegraph(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, sizes = {"block": (block, ((33, 100), (100, 70))), "drawing": (drawing, ((20, 70),))}[case]
    args = [half(*s).to("spyre") for s in sizes]
    spyre, inductor = (graphs(fn, args, backend, monkeypatch) for backend in ("spyre", "inductor"))
    assert spyre and spyre == inductor


@pytest.mark.parametrize("backend", ["spyre", "inductor"])
@pytest.mark.parametrize("mode", ["default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_are_accepted(backend: str, mode: str) -> None:
    x, w = half(9, 70), half(70, 80)
    torch._dynamo.reset()
    got = torch.compile(block, backend=backend, mode=mode, dynamic=False)(x.to("spyre"), w.to("spyre")).cpu()
    want = block(x.float(), w.float())
    torch.testing.assert_close(got.float(), want, atol=2**-6, rtol=2**-6)


def test_options_reach_inductor() -> None:
    x = half(9, 70).to("spyre")
    for backend in ("spyre", "inductor"):
        torch._dynamo.reset()
        torch.compile(lambda v: v * 2, backend=backend, options={"debug_index_asserts": True})(x)
        with pytest.raises((RuntimeError, AttributeError), match="no_such_option"):
            torch.compile(lambda v: v * 2, backend=backend, options={"no_such_option": True})(x)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no-such-mode"):
        torch.compile(block, backend="inductor", mode="no-such-mode")
    with pytest.raises(Exception, match="no-such-mode"):
        torch.compile(block, backend="spyre", mode="no-such-mode")(half(9, 70).to("spyre"), half(70, 80).to("spyre"))


# torch.export


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)
        self.register_buffer("scale", torch.full((32,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))) * self.scale, -1)


def exported(dynamic: bool) -> tuple[Net, Any]:
    net = Net().half()
    on_card = Net().half()
    on_card.load_state_dict(net.state_dict())
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=512)}} if dynamic else None
    program = torch.export.export(on_card.to("spyre"), (half(20, 64).to("spyre"),), dynamic_shapes=shapes)
    return net, program


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_program_runs_and_compiles(dynamic: bool) -> None:
    net, program = exported(dynamic)
    assert "aten.linear" in str(program.graph) and "spyre" in str(program.graph.nodes and program.state_dict["scale"])
    module = program.module()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="spyre")
    for rows in (20, 37) if dynamic else (20,):
        x = half(rows, 64)
        want = net.float()(x.float())
        net.half()
        for run in (module, compiled):
            got = run(x.to("spyre"))
            assert got.device.type == "spyre"
            torch.testing.assert_close(got.cpu().float(), want, atol=2**-7, rtol=2**-6)


def test_exported_programs_are_saved_and_loaded(tmp_path: Any) -> None:
    _, program = exported(dynamic=False)
    torch.export.save(program, tmp_path / "net.pt2")
    again = torch.export.load(tmp_path / "net.pt2")
    x = half(20, 64).to("spyre")
    assert torch.equal(again.module()(x).cpu(), program.module()(x).cpu())


def test_decompositions_of_an_exported_program() -> None:
    _, program = exported(dynamic=False)
    core = program.run_decompositions()
    x = half(20, 64).to("spyre")
    torch.testing.assert_close(core.module()(x).cpu(), program.module()(x).cpu(), atol=2**-8, rtol=2**-8)


def test_ahead_of_time_packages_are_refused_by_name(tmp_path: Any) -> None:
    """An AOTInductor package is C++ that calls kernels; there is no such wrapper for the card."""
    _, program = exported(dynamic=False)
    with pytest.raises(Exception, match="AOTInductor") as failed:
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
    assert "torch.compile" in str(failed.value)
