# SPDX-License-Identifier: Apache-2.0
"""The op table is complete and agrees with the card and with KTIR.

python -m pytest -q tests/unit/test_optable.py
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from torch_spyre.backend.program.isa import VOPS
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.emit.arithmetic import OPERATIONS
from torch_spyre.optable import BY_INDUCTOR, OPS, PUBLISHED, ROWS, SELECT, Kind, WithConstant, lookup

POINTWISE = [row for row in OPS.values() if row.kind is Kind.POINTWISE]


def test_every_vector_operation_of_the_card_is_an_op_with_as_many_operands() -> None:
    named = {vector: row.operands for row in OPS.values() for vector in (row.vector, row.truth_vector) if vector}
    assert {**named, "logical_not": 1} == {name: row.operands for name, row in VOPS.items()}
    assert {row.priced_as for row in ROWS} - {""} <= set(VOPS)


@pytest.mark.parametrize("row", POINTWISE, ids=lambda row: row.name)
def test_every_pointwise_op_has_a_spelling_and_a_meaning(row) -> None:  # type: ignore[no-untyped-def]
    assert row.predicates or row is SELECT or row.floats or row.integers
    for spelling in (row.floats, row.integers):
        if isinstance(spelling, WithConstant):
            assert OPS[spelling.op].operands == row.operands + 1
    numbers = [np.full((2, 3), 3 + i) for i in range(row.operands)]
    of_floats = row.predicates or row is SELECT or row.floats
    with np.errstate(all="ignore"):
        assert np.shape(row.meaning(*(x / 4 if of_floats else x for x in numbers))) == (2, 3)


def test_no_name_means_two_ops() -> None:
    # Operations that others write may be missing from xDSL's dialects; those that we write may not.
    assert {s for row in ROWS for s in (row.floats, row.integers) if isinstance(s, str) and s} <= set(OPERATIONS)
    for names in (
        [row.name for row in ROWS],
        [s for row in ROWS for s in {*row.spellings, row.linalg} - {""}],
        [name for row in ROWS for name in row.inductor],
        [row.superdsc for row in ROWS if row.superdsc],
    ):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(BY_INDUCTOR) == sum(len(row.inductor) for row in ROWS)


def test_rows_name_rows() -> None:
    for row in ROWS:
        assert row.combine in ("", *OPS) and row.reduction in ("", *OPS)
        assert set(row.scalars) <= set(row.constants)
        assert (row.reduction and row.combine) if row.kind in (Kind.REDUCTION, Kind.SCAN) else True
        assert bool(row.formats) <= (row.kind in (Kind.CAST, Kind.MATMUL))


def test_a_name_that_is_not_in_the_table() -> None:
    assert lookup("sumnonstick") is OPS["sum"]
    for name in ("addnonstick", "exx2", "spam"):
        with pytest.raises(UnsupportedOp, match=f"'{name}' is not known; known are add, sub"):
            lookup(name)
    assert lookup("exx2", PUBLISHED).kind is Kind.NORM
