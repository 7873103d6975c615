# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ops/test_eager_sizes.py: which size of an eager call varies, and what follows from it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre.ops.reuse.varying_sizes import Call, Pattern, Seen, pattern, value


def dense(*size: int, offset: int = 0) -> Seen:
    stride = [1]
    for n in reversed(size[1:]):
        stride.insert(0, stride[0] * n)
    return Seen(size, tuple(stride), offset)


def test_a_cache_that_grows() -> None:
    def call(n: int) -> Call:
        return (dense(1, 2, n, 16), dense(1, 2, 1, 16), None)

    found = pattern(call(6), call(7))
    assert found is not None and found.place == (0, 2)
    assert found.tensors[0] is not None and found.tensors[0].size == [[1], [2], [0, 1], [16]]
    assert found.tensors[0].stride == [[0, 32], [0, 16], [16], [1]] and found.tensors[2] is None
    assert [found.matches(call(n)) for n in (2, 7, 1000)] == [2, 7, 1000]
    assert found.matches(call(1)) is None, "a size of 1 is broadcast"
    assert found.matches((dense(1, 3, 7, 16), dense(1, 2, 1, 16), None)) is None, "another size differs"
    assert found.matches((dense(1, 2, 7, 16, offset=16), dense(1, 2, 1, 16), None)) is None


@pytest.mark.parametrize(
    "size",
    [
        lambda n: (dense(n, n), dense(2, 2 * n, n)),  # products
        lambda n: (dense(n, 8), dense(n + 1, 8)),  # the size after one more
        lambda n: (dense(8, n), Seen((8, n - 1), (n, 1), 0)),  # a slice of a dense tensor
    ],
)
@pytest.mark.parametrize("sizes", [(6, 7), (9, 5), (20, 31)])
def test_what_follows_from_the_size(size: object, sizes: tuple[int, int]) -> None:
    assert callable(size)
    found = pattern(size(sizes[0]), size(sizes[1]))
    assert found is not None
    for n in (*sizes, 12, 100):
        assert found.matches(size(n)) is not None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((dense(4, 8),), (dense(4, 8),)),  # nothing differs
        ((dense(4, 8),), (dense(1, 8),)),  # one is 1
        ((dense(4, 8),), (dense(4, 8), None)),
        ((dense(4, 8),), (dense(4, 2, 4),)),
        ((dense(4, 8),), (dense(5, 8, offset=8),)),  # another place
        ((dense(4, 8), dense(9, 9)), (dense(5, 8), dense(9, 9, offset=9))),
        ((dense(4, 8), None), (dense(5, 8), dense(2))),
        ((dense(4, 9),), (dense(7, 11),)),  # two sizes that have nothing to do with each other
    ],
)
def test_no_pattern(before: Call, now: Call) -> None:
    assert pattern(before, now) is None


SHAPES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4)


@given(SHAPES, st.integers(2, 40), st.integers(2, 40), st.integers(2, 4000))
def test_a_pattern_holds_for_its_calls(sizes: list[tuple[int, int, int]], a: int, b: int, n: int) -> None:
    """It may be none of what varied, but what it says of the two calls it was made of is so, and it survives JSON."""

    def call(n: int) -> Call:
        return (dense(*(times * n + more if kind else more + 1 for kind, times, more in sizes)),)

    found = pattern(call(a), call(b))
    if found is None:
        return
    assert Pattern.of_plain(json.loads(json.dumps(found.plain()))) == found
    for x in (a, b):
        assert found.matches(call(x)) is not None
    matched = found.matches(call(n))
    if matched is not None:
        shape, (tensor,) = found.tensors[0], call(n)
        assert shape is not None and tensor is not None
        assert [value(p, matched) for p in shape.size] == list(tensor.size)
