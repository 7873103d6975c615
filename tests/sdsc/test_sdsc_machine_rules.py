# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_machine_rules.py

Defects planted in good bundles: the machine's rules catch each, and name the rule, the tensor and the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sdsc_files import FP32, SEGMENT, T, per_column, per_row, rows, sdsc
from test_sdsc_bundles import SIZES, SPLIT, layer_norm, softmax
from test_sdsc_ops import BATCHED, CASES, MATMUL, PLAIN, gather, topk

from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.superdsc.bundle import Bundle, Step
from torch_spyre.sdsc import SuperDSC


def bundle_of(sdscs: list[SuperDSC], fragment: bool = False) -> Bundle:
    return Bundle("case", tuple(Step(s, f"sdsc_{i}.json") for i, s in enumerate(sdscs)), fragment)


def moved(made: SuperDSC, tensor: int, delta: int, *cores: int) -> SuperDSC:
    """A tensor's start address moved on some cores, or on all."""
    a = made.allocations[tensor]
    start = {c: s + (delta if not cores or c in cores else 0) for c, s in a.start.items()}
    nodes = list(made.allocations)
    nodes[tensor] = replace(a, start=start)
    return replace(made, allocations=tuple(nodes))


def refused(sdscs: list[SuperDSC], message: str, fragment: bool = False) -> None:
    with pytest.raises(InvalidProgram, match=message):
        bundle_of(sdscs, fragment).verify()


def test_good_bundles_pass() -> None:
    for sdscs in (softmax(True), softmax(False), layer_norm(True), layer_norm(False)):
        bundle_of(sdscs).verify()


# -- one file --------------------------------------------------------------------------------------------------------


def twice(made: SuperDSC, **changes: object) -> SuperDSC:
    return replace(made, **changes)  # type: ignore[arg-type]


ADD, LX = CASES["add"], CASES["LX to LX in place"]
FILES: dict[str, tuple[Callable[[], SuperDSC], str]] = {
    "alignment": (lambda: moved(ADD, 1, 64, 2), r"\[alignment\] Tensor1, core 2: start address \d+ is not a multiple"),
    "wrong slice": (lambda: moved(ADD, 2, 128, 3), r"\[start-address\] Tensor2, core 3"),
    "outside LX": (lambda: moved(LX, 0, (2 << 20) - 4096), r"\[lx\] Tensor0, core 0: bytes"),
    "LX address of one core": (lambda: moved(LX, 0, 8192, 2), r"\[start-address\] Tensor0, core 2"),
    "no such segment": (lambda: moved(ADD, 0, 7 * SEGMENT), r"\[segment\] Tensor0, core 0"),
    "across segments": (lambda: moved(ADD, 0, SEGMENT - 4096), r"\[segment\] Tensor0, core 0"),
    "span": (
        lambda: sdsc("exp", {"mb": 1 << 16, "out": 4096}, [rows(0), rows(1)], {}),
        r"\[span\] Tensor0, core 0: one core spans 536870912 bytes, the limit is 268435456",
    ),
    "slice that cuts a stick": (
        lambda: sdsc("exp", {"mb": 4, "out": 192}, [rows(0), rows(1)], {"out": 2}),
        r"\[stick-slice\] Tensor0, core 0: dim out: 96 elements per core are not whole sticks of 64",
    ),
    "fp32 stick of 64": (
        lambda: sdsc("exp", SIZES, [rows(0, format=FP32, stick_sizes=(64,)), rows(1)], SPLIT),
        r"\[stick-size\] Tensor0",
    ),
    "pointwise with two stick dims": (
        lambda: sdsc("add", {"mb": 64, "out": 64}, [rows(0), T("out mb", "mb", 1), rows(2)], {}),
        r"\[stick-rule\] Tensor1: sticks on mb, another operand on out; restickify first",
    ),
    "reduction of a dim outside the sticks": (
        lambda: sdsc("sum", SIZES, [rows(0), per_column(1)], {}, accumulate=True),
        r"\[stick-rule\] Tensor0: sum keeps the stick dim out; that is sumnonstick",
    ),
    "nonstick reduction of the stick dim": (
        lambda: sdsc("maxnonstick", SIZES, [rows(0), per_row(1)], {}, accumulate=True),
        r"\[stick-rule\] Tensor0: maxnonstick reduces dim out, which lies in the sticks",
    ),
    "exx2 of rows": (
        lambda: sdsc("exx2", SIZES, [rows(0), per_column(1)], {}, accumulate=True),
        r"\[stick-rule\] Tensor0: exx2 reduces the stick dim",
    ),
    "matmul whose first operand sticks on m": (
        lambda: sdsc("batchmatmul", MATMUL, [T("in mb", "mb", 0), *PLAIN[1:]], {}),
        r"\[stick-rule\] Tensor0: sticks on \['mb'\], must stick on the reduced dim in",
    ),
    "matmul whose weight sticks on k": (
        lambda: sdsc("batchmatmul", MATMUL, [PLAIN[0], T("out in", "in", 1), PLAIN[2]], {}),
        r"\[stick-rule\] Tensor1: sticks on \['in'\], must stick on the generated dim out",
    ),
    "matmul result with k": (
        lambda: sdsc("batchmatmul", {"x": 2, **MATMUL}, [BATCHED[0], BATCHED[1], T("x in mb", "in", 2)], {}),
        r"\[dims\].*dim out is in one operand alone",
    ),
    "topk in the sticks": (
        lambda: sdsc(
            "topkvalue",
            {"mb": 128, "x": 4, "out": 128},
            [T("mb out x", "out", 0, lacks={"x": -1}), T("x mb out", "mb", 1, lacks={"out": -1})],
        ),
        r"\[stick-rule\] Tensor0: topk searches dim out, which lies in the sticks",
    ),
    "topk of more than there are": (lambda: topk("topkvalue", 101, 1), r"\[dims\] Tensor1: the 101 largest of 100"),
    "gather in the sticks": (
        lambda: sdsc(
            "identity",
            {"mb": 64, "out": 128},
            [T("out", "out", 0, format="SENUINT32", index=True), T("mb out", "out", 1, table="out"), rows(2)],
        ),
        r"\[stick-rule\] Tensor1: gathers along dim out, which lies in the sticks",
    ),
    "gather by floats": (
        lambda: replace(
            gather(128, 1), tensors=(replace(gather(128, 1).tensors[0], format=FP32), *gather(128, 1).tensors[1:])
        ),
        r"\[format\] Tensor0: index tensor of IEEE_FP32",
    ),
    "table that moves with the cores": (
        lambda: moved(gather(128, 4), 1, 4096, 1),
        r"\[start-address\] Tensor1, core 1: 17179873280, its slice starts at 17179869184",
    ),
    "cores that write the same bytes": (
        lambda: sdsc("add", SIZES, [rows(0), rows(1), per_column(2)], SPLIT),
        r"\[race\] Tensor2, core 1: 4 cores write the same bytes: the result lacks the split dim mb",
    ),
    "result without a dim": (
        lambda: sdsc("add", SIZES, [rows(0), rows(1), per_column(2)], {}),
        r"\[dims\] Tensor2: the result lacks dim mb of 64 elements",
    ),
    "operand missing": (
        lambda: sdsc("add", SIZES, [rows(0), rows(1)], SPLIT),
        r"\[operands\] 1 inputs and 1 outputs, add takes 2 and gives 1",
    ),
    "cast between the wrong formats": (
        lambda: sdsc("dl16tofp32", SIZES, [rows(0, format=FP32), rows(1)], SPLIT),
        r"\[format\] Tensor1: dl16tofp32 between tensors of formats IEEE_FP32 and SEN169_FP16",
    ),
    "eps missing": (
        lambda: sdsc("layernormscale", SIZES, [per_row(0), per_row(1)], SPLIT),
        r"\[constants\] layernormscale needs the constant eps",
    ),
    "two split reduced dims": (
        lambda: sdsc(
            "sum",
            SIZES,
            [rows(0), T("mb out", "out", 1, lacks={"mb": -1, "out": -2})],
            {"mb": 2, "out": 2},
            accumulate=True,
        ),
        r"\[split\] Tensor1: reduced dims mb, out are all split",
    ),
    "cores on the same slice": (
        lambda: replace(ADD, core_slices={**ADD.core_slices, 3: ADD.core_slices[2]}),
        r"\[core-map\] core 3: same slices as core 2",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_planted_in_a_file(name: str) -> None:
    make, message = FILES[name]
    refused([make()], message, fragment=True)


# -- between ops -----------------------------------------------------------------------------------------------------


def test_swapped_lx_address() -> None:
    """exp reads where nothing was written; and where another tensor of another layout was written."""
    files = softmax(True)
    files[2] = moved(files[2], 0, 40960)
    refused(files, r"sdsc_2\.json: \[lx-ownership\] Tensor0, core 0: reads LX bytes 43008\.\., 64 of 64 sticks never")
    refused(files, r"lx-ownership", fragment=False)


def test_half_written_lx_is_refused_even_in_a_fragment() -> None:
    files = softmax(True)
    files[2] = moved(files[2], 0, 128)
    refused(files, r"\[lx-ownership\] Tensor0, core 0: .* of 64 sticks never written there", fragment=True)


def test_lx_written_on_fewer_cores() -> None:
    """The known defect: an op on 4 cores leaves its result in their LX, a matmul on 8 reads it on all."""
    left = sdsc(
        "add", {"mb": 4, "in": 64}, [T("mb in", "in", 0), T("mb in", "in", 1), T("mb in", "in", lx=True)], {"mb": 4}
    )
    sizes = {"mb": 4, "out": 128, "in": 64}
    product = sdsc(
        "batchmatmul",
        sizes,
        [T("mb in", "in", lx=True), T("in out", "out", 2), T("mb out", "out", 3)],
        {"mb": 4, "out": 2},
    )
    message = r"sdsc_1\.json: \[lx-ownership\] Tensor0, core 4: .* never written there; cores 0\.\.3 have them"
    refused([left, product], message)
    refused([left, product], message, fragment=True)


def test_core_that_reads_anothers_slice() -> None:
    """Same bytes, same shape, but the cores count the slices in another order."""
    sizes, split = {"mb": 8, "x": 8, "out": 64}, {"mb": 2, "x": 2}
    made = sdsc("exp", sizes, [T("x mb out", "out", 0), T("x mb out", "out", lx=True)], split)
    good = sdsc("neg", sizes, [T("x mb out", "out", lx=True), T("x mb out", "out", 1)], split)
    bad = sdsc("neg", sizes, [T("x mb out", "out", lx=True), T("x mb out", "out", 1)], split, fastest=["x"])
    bundle_of([made, good]).verify()
    refused([made, bad], r"\[lx-ownership\] Tensor0, core 1: reads elements .* sdsc_0\.json left elements")


def test_result_of_a_split_reduction_is_on_one_core() -> None:
    """Of the cores that share a split K, the first has the sum; another may not read it."""
    left = sdsc("batchmatmul", MATMUL, [*PLAIN[:2], T("mb out", "out", lx=True)], {"mb": 4, "in": 3}, fastest=["in"])
    reader = sdsc("exp", {"mb": 64, "out": 128}, [rows(lx=True), rows(3)], {"mb": 4})
    refused([left, reader], r"\[lx-ownership\] Tensor0, core 1")


def test_overlapping_pool_blocks() -> None:
    """The exponentials are written over the last rows of the maxima's block, and over half of the shifted values."""
    files = softmax(False)
    bad = [moved(files[0], 1, 8192 + 4096), moved(files[1], 1, 8192 + 4096), *files[2:]]
    refused(bad, r"sdsc_1\.json: \[(race|overlap)\] Tensor2")
    late = [*files[:3], moved(files[3], 1, -4096), moved(files[4], 1, -4096)]
    refused(
        late,
        r"sdsc_4\.json: \[pool-overlap\] Tensor0, core \d+: reads what sdsc_2\.json wrote to segment0, but sdsc_3",
    )
    inside = [*files[:3], moved(files[3], 1, -32768), moved(files[4], 1, -32768)]
    refused(inside, r"sdsc_4\.json: \[pool-overlap\]")


def test_result_on_its_own_operand() -> None:
    """Copy within a block: reads sticks 1 and 2 of each row, writes sticks 0 and 1."""
    source, target = rows(0, at=64 * 128, gap={"out": 128}), rows(0, gap={"out": 128})
    refused(
        [sdsc("identity", {"mb": 64, "out": 128}, [source, target], {})],
        r"\[overlap\] Tensor1, core 0: lies on Tensor0",
    )
    split = [sdsc("identity", {"mb": 64, "out": 128}, [source, target], {"out": 2})]
    refused(split, r"\[race\] Tensor1, core 1: writes sticks of Tensor0 that core 0 reads")


def test_operands_on_each_other_in_lx() -> None:
    """Which of both an earlier bundle left there cannot be told."""
    made = sdsc("add", SIZES, [rows(lx=True), rows(lx=True, at=4096), rows(0)], SPLIT)
    refused([made], r"\[overlap\] Tensor1, core 0: lies on Tensor0 in LX", fragment=True)


def test_transpose_in_place_races() -> None:
    square = {"mb": 128, "out": 128}
    refused([sdsc("ReStickifyOpHBM", square, [rows(0), T("out mb", "mb", 0)], {"mb": 2})], r"\[race\] Tensor1, core 0")


def test_in_place_is_allowed() -> None:
    bundle_of([sdsc("exp", SIZES, [rows(0), rows(0)], SPLIT)]).verify()
    bundle_of([sdsc("add", SIZES, [rows(0), rows(1), rows(1)], SPLIT)]).verify()


def test_parts_may_be_written_into_a_whole() -> None:
    """A slice assignment keeps the strides of the whole."""
    whole = sdsc("exp", SIZES, [rows(1), rows(0)], SPLIT)
    part = sdsc("neg", {"mb": 64, "out": 64}, [rows(2), rows(0, at=64 * 128, gap={"out": 192})], SPLIT)
    after = sdsc("neg", SIZES, [rows(0), rows(3)], SPLIT)
    bundle_of([whole, part, after]).verify()
