# SPDX-License-Identifier: Apache-2.0
"""The laboratory with vLLM's own scheduler; tests/tools/test_serving_laboratory.py has the rest."""

import json
import os
import subprocess
import sys

COUNT = """
from torch_spyre.predict import configs
from torch_spyre.predict.serving import simulate
from torch_spyre.predict.serving.scheduler import Limits
from torch_spyre.predict.serving.workload import Arrival

class Steps(list):
    def step(self, works):
        self.append(works)
        return 1e9

for blocks in (1000, 11):
    steps, model = Steps(), configs.find("smollm2-135m")
    simulate.cache_blocks = lambda *_: blocks
    arrivals = [Arrival(0.0, 150, 70) for _ in range(6)]
    run = simulate.simulate(model, arrivals, Limits(tokens=64, sequences=4, length=512), steps)
    assert all(len(r.tokens) == 70 for r in run.requests)
    assert max(sum(w.new for w in works) for works in steps) == 64
    assert max(len(works) for works in steps) <= 4
    assert any(len({w.new == 1 for w in works}) == 2 for works in steps)  # prompts and next tokens together
    print(run.restarts, max(m.cache for m in run.moments))
"""


def run(*words):
    # In a process of its own: vLLM reads its environment when it is imported, and other tests here want the plugin.
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, "VLLM_PLUGINS": "none"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chunks_limits_and_a_full_cache():
    restarts, use, restarts_of_11, use_of_11 = run("-c", COUNT).split()[-4:]
    assert int(restarts) == 0 and float(use) < 0.1
    assert int(restarts_of_11) > 0 and float(use_of_11) > 0.9


def test_the_command():
    words = "serve smollm2-135m --layers 2 --requests 6 --rate inf --input 100 --output 5 --chunk 64,512 --json -q"
    found = json.loads(run("-m", "torch_spyre.predict.cli", *words.split()))
    small, large = found["runs"]
    assert small["requests"] == large["requests"] == 6
    assert small["steps"] > large["steps"]
    assert small["first_token"]["mean"] > 0 and large["tokens_per_second"] > 0
