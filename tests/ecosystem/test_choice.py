# SPDX-License-Identifier: Apache-2.0
"""make test-ecosystem: where nobody names a device, libraries take the card; where somebody names the CPU, the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from losses import language_model

CARD = torch.device("spyre", 0)


def test_accelerate() -> None:
    from accelerate import Accelerator

    assert Accelerator().device == CARD


def test_accelerate_on_the_cpu() -> None:
    from accelerate import Accelerator

    assert Accelerator(cpu=True).device == torch.device("cpu")


def test_accelerate_fp16() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="fp16")
    assert accelerator.device == CARD
    assert accelerator.scaler._device == "spyre"


def test_memory_of_cards() -> None:
    """What ``device_map="auto"`` plans with."""
    from accelerate.utils import get_max_memory

    found = get_max_memory()
    assert found[0] == torch.spyre.mem_get_info(0)[0] and "cpu" in found
    assert list(get_max_memory({"cpu": "1GB", 0: "2GB"}).items()) == [(0, 2 * 10**9), ("cpu", 10**9)]
    with pytest.raises(ValueError, match="max_memory names 1; there are cards 0 to 0"):
        get_max_memory({1: "1GB"})


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"fp16": True}])
def test_training_arguments(options: dict[str, bool], tmp_path: Path) -> None:
    from transformers import TrainingArguments

    arguments = TrainingArguments(str(tmp_path), report_to=[], **options)
    assert (arguments.device, arguments.n_gpu) == (CARD, 1)


def test_training_arguments_on_the_cpu(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    assert TrainingArguments(str(tmp_path), use_cpu=True).device == torch.device("cpu")


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential", {"": 0}, "spyre"])
def test_device_map(device_map: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    language_model().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    assert {parameter.device for parameter in model.parameters()} == {CARD}


def tokenizer() -> Any:
    """One token for each of 128 characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="\0", eos_token="\x01", unk_token="?")


@pytest.mark.parametrize("device, expected", [(None, CARD), (0, CARD), (-1, torch.device("cpu")), ("spyre", None)])
def test_pipeline(device: Any, expected: torch.device | None) -> None:
    from transformers import pipeline

    made = pipeline("text-generation", model=language_model(), tokenizer=tokenizer(), device=device)
    assert made.device == (expected or torch.device("spyre"))
    assert made.model.device == (expected or CARD)
    assert len(made("abc", max_new_tokens=3, do_sample=False)[0]["generated_text"]) >= 3


def test_pipeline_after_device_map(tmp_path: Path) -> None:
    from transformers import pipeline

    language_model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    made = pipeline("text-generation", model=str(tmp_path), device_map="auto")
    assert (made.device, made.model.device) == (CARD, CARD)


@pytest.mark.parametrize("precision, device", [("32-true", None), ("bf16-mixed", "spyre"), ("16-mixed", "spyre")])
@pytest.mark.parametrize("accelerator", ["auto", "spyre"])
def test_lightning(accelerator: str, precision: Any, device: str | None) -> None:
    import lightning

    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator=accelerator, precision=precision, **quiet)
    assert trainer.strategy.root_device == CARD
    assert getattr(trainer.precision_plugin, "device", None) == device
    assert lightning.Fabric(accelerator=accelerator, precision=precision).device == CARD


def test_lightning_on_the_cpu() -> None:
    import lightning

    assert lightning.Trainer(accelerator="cpu", logger=False).strategy.root_device == torch.device("cpu")
    assert lightning.Fabric(accelerator="cpu").device == torch.device("cpu")


@pytest.mark.parametrize("devices", ["auto", -1, 1, "1", [0], "0,"])
def test_lightning_devices(devices: Any) -> None:
    from torch_spyre.integrations.lightning import parse_devices

    assert parse_devices(devices) == [0]


@pytest.mark.parametrize(
    "devices, message",
    [(2, "are 2 cards; a process trains on one"), ([3], "cards 0 to 0"), ("some", "neither a count nor a list")],
)
def test_lightning_devices_refused(devices: Any, message: str) -> None:
    import lightning

    from torch_spyre.errors import SpyreError

    with pytest.raises(SpyreError, match=message):
        lightning.Trainer(accelerator="spyre", devices=devices, logger=False)


def test_device_names() -> None:
    from peft.utils import infer_device
    from sentence_transformers.util import get_device_name

    assert get_device_name() == infer_device() == "spyre:0"


def test_diffusers() -> None:
    """It asks torch.accelerator."""
    from diffusers.utils.torch_utils import get_device

    assert get_device() == "spyre"


LATE = {
    "accelerate": "from accelerate import Accelerator; print(Accelerator().device)",
    "transformers": "from transformers import TrainingArguments as T; print(T('/tmp', report_to=[], bf16=True).device)",
    "lightning": "import lightning; print(lightning.Trainer(logger=False).strategy.root_device)",
    "fabric": "from lightning.fabric import Fabric; print(Fabric().device)",
    "sentence_transformers": "from sentence_transformers.util import get_device_name as f; print(f())",
    "peft": "from peft.utils import infer_device; print(infer_device())",
    "torchvision": "import torchvision, torch; print(torch.empty(1, device='spyre').device)",
}


@pytest.mark.parametrize("library", LATE)
def test_whoever_is_imported_first(library: str) -> None:
    """The library imports torch, and torch imports this package in the middle of that."""
    done = subprocess.run([sys.executable, "-c", LATE[library]], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["spyre:0"]


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_INTEGRATIONS", "0")
    done = subprocess.run([sys.executable, "-c", LATE["accelerate"]], capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["cpu"], done.stderr
