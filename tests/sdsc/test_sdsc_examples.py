# SPDX-License-Identifier: Apache-2.0
"""SPYRE_SDSC_EXAMPLES=<folder> pytest tests/sdsc/test_sdsc_examples.py

Files that the public front end wrote: they read, check, explain and run; kernels of them print as they were.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from torch_spyre.ir.superdsc.canonical import canonical
from torch_spyre.sdsc import SuperDSC, load, read_kernel, write_sdsc
from torch_spyre.sdsc.printed import estimate_times, explain
from torch_spyre.sdsc.reference import compare, evaluate
from torch_spyre.sdsc.run import execute, random_inputs
from torch_spyre.sdsc.slots import OUTPUT, bind

FOLDER = os.environ.get("SPYRE_SDSC_EXAMPLES", "")
FILES = sorted(Path(FOLDER).glob("*.json")) if FOLDER else []

pytestmark = pytest.mark.skipif(not FILES, reason="SPYRE_SDSC_EXAMPLES names no folder with SuperDSC files")


def normal(data: Any) -> Any:
    """Front ends differ in two spellings: the field indirectAllocType_ and addresses as numbers or strings."""
    (body,) = data.values()
    (dsc,) = body["dscs_"][0].values()
    for node in dsc["scheduleTree_"]:
        node["indirectAllocType_"] = "no_indirection"
        starts = node["startAddressCoreCorelet_"]["data_"]
        starts.update({core: str(address) for core, address in starts.items()})
    return data


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_public_file(file: Path) -> None:
    data = json.loads(file.read_text())
    kernel = read_kernel([data], file.stem)
    sdsc = SuperDSC.from_json(data)
    assert normal(sdsc.to_json()) == normal(json.loads(file.read_text()))
    again = write_sdsc(kernel.ops[0], sdsc.index)
    assert normal(again.to_json()) == normal(data)
    assert canonical(read_kernel([again.to_json()])) == canonical(kernel)


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_public_file_runs(file: Path) -> None:
    bundle = load(file)
    assert bundle.problems() == []
    assert "estimated time" in explain(bundle, estimate_times(bundle))
    launch = bind(bundle)
    inputs = random_inputs(launch)
    got, want = execute(launch, inputs), evaluate(launch, inputs)
    for slot in launch.of_role(OUTPUT):
        assert compare(got.outputs[slot.name], want.outputs[slot.name], slot) <= 1
