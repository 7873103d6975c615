# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_dxp.py

dxp_standalone compiles bundles as a front end writes them; what it leaves runs through libflex as the checkout launches
it, and gives what NumPy gives. Its cache, its server, and what it says of a bundle that breaks a rule.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from processes import LONG
from sdk_client import Sdk
from sdsc_files import T, rows, sdsc, write_files

from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.superdsc.bundle import load, read_bundle
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.ir.superdsc.writer import bundle_files
from torch_spyre.runtime import spyrecode
from torch_spyre.sdk import job
from torch_spyre.sdsc.reference import compare, evaluate
from torch_spyre.sdsc.run import compile_launch, fill, random_inputs, read_slot, regions
from torch_spyre.sdsc.slots import OUTPUT, bind

SIZES, SPLIT = {"mb": 64, "out": 512}, {"mb": 4}
BYTES = 64 * 512 * 2
ULPS = 4.0  # of the format; the card computes in fp32, NumPy in float64

BUNDLES: dict[str, list[SuperDSC]] = {
    "add": [sdsc("add", SIZES, [rows(0), rows(1), rows(2)], SPLIT)],
    "chain": [
        sdsc("add", SIZES, [rows(0), rows(1), rows(2)], SPLIT),
        sdsc("mul", SIZES, [rows(2), rows(0), rows(3)], SPLIT),
        sdsc("exp", SIZES, [rows(3), rows(4)], SPLIT),
    ],
    "through_lx": [
        sdsc("neg", SIZES, [rows(0), rows(lx=True)], SPLIT),
        sdsc("mul", SIZES, [rows(lx=True), rows(1), rows(2)], SPLIT),
    ],
    "ten_ops": [
        sdsc("add", SIZES, [rows(0), rows(2, at=BYTES * (i - 1)) if i else rows(1), rows(2, at=BYTES * i)], SPLIT)
        for i in range(10)
    ],
}


def symbolic(folder: Path, files: list[SuperDSC]) -> Path:
    """The bundle with addresses that a launch gives."""
    made = bundle_files(read_bundle(write_files(folder / "literal", files)), symbolic=True)
    target = folder / "bundle"
    target.mkdir()
    for name, text in made.items():
        (target / name).write_text(text)
    return target


def compiled(sdk: Sdk, folder: Path, files: list[SuperDSC]) -> Path:
    bundle = symbolic(folder, files)
    done = sdk.compile(bundle)
    assert done.returncode == 0, done.stderr
    return bundle


def check_on_card(sdk: Sdk, bundle_folder: Path, scratch: Path) -> None:
    """Runs a compiled bundle on random inputs and compares every output with NumPy."""
    bundle = load(bundle_folder)
    launch = bind(bundle)
    inputs, found = random_inputs(launch), regions(launch)
    fill(launch, inputs, found)
    program = compile_launch(launch)
    sizes = [max(arg.bytes, 128) for arg in program.args]
    sizes += [128] * (len(bundle.arguments) - len(sizes))
    for region in found:
        sizes[region.arg] = max(sizes[region.arg], region.end)
    images = [np.zeros(size, np.uint8) for size in sizes]
    for region in found:
        images[region.arg][region.base : region.end] = region.data
    arguments: list[object] = []
    for i, image in enumerate(images):
        (scratch / f"argument{i}").write_bytes(image.tobytes())
        arguments += [image.size, scratch / f"argument{i}"]
    sdk.client("run", bundle_folder / "spyreCodeDir", *arguments)
    for region in found:
        data = (scratch / f"argument{region.arg}").read_bytes()
        region.data = np.frombuffer(data, np.uint8)[region.base : region.end].copy()
    expected, outputs = evaluate(launch, inputs), launch.of_role(OUTPUT)
    assert outputs
    for slot in outputs:
        assert compare(read_slot(slot, found), expected.outputs[slot.name], slot) <= ULPS


@pytest.mark.parametrize("name", BUNDLES)
def test_results_agree_with_numpy(sdk: Sdk, tmp_path: Path, name: str) -> None:
    check_on_card(sdk, compiled(sdk, tmp_path, BUNDLES[name]), tmp_path)


def test_the_plan_is_one_that_the_checkout_takes(sdk: Sdk, tmp_path: Path) -> None:
    folder = compiled(sdk, tmp_path, BUNDLES["chain"]) / "spyreCodeDir"
    code = spyrecode.read(folder)
    assert [step.step_type for step in code.steps] == ["HostCompute", "H2D", "Compute"]
    assert {file.name for file in folder.iterdir()} == {"spyrecode.json", "init_binary.bin"}
    (transfer,) = code.transfers
    assert transfer.size == (folder / transfer.file).stat().st_size == code.size and transfer.pointer == 7 << 34
    numbers = json.loads((folder / "spyrecode.json").read_text())["JobPreparationPlan"][0]["properties"]
    assert numbers == {"size": str(code.size)}


@pytest.mark.parametrize("case", ["job_errors", "bound_tensors", "launches", "profile"])
def test_launches(sdk: Sdk, tmp_path: Path, case: str) -> None:
    sdk.client(case, compiled(sdk, tmp_path, BUNDLES["add"]) / "spyreCodeDir")


def test_the_sanitizer_checks_launches(sdk: Sdk, tmp_path: Path) -> None:
    """Memory that nobody wrote throws; a sum beyond the format's range is told on stderr, with the kernel's name."""
    folder = compiled(sdk, tmp_path, BUNDLES["add"]) / "spyreCodeDir"
    done = sdk.run(sdk.program, "sanitized", folder, SPYRE_SANITIZE="1")
    assert done.returncode == 0, done.stderr
    assert "sanitizer: kernel 'add'" in done.stderr and "Saturated" in done.stderr, done.stderr


# The cache


def entries(sdk: Sdk) -> set[Path]:
    return {file.parent for file in Path(sdk.environment["SPYRE_CACHE_DIR"]).glob("dxp/*/*/checksum")}


def fresh(sdk: Sdk, folder: Path, **variables: str) -> Sdk:
    """The same with caches and a server of its own."""
    own = {"SPYRE_CACHE_DIR": str(folder / "own-cache"), "SPYRE_RUNTIME_DIR": str(folder / "own-run"), **variables}
    return Sdk(sdk.prefix, sdk.program, {**sdk.environment, "SPYRE_SDK_IDLE_S": "5", **own})


def test_a_bundle_is_compiled_once(sdk: Sdk, tmp_path: Path) -> None:
    own = fresh(sdk, tmp_path)
    bundle = compiled(own, tmp_path, BUNDLES["add"])
    first = {file.name: file.read_bytes() for file in (bundle / "spyreCodeDir").iterdir()}
    (entry,) = entries(own)
    changed = (entry / "checksum").stat().st_mtime_ns
    other = shutil.copytree(bundle, tmp_path / "elsewhere")
    shutil.rmtree(other / "spyreCodeDir")
    shutil.rmtree(own.environment["SPYRE_RUNTIME_DIR"])  # nobody to ask
    assert own.compile(other).returncode == 0
    assert {file.name: file.read_bytes() for file in (other / "spyreCodeDir").iterdir()} == first
    assert own.compile(other).returncode == 0  # over what is there
    assert entries(own) == {entry} and (entry / "checksum").stat().st_mtime_ns == changed


@pytest.mark.slow
def test_content_decides(sdk: Sdk, tmp_path: Path) -> None:
    own = fresh(sdk, tmp_path)
    bundle = compiled(own, tmp_path, BUNDLES["add"])
    text = (bundle / "bundle.mlir").read_text()
    (bundle / "bundle.mlir").write_text(text + "\n")
    assert own.compile(bundle).returncode == 0
    assert len(entries(own)) == 2


@pytest.mark.parametrize("damaged", ["init_binary.bin", "spyrecode.json", "checksum"])
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "changed"])
def test_damaged_entries_are_made_again(sdk: Sdk, tmp_path: Path, damaged: str, lost: bool) -> None:
    bundle = compiled(sdk, tmp_path, BUNDLES["through_lx"])
    good = (bundle / "spyreCodeDir" / "init_binary.bin").read_bytes()
    for entry in entries(sdk):
        if (entry / "init_binary.bin").read_bytes() == good:
            (entry / damaged).unlink() if lost else (entry / damaged).write_bytes(b"garbage")
    assert sdk.compile(bundle).returncode == 0
    assert (bundle / "spyreCodeDir" / "init_binary.bin").read_bytes() == good
    assert sdk.compile(bundle).returncode == 0


# The server


def servers(sdk: Sdk) -> list[Path]:
    return [file for file in Path(sdk.environment["SPYRE_RUNTIME_DIR"]).glob("dxp-*") if not file.suffix]


@pytest.mark.slow
def test_many_clients_start_one_server(sdk: Sdk, tmp_path: Path) -> None:
    own = fresh(sdk, tmp_path)
    bundles = []
    for i in range(6):
        folder = tmp_path / str(i)
        folder.mkdir()
        bundles.append(symbolic(folder, [sdsc("add", {"mb": 64, "out": 64 * (i + 1)}, [rows(0), rows(1), rows(2)])]))
    command = str(own.prefix / "bin" / "dxp_standalone")
    running = [subprocess.Popen([command, "-d", str(b)], env=own.environment) for b in [*bundles, *bundles]]
    assert [process.wait(LONG) for process in running] == [0] * 12
    assert all((b / "spyreCodeDir" / "spyrecode.json").is_file() for b in bundles)
    assert len(entries(own)) == 6 and len(servers(own)) == 1


@pytest.mark.slow
def test_the_server_ends_when_idle(sdk: Sdk, tmp_path: Path) -> None:
    own = fresh(sdk, tmp_path, SPYRE_SDK_IDLE_S="1")
    bundle = compiled(own, tmp_path, BUNDLES["add"])
    deadline = time.monotonic() + LONG
    while servers(own):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (bundle / "sdsc_0.json").write_text((bundle / "sdsc_0.json").read_text() + " ")
    done = own.compile(bundle)  # which starts another one
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_killed_server_is_replaced(sdk: Sdk, tmp_path: Path) -> None:
    """Its socket is still there."""
    own = fresh(sdk, tmp_path)
    bundle = compiled(own, tmp_path, BUNDLES["add"])
    (socket,) = servers(own)
    found = subprocess.run(["pgrep", "-f", str(socket)], capture_output=True, text=True).stdout.split()
    for process in map(int, found):
        os.kill(process, 9)
    (bundle / "sdsc_0.json").write_text((bundle / "sdsc_0.json").read_text() + " ")
    done = own.compile(bundle)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_long_folders(sdk: Sdk, tmp_path: Path) -> None:
    """An address of a socket has 108 bytes; a folder may have more."""
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    compiled(fresh(sdk, deep), tmp_path, BUNDLES["add"])


# Errors


def test_a_broken_rule_is_named(sdk: Sdk, tmp_path: Path) -> None:
    """A scratchpad slice that nobody wrote."""
    bundle = write_files(
        tmp_path / "bundle",
        [
            sdsc("neg", SIZES, [rows(0), rows(lx=True)], {"mb": 4}),
            sdsc("neg", SIZES, [rows(lx=True, at=BYTES), rows(1)], {"mb": 4}),
        ],
    )
    done = sdk.compile(bundle)
    assert done.returncode == 1 and "InvalidProgram" in done.stderr
    assert "sdsc_1.json" in done.stderr and "Tensor0" in done.stderr and "core" in done.stderr
    assert not (bundle / "spyreCodeDir").exists()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("bundle.mlir", None, "Bundle not found"),
        ("bundle.mlir", "module {", "InvalidProgram"),
        ("sdsc_0.json", None, "sdsc_0.json, which the directory lacks"),
        ("sdsc_0.json", "{", "is not JSON"),
        ("sdsc_0.json", "{}", "InvalidProgram"),
    ],
)
def test_damaged_bundles(sdk: Sdk, tmp_path: Path, file: str, text: str | None, words: str) -> None:
    bundle = symbolic(tmp_path, BUNDLES["add"])
    (bundle / file).unlink() if text is None else (bundle / file).write_text(text)
    done = sdk.compile(bundle)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_usage(sdk: Sdk, tmp_path: Path) -> None:
    command = sdk.prefix / "bin" / "dxp_standalone"
    assert sdk.run(command, "--help").returncode == 0
    for wrong in ([], ["-d"], ["-x", tmp_path], ["-d", tmp_path, "more"]):
        done = sdk.run(command, *wrong)
        assert done.returncode == 2 and "usage" in done.stderr
    done = sdk.compile(tmp_path / "nowhere")
    assert done.returncode == 1 and "nowhere" in done.stderr


def test_a_folder_of_others_is_not_used(sdk: Sdk, tmp_path: Path) -> None:
    own = fresh(sdk, tmp_path)
    runtime = Path(own.environment["SPYRE_RUNTIME_DIR"])
    runtime.mkdir(mode=0o700)
    runtime.chmod(0o777)
    done = own.compile(symbolic(tmp_path, BUNDLES["add"]))
    assert done.returncode == 1 and "SPYRE_RUNTIME_DIR" in done.stderr


def test_gathers_and_reductions(sdk: Sdk, tmp_path: Path) -> None:
    """An index tensor, whose values must be in range, and one value per row."""
    files = [sdsc("sum", SIZES, [rows(0), T("mb out", "out", 1, lacks={"out": -2})], SPLIT)]
    check_on_card(sdk, compiled(sdk, tmp_path, files), tmp_path)


def test_the_card_proves_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that the card refuses fails when it is compiled, not when it is launched."""
    bundle = load(symbolic(tmp_path, BUNDLES["add"]))
    monkeypatch.setattr(job, "driver", SimpleNamespace(build=lambda _: SimpleNamespace(program=REFUSED)))
    with pytest.raises(InvalidProgram, match="the card refuses the program"):
        job.compile_bundle(bundle)


REFUSED = SimpleNamespace(binary=b"SPYP" + bytes(200))
