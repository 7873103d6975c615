# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_error_inputs.py [-m slow]
"""What PyTorch refuses the card refuses, with the same kind of exception and the same words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from error_checks import (
    check,
    modules_with_errors,
    ops_with_errors,
    ops_with_out,
    refused_inputs,
    refused_modules,
    refused_outputs,
)
from samples import samples

_STEP = 6  # of the ops that every run looks at
# Their CPU form is made of float64 or complex numbers, which the card has not, or of unsigned 64-bit words.
_WITHOUT_PLACE = ("float_power", "linalg.matrix_rank", "fft.", "hash_tensor")
# Made of numbers alone, and by a fill, which may write an element twice.
_FILLS = ("empty", "full", "ones", "zeros")


def sampled(infos: list[Any]) -> list[Any]:
    marks = [[] if i % _STEP == 0 else [pytest.mark.slow] for i in range(len(infos))]
    return [pytest.param(x, id=f"{x.name}-{getattr(x, 'variant_test_name', '')}".strip("-"), marks=m)
            for x, m in zip(infos, marks, strict=True)]  # fmt: skip


@pytest.mark.parametrize("op", sampled(ops_with_errors()))
def test_error_inputs(op: Any) -> None:
    for refusal in refused_inputs(op, "spyre"):
        check(refusal)


@pytest.mark.parametrize("op", sampled([op for op in ops_with_out() if not op.name.startswith(_WITHOUT_PLACE)]))
def test_outputs_that_cannot_be_written(op: Any) -> None:
    if op.name in _FILLS:
        pytest.skip("a fill may write an element twice")
    for sample in samples(op, torch.float32, 2):
        for refusal in refused_outputs(op, sample, "spyre"):
            check(refusal)


@pytest.mark.parametrize("info", sampled(modules_with_errors()))
def test_modules(info: Any) -> None:
    for refusal in refused_modules(info, "spyre"):
        check(refusal)
