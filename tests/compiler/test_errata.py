# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_errata.py
"""Deviations of the real card are off, and reproduced by a process where SPYRE_ERRATA asks for them."""

from __future__ import annotations

import json

import numpy as np
import oracle
import pytest
import torch
from processes import run_python

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument

LEAST = 2.0**-24
VALUES = [0.0, 1.0, -5.0, -16.0, -17.0, -30.0, -200.0, -np.inf]
# bfloat16 on the host, which holds numbers as small as the card's.
PROGRAM = """
    import json, torch
    def both(fn, x):
        card = x.to("spyre")
        return [way(card).cpu().double().tolist() for way in (fn, torch.compile(fn, dynamic=False))]
    values = torch.tensor({values})
    softmax = lambda x: torch.softmax(x, -1)
    print(json.dumps({{
        "sixteen": both(torch.exp, values.bfloat16()), "fp32": both(torch.exp, values),
        "softmax": both(softmax, values.bfloat16()), "nan": both(torch.exp, torch.tensor([float("nan")]).bfloat16()),
    }}))
"""


def computed(**environment: str) -> dict[str, list[list[float]]]:
    values = str(VALUES).replace("-inf", "float('-inf')")
    done = run_python(PROGRAM.format(values=values), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("errata", ["none", "exp"])
def test_exp_has_a_floor_where_it_is_asked_for(errata: str) -> None:
    found = computed(SPYRE_ERRATA=errata)
    exact = np.exp(oracle.dl16(torch.tensor(VALUES).bfloat16()))
    wanted = np.maximum(exact, LEAST) if errata == "exp" else exact
    for got in found["sixteen"]:
        oracle.assert_close_dl16(torch.tensor(got).bfloat16(), wanted, 4 * 2.0**-24 * wanted)
    for got in found["nan"]:
        assert np.isnan(got).all()
    for got in found["fp32"]:
        assert got[-1] == 0 and got[-3] < 1e-12, "fp32 is not touched"
    for got in found["softmax"]:
        assert (got[-1] > 0) == (errata == "exp"), "a masked position leaks"
        assert got[-1] < LEAST


def test_unknown_deviations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_ERRATA", "tanh")
    with pytest.raises(InvalidArgument, match="SPYRE_ERRATA"):
        knobs.from_env("errata")
