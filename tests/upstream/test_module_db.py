# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_module_db.py [-m slow]
"""Every module of PyTorch's own list: trained eagerly, compiled, and in inference, in three dtypes; nothing on the host
but what is named here, and a gap that is gone fails."""

from __future__ import annotations

import pytest
import torch
from module_checks import check_module, module_samples
from op_checks import Refused
from samples import describe
from torch.testing._internal.common_modules import module_db

from torch_spyre.ops import fallbacks

INFOS = {info.name: info for info in module_db}
SAMPLES = {"eager": 4, "inference": 4, "compiled": 1}

# What runs on the host, by module (docs/operators.md says why).
HOST = {
    "nn.CTCLoss": {"aten._ctc_loss.default", "aten._ctc_loss_backward.default"},
    "nn.FractionalMaxPool2d": {"aten.fractional_max_pool2d.default", "aten.fractional_max_pool2d_backward.default"},
    "nn.FractionalMaxPool3d": {"aten.fractional_max_pool3d.default", "aten.fractional_max_pool3d_backward.default"},
}
# What does not work: (module, mode).
GAPS = {
    ("nn.FractionalMaxPool2d", "compiled"): "Inductor's formula places the windows in float64",
    ("nn.FractionalMaxPool3d", "compiled"): "Inductor's formula places the windows in float64",
}
QUICK = {
    ("nn.Linear", "float16", "eager"),
    ("nn.GRUCell", "float32", "eager"),
    ("nn.FractionalMaxPool2d", "float32", "eager"),
    ("nn.MultiheadAttention", "float16", "inference"),
    ("nn.Linear", "bfloat16", "compiled"),
}
CASES = [
    pytest.param(name, dtype, mode, marks=[] if (name, dtype, mode) in QUICK else pytest.mark.slow)
    for name in INFOS
    for dtype, mode in (
        ("float32", "eager"),
        ("float32", "inference"),
        ("float32", "compiled"),
        ("float16", "eager"),
        ("float16", "inference"),
        ("float16", "compiled"),
        ("bfloat16", "eager"),
        ("bfloat16", "compiled"),
    )
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dtype", "mode"), CASES)
def test_module(name: str, dtype: str, mode: str) -> None:
    info, kind = INFOS[name], getattr(torch, dtype)
    fallbacks.reset()
    wrong, checked = [], 0
    for training in (True, False) if mode == "eager" else (mode == "compiled",):
        for sample in module_samples(info, kind, training, SAMPLES[mode]):
            try:
                check_module(info, sample, kind, training, mode)
            except Refused:
                continue
            except Exception as error:
                wrong.append(describe(error))
            checked += 1
    if not checked:
        pytest.skip(f"the CPU refuses every sample of {name} in {dtype}")
    gap = GAPS.get((name, mode))
    assert bool(wrong) == bool(gap), "\n".join(wrong) or f"no gap any more: {gap}"
    assert {row.op for row in fallbacks.report()} <= HOST.get(name, set())
