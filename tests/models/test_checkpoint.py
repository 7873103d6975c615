# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_checkpoint.py: models reach the card without a second copy on the host.

The card's memory is memory of this process, so one copy is what must be there; a second one is what must not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.checkpoint import load
from torch_spyre.predict.configs import PUBLISHED

SIZES = {"vocab_size": 512, "intermediate_size": 192, "num_hidden_layers": 2, "hidden_size": 128}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _saved(folder: Path, **sizes: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **HEADS, **sizes})).half().eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_values_and_ties(tmp_path: Path, tied: bool) -> None:
    expected = _saved(tmp_path, tie_word_embeddings=tied)
    found = load(tmp_path)
    for (name, theirs), (_, ours) in zip(expected.named_parameters(), found.named_parameters(), strict=True):
        assert torch.allclose(ours.cpu(), theirs, atol=0, rtol=2**-9), name  # one rounding to ten bits
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
    assert all(buffer.device.type == "spyre" for buffer in found.buffers())


def test_a_tensor_too_many_and_one_too_few(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _saved(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gone = tensors.pop("model.norm.weight")
    save_file(tensors, file)
    with pytest.raises(InvalidArgument, match=r"no values for \['model.norm.weight'\]"):
        load(tmp_path)
    save_file({**tensors, "model.norm.weight": gone, "model.extra": gone.clone()}, file)
    with pytest.raises(InvalidArgument, match=r"no parameter 'model.extra'"):
        load(tmp_path)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    """Each message names the file and what to do."""

    def refused(what: str) -> None:
        with pytest.raises(InvalidArgument, match=what) as raised:
            load(tmp_path)
        assert str(tmp_path) in str(raised.value)

    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    refused("cannot read config.json .*save_pretrained")
    for text, what in (
        ("{", "is not JSON .*again"),
        ("[]", "no object"),
        ("{}", "names no architecture .*from_pretrained"),
    ):
        config.write_text(text)
        refused(what)
    _saved(tmp_path)
    whole = weights.read_bytes()
    for broken in (whole[:4], whole[:-100], b"\0" * 64):
        weights.write_bytes(broken)
        refused("model.safetensors cannot be read .*again")
    weights.unlink()
    refused("no .safetensors file; from_pretrained")


PEAK = """
import json, sys, threading, time, torch, transformers
import transformers.initialization
from torch_spyre.models.checkpoint import load
from torch_spyre.predict.configs import PUBLISHED
transformers.LlamaForCausalLM, transformers.GenerationConfig  # imported now, so that they do not count
def anonymous():
    rows = dict(line.split(":") for line in open("/proc/self/status"))
    return sum(int(rows[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
torch.ones(64, device="spyre").cpu()
folder, how = sys.argv[1:]
peak, running, before = 0, True, anonymous()
def watch():
    global peak
    while running:
        peak = max(peak, anonymous())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
if how == "load":
    model = load(folder)
else:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float16).to("spyre")
torch.spyre.synchronize()
after = anonymous()
running = False
thread.join()
print(json.dumps({"bytes": sum(p.nbytes for p in model.parameters()), "peak": peak - before, "after": after - before}))
"""


@pytest.mark.parametrize("how", ["load", pytest.param("from_pretrained", marks=pytest.mark.slow)])
def test_peak_of_host_memory(tmp_path: Path, how: str) -> None:
    _saved(tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16)
    made = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), how], capture_output=True, text=True, timeout=1500
    )
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    print(how, found)
    assert found["bytes"] > 150e6
    # One copy is the card's own memory; the largest tensor and the process's own needs come on top.
    assert found["peak"] < 1.35 * found["bytes"], found


def test_eight_billion_parameters_have_room() -> None:
    """Llama 3.1 8B's parameters in 16 GB of card memory; pages are committed when they are written."""
    with torch.device("meta"):
        config = transformers.LlamaConfig(
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
        )
        described = transformers.LlamaForCausalLM(config).half()
    made = {name: torch.empty(p.shape, dtype=p.dtype, device="spyre") for name, p in described.named_parameters()}
    count = sum(p.numel() for p in made.values())
    assert count == PUBLISHED["llama-3.1-8b"].parameters and torch.spyre.memory_allocated() >= 2 * count
    for name in ("model.embed_tokens.weight", "model.layers.31.mlp.down_proj.weight", "lm_head.weight"):
        row = torch.randn(made[name].shape[1], dtype=torch.float16)
        made[name][-1] = row.to("spyre")
        assert torch.allclose(made[name][-1].cpu(), row, atol=0, rtol=2**-9), name
