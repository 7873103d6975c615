# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_ported_scripts.py

What scripts written for another device do around their modules works here too, or fails with a named reason.
"""

from __future__ import annotations

import io
import warnings

import pytest
import torch


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
