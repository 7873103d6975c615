# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_ops.py

Every opfunc that the public front end emits reads, checks, explains and runs, and the card agrees with NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sdsc_files import FP8, FP16, FP32, INT32, UINT32, T, per_column, per_row, rows, sdsc

from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.ir.superdsc.bundle import Bundle, Step, from_json
from torch_spyre.ir.superdsc.schema import Window
from torch_spyre.optable import PUBLISHED
from torch_spyre.sdsc import SuperDSC
from torch_spyre.sdsc.printed import estimate_times, explain
from torch_spyre.sdsc.reference import compare, evaluate
from torch_spyre.sdsc.run import execute, random_inputs
from torch_spyre.sdsc.slots import bind

SIZES, SPLIT = {"mb": 64, "out": 256}, {"mb": 4}
UNARY = "abs neg reciprocal exp log sqrt rsqrt tanh sigmoid relufwd gelufwd silu floor".split()
BINARY = "add sub mul realdiv maximum minimum equal notequal greaterthan greaterequal lesserthan lesserequal".split()
REDUCTIONS = "sum max min prod".split()
MATMUL = {"mb": 64, "out": 128, "in": 192}
PLAIN = [T("mb in", "in", 0), T("in out", "out", 1), T("mb out", "out", 2)]
IN_LX = [
    T("mb in", "in", lx=True),
    T("in out", "out", lx=True, at=1 << 19),
    T("mb out", "out", lx=True, at=1 << 20),
]
BATCHED = [T("x in mb", "in", 0), T("x out in", "out", 1), T("x out mb", "out", 2)]


def reduction(name: str, source: T, result: T, split: dict[str, int], count: int = 0, **more: object) -> SuperDSC:
    constants = {"scaling_factor": 1 / count} if count else {}
    return sdsc(name, SIZES, [source, result], split, accumulate=True, constants=constants, **more)  # type: ignore[arg-type]


def topk(name: str, count: int, cores: int, **more: object) -> SuperDSC:
    source = T("out mb x", "mb", 0, lacks={"x": -1})
    return sdsc(
        name,
        {"mb": 128, "x": count, "out": 100},
        [source, T("x mb out", "mb", 1, lacks={"out": -1}, **more)],  # type: ignore[arg-type]
        {"mb": cores},
    )


def gather(rows_of_table: int, cores: int, **more: object) -> SuperDSC:
    table = T("mb out", "out", 1, table="mb", gap={"mb": rows_of_table - 128}, **more)  # type: ignore[arg-type]
    index = T("mb", "mb", 0, format=UINT32, index=True)
    return sdsc("identity", {"mb": 128, "out": 256}, [index, table, rows(2)], {"mb": cores})


def masked(name: str, value: float, format: str = FP16) -> SuperDSC:
    sizes = {"mb": 67, "out": 128}
    return sdsc(
        name,
        sizes,
        [rows(0, format=format), per_row(1, format=format)],
        accumulate=True,
        mask={"out": 100},
        constants={"samv-maskvalue": value},
        constant_format=format,
    )


CASES: dict[str, SuperDSC] = {
    **{n: sdsc(n, SIZES, [rows(0), rows(1)], SPLIT) for n in UNARY},
    **{n: sdsc(n, SIZES, [rows(0), rows(1), rows(2)], SPLIT) for n in BINARY},
    **{f"fp32 {n}": sdsc(n, SIZES, [rows(i, format=FP32) for i in range(3)], SPLIT) for n in ("add", "realdiv")},
    **{f"fp32 {n}": sdsc(n, SIZES, [rows(i, format=FP32) for i in range(2)], SPLIT) for n in ("exp", "rsqrt")},
    "int8 mul": sdsc("mul", SIZES, [rows(i, format="SENINT8") for i in range(3)], SPLIT),
    "int16 max": sdsc("maximum", SIZES, [rows(i, format="SENINT16") for i in range(3)], SPLIT),
    "int32 sum": sdsc("sum", SIZES, [rows(0, format=INT32), per_row(1, format=INT32)], SPLIT, accumulate=True),
    "int8 matmul": sdsc(
        "batchmatmul",
        {"mb": 64, "out": 128, "in": 256},
        [
            T("mb in", "in", 0, format="SENINT8"),
            T("in out", "out", 1, format="SENINT8"),
            T("mb out", "out", 2, format=INT32),
        ],
        {"mb": 4},
        unit="pt",
    ),
    "int32 add": sdsc("add", SIZES, [rows(i, format=INT32) for i in range(3)], SPLIT),
    "where3": sdsc("where3", SIZES, [rows(i) for i in range(4)], SPLIT),
    "clip": sdsc("clip", SIZES, [rows(0), rows(1)], SPLIT, constants={"clipMin": -0.5, "clipMax": 0.75}),
    "clip below": sdsc("clip", SIZES, [rows(0), rows(1)], SPLIT, constants={"clipMin": -0.5}, constant_format=FP16),
    "softplus": sdsc(
        "softplus", SIZES, [rows(0), rows(1)], SPLIT, constants={"softplusBeta": 2.0, "softplusThresh": 1.0}
    ),
    **{n: reduction(n, rows(0), per_row(1), SPLIT) for n in REDUCTIONS},
    **{f"{n}nonstick": reduction(f"{n}nonstick", rows(0), per_column(1), {"out": 4}) for n in REDUCTIONS},
    "mean": reduction("mean", rows(0), per_row(1), SPLIT, 256),
    "mean without its constant": reduction("mean", rows(0), per_row(1), SPLIT),
    "meannonstick": reduction("meannonstick", rows(0), per_column(1), {"out": 4}, 64),
    "sum of a split dim": reduction("sum", rows(0), per_row(1), {"mb": 2, "out": 4}),
    "max of a split dim into LX": reduction("max", rows(0), per_row(1, lx=True), {"mb": 2, "out": 4}),
    "prod of a split dim": reduction("prod", rows(0), per_row(1), {"mb": 2, "out": 4}),
    "masked prod": masked("prod", 1.0),
    "sum of all": reduction("sum", rows(0), T("mb out", "out", 1, lacks={"mb": -1, "out": -2}), {"mb": 4}),
    "masked sum": masked("sum", 0.0),
    "masked max": masked("max", -math.inf),
    "masked fp32 min": masked("min", math.inf, FP32),
    "exx2": reduction("exx2", rows(0), per_row(1), SPLIT),
    "exx2 of zero mean": sdsc(
        "exx2",
        SIZES,
        [rows(0), per_row(1)],
        SPLIT,
        accumulate=True,
        constants={"exx2scale": 1 / 256, "useZeroMean": 1.0},
    ),
    "exx2 into LX": reduction("exx2", rows(0), per_row(1, lx=True), SPLIT),
    "exx2 of a split dim": reduction("exx2", rows(0), per_row(1), {"mb": 2, "out": 2}),
    "layernormscale": sdsc("layernormscale", SIZES, [per_row(0), per_row(1)], SPLIT, constants={"eps": 1e-5}),
    "layernormscale in LX": sdsc(
        "layernormscale", SIZES, [per_row(lx=True), per_row(at=8192, lx=True)], SPLIT, constants={"eps": 1e-5}
    ),
    "layernormnorm": sdsc(
        "layernormnorm",
        SIZES,
        [rows(0), per_row(1), per_row(2), per_column(3), per_column(4), rows(5)],
        SPLIT,
    ),
    **{f"{n} {k}": topk(n, k, c) for n in ("topkvalue", "topkindex") for k, c in ((1, 1), (4, 2))},
    "topkindex as fp32": topk("topkindex", 3, 2),
    "batchmatmul": sdsc("batchmatmul", MATMUL, PLAIN, {"mb": 4, "out": 2}, unit="pt"),
    "batchmatmul, K split": sdsc("batchmatmul", MATMUL, PLAIN, {"mb": 4, "in": 3}, unit="pt", fastest=["in"]),
    "batchmatmul, K split slowest": sdsc("batchmatmul", MATMUL, PLAIN, {"mb": 4, "in": 3}, unit="pt"),
    "batchmatmul, labels in another order": sdsc(
        "batchmatmul", {"in": 192, "out": 128, "mb": 64}, PLAIN, {"out": 2}, unit="pt"
    ),
    "batched": sdsc("batchmatmul", {"x": 3, **MATMUL}, BATCHED, {"x": 3, "out": 2}, unit="pt"),
    "batched twice": sdsc(
        "batchmatmul",
        {"y": 2, "x": 3, **MATMUL},
        [T("y x in mb", "in", 0), T("y x out in", "out", 1), T("y x out mb", "out", 2)],
        {"y": 2},
        unit="pt",
    ),
    "shared weight": sdsc(
        "batchmatmul", {"x": 3, **MATMUL}, [BATCHED[0], T("in out", "out", 1), BATCHED[2]], {"x": 3}, unit="pt"
    ),
    "one row": sdsc("batchmatmul", {"mb": 1, "out": 128, "in": 192}, PLAIN, {"out": 2}, unit="pt"),
    "matmul into LX, K split": sdsc(
        "batchmatmul", MATMUL, [*PLAIN[:2], T("mb out", "out", lx=True)], {"mb": 4, "in": 3}, unit="pt", fastest=["in"]
    ),
    "matmul in LX": sdsc("batchmatmul", MATMUL, IN_LX, {"mb": 4, "out": 2}, unit="pt"),
    "matmul in LX, K split": sdsc(
        "batchmatmul", MATMUL, [*IN_LX[:2], PLAIN[2]], {"mb": 2, "in": 3}, unit="pt", fastest=["in"]
    ),
    "fp32 matmul": sdsc(
        "batchmatmul", MATMUL, [T(t.order, t.stick, t.seg, format=FP32) for t in PLAIN], {"mb": 4}, unit="pt"
    ),
    "batchmatmulfp8": sdsc(
        "batchmatmulfp8",
        {"mb": 64, "out": 128, "in": 256},
        [T("mb in", "in", 0, format=FP8), T("in out", "out in", 1, format=FP8, stick_sizes=(64, 2)), PLAIN[2]],
        {"mb": 4, "out": 2},
        unit="pt",
    ),
    "batchmatmulfp8, pairs of k inside": sdsc(
        "batchmatmulfp8",
        {"mb": 64, "out": 128, "in": 256},
        [T("mb in", "in", 0, format=FP8), T("in out", "in out", 1, format=FP8, stick_sizes=(2, 64)), PLAIN[2]],
        {"out": 2},
        unit="pt",
    ),
    "identity": sdsc("identity", SIZES, [rows(0), T("out mb", "out", 1)], SPLIT),
    "identity of int32": sdsc("identity", SIZES, [rows(0, format=INT32), rows(1, format=INT32)], SPLIT),
    "fill": sdsc("identity", SIZES, [T("mb out", "out", 0, lacks={"mb": -1, "out": -2}), rows(1)], SPLIT),
    "dl16tofp32": sdsc("dl16tofp32", SIZES, [rows(0), rows(1, format=FP32)], SPLIT),
    "fp32todl16": sdsc("fp32todl16", SIZES, [rows(0, format=FP32), rows(1)], SPLIT),
    "fp8todl16": sdsc("fp8todl16", SIZES, [rows(0, format=FP8), rows(1)], SPLIT),
    "qfp8ch": sdsc("qfp8ch", SIZES, [rows(0), rows(1, format=FP8)], SPLIT),
    "qfp8wt": sdsc("qfp8wt", SIZES, [rows(0), T("mb out", "mb out", 1, format=FP8, stick_sizes=(2, 64))], {"out": 2}),
    "qfp8ch of a vector": sdsc("qfp8ch", {"mb": 1, "out": 256}, [rows(0), rows(1, format=FP8)]),
    "ReStickifyOpHBM": sdsc("ReStickifyOpHBM", SIZES, [rows(0), T("out mb", "mb", 1)], {"out": 4}),
    "ReStickifyOpLx": sdsc(
        "ReStickifyOpLx", SIZES, [rows(lx=True), T("out mb", "mb", lx=True, at=1 << 16)], {"out": 4}
    ),
    "gather": gather(200, 4),
    "gather from a short table": gather(7, 2),
    "gather on one core": gather(128, 1),
    "gather of 100": sdsc(
        "identity",
        {"mb": 100, "out": 256},
        [T("mb", "mb", 0, format=UINT32, index=True), T("mb out", "out", 1, table="mb", gap={"mb": -60}), rows(2)],
    ),
    "gather by indices of two dims": sdsc(
        "identity",
        {"mb": 6, "x": 32, "out": 128},
        [
            T("mb x", "x", 0, format=UINT32, index=True),
            T("mb x out", "out", 1, table="mb x", gap={"mb": -5, "x": 9}),
            T("mb x out", "out", 2),
        ],
        {"mb": 3},
    ),
    "scatter": sdsc(
        "identity",
        {"mb": 64, "out": 256},
        [T("mb", "mb", 0, format=UINT32, index=True), rows(1), T("mb out", "out", 2, table="mb", gap={"mb": 36})],
        {"mb": 2},
    ),
    "avgpoolfwd": sdsc(
        "avgpoolfwd",
        {"i": 4, "j": 6, "out": 128, "ki": 2, "kj": 3},
        [T("j i out", "out", 0, windows="i j"), T("i j out", "out", 1)],
        {"i": 2, "j": 3},
        windows={"i": Window("ki", 2, 1, 9), "j": Window("kj", 1, 2, 10)},
    ),
    "conv2d": sdsc(
        "conv2d",
        {"i": 4, "j": 6, "out": 128, "ki": 2, "kj": 3, "in": 64},
        [T("j i in", "in", 0, windows="i j"), T("in kj ki out", "out", 1), T("j i out", "out", 2)],
        {"i": 4, "out": 2},
        windows={"i": Window("ki", 2, 1, 9), "j": Window("kj", 1, 2, 10)},
        unit="pt",
    ),
    "depthwiseconv2dnative": sdsc(
        "depthwiseconv2dnative",
        {"i": 4, "j": 6, "out": 128, "ki": 2, "kj": 3},
        [T("j i out", "out", 0, windows="i j"), T("kj ki out", "out", 1), T("j i out", "out", 2)],
        {"i": 4},
        windows={"i": Window("ki", 2, 1, 9), "j": Window("kj", 1, 2, 10)},
        unit="pt",
    ),
    "square": sdsc("mul", SIZES, [rows(0), rows(0), rows(1)], SPLIT),
    "columns of rows": sdsc("identity", {"mb": 2, "x": 3, "out": 64}, [T("mb x out", "out", i) for i in range(2)]),
    "column operand": sdsc("add", SIZES, [rows(0), per_row(1), rows(2)], SPLIT),
    "row operand": sdsc("mul", SIZES, [rows(0), per_column(1), rows(2)], SPLIT),
    "0-d operand": sdsc("mul", SIZES, [rows(0), T("mb out", "out", 1, lacks={"mb": -1, "out": -2}), rows(2)], SPLIT),
    "uneven split of rows": sdsc("add", {"mb": 67, "out": 128}, [rows(0), per_column(1), rows(2)], SPLIT),
    "uneven split of sticks": sdsc("exp", {"mb": 5, "out": 320}, [rows(0), rows(1)], {"out": 3}, parts={"out": 128}),
    "a part of a longer tensor": sdsc(
        "neg", SIZES, [rows(0, at=1280, gap={"mb": 10, "out": 64}), rows(1, gap={"mb": 6})], SPLIT
    ),
    "LX to LX in place": sdsc("relufwd", SIZES, [rows(lx=True, at=4096), rows(lx=True, at=4096)], SPLIT),
    "LX with a gap": sdsc("exp", SIZES, [rows(lx=True, gap={"mb": 3}), rows(1)], SPLIT),
    "LX operand that lacks the split dim": sdsc("add", SIZES, [rows(0), per_column(lx=True), rows(1)], SPLIT),
    "24 cores": sdsc("tanh", {"mb": 48, "x": 3, "out": 128}, [T("x mb out", "out", i) for i in range(2)], {"mb": 24}),
    "a pool": sdsc("mul", SIZES, [rows(0), rows(0, at=64 * 512), rows(0, at=2 * 64 * 512)], SPLIT),
    "1-d": sdsc("exp", {"out": 1024}, [T("out", "out", 0), T("out", "out", 1)], {"out": 16}),
    "no stick dim": sdsc(
        "neg", {"out": 8, "mb": 64}, [T("out mb", "mb", i, lacks={"mb": -2}) for i in range(2)], {"out": 4}
    ),
}


def lone(made: SuperDSC) -> Bundle:
    """As read from a file."""
    return replace(from_json([made.to_json()], "case"), fragment=True)


def check(bundle: Bundle, seed: int = 0) -> None:
    bundle.verify()
    launch = bind(bundle)
    inputs = random_inputs(launch, seed)
    want, got = evaluate(launch, inputs), execute(launch, inputs)
    assert got.outputs.keys() == want.outputs.keys() and want.outputs
    for slot in launch.slots:
        if slot.name in want.outputs:
            assert compare(got.outputs[slot.name], want.outputs[slot.name], slot) <= 1


@pytest.mark.parametrize("name", CASES)
def test_opfunc_runs(name: str) -> None:
    bundle = lone(CASES[name])
    check(bundle)
    text = explain(bundle, estimate_times(bundle))
    assert CASES[name].opfunc in text and "estimated time" in text


def test_all_emitted_opfuncs_have_a_case() -> None:
    assert {case.row.name for case in CASES.values()} == set(PUBLISHED)


@pytest.mark.parametrize(
    "name", "conv2dint8 mish fnms biasadd fastexp quantscalepertoken maskbyindex qfp8mb sin addnonstick".split()
)
def test_other_names_are_refused(name: str) -> None:
    data = CASES["exp"].to_json()
    body = data.pop("0_exp")
    body["dscs_"] = [{name: body["dscs_"][0]["exp"]}]
    body["dscs_"][0][name]["computeOp_"][0]["opFuncName"] = name
    bundle = Bundle("case", (Step(SuperDSC.from_json({f"0_{name}": body}), "case.json"),))
    with pytest.raises(UnsupportedOp, match=f"opfunc '{name}' is not known"):
        bundle.verify()


def test_index_out_of_range_is_an_error() -> None:
    launch = bind(lone(gather(7, 2)))
    inputs = random_inputs(launch)
    inputs["Tensor0"][5] = 7
    with pytest.raises(RuntimeError, match=r"(?i)index"):
        execute(launch, inputs)


def test_the_same_tensor_twice() -> None:
    launch = bind(lone(CASES["square"]))
    x = np.ones((64, 256)) * 3
    for arrays in ({"Tensor0": x}, {"Tensor1": x}, {"Tensor0": x, "Tensor1": x}):
        assert (execute(launch, arrays).outputs["Tensor2"] == 9).all()
    with pytest.raises(InvalidArgument, match="Tensor1 and Tensor0 are the same tensor"):
        execute(launch, {"Tensor0": x, "Tensor1": x + 1})


sizes = st.integers(1, 70)
MORE = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@MORE
@given(m=sizes, n=st.integers(1, 3), cores=st.sampled_from([1, 2, 4, 8, 32]), name=st.sampled_from(["add", "realdiv"]))
def test_pointwise_of_any_size_and_split(m: int, n: int, cores: int, name: str) -> None:
    made = sdsc(name, {"mb": m * cores, "out": 64 * n}, [rows(0), per_row(1), T("out mb", "out", 2)], {"mb": cores})
    check(lone(made), m)


@MORE
@given(
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4)),
    split=st.sampled_from([{}, {"mb": 2}, {"out": 2}, {"in": 2}, {"mb": 2, "out": 2, "in": 2}, {"x": 2, "in": 4}]),
    batch=st.integers(1, 2),
)
def test_matmul_of_any_size_and_split(sizes: tuple[int, int, int], split: dict[str, int], batch: int) -> None:
    part = {d: split.get(d, 1) for d in ("x", "mb", "out", "in")}
    full = {
        "x": batch * part["x"],
        "mb": sizes[0] * part["mb"],
        "out": 64 * sizes[1] * part["out"],
        "in": 64 * sizes[2] * part["in"],
    }
    check(lone(sdsc("batchmatmul", full, BATCHED, split, unit="pt", fastest=["in"])), sizes[0])


@MORE
@given(
    name=st.sampled_from(["sum", "max", "min", "mean", "exx2"]),
    m=st.integers(1, 40),
    sticks=st.integers(1, 4),
    valid=st.integers(1, 64),
    cores=st.sampled_from([1, 2, 16]),
    lx=st.booleans(),
)
def test_masked_reduction_of_any_size(name: str, m: int, sticks: int, valid: int, cores: int, lx: bool) -> None:
    full = {"mb": m * cores, "out": 64 * sticks}
    mask = {"out": 64 * (sticks - 1) + valid}
    made = sdsc(name, full, [rows(0), per_row(1, lx=lx)], {"mb": cores}, accumulate=True, mask=mask)
    check(lone(made), m)


@MORE
@given(
    name=st.sampled_from(["tanh", "sum", "max", "sumnonstick", "batchmatmul", "ReStickifyOpHBM", "exx2"]),
    cores=st.sampled_from([(1, 2), (1, 32), (2, 8), (4, 16)]),
    units=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    lx=st.booleans(),
)
def test_splits_and_places_do_not_change_bits(
    name: str, cores: tuple[int, int], units: tuple[int, int], lx: bool
) -> None:
    """The same op on other numbers of cores, with its operand in memory or in LX, gives the same bits."""
    results = []
    for count, inside in ((cores[0], False), (cores[1], lx)):
        full = {"mb": 32 * units[0], "out": 64 * units[1]}
        split, source = {"mb": count}, rows(lx=True) if inside else rows(0)
        if name == "batchmatmul":
            full = {**full, "in": 128}
            first = T("mb in", "in", lx=True) if inside else PLAIN[0]
            made = sdsc(name, full, [first, *PLAIN[1:]], split, unit="pt")
        elif name == "ReStickifyOpHBM":
            full["out"] *= 32
            made = sdsc(name, {"mb": 64, "out": full["out"]}, [rows(0), T("out mb", "mb", 1)], {"out": count})
        elif name == "sumnonstick":
            made = sdsc(name, {"mb": 32, "out": 64 * 32}, [source, per_column(1)], {"out": count}, accumulate=True)
        else:
            target = rows(1) if name == "tanh" else per_row(1)
            made = sdsc(name, full, [source, target], split, accumulate=name != "tanh")
        launch = bind(lone(made))
        results.append(next(iter(execute(launch, random_inputs(launch)).outputs.values())))
    assert np.array_equal(*results)


def test_permuted_cores() -> None:
    """Slices dealt to cores in any way, cores that are not the first ones: the result is the same."""
    made = CASES["LX with a gap"]
    order = [9, 3, 30, 17]
    cores = dict(zip(made.core_slices, order, strict=True))
    nodes = tuple(
        replace(
            a, start={cores[c]: s for c, s in a.start.items()}, back_gap=None if a.back_gap is None else {"mb": {-1: 3}}
        )
        for a in made.allocations
    )
    places = {cores[c]: p for c, p in made.core_slices.items()}
    strange = replace(made, core_slices=dict(sorted(places.items())), allocations=nodes)
    check(lone(strange))


def numpy_case(name: str, oracle: Callable[..., np.ndarray]) -> None:
    """Against plain NumPy on the logical arrays, without this project's reading of the file."""
    launch = bind(lone(CASES[name]))
    inputs = random_inputs(launch)
    (got,) = execute(launch, inputs).outputs.values()
    want = oracle(*(x.astype(np.float64) for x in inputs.values()))
    np.testing.assert_allclose(got, want, rtol=2**-6, atol=2**-6 * np.abs(want).max())


def test_against_plain_numpy() -> None:
    numpy_case("batched", lambda a, b: np.einsum("xmk,xnk->xmn", a, b))
    numpy_case("batchmatmul, K split", lambda a, b: a @ b.T)
    numpy_case("gather", lambda i, table: table[i.astype(int)])
    numpy_case("topkvalue 4", lambda x: -np.sort(-x, axis=1)[:, :4])
    numpy_case("sumnonstick", lambda x: x.sum(0))
    numpy_case("layernormnorm", lambda x, mean, scale, w, b: (x - mean[:, None]) * scale[:, None] * w + b)
    numpy_case("exx2", lambda x: np.stack([x.mean(1), (x * x).mean(1)], -1))


def norm_file(sizes: dict[str, int], split: dict[str, int]) -> SuperDSC:
    tensors = [rows(0), per_row(1), per_row(2), per_column(3), per_column(4), rows(5)]
    return sdsc("layernormnorm", sizes, tensors, split)


@pytest.mark.parametrize("rows_per_core", [160, 161])
def test_layernormnorm_of_more_than_lx_holds(rows_per_core: int) -> None:
    """The fp32 steps of a slice need more than LX has: they run in chunks of rows."""
    bundle = lone(norm_file({"mb": 2 * rows_per_core, "out": 4096}, {"mb": 2}))
    (loop,) = bind(bundle).kernel.loops
    assert (loop.begin, loop.end, loop.trips) == (0, 4, 2)
    check(bundle)


def test_layernormnorm_of_rows_too_long_for_lx_says_so() -> None:
    with pytest.raises(UnsupportedOp, match="bytes of LX"):
        bind(lone(norm_file({"mb": 2, "out": 64 * 9000}, {})))
