# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_dynamic_k.py
"""Matmuls with a long inner dim, planned for a bucket and for the size itself: equal bits where k is cut alike."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch

from torch_spyre import knobs
from torch_spyre._inductor.debug import inspect

Cut = tuple[int, int]  # parts of k, elements in each


def product(a: torch.Tensor, b: torch.Tensor, buckets: bool) -> tuple[torch.Tensor, Cut]:
    torch._dynamo.reset()
    inspect.start()
    known = len(inspect.records())
    try:
        with knobs.patch(dynamic_buckets=buckets):
            result = torch.compile(torch.matmul, dynamic=True)(a.to("spyre"), b.to("spyre")).cpu()
        matmul = next(op for r in inspect.records()[known:] for op in r.plan.kernel.ops if op.op == "batchmatmul")
    finally:
        inspect.stop()
    k = matmul.dim("k")
    return result, (k.slices, k.extent if k.slices > 1 else 0)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(70, 3000, 70), (4, 1024, 64), (2, 3000, 128), (8, 5000, 64), (16, 2049, 32)]
)
def test_a_bucket_differs_from_its_size_by_how_k_is_shared_out_alone(m: int, k: int, n: int) -> None:
    a, b = torch.randn(m, k), torch.randn(k, n)
    (bucketed, cut), (exact, own) = product(a, b, True), product(a, b, False)
    if cut == own:
        assert torch.equal(bucketed, exact)
    want, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    for result, (ways, _) in ((bucketed, cut), (exact, own)):
        error = (result.double() - want).abs().numpy()
        assert (error <= oracle.gamma(k + ways) * terms.numpy() + np.abs(want.numpy()) * oracle.U32).all()
    assert (m >= 70) == (own[0] == 1), "the small results are those whose k is cut"
