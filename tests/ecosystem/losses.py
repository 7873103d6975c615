# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, and how near a run on the card has to be to one on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

STEPS = 5
VOCABULARY = 128
# fp32 on both sides: another order of sums, and functions that are right within some units in the last place. Measured
# after five steps: 2e-7.
FP32 = 1e-5


def assert_same_fp32(found: Any, expected: Any) -> None:
    """Every value within `FP32` of the largest expected one."""
    found, expected = (torch.as_tensor(x).detach().cpu().double() for x in (found, expected))
    assert found.shape == expected.shape
    error = (found - expected).abs().max() / expected.abs().max()
    assert error <= FP32, f"differs by {error:.2g} of the largest value: {found} instead of {expected}"


def assert_follows(found: Sequence[float], plain: Sequence[float], rounded: Sequence[float]) -> None:
    """The losses differ from those of fp32 by at most twice what bf16 on the CPU makes them differ: training multiplies
    the errors of earlier steps, so that no bound follows from the format alone."""
    card, cpu, bf16 = (torch.tensor([*x], dtype=torch.float64) for x in (found, plain, rounded))
    assert len(card) == STEPS
    assert (card - cpu).abs().max() <= 2 * (bf16 - cpu).abs().max(), f"{card} instead of {cpu}; bf16 on the CPU {bf16}"


def language_model() -> Any:
    """A decoder of two layers; the same weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def token_ids(rows: int = 4 * STEPS, length: int = 16) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def training_arguments(folder: Any, kind: Any = None, **options: Any) -> Any:
    """Five steps, each loss in the log, nothing written."""
    from transformers import TrainingArguments

    return (kind or TrainingArguments)(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy=options.pop("save_strategy", "no"),
        report_to=[],
        disable_tqdm=True,
        **options,
    )


def losses(trainer: Any) -> list[float]:
    """Trains and returns the loss of each step."""
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
