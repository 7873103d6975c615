# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_packed_weights.py
"""Products with weights of four bits: the numbers that were packed come out again, eager and compiled."""

from __future__ import annotations

import pytest
import torch
from oracle import Bounded, assert_same, dl16, round_dl16

generator = torch.Generator().manual_seed(2)


def packed_product(x: torch.Tensor, weight: torch.Tensor, tiles: int, group: int, scales: torch.Tensor) -> torch.Tensor:
    return torch._weight_int4pack_mm(x, torch._convert_weight_to_int4pack(weight, tiles), group, scales)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns", "tiles", "group"), [(48, 64, 2, 32), (8, 128, 8, 64), (16, 64, 4, 64)])
def test_product(rows: int, columns: int, tiles: int, group: int, dtype: torch.dtype) -> None:
    weight = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    scales = torch.rand(columns // group, rows, 2, generator=generator).to(dtype)
    x = torch.randn(5, columns, generator=generator).to(dtype)
    numbers = torch.stack((weight >> 4, weight & 15), 2).reshape(rows, columns).double() - 8
    scale, zero = (part.t().repeat_interleave(group, 1) for part in torch.from_numpy(dl16(scales)).unbind(2))
    values = round_dl16((numbers * scale + zero).numpy())
    on_card = x.to("spyre"), weight.to("spyre"), tiles, group, scales.to("spyre")
    got = packed_product(*on_card)
    (Bounded.of(x) @ Bounded.of(torch.from_numpy(values).t().contiguous())).store().check(got.cpu())
    assert_same(torch.compile(packed_product, dynamic=False)(*on_card), got.cpu())


def test_the_shape_and_the_words() -> None:
    weight = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    packed = torch._convert_weight_to_int4pack(weight.to("spyre"), 2)
    assert packed.shape == (1, 2, 32, 1) and packed.dtype is torch.int32
    assert torch.equal(packed.cpu().flatten(), weight.flatten().view(torch.int32))


def test_wrong_sizes_are_refused() -> None:
    weight = torch.zeros(48, 32, dtype=torch.uint8, device="spyre")
    with pytest.raises(RuntimeError, match="innerKTiles is 3"):
        torch._convert_weight_to_int4pack(weight, 3)
    with pytest.raises(RuntimeError, match="multiples of 8 and 128"):
        torch._convert_weight_to_int4pack(weight, 8)
    packed, x = torch._convert_weight_to_int4pack(weight, 2), torch.zeros(2, 64, device="spyre")
    with pytest.raises(RuntimeError, match=r"expected \(2, 48, 2\)"):
        torch._weight_int4pack_mm(x, packed, 32, torch.zeros(1, 48, 2, device="spyre"))
    with pytest.raises(RuntimeError, match="x has 32 columns, the packed weight 64"):
        torch._weight_int4pack_mm(x[:, :32], packed, 32, torch.zeros(2, 48, 2, device="spyre"))
