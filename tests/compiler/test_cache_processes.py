# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_cache_processes.py

Inductor's cache and the program cache together: a second process lowers, plans and assembles nothing, for inference,
training and dynamic shapes, on both backends; and what must not be shared is not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import hashlib, json, sys
import torch
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

calls = {"lowered": 0}
run = GraphLowering.run

def counting(self, *args):
    calls["lowered"] += 1
    return run(self, *args)

GraphLowering.run = counting

def digest(*tensors):
    return hashlib.sha256(b"".join(t.detach().cpu().float().numpy().tobytes() for t in tensors)).hexdigest()

def inference(backend, number):
    def fn(x, w):
        return torch.softmax(torch.relu(x @ w) * number, -1)
    x, w = (torch.randn(s).to(torch.float16).to("spyre") for s in ((33, 100), (100, 70)))
    return digest(torch.compile(fn, backend=backend, dynamic=False)(x, w))

def training(backend, number):
    net = torch.nn.Sequential(torch.nn.Linear(40, 70), torch.nn.GELU(), torch.nn.Linear(70, 30)).to("spyre")
    def loss(x):
        return (net(x) * number).square().mean()
    value = torch.compile(loss, backend=backend, dynamic=False)(torch.randn(20, 40).to("spyre"))
    value.backward()
    return digest(value, *(p.grad for p in net.parameters()))

def dynamic(backend, number):
    def fn(x):
        return torch.tanh(x * number).sum(0)
    compiled = torch.compile(fn, backend=backend, dynamic=True)
    return digest(*(compiled(torch.randn(n, 70).to(torch.float16).to("spyre")) for n in (20, 33)))

torch.manual_seed(1)
bits = {}
for kind in sys.argv[1].split(","):
    for number, backend in enumerate(("spyre", "inductor")):
        torch._dynamo.reset()
        bits[kind + " " + backend] = {"inference": inference, "training": training, "dynamic": dynamic}[kind](
            backend, 2.0 + number
        )
stages = ("torch_spyre._inductor.compile", "torch_spyre._inductor.planning", "torch_spyre.backend.compile", "xdsl")
print(json.dumps({
    "bits": bits,
    "lowered": calls["lowered"],
    "stages": [m for m in stages if m in sys.modules],
    "inductor": dict(counters["inductor"]),
    "autograd": dict(counters["aot_autograd"]),
}))
"""


def process(folder: Path, kinds: str, **environment: str) -> dict[str, Any]:
    caches = {"SPYRE_CACHE_DIR": str(folder / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kinds],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, **caches, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def programs(folder: Path) -> set[str]:
    return {e.name for e in (folder / "programs").glob("??/*")}


def test_a_second_process_finds_everything(tmp_path: Path) -> None:
    kinds = "inference,training,dynamic"
    first = process(tmp_path, kinds)
    assert first["lowered"] >= 8 and len(first["stages"]) == 4  # two forwards and a backward on each backend
    made = programs(tmp_path)
    second = process(tmp_path, kinds)
    assert second["bits"] == first["bits"]
    assert second["lowered"] == 0 and second["stages"] == []
    assert second["inductor"].get("fxgraph_cache_miss", 0) == 0 and second["autograd"]["autograd_cache_hit"] >= 6
    assert second["autograd"].get("autograd_cache_miss", 0) == 0
    assert programs(tmp_path) == made


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["inference", "training"])
def test_programs_are_found_without_inductors_cache(tmp_path: Path, kinds: str) -> None:
    first = process(tmp_path, kinds)
    shutil.rmtree(tmp_path / "inductor")
    second = process(tmp_path, kinds)
    assert second["bits"] == first["bits"] and second["lowered"] > 0
    assert "torch_spyre._inductor.planning.planner" not in second["stages"]


@pytest.mark.slow
def test_another_knob_is_another_graph_and_another_program(tmp_path: Path) -> None:
    first = process(tmp_path, "inference")
    made = programs(tmp_path)
    second = process(tmp_path, "inference", SENCORES="3")
    assert second["bits"] == first["bits"]
    assert second["lowered"] == first["lowered"] and len(programs(tmp_path)) > len(made)
