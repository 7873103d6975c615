# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_oracle.py
"""The oracle itself: known codes, every code's round trip, and that its bounds catch small errors."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from oracle import Bounded


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3E00),
        (-1.0, 0xBE00),
        (1 + 2.0**-10, 0x3E01),  # tie, away from zero
        (2 - 2.0**-10, 0x4000),  # tie that carries into the exponent
        (-2.001953125, 0xC001),
        (3.1415927410125732, 0x4124),
        (65504.0, 0x5E00),
        (oracle.MAX, 0x7FFE),
        (2.0**33, 0x7FFE),
        (float("-inf"), 0xFFFE),
        (float("nan"), 0x7FFF),
        (2.0**-31, 0x0000),
        (2.0**-31 * (1 + 2.0**-10), 0x0001),
        (oracle.MIN, 0x0001),
        (-(2.0**-40), 0x8000),
    ],
)
def test_known_codes(value: float, code: int) -> None:
    assert int(oracle.encode(value)) == code


def test_every_code_round_trips_but_the_second_nan() -> None:
    codes = np.arange(1 << 16)
    assert np.nonzero(oracle.encode(oracle.decode(codes)) != codes)[0].tolist() == [0xFFFF]


def test_largest_finite_half_stays_finite() -> None:
    x = torch.tensor([65504.0, -65504.0, 65472.0, float("inf")], dtype=torch.float16)
    assert oracle.encode_host(x).tolist() == [0x5DFF, 0xDDFF, 0x5DFF, 0x7FFE]


def test_rounding_error_is_within_half_an_ulp_and_reaches_it() -> None:
    x = np.concatenate([2.0 ** np.random.uniform(-33, 32, 100_000), [1 + 2.0**-10]])
    error = np.abs(oracle.round_dl16(x) - x)
    assert (error <= oracle.half_ulp_dl16(x)).all()
    assert (error[-1] == oracle.half_ulp_dl16(x[-1])).all()


def _mlp() -> tuple[torch.Tensor, Bounded]:
    x, w1, w2 = (torch.randn(s).half() for s in [(16, 300), (300, 70), (70, 40)])
    h64 = oracle.dl16(x).astype(np.float32) @ oracle.dl16(w1).astype(np.float32)
    h = np.maximum(oracle.round_dl16(h64), 0).astype(np.float32)
    actual = oracle.round_dl16(h @ oracle.dl16(w2).astype(np.float32))
    bound = ((Bounded.of(x) @ Bounded.of(w1)).store().relu() @ Bounded.of(w2)).store()
    return torch.from_numpy(actual).half(), bound


def test_bounds_hold_for_a_chain_computed_as_the_card_does() -> None:
    actual, bound = _mlp()
    bound.check(actual)


def test_bounds_catch_one_wrong_value_and_say_where() -> None:
    actual, bound = _mlp()
    actual[3, 5] += float(2.1 * bound.error[3, 5]) + 0.25
    with pytest.raises(AssertionError, match=r"1 of 640 values.*\n.*worst \[3, 5\]"):
        bound.check(actual)


def test_close_accepts_half_an_ulp_and_refuses_one() -> None:
    expected = np.array([1.0 + 2.0**-11])
    oracle.assert_close_dl16(torch.tensor([1.0]).half(), expected)
    with pytest.raises(AssertionError, match="outside the bound"):
        oracle.assert_close_dl16(torch.tensor([1.0 + 2.0**-8]).half(), expected)


def test_infinity_is_right_only_where_the_value_leaves_the_format() -> None:
    inf = torch.tensor([float("inf")])
    oracle.assert_close_dl16(inf.half(), np.array([70000.0]))
    oracle.assert_close_dl16(inf, np.array([1e12]))
    for value in (600.0, -1e12):
        with pytest.raises(AssertionError):
            oracle.assert_close_dl16(inf, np.array([value]))


def test_same_is_exact() -> None:
    oracle.assert_same(torch.tensor([1.0, float("inf"), float("nan")]).half(), np.array([1.0, oracle.MAX, np.nan]))
    with pytest.raises(AssertionError):
        oracle.assert_same(torch.tensor([1.0]).half(), np.array([1 + 2.0**-9]))


def test_a_bounded_value_near_the_smallest_code_may_become_zero() -> None:
    """The computed value can be below MIN where the expected one is above it; the card then stores zero."""
    value = np.array([oracle.MIN * 1.001])
    Bounded(value, value * 0.01).store().check(torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(AssertionError):
        Bounded(value * 4, value * 0.01).store().check(torch.zeros(1, dtype=torch.bfloat16))
