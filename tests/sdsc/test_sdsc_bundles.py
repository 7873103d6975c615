# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_bundles.py

Whole bundles: chains through LX and pool, symbolic addresses, loops. They run and agree with NumPy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sdsc_files import SEGMENT, T, per_column, per_row, rows, sdsc, write_files

from torch_spyre import dl16
from torch_spyre.errors import InvalidProgram, SpyreError, UnsupportedOp
from torch_spyre.ir.superdsc.bundle import Bundle, lone
from torch_spyre.ir.superdsc.bundle_mlir import MAX_EXECUTIONS, parse_bundle
from torch_spyre.ir.superdsc.writer import symbolic_form
from torch_spyre.sdsc import SuperDSC, load
from torch_spyre.sdsc.printed import estimate_times, explain
from torch_spyre.sdsc.reference import compare, evaluate
from torch_spyre.sdsc.run import Result, execute, random_inputs
from torch_spyre.sdsc.slots import bind

SIZES, SPLIT = {"mb": 64, "out": 256}, {"mb": 4}


def softmax(lx: bool) -> list[SuperDSC]:
    """max, sub, exp, sum, realdiv; what is in between lies in LX or in a pool, segment 0."""
    places = [0, 2048, 2048 + 8192, 2048 + 2 * 8192] if lx else [0, 8192, 8192 + 32768, 8192 + 2 * 32768]

    def between(i: int, row: bool) -> T:
        make = per_row if row else rows
        return make(lx=True, at=places[i]) if lx else make(0, at=places[i])

    peak, shifted, power, total = between(0, True), between(1, False), between(2, False), between(3, True)
    return [
        sdsc("max", SIZES, [rows(1), peak], SPLIT, accumulate=True),
        sdsc("sub", SIZES, [rows(1), peak, shifted], SPLIT),
        sdsc("exp", SIZES, [shifted, power], SPLIT),
        sdsc("sum", SIZES, [power, total], SPLIT, accumulate=True),
        sdsc("realdiv", SIZES, [power, total, rows(2)], SPLIT),
    ]


def layer_norm(lx: bool, cores: int = 4) -> list[SuperDSC]:
    split = {"mb": cores}
    moments = per_row(lx=True) if lx else per_row(0)
    factor = per_row(lx=True, at=8192) if lx else per_row(0, at=8192)
    return [
        sdsc(
            "exx2",
            SIZES,
            [rows(1), moments],
            split,
            accumulate=True,
            constants={"exx2scale": 1 / 256, "useZeroMean": 0.0},
        ),
        sdsc("layernormscale", SIZES, [moments, factor], split, constants={"eps": 1e-5}),
        sdsc("layernormnorm", SIZES, [rows(1), moments, factor, per_column(3), per_column(4), rows(2)], split),
    ]


def check(bundle: Bundle) -> tuple[dict[str, np.ndarray], Result]:
    bundle.verify()
    launch = bind(bundle)
    inputs = random_inputs(launch)
    want, got = evaluate(launch, inputs), execute(launch, inputs)
    assert want.outputs
    for slot in launch.slots:
        for values, expected in ((got.outputs, want.outputs), (got.intermediates, want.intermediates)):
            if slot.name in expected:
                assert compare(values[slot.name], expected[slot.name], slot) <= 2
    assert "estimated time" in explain(bundle, estimate_times(bundle))
    return inputs, got


@pytest.mark.parametrize("lx", [True, False])
def test_softmax(lx: bool, tmp_path: Path) -> None:
    inputs, got = check(load(write_files(tmp_path, softmax(lx))))
    assert list(inputs) == ["0.Tensor0"] and list(got.outputs) == ["4.Tensor2"]
    x = inputs["0.Tensor0"].astype(np.float64)
    want = np.exp(x - x.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(got.outputs["4.Tensor2"], want, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("lx", [True, False])
def test_layer_norm(lx: bool, tmp_path: Path) -> None:
    inputs, got = check(load(write_files(tmp_path, layer_norm(lx))))
    x, weight, bias = (v.astype(np.float64) for v in inputs.values())
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    want = (x - x.mean(1, keepdims=True)) * scale * weight + bias
    np.testing.assert_allclose(got.outputs["2.Tensor5"], want, rtol=0.02, atol=0.02)


def test_one_value_per_stick_is_read_as_whole_sticks(tmp_path: Path) -> None:
    """The maximum of each row, doubled in all lanes of its stick, then taken as one value per row again."""
    lanes = {"mb": 64, "out": 64}
    files = [
        sdsc("max", SIZES, [rows(0), per_row(lx=True)], SPLIT, accumulate=True),
        sdsc("add", lanes, [rows(lx=True), rows(lx=True), rows(lx=True, at=8192)], SPLIT),
        sdsc("sub", SIZES, [rows(0), per_row(lx=True, at=8192), rows(1)], SPLIT),
    ]
    inputs, result = check(load(write_files(tmp_path, files)))
    x = inputs["0.Tensor0"]
    x = dl16.decode(dl16.encode(x.astype(np.float32)))
    peak = dl16.decode(dl16.encode((2 * x.max(1, keepdims=True)).astype(np.float32)))
    want = dl16.decode(dl16.encode((x - peak).astype(np.float32)))
    assert np.array_equal(result.outputs["2.Tensor2"], want)


def test_a_scale_that_has_the_lanes_of_its_sticks(tmp_path: Path) -> None:
    """layernormscale over a dim of 64 lanes writes what the same op over one value per stick writes."""
    plain = layer_norm(False)
    lanes = {"mb": 64, "out": 64}
    scale = sdsc("layernormscale", lanes, [per_row(0), rows(0, at=8192)], {"mb": 4}, constants={"eps": 1e-5})
    results = []
    for i, files in enumerate((plain, [plain[0], scale, plain[2]])):
        _, result = check(load(write_files(tmp_path / str(i), files)))
        results.append(result.outputs["2.Tensor5"])
    assert np.array_equal(*results)


def test_a_padded_tensor_is_written_in_parts_that_overlap(tmp_path: Path) -> None:
    """Zeros into the last whole sticks, then the values over some of them: each byte holds what came last."""
    sizes, zero = {"mb": 192, "out": 256}, T("out mb", "out", 1, lacks={"mb": -1, "out": -2})
    files = [
        sdsc(
            "identity", {"mb": 64, "out": 256}, [zero, T("out mb", "out", 0, at=128 * 512, gap={"mb": 128})], {"mb": 4}
        ),
        sdsc(
            "identity",
            {"mb": 144, "out": 256},
            [T("out mb", "out", 2), T("out mb", "out", 0, gap={"mb": 48})],
            {"mb": 4},
        ),
        sdsc("neg", sizes, [T("out mb", "out", 0), T("out mb", "out", 3)], {"mb": 4}),
    ]
    inputs, result = check(load(write_files(tmp_path, files)))
    values = dl16.decode(dl16.encode(inputs["1.Tensor0"].astype(np.float32)))
    fill = dl16.decode(dl16.encode(np.float32(inputs["0.Tensor0"])))
    want = np.concatenate([-values, np.full((48, 256), -fill)])
    assert np.array_equal(result.outputs["2.Tensor1"], want)


def test_concatenation_writes_parts_of_one_buffer(tmp_path: Path) -> None:
    """Two copies into one buffer of 512 columns, then an op over all of it."""
    whole = {"mb": 64, "out": 512}
    left = rows(0, gap={"out": 256})
    right = rows(0, at=4 * 64 * 128, gap={"out": 256})
    files = [
        sdsc("identity", SIZES, [rows(1), left], SPLIT),
        sdsc("identity", SIZES, [rows(2), right], SPLIT),
        sdsc("neg", whole, [rows(0), rows(3)], SPLIT),
    ]
    inputs, got = check(load(write_files(tmp_path, files)))
    want = -np.concatenate(list(inputs.values()), axis=1)
    np.testing.assert_allclose(got.outputs["2.Tensor1"], want, rtol=2**-9)


def symbolic_files(folder: Path, files: list[SuperDSC], text: str) -> Path:
    folder.mkdir(exist_ok=True)
    for i, made in enumerate(files):
        (folder / f"sdsc_{i}.json").write_text(json.dumps(made.to_json()))
    (folder / "bundle.mlir").write_text(text)
    return folder


def looped(trips: int, step: int, bound: str = "") -> str:
    """exp of `trips` blocks of rows, one per trip."""
    kind = "!sdscbundle.input_arg<index>"
    attributes = 'sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4]'
    return f"""#map_0 = affine_map<(d0)[s0] -> (s0 + {step} * d0)>
module {{
\tfunc.func @sdsc_bundle(%arg_0_base_addr: {kind}, %arg_1_base_addr: {kind}) {{
\t\t%in = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
\t\t%out = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
\t\t%c0 = arith.constant 0 : index
\t\t%c1 = arith.constant 1 : index
\t\t%loop_bound_0 = arith.constant {bound or trips} : index
\t\t%far = arith.constant 2048 : index
\t\t%in_core_1 = arith.addi %in, %far : index
\t\t%out_core_1 = arith.addi %out, %far : index
\t\tscf.for %i_0 = %c0 to %loop_bound_0 step %c1 {{
\t\t\t%addr_0 = affine.apply #map_0(%i_0)[%in]
\t\t\t%addr_1 = affine.apply #map_0(%i_0)[%in_core_1]
\t\t\t%addr_2 = affine.apply #map_0(%i_0)[%out]
\t\t\t%addr_3 = affine.apply #map_0(%i_0)[%out_core_1]
\t\t\tsdscbundle.sdsc_execute (%addr_0, %addr_1, %addr_2, %addr_3) {{{attributes}}}
\t\t}}
\t\treturn
\t}}
}}
"""


def one_block() -> SuperDSC:
    """exp of 32 rows of a matrix of 128 rows, one stick wide, on two cores."""
    part = {"mb": 32, "out": 64}
    made = sdsc("exp", part, [rows(0, gap={"mb": 96}), rows(1, gap={"mb": 96})], {"mb": 2})
    return symbolic_form(made)[0]


def test_loop_with_symbolic_addresses(tmp_path: Path) -> None:
    bundle = load(symbolic_files(tmp_path, [one_block()], looped(4, 32 * 128)))
    assert [s.loops for s in bundle.steps] == [(0,), (1,), (2,), (3,)]
    assert bundle.argument_name(1) == "arg_1"
    inputs, got = check(bundle)
    assert len(inputs) == len(got.outputs) == 4
    for x, y in zip(inputs.values(), got.outputs.values(), strict=True):
        np.testing.assert_allclose(y, np.exp(x), rtol=2**-7)


def test_addresses_of_a_loop_that_miss_the_slices_are_refused(tmp_path: Path) -> None:
    text = looped(4, 32 * 128).replace("arith.constant 2048", "arith.constant 1024")
    bundle = load(symbolic_files(tmp_path, [one_block()], text))
    with pytest.raises(InvalidProgram, match=r"sdsc_0\.json\[0\]: \[start-address\] Tensor0, core 1"):
        bundle.verify()


def test_lone_file_with_symbols_has_a_segment_per_tensor() -> None:
    bundle = lone(one_block().to_json())
    check(bundle)
    nodes = bundle.steps[0].sdsc.allocations
    assert [a.start[0] for a in nodes] == [0, SEGMENT]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("%addr_0, %addr_1,", "%addr_0,"), InvalidProgram, "3 operands for symbol_ids"),
        (("(%addr_0,", "(%nowhere,"), InvalidProgram, "%nowhere is not defined"),
        (("#map_0(%i_0)[%in]", "#map_9(%i_0)[%in]"), InvalidProgram, "map #map_9 is not defined"),
        (("#map_0(%i_0)[%in]", "#map_0()[%in]"), InvalidProgram, "takes 1 dims and 1 symbols"),
        (("\t\treturn\n\t}\n}\n", "\t\treturn\n\t}\n"), InvalidProgram, "expected the end of the module"),
        (("\t\treturn\n\t}\n}\n", ""), InvalidProgram, "a closing brace is missing"),
        (("%c1 = arith.constant 1", "%c1 = arith.constant 0"), InvalidProgram, "step 0 is not positive"),
        (("arith.addi %in, %far", "arith.addi %in, %out"), InvalidProgram, "arith.addi of base addresses"),
        (("arith.addi %in, %far", "arith.divui %in, %far"), UnsupportedOp, "line 10.*divui"),
        (("scf.for", "scf.while"), UnsupportedOp, "scf.while"),
        (('"sdsc_0.json"', '"../secret.json"'), InvalidProgram, "a file of the bundle's directory"),
        (("s0 + 4096 * d0", "s0 + d0 floordiv 2"), UnsupportedOp, "sums are known"),
        (("s0 + 4096 * d0", "s0 * 2 + d0"), InvalidProgram, "multiplies a base address"),
        (("arith.constant 4 :", "arith.constant 40000000 :"), UnsupportedOp, "more than"),
        (("module {", "modul {"), InvalidProgram, "no module"),
        (("[-1, -2, -3, -4]", "[-1, -2, -3, -9]"), InvalidProgram, "starts at symbol -4"),
    ],
)
def test_bad_bundle_text(change: tuple[str, str], error: type[SpyreError], message: str, tmp_path: Path) -> None:
    text = looped(4, 4096)
    assert change[0] in text
    with pytest.raises(error, match=message):
        load(symbolic_files(tmp_path, [one_block()], text.replace(*change)))


def test_other_spellings() -> None:
    text = looped(2, 4096)
    plain = parse_bundle(text)
    changed = text.replace("module {", "module @bundle attributes {a = 1} {").replace(
        ", %arg_1_base", ",\n\t\t%arg_1_base"
    )
    changed = changed.replace("!sdscbundle.input_arg<index>,", "index,").replace("\treturn", "\tfunc.return // done")
    changed = changed.replace("#map_0(%i_0)[%in]", "affine_map<(d0)[s0] -> (d0 * 4096 + s0)>(%i_0)[%in]")
    changed = changed.replace(
        'sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4]',
        'symbol_ids=[-1,-2,-3,-4], "sdsc_filename" = "sdsc_0.json"',
    )
    assert changed != text and parse_bundle(changed) == plain


def test_sizes_that_are_given_at_launch_are_named() -> None:
    text = looped(2, 128).replace(
        "!sdscbundle.input_arg<index>) {", "!sdscbundle.input_arg<index, granularity=4, max_value=64>) {"
    )
    with pytest.raises(UnsupportedOp, match="granularity=4, max_value=64>' is a size given at launch"):
        parse_bundle(text)


def test_too_many_executions() -> None:
    with pytest.raises(UnsupportedOp, match=f"more than {MAX_EXECUTIONS} files"):
        parse_bundle(looped(5000, 4096))


def test_loop_that_never_runs() -> None:
    assert parse_bundle(looped(4, 4096, bound="-3")).executions == ()


def test_files_of_a_bundle_read_back(tmp_path: Path) -> None:
    bundle = load(write_files(tmp_path / "a", softmax(True)))
    (tmp_path / "b").mkdir()
    for name, text in bundle.files().items():
        (tmp_path / "b" / name).write_text(text)
    again = load(tmp_path / "b")
    assert replace(again, name="a") == bundle


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("sdsc_0.json", fifo),
        ("sdsc_0.json", endless),
        ("sdsc_0.json", nested),
        ("bundle.mlir", fifo),
        ("bundle.mlir", endless),
        ("bundle.mlir", nested),
    ],
)
def test_files_that_kill_or_hang_a_reader(name: str, spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write_files(tmp_path / "a", softmax(True))
    spoil(folder / name)
    with pytest.raises(InvalidProgram):
        load(folder)


def test_loops_of_any_depth() -> None:
    head, rest = looped(1, 4096).split("scf.for", 1)
    deep = head + "scf.for %i_0 = %c0 to %c1 step %c1 {\n" * 3000 + "}\n" * 3000 + "scf.for" + rest
    with pytest.raises(InvalidProgram, match="too deeply"):
        parse_bundle(deep)
