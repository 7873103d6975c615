# SPDX-License-Identifier: Apache-2.0
"""make test-ecosystem: five training steps with Lightning's Trainer and Fabric; metrics of torchmetrics on the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torchmetrics
from losses import STEPS, assert_follows, assert_same_fp32
from torch import Tensor, nn

CLASSES = 5
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def batches() -> Any:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(8 * STEPS, 32, generator=generator)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, torch.randint(0, CLASSES, (8 * STEPS,), generator=generator)), batch_size=8
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, CLASSES))


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, labels = batch
        assert x.device == self.device
        logits = self.network(x)
        loss = nn.functional.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def with_trainer(accelerator: str, precision: Any, folder: Path) -> tuple[list[float], Any]:
    module = Classifier()
    trainer = lightning.Trainer(
        accelerator=accelerator,
        precision=precision,
        max_epochs=1,
        default_root_dir=folder,
        gradient_clip_val=1.0,
        **QUIET,
    )
    trainer.fit(module, batches())
    return module.losses, trainer


def test_trainer(tmp_path: Path, host_ops: set[str]) -> None:
    host_ops.add("bincount")
    plain, on_cpu = with_trainer("cpu", "32-true", tmp_path)
    found, on_card = with_trainer("auto", "32-true", tmp_path)
    assert on_card.strategy.root_device == torch.device("spyre", 0)
    assert_same_fp32(found, plain)
    assert on_card.callback_metrics["accuracy"] == on_cpu.callback_metrics["accuracy"]
    rounded, _ = with_trainer("cpu", "bf16-mixed", tmp_path)
    for precision in ("bf16-mixed", "16-mixed"):
        found, _ = with_trainer("spyre", precision, tmp_path)
        assert_follows(found, plain, rounded)

    again = Classifier.load_from_checkpoint(on_card.checkpoint_callback.best_model_path)
    for name, value in on_card.lightning_module.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name].cpu(), value.cpu()), name


def with_fabric(accelerator: str) -> list[float]:
    fabric = lightning.Fabric(accelerator=accelerator)
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    found = []
    for x, labels in fabric.setup_dataloaders(batches()):
        loss = nn.functional.cross_entropy(model(x), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_fabric(host_ops: set[str]) -> None:
    assert_same_fp32(with_fabric("auto"), with_fabric("cpu"))


METRICS: dict[str, Any] = {
    "accuracy": lambda: torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES),
    "f1": lambda: torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro"),
    "confusion": lambda: torchmetrics.ConfusionMatrix(task="multiclass", num_classes=CLASSES),
    "roc": lambda: torchmetrics.AUROC(task="multiclass", num_classes=CLASSES, thresholds=16),
    "error": torchmetrics.MeanSquaredError,
    "correlation": torchmetrics.PearsonCorrCoef,
    "mean": torchmetrics.MeanMetric,
    "perplexity": torchmetrics.text.Perplexity,
    "together": lambda: torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.R2Score()]),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics(name: str, host_ops: set[str]) -> None:
    """Five batches, then the figure; every state is on the card."""
    host_ops |= {"bincount", "nonzero", "index.Tensor", "_unique2"}  # the sizes of their results depend on values
    generator = torch.Generator().manual_seed(4)
    on_cpu, on_card = METRICS[name](), METRICS[name]().to("spyre")
    for _ in range(STEPS):
        logits = torch.randn(16, CLASSES, generator=generator)
        labels = torch.randint(0, CLASSES, (16,), generator=generator)
        a, b = torch.rand(2, 16, generator=generator)
        arguments = {
            "error": (a, b),
            "correlation": (a, b),
            "mean": (a,),
            "perplexity": (logits[None], labels[None]),
            "together": (a, b),
        }.get(name, (logits, labels))
        on_cpu.update(*arguments)
        on_card.update(*(x.to("spyre") for x in arguments))
    found, expected = on_card.compute(), on_cpu.compute()
    for key in expected if isinstance(expected, dict) else [None]:
        one = found if key is None else found[key]
        assert one.device.type == "spyre"
        assert_same_fp32(one, expected if key is None else expected[key])
