# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_bad_input.py
"""Bad input raises a named error that says what to do, or is compiled again, and the process stays usable."""

from __future__ import annotations

import json
import logging
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_python

from torch_spyre import _C, knobs
from torch_spyre.errors import InvalidArgument, InvalidProgram, SpyreError, UnsupportedOp

FP16 = torch.float16
GIB = 1 << 30


@pytest.fixture(autouse=True)
def usable_afterwards() -> Iterator[None]:
    """Whatever a test did, the card still computes."""
    yield
    x = torch.arange(100, dtype=FP16, device="cpu").to("spyre")
    assert torch.equal((x + x).cpu(), x.cpu() * 2)


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


# Dtypes


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(3, dtype=d, device="spyre"),
        lambda d: torch.empty(3, dtype=d, device="spyre"),
        lambda d: torch.zeros(3, dtype=d).to("spyre"),
        lambda d: torch.ones(3, device="spyre").to(d),
    ],
)
def test_dtypes_that_the_card_lacks(dtype: torch.dtype, make: Callable[[torch.dtype], torch.Tensor]) -> None:
    with pytest.raises(UnsupportedOp, match=rf"{str(dtype).removeprefix('torch.')}.*(convert|\.cpu\(\))"):
        make(dtype)


def test_complex_numbers_in_an_operation() -> None:
    with knobs.patch(fallback=False), pytest.raises(UnsupportedOp, match=r"complex.*\.cpu\(\)"):
        half(3).to("spyre") * 1j


def test_float64_in_a_compiled_function() -> None:
    torch._dynamo.reset()
    fn = torch.compile(lambda x: x.to(torch.float64) + 1, dynamic=False)
    with pytest.raises(Exception, match="float64"):
        fn(half(3, 4).to("spyre"))
    torch._dynamo.reset()


# Devices


@pytest.mark.parametrize(
    "call", [lambda x, y: x + y, lambda x, y: y - x, lambda x, y: x @ y.t(), lambda x, y: torch.where(x > 0, x, y)]
)
def test_mixed_devices(call: Callable[..., torch.Tensor]) -> None:
    host = half(5, 70)
    with pytest.raises(RuntimeError, match=r"spyre:0.*cpu") as caught:
        call(host.to("spyre"), host)
    assert "same device" in str(caught.value)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"spyre:0.*cpu|cpu.*spyre:0"):
        torch.compile(call, dynamic=False)(host.to("spyre"), host)
    torch._dynamo.reset()


def test_mixed_devices_after_a_plan_exists() -> None:
    """The check is not part of compiling: a known signature does not skip it."""
    host = half(5, 70)
    device = host.to("spyre")
    device + device
    with pytest.raises(RuntimeError, match="same device"):
        device + host


def test_unknown_device_index() -> None:
    with pytest.raises(RuntimeError, match=r"77.* out of range"):
        torch.zeros(3, device="spyre:77")


# Memory


def test_out_of_card_memory() -> None:
    """112 GiB in seven segments: the eighth block of 16 GiB does not fit; nothing is touched, so the host copes."""
    blocks = []
    with pytest.raises(torch.OutOfMemoryError, match=r"OutOfMemory.*bytes free.*free tensors"):
        for _ in range(8):
            blocks.append(torch.empty(16 * GIB // 2 - 8192, dtype=FP16, device="spyre"))
    assert len(blocks) >= 6  # other tensors of this process may hold a segment
    x = half(33, 100)
    assert torch.equal((x.to("spyre") + 0).cpu(), x.to("spyre").cpu())
    blocks.clear()
    torch.empty(16 * GIB // 2 - 8192, dtype=FP16, device="spyre")


def test_a_tensor_larger_than_a_segment() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="16 GiB segment"):
        torch.empty(20 * GIB, dtype=FP16, device="spyre")


def test_out_of_memory_in_an_operation() -> None:
    """The result of a broadcast does not fit; the operands are small."""
    x = torch.ones(1 << 17, 1, dtype=FP16).to("spyre")
    with pytest.raises((torch.OutOfMemoryError, SpyreError)):
        x + x.t()


# Shapes and operations


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x @ x, "5(, |x)70"),
        (lambda x: torch.mm(x, x), "5(, |x)70"),
        (lambda x: torch.bmm(x[None], x[None]), r"batch2 .*\[1, 5\]"),
        (lambda x: torch.addmm(x, x, x), "5(, |x)70"),
        (lambda x: x + x[:3], "3"),
        (lambda x: x.sum(5), "[Dd]imension out of range"),
        (lambda x: x.add_(torch.ones(3, 5, 70, device="spyre", dtype=FP16)), "70"),
    ],
)
def test_shape_mismatches(call: Callable[[torch.Tensor], torch.Tensor], message: str) -> None:
    x = half(5, 70).to("spyre")
    with pytest.raises((RuntimeError, IndexError), match=message):
        call(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message):
        torch.compile(call, dynamic=False)(x)
    torch._dynamo.reset()


def test_a_shape_mismatch_prints_nothing_but_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    x = half(5, 70).to("spyre")
    with pytest.raises(RuntimeError):
        x @ x
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("call", [lambda x: x.lgamma(), lambda x: torch.linalg.svd(x.float()), lambda x: x.nonzero()])
def test_operations_that_the_card_lacks(call: Callable[[torch.Tensor], Any]) -> None:
    x = half(5, 7).to("spyre")
    with knobs.patch(fallback=False), pytest.raises(UnsupportedOp, match=r"aten\.\w+.*cpu"):
        call(x)


def test_an_unsupported_operation_in_a_compiled_function_names_op_and_line() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x) + 1

    torch._dynamo.reset()
    with knobs.patch(fallback=False), pytest.raises(Exception, match="lgamma"):
        torch.compile(fn, dynamic=False)(half(5, 7).to("spyre"))
    torch._dynamo.reset()


# Programs


@pytest.fixture(scope="module")
def program() -> bytes:
    """The binary of a real kernel."""
    from torch_spyre._inductor.debug import inspect

    inspect.start()
    torch._dynamo.reset()
    fn = torch.compile(lambda x, w: torch.softmax(x @ w, -1), dynamic=False)
    fn(half(33, 100).to("spyre"), half(100, 70).to("spyre"))
    inspect.stop()
    return bytes(inspect.records()[-1].program.binary)


def test_corrupted_programs_are_refused(program: bytes) -> None:
    draw = random.Random(0)
    _C.Program.load(program)
    for damaged in (b"", b"\0" * 64, program[:-1], program[: len(program) // 2], program + b"\0", program[::-1]):
        with pytest.raises(InvalidProgram):
            _C.Program.load(damaged)
    for _ in range(200):
        flipped = bytearray(program)
        flipped[draw.randrange(len(program))] ^= 1 << draw.randrange(8)
        with pytest.raises(InvalidProgram):
            _C.Program.load(bytes(flipped))


def test_well_formed_nonsense_is_proved_or_refused(program: bytes) -> None:
    """With the checksum made right the decoder and the prover are on their own: a named error or a legal program."""
    draw = random.Random(1)
    refused = 0
    for _ in range(300):
        body = bytearray(program[16:])
        for _ in range(draw.choice([1, 1, 3])):
            body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        header = program[:8] + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        try:
            _C.Program.load(header + bytes(body))
        except SpyreError:
            refused += 1
    assert refused > 100


def test_a_launch_with_too_little_memory_is_refused(program: bytes) -> None:
    loaded = _C.Program.load(program)
    bindings = [("input", i) for i in range(loaded.n_args)]
    plan = _C.LaunchPlan(loaded, bindings, [], 0, [], [])
    launcher = _C.KernelLauncher("small", lambda inputs: plan)
    small = torch.zeros(1, dtype=FP16, device="spyre")
    with pytest.raises(InvalidArgument, match="bytes"):
        launcher(*[small] * loaded.n_args)


# The program cache


def entries(cache: Path) -> list[Path]:
    return sorted(p.parent for p in cache.glob("??/*/kernel.json"))


def fresh_run(cache: Path) -> torch.Tensor:
    """An eager operation that must look into the program cache."""
    _C.clear_eager_cache()
    torch.manual_seed(7)
    x = half(21, 77).to("spyre")
    return torch.softmax(x * 3, -1).cpu()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_a_number(path: Path) -> None:
    """Valid JSON that says something else."""
    meta = json.loads(path.read_text())
    meta["pool_bytes"] += 4096
    path.write_text(json.dumps(meta))


def not_an_object(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("program.bin", truncate),
        ("program.bin", flip),
        ("program.bin", empty),
        ("kernel.json", truncate),
        ("kernel.json", flip),
        ("kernel.json", empty),
        ("kernel.json", change_a_number),
        ("kernel.json", not_an_object),
    ],
)
def test_damaged_cache_entries_are_compiled_again(
    name: str, damage: Callable[[Path], None], fresh_caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want = fresh_run(fresh_caches)
    found = entries(fresh_caches)
    assert found
    for entry in found:
        damage(entry / name)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(fresh_run(fresh_caches), want)
    assert len([r for r in caplog.records if "damaged" in r.message and "compiling again" in r.message]) == len(found)
    caplog.clear()
    assert entries(fresh_caches) == found
    assert torch.equal(fresh_run(fresh_caches), want)  # repaired
    assert "damaged" not in caplog.text


def test_a_cache_entry_of_another_program_format_is_compiled_again(
    fresh_caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checksums match, but the card refuses the binary."""
    from torch_spyre.runtime import cache

    want = fresh_run(fresh_caches)
    for entry in entries(fresh_caches):
        program = (entry / "program.bin").read_bytes()
        (entry / "program.bin").write_bytes(program[:4] + b"\x63\x00" + program[6:])
        meta = json.loads((entry / "kernel.json").read_text())
        meta["sha256"] = cache._checksum(
            {k: v for k, v in meta.items() if k != "sha256"}, (entry / "program.bin").read_bytes()
        )
        (entry / "kernel.json").write_text(json.dumps(meta))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(fresh_run(fresh_caches), want)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("place", ["file", "missing parent", "read only"])
def test_an_unwritable_cache_costs_time_only(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "cache"
    if place == "file":
        target.write_text("in the way")
    elif place == "missing parent":
        (tmp_path / "plain").write_text("")
        target = tmp_path / "plain" / "below"
    else:
        # Root may write anywhere but here.
        target = Path("/proc/spyre-cache")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(target))
    with caplog.at_level(logging.WARNING):
        got = fresh_run(target)
    warned = [r.message for r in caplog.records if "cannot be written" in r.message]
    assert len(warned) == 1 and "SPYRE_CACHE_DIR" in warned[0]
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "good"))
    assert torch.equal(fresh_run(tmp_path / "good"), got)


# Knobs


@pytest.mark.parametrize("value", ["33", "many"])
def test_bad_sencores(value: str) -> None:
    done = run_python(
        """
        import torch
        from torch_spyre.errors import InvalidArgument
        x = torch.ones(3, 70, dtype=torch.float16).to("spyre")
        for run in (lambda: x + x, lambda: torch.compile(lambda x: x * 2)(x)):
            try:
                run()
                print("ran")
            except Exception as error:
                print(type(error).__name__, error)
        print(x.cpu().sum().item())
        """,
        SENCORES=value,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert f"invalid SENCORES value {value}: legal values are integer 1..32" in lines[0]
    assert lines[-1] == "210.0" and "ran" not in lines
