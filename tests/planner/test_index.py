# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_index.py
"""Index expressions decompose into coordinates that address the same element, or not at all."""

import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._inductor.tilegraph.index import Index, decompose, evaluate, from_sympy
from torch_spyre.ir.plan.tileops import Coord, Term

SIZES = st.sampled_from([1, 2, 3, 4, 5, 8, 10, 64, 100, 130, 200])


def plain(dim: str, div: int = 1, mod: int = 0) -> Coord:
    return Coord((Term(dim, 1, div, mod),))


def test_the_worked_example_of_the_talk() -> None:
    """[5, 10, 200] flattened to [50, 200]: the coordinates on the slide."""
    index = Index((Term("p0", 200), Term("p1", 1)))
    sizes = {"p0": 50, "p1": 200}
    tiled = decompose(index, [(200, 10), (64, 4), (2000, 5), (1, 64)], sizes)
    assert tiled == [plain("p0", 1, 10), plain("p1", 64), plain("p0", 10), plain("p1", 1, 64)]
    flat = decompose(index, [(64, 4), (200, 50), (1, 64)], sizes)
    assert flat == [plain("p1", 64), plain("p0"), plain("p1", 1, 64)]


def test_offsets_separate_only_on_stick_boundaries() -> None:
    axes = [(64, 4), (1, 64)]
    assert decompose(Index((Term("p", 1),), 3), axes, {"p": 100}) is None
    aligned = decompose(Index((Term("p", 1),), 64), axes, {"p": 100})
    assert aligned == [Coord((Term("p", 1, 64),), 1), plain("p", 1, 64)]


def test_reads_inductor_expressions() -> None:
    p, q = sympy.symbols("p q", integer=True, nonnegative=True)
    expr = 200 * ModularIndexing(p, 1, 10) + 2000 * FloorDiv(p, 10) + q + 7
    index = from_sympy(expr, {"p": 50, "q": 200})
    assert index.const == 7
    assert set(index.terms) == {Term("p", 200, 1, 10), Term("p", 2000, 10), Term("q", 1)}


@given(data=st.data())
def test_coordinates_address_the_same_element(data: st.DataObject) -> None:
    host = data.draw(st.lists(SIZES.filter(lambda n: n > 1), min_size=1, max_size=3))
    strides = [1]
    for n in host[:0:-1]:
        strides.insert(0, strides[0] * n)
    axes = [(64, -(-host[-1] // 64)), *zip(strides[:-1], host[:-1], strict=True), (1, 64)]
    axes = data.draw(st.permutations(axes))
    sizes = {f"d{i}": n for i, n in enumerate(data.draw(st.lists(SIZES, min_size=1, max_size=3)))}
    steps = st.sampled_from([1, 2, 10, 64, strides[0], 2 * strides[0]])
    terms = tuple(
        Term(d, data.draw(steps), data.draw(st.sampled_from([1, 1, 2, 5])), data.draw(st.sampled_from([0, 0, 2, 5])))
        for d, n in sizes.items()
        if n > 1
    )
    index = Index(terms, data.draw(st.sampled_from([0, 0, 3, 64, strides[0]])))
    coords = decompose(index, axes, sizes)
    if coords is None:
        return
    point = {d: data.draw(st.integers(0, n - 1)) for d, n in sizes.items()}
    offset = evaluate(index.terms, index.const, point)
    values = [evaluate(c.terms, c.const, point) for c in coords]
    assert all(0 <= v < extent for v, (_, extent) in zip(values, axes, strict=True))
    assert sum(v * stride for v, (stride, _) in zip(values, axes, strict=True)) == offset
