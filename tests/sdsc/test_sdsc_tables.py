# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_tables.py: gathers and scatters as front ends write them, against NumPy's indexing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sdsc_files import UINT32, T, rows, sdsc

from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.superdsc.bundle import Bundle, from_json
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.sdsc.run import run

RNG = np.random.default_rng(3)


def _bundle(*made: SuperDSC) -> Bundle:
    return from_json([sdsc.to_json() for sdsc in made])


def _values(*shape: int) -> np.ndarray:
    return RNG.integers(-99, 100, shape).astype(np.float32)


def _table_of(count: int, segment: int) -> SuperDSC:
    """Writes a table of that many rows, one stick each."""
    return sdsc("identity", {"mb": count, "out": 64}, [rows(0), rows(segment)])


def test_rows_by_an_index_of_two_dims() -> None:
    """The table has more rows than there are indices, which only the op that wrote it tells."""
    index = T("mb x", "x", 2, format=UINT32, index=True)
    taken = sdsc(
        "identity",
        {"mb": 2, "x": 4, "out": 64},
        [index, T("mb x out", "out", 1, table="mb x"), T("mb x out", "out", 3)],
    )
    table, places = _values(10, 64), np.array([[0, 9, 8, 3], [9, 9, 1, 2]])
    result = run(_bundle(_table_of(10, 1), taken), {"0.Tensor0": table, "1.Tensor0": places})
    assert np.array_equal(result.outputs["1.Tensor2"], table[places])


def test_wide_rows_by_an_index_of_two_dims() -> None:
    """Rows of two sticks: the second stick of a row lies behind the first ones of all rows."""
    index = T("mb x", "x", 0, format=UINT32, index=True)
    table = T("mb x out", "out", 1, table="mb x", gap={"mb": -5, "x": 6})
    made = sdsc("identity", {"mb": 6, "x": 4, "out": 128}, [index, table, T("mb x out", "out", 2)], {"mb": 2})
    values, places = _values(10, 128), RNG.integers(0, 10, (6, 4))
    result = run(_bundle(made), {"Tensor0": places, "Tensor1": values})
    assert np.array_equal(result.outputs["Tensor2"], values[places])


def _scatter(count: int, split: int = 1, out: int = 64, gap: int = 0) -> SuperDSC:
    index = T("mb", "mb", 2, format=UINT32, index=True)
    table = T("mb out", "out", 1, table="mb", gap={"mb": gap} if gap else {})
    return sdsc("identity", {"mb": count, "out": out}, [index, rows(3), table], {"mb": split})


def test_rows_are_written_into_a_copy() -> None:
    """index_copy: a copy of the whole table, then some of its rows."""
    table, values, places = _values(16, 64), _values(4, 64), np.array([15, 0, 7, 3])
    result = run(_bundle(_table_of(16, 1), _scatter(4)), {"0.Tensor0": table, "1.Tensor0": places, "1.Tensor1": values})
    want = table.copy()
    want[places] = values
    assert np.array_equal(result.outputs["1.Tensor2"], want)


@pytest.mark.parametrize("split", [1, 2])
def test_rows_that_are_not_written_stay(split: int) -> None:
    """A table that nothing in the bundle wrote is an input as well."""
    table, values, places = _values(100, 128), _values(64, 128), RNG.permutation(100)[:64]
    inputs = {"Tensor0": places, "Tensor1": values, "Tensor2": table}
    result = run(_bundle(_scatter(64, split, 128, 36)), inputs)
    want = table.copy()
    want[places] = values
    assert np.array_equal(result.outputs["Tensor2"], want)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([T("mb", "mb", 0, format=UINT32, index=True), rows(1), rows(2)], r"0 value_tensor allocations"),
        (
            [T("mb out", "out", 0, format=UINT32, index=True), rows(1), T("mb out", "out", 2, table="out")],
            r"gathers along dim out, which lies in the sticks",
        ),
    ],
)
def test_tables_that_break_a_rule(tensors: Sequence[T], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        _bundle(sdsc("identity", {"mb": 64, "out": 64}, tensors)).verify()
