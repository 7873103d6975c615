# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ecosystem/test_several_cards.py: accelerate, `Trainer` and ``tp_plan="auto"`` on two cards.

Each test starts torchrun with a function of this file and compares what both ranks found with one card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH = 10, 8


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(STEPS * BATCH, 16, generator=torch.Generator().manual_seed(1))
    return x, 2 * x[:, :4]


def with_accelerate(_: str) -> Any:
    """Device, and the mean losses of both ranks."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = small_model()
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*samples()), batch_size=BATCH // accelerator.num_processes
    )
    model, optimiser, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), batches)
    losses = []
    for x, y in batches:
        optimiser.zero_grad()
        loss = F.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimiser.step()
        losses.append(float(accelerator.gather(loss.detach()).mean()))
    return str(accelerator.device), losses


def with_trainer(folder: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    figures = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **figures))
    ids = [(torch.arange(12) + i) % 64 for i in range(40)]
    options = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "max_steps": STEPS}
    rows = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    arguments = TrainingArguments(folder, per_device_train_batch_size=rows, learning_rate=1e-2, **options)
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": x, "labels": x} for x in ids])
    trainer.train()
    return str(arguments.device), [row["loss"] for row in trainer.state.log_history if "loss" in row]


def with_tp_plan(folder: str) -> Any:
    """Device, kind of a weight, and the logits of a model that transformers splits while it loads it."""
    from transformers import AutoModelForCausalLM

    several = {"tp_plan": "auto"} if "WORLD_SIZE" in os.environ else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, **several).to("spyre").eval()
    with torch.no_grad():
        logits = model(torch.arange(5, 25)[None].to("spyre")).logits
    kind = type(model.model.layers[0].self_attn.q_proj.weight).__name__
    return str(model.device), kind, logits[0, -1].float().cpu().tolist()


def on_two_cards(function: str, folder: Path) -> list[Any]:
    """What the function returned on each rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__, function, str(folder)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return [json.loads((folder / f"{function}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("function", [with_accelerate, with_trainer])
def test_training_follows_one_card(function: Any, tmp_path: Path) -> None:
    found = on_two_cards(function.__name__, tmp_path)
    alone = function(str(tmp_path))[1]
    assert [device for device, _ in found] == ["spyre:0", "spyre:1"]
    for _, losses in found:
        assert len(losses) == STEPS == len(alone)
        assert all(abs(a - b) <= 2e-3 for a, b in zip(losses, alone, strict=True)), (losses, alone)


def test_tp_plan(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    figures = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=500, num_hidden_layers=2, **figures)).half().save_pretrained(tmp_path)
    found = on_two_cards("with_tp_plan", tmp_path)
    alone = torch.tensor(with_tp_plan(str(tmp_path))[2], dtype=torch.float64)
    for rank, (device, kind, logits) in enumerate(found):
        assert (device, kind) == (f"spyre:{rank}", "DTensor")
        assert F.cosine_similarity(torch.tensor(logits, dtype=torch.float64), alone, dim=0) >= 0.9999


def main(function: str, folder: str) -> None:
    import torch.distributed as dist

    found = globals()[function](folder)
    Path(folder, f"{function}.{os.environ['RANK']}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
