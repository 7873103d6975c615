# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_ported_scripts.py

What scripts written for another device do around their modules works here too, or fails with a named reason.
"""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch

from torch_spyre.ops import fallbacks


def test_a_traced_function_is_checked_saved_and_loaded() -> None:
    x = torch.rand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(lambda x: x.tanh() + 1, x.to("spyre"))
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file)(x.to("spyre")).cpu(), x.tanh() + 1)
        with pytest.raises(Exception, match="float64"):  # the user's own conversion stays an error
            torch.jit.trace(lambda x: x.double() + 1, x.to("spyre"))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weight_norm_stays_on_the_card(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    host = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(70, 5), dim=dim)
    card = copy.deepcopy(host).to("spyre", dtype)
    x = torch.randn(3, 70)
    (host(x) ** 2).sum().backward()
    with fallbacks.disabled():
        (card(x.to("spyre", dtype)).float() ** 2).sum().backward()
    error = 1e-4 if dtype == torch.float32 else 2e-2
    for ours, theirs in zip(card.parameters(), host.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad.cpu().float(), theirs.grad, atol=error * scale, rtol=error)
