# SPDX-License-Identifier: Apache-2.0
"""make test-ecosystem: five training steps with accelerate, Trainer, peft and trl follow the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from losses import (
    STEPS,
    VOCABULARY,
    assert_follows,
    assert_same_fp32,
    language_model,
    losses,
    token_ids,
    training_arguments,
)
from torch import Tensor


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.ids = token_ids()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def with_accelerate(cpu: bool, precision: str) -> list[float]:
    """The loop of accelerate's own introduction, with accumulated gradients, clipping and a schedule."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, gradient_accumulation_steps=2)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found.append(accelerator.gather(loss.detach()).item())
    accelerator.state._reset_state(reset_partial_state=True)
    return found


def test_accelerate(host_ops: set[str]) -> None:
    plain = with_accelerate(cpu=True, precision="no")
    assert_same_fp32(with_accelerate(cpu=False, precision="no"), plain)
    rounded = with_accelerate(cpu=True, precision="bf16")
    for precision in ("bf16", "fp16"):
        assert_follows(with_accelerate(cpu=False, precision=precision), plain, rounded)


def with_trainer(folder: Path, cpu: bool, **options: Any) -> list[float]:
    from transformers import Trainer

    arguments = training_arguments(folder, use_cpu=cpu, **options)
    return losses(Trainer(language_model(), arguments, train_dataset=Rows()))


def test_trainer(tmp_path: Path, host_ops: set[str]) -> None:
    plain = with_trainer(tmp_path, cpu=True)
    assert_same_fp32(with_trainer(tmp_path, cpu=False), plain)
    rounded = with_trainer(tmp_path, cpu=True, bf16=True)
    for options in ({"bf16": True}, {"fp16": True}, {"bf16": True, "gradient_checkpointing": True}):
        assert_follows(with_trainer(tmp_path, cpu=False, **options), plain, rounded)


def test_trainer_goes_on_from_a_checkpoint(tmp_path: Path, host_ops: set[str]) -> None:
    """Steps four and five after a restart are those of the whole run, random numbers of the card included."""
    from transformers import Trainer

    def trainer() -> Any:
        model = language_model()
        for layer in model.model.layers:
            layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj, torch.nn.Dropout(0.5))
        arguments = training_arguments(tmp_path, save_strategy="steps", save_steps=3)
        return Trainer(model, arguments, train_dataset=Rows())

    whole = losses(trainer())
    torch.manual_seed(99)
    again = trainer()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    found = [entry["loss"] for entry in again.state.log_history if "loss" in entry]
    assert found == whole


def test_trainer_evaluates_and_predicts(tmp_path: Path, host_ops: set[str]) -> None:
    from transformers import Trainer

    results = []
    for cpu in (True, False):
        trainer = Trainer(language_model(), training_arguments(tmp_path, use_cpu=cpu), eval_dataset=Rows())
        predicted = trainer.predict(Rows())
        assert predicted.predictions.shape == (4 * STEPS, 16, VOCABULARY)
        results.append((predicted.predictions, trainer.evaluate()["eval_loss"]))
    assert_same_fp32(results[1][0], results[0][0])
    assert_same_fp32(results[1][1], results[0][1])


def test_lora(tmp_path: Path, host_ops: set[str]) -> None:
    """Adapters train, the weights below them stay, and the merged model gives what the adapted one gave."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import Trainer

    def train(cpu: bool) -> tuple[list[float], Any]:
        torch.manual_seed(3)
        model = get_peft_model(language_model(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
        arguments = training_arguments(tmp_path, use_cpu=cpu)
        return losses(Trainer(model, arguments, train_dataset=Rows())), model

    plain, _ = train(cpu=True)
    found, model = train(cpu=False)
    assert_same_fp32(found, plain)
    base = model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    assert base.device.type == "spyre" and not base.requires_grad

    ids = token_ids(2).to("spyre")
    model.eval()
    adapted = model(ids).logits
    model.save_pretrained(tmp_path / "adapter")
    merged = PeftModel.from_pretrained(language_model().to("spyre"), tmp_path / "adapter").merge_and_unload()
    assert_same_fp32(merged(ids).logits, adapted)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl(kind: str, tmp_path: Path, host_ops: set[str]) -> None:
    import datasets
    import trl
    from test_choice import tokenizer

    texts = ["".join(chr(97 + i % 26) for i in row[:12].tolist()) for row in token_ids()]
    if kind == "sft":
        made, config, rows = trl.SFTTrainer, trl.SFTConfig, {"text": texts}
    else:
        made, config = trl.DPOTrainer, trl.DPOConfig
        host_ops.add("index.Tensor")  # the figures of the log are picked by a mask
        rows = {"prompt": texts, "chosen": [t[::-1] for t in texts], "rejected": texts}
    results = []
    for cpu in (True, False):
        arguments = training_arguments(tmp_path, config, use_cpu=cpu, bf16=False, max_length=32)
        data = datasets.Dataset.from_dict(rows)
        reference = {"ref_model": language_model()} if kind == "dpo" else {}
        trainer = made(language_model(), args=arguments, train_dataset=data, processing_class=tokenizer(), **reference)
        results.append(losses(trainer))
        assert trainer.model.device.type == ("cpu" if cpu else "spyre")
    assert_same_fp32(results[1], results[0])
