# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_large_ops.py -m slow
"""Every operator at sizes beyond the span of a core, on 1, 7 and 32 cores: planned, compiled, loaded and timed.

Nothing is computed and no memory is committed (timing-only mode). `make test` runs a sample.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from large_calls import FORMS, calls, new, shape

from torch_spyre._inductor import config
from torch_spyre.errors import ScratchpadFull
from torch_spyre.predict import timing_only

MIB = 1 << 20
SIZES = {"300 MiB": 300 * MIB, "1 GiB": 1024 * MIB}
CORES = (1, 7, 32)
CALLS = calls()
CASES = [(name, size, cores, form) for name in CALLS for size in SIZES for cores in CORES for form in FORMS]
SAMPLE = random.Random(1).sample(CASES, 12)

NAMED = {
    "masked_scatter": lambda: new(1, 855, 5120).masked_scatter(new(1, 855, 5120, dtype=torch.bool), new(1, 855, 5120)),
    "attention of 4096": lambda: F.scaled_dot_product_attention(*(new(1, 32, 4096, 128) for _ in range(3))),
    "attention of 8 x 1024": lambda: F.scaled_dot_product_attention(*(new(8, 32, 1024, 128) for _ in range(3))),
    "bmm": lambda: torch.bmm(new(32, 1, 2880), new(32, 2880, 2880)),
    "sum": lambda: new(32, 2048, 4096).sum(1),
    "softmax": lambda: new(32, 2048, 4096).softmax(1),
    "cumsum": lambda: new(32, 2048, 4096).cumsum(1),
    "amax": lambda: new(32, 2048, 4096).amax((1, 2)),
    "transpose": lambda: new(32, 2048, 4096).transpose(0, 1).contiguous(),
    "linear": lambda: F.linear(new(32, 2048, 4096), new(4096, 4096), new(4096)),
    "t": lambda: new(49159, 4096).t().contiguous(),
    "groups": lambda: new(32, 64, 224, 224, dtype=torch.float32).view(32, 32, -1) - 1,
    "group_norm": lambda: F.group_norm(new(32, 64, 224, 224, dtype=torch.float32), 32),
    "weight of 800 MiB": lambda: F.linear(new(64, 32768), new(12800, 32768)),
    "weight of 384 MiB": lambda: F.linear(new(64, 4096), new(49152, 4096), new(49152)),
    "long sort": lambda: new(600_000).sort(),
    "repeat": lambda: new(20000, 513, dtype=torch.float32).repeat(2, 1)[7:] + 1,
    "flip": lambda: new(65536, 2048).flip(1),
    "roll": lambda: new(65536, 2048).roll(3, 1),
}  # fmt: skip


# A tile loop of a compiled graph keeps a dim that is reduced at once whole, however much scratch that takes.
COMPILED_GAPS = ("softmax", "amax")


@pytest.mark.parametrize("compiled, cores", [(False, 1), (False, 32), (True, 32)])
@pytest.mark.parametrize("name", NAMED)
def test_ordinary_calls_of_large_tensors(name: str, compiled: bool, cores: int, request: pytest.FixtureRequest) -> None:
    if compiled and name in COMPILED_GAPS:
        gap = "compiled reductions over the rows of more than 256 MiB need more scratch than a core has"
        request.applymarker(pytest.mark.xfail(reason=gap, raises=ScratchpadFull, strict=True))
    with timing_only(), config.patch(sencores=cores):
        torch._dynamo.reset()
        f = NAMED[name]
        (torch.compile(f, dynamic=False) if compiled else f)()
        torch.spyre.synchronize()


def check(name: str, size: str, cores: int, form: str) -> None:
    dtype = torch.float32 if (len(name) + cores) % 3 == 0 else torch.float16
    elements = SIZES[size] // dtype.itemsize
    with timing_only(), config.patch(sencores=cores):
        CALLS[name](shape(form, elements), dtype)
        torch.spyre.synchronize()


@pytest.mark.parametrize("name, size, cores, form", SAMPLE)
def test_a_sample_of_operators(name: str, size: str, cores: int, form: str) -> None:
    check(name, size, cores, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_every_operator(name: str, size: str, cores: int, form: str) -> None:
    check(name, size, cores, form)
