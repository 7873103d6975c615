# SPDX-License-Identifier: Apache-2.0
"""`torch.jit.trace` of functions on the card."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME


class _ComparedInFp32(torch.Tensor):
    """A result that says what makes PyTorch compare it in fp32."""

    @property
    def is_mps(self) -> bool:
        return True

    def float(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).float(*args, **kwargs)


class _Traced:
    """A traced function whose results on the card are compared in fp32."""

    def __init__(self, traced: Any) -> None:
        self._traced = traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = self._traced(*args, **kwargs)
        return tuple(map(_compared, results)) if isinstance(results, tuple) else _compared(results)


def _compared(result: Any) -> Any:
    if isinstance(result, torch.Tensor) and result.device.type == DEVICE_NAME:
        return result.as_subclass(_ComparedInFp32)
    return result


def check_of_traces() -> None:
    """``torch.jit.trace`` runs what it traced and compares in float64, except on one named device. Missing hook: a
    device's word that it has no float64."""
    original = torch.jit._trace._check_trace

    @functools.wraps(original)
    def check_trace(check_inputs: Any, func: Any, traced_func: Any, *args: Any, **kwargs: Any) -> Any:
        return original(check_inputs, func, _Traced(traced_func), *args, **kwargs)

    torch.jit._trace._check_trace = check_trace
