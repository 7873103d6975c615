# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_op_checks.py
"""The checks behind the op table: a wrong result fails, and a reason is given only where it holds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from op_checks import HOST_MISSES, STEPS_ROUND, check_backward, check_forward, gradients, leaves
from op_list import infos
from op_table import Row, why
from rounded import in_rounded_steps
from samples import Twins, samples
from torch.testing._internal.opinfo.core import SampleInput

(ATTENTION,) = infos("nn", ["nn.functional.scaled_dot_product_attention"])


def fake_op(call: Callable[..., Any], name: str = "made up") -> Any:
    class Op(SimpleNamespace):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    return Op(name=name, is_factory_function=False)


def wrong_on_card(x: torch.Tensor) -> torch.Tensor:
    return x * 1.25 if x.device.type == "spyre" else x * 1.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_wrong_results_fail_without_a_reason(dtype: torch.dtype) -> None:
    op, sample = fake_op(wrong_on_card), SampleInput(torch.arange(8.0).to(dtype))
    for checked in (check_forward, check_backward):
        with pytest.raises(AssertionError, match="values differ") as error:
            checked(op, sample, "spyre", "eager")
        assert STEPS_ROUND not in str(error.value) and HOST_MISSES not in str(error.value)


def test_rounded_steps_are_told_from_wrong_ones() -> None:
    """1000 + 0.6 is stored as 1000 in the card's 16 bits: nothing is left of the 0.6."""
    op = fake_op(lambda x: (x + 1000.0) - 1000.0)
    sample = SampleInput(torch.full((8,), 0.6, dtype=torch.float16))
    with pytest.raises(AssertionError, match=STEPS_ROUND):
        check_forward(op, sample, "spyre", "eager")


def test_attention_differs_only_by_the_rounding_of_its_steps() -> None:
    """Bit for bit, forward and backward."""
    for sample in list(samples(ATTENTION, torch.float16, 4)):
        host, card = Twins("spyre").split(ATTENTION, sample)

        def all_gradients(call: Callable[[], Any], own: SampleInput) -> list[torch.Tensor]:
            return [call().detach(), *(g for g in gradients(call, leaves(ATTENTION, own)) or [] if g is not None)]

        expected = in_rounded_steps(ATTENTION, host, all_gradients)
        actual = all_gradients(lambda c=card: ATTENTION(c.input, *c.args, **c.kwargs), card)
        for a, e in zip(actual, expected, strict=True):
            assert torch.equal(a.cpu(), e.to(a.dtype))


@pytest.mark.parametrize(("dtype", "width"), [("float16", "16 bits"), ("float32", "float32")])
def test_reasons_name_the_dtype_of_their_row(dtype: str, width: str) -> None:
    reason = why(Row("nn", "any", dtype, "eager"), [f"{HOST_MISSES}: 3 of 96 values differ"])
    assert f"rounds to {width} each" in reason
