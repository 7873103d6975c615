# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_conversions.py

Copies between host and card through libflex convert numbers and layout together: every pair of formats that is asked
for, both directions, dense, tiled with remainders, permuted, with gaps, repeated; against NumPy and PyTorch on the CPU.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from sdk_client import Sdk

from torch_spyre import dl16

FORMATS = [
    "SEN169_FP16", "IEEE_FP32", "INVALID", "SEN143_FP8", "SEN152_FP8", "SEN153_FP9", "SENINT2", "SENINT4", "SENINT8",
    "SENINT16", "SENINT24", "IEEE_INT64", "IEEE_INT32", "SENUINT32", "SENUINT2", "IEEE_FP16", "BOOL", "BFLOAT16",
]  # fmt: skip
EQUAL = ("IEEE_FP32", "SEN169_FP16", "SEN143_FP8", "SENINT4", "SENINT8", "IEEE_INT32", "SENUINT32")
BOTH_WAYS = {
    "IEEE_FP32": ("SEN169_FP16", "BFLOAT16", "SEN143_FP8", "SENINT4", "SENINT8", "SENUINT2"),
    "SEN169_FP16": ("IEEE_FP16", "BFLOAT16", "SENINT16", "BOOL", "IEEE_INT64"),
    "IEEE_INT64": ("IEEE_INT32", "SENUINT32"),
}
ONE_WAY = (("IEEE_FP16", "IEEE_FP32"), ("IEEE_FP16", "BFLOAT16"))
PAIRS = [
    *((f, f) for f in EQUAL),
    *((a, b) for a, others in BOTH_WAYS.items() for b in others),
    *((b, a) for a, others in BOTH_WAYS.items() for b in others),
    *ONE_WAY,
]

BITS = {"SENINT4": 4, "SENUINT2": 2}
PLAIN = {
    "IEEE_FP32": np.float32, "IEEE_FP16": np.float16, "SENINT8": np.int8, "SENINT16": np.int16, "IEEE_INT32": np.int32,
    "SENUINT32": np.uint32, "IEEE_INT64": np.int64, "BOOL": np.uint8,
}  # fmt: skip
TORCH = {"BFLOAT16": torch.bfloat16, "SEN143_FP8": torch.float8_e4m3fn}
CODES = {"SEN169_FP16": np.uint16, "BFLOAT16": np.uint16, "SEN143_FP8": np.uint8}
RANGES = {"SENINT4": (-8, 7), "SENUINT2": (0, 3), "SENUINT32": (0, 2**31 - 1), "BOOL": (0, 1), "SENINT8": (-128, 127)}


def item_bits(name: str) -> int:
    if name in BITS:
        return BITS[name]
    return 8 * np.dtype(PLAIN.get(name) or CODES[name]).itemsize


def decode(name: str, data: bytes) -> np.ndarray:
    """The numbers in memory."""
    if name in BITS:
        n, codes = BITS[name], np.frombuffer(data, np.uint8)
        parts = np.stack([codes >> at & (1 << n) - 1 for at in range(0, 8, n)], axis=1).reshape(-1).astype(np.int64)
        return np.where(parts >= 1 << (n - 1), parts - (1 << n), parts) if name == "SENINT4" else parts
    if name in PLAIN:
        return np.frombuffer(data, PLAIN[name])
    if name == "SEN169_FP16":
        return np.asarray(dl16.decode(np.frombuffer(data, np.uint16)), np.float64)
    codes = torch.frombuffer(bytearray(data), dtype=TORCH[name])
    return codes.to(torch.float64).numpy()


def encode(name: str, values: np.ndarray) -> np.ndarray:
    """Codes of numbers, as an array of one item for each element."""
    if name in ("IEEE_FP32", "IEEE_FP16"):
        return values.astype(PLAIN[name])
    if name == "SEN169_FP16":
        return np.asarray(dl16.encode(values.astype(np.float32)), np.uint16)
    if name in TORCH:
        made = torch.from_numpy(values.astype(np.float32)).to(TORCH[name])
        return made.view(torch.uint8 if item_bits(name) == 8 else torch.int16).numpy().view(CODES[name])
    if name == "BOOL":
        return (values != 0).astype(np.uint8)
    low, high = RANGES.get(
        name, (np.iinfo(np.int16).min, np.iinfo(np.int16).max) if name == "SENINT16" else (None, None)
    )
    whole = np.trunc(values).astype(np.int64)
    return (whole if low is None else np.clip(whole, low, high)).astype(PLAIN.get(name, np.int64))


def pack(name: str, codes: np.ndarray) -> bytes:
    if name not in BITS:
        return codes.tobytes()
    n = BITS[name]
    fields = (codes.astype(np.int64) & (1 << n) - 1).reshape(-1, 8 // n)
    return sum(fields[:, i] << (n * i) for i in range(8 // n)).astype(np.uint8).tobytes()


def random_codes(name: str, count: int, generator: np.random.Generator) -> np.ndarray:
    if name in RANGES:
        low, high = RANGES[name]
        return encode(name, generator.integers(low, high + 1, count).astype(np.float64))
    if name in ("IEEE_INT32", "IEEE_INT64", "SENINT16"):
        return encode(name, generator.integers(-3000, 3000, count).astype(np.float64))
    return encode(name, generator.standard_normal(count) * 8)


@dataclass
class Box:
    sizes: list[int]
    host: list[int]
    device: list[int]
    host_offset: int = 0
    device_offset: int = 0

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Host and device elements, in the same order."""
        index = np.indices(self.sizes).reshape(len(self.sizes), math.prod(self.sizes))
        host = self.host_offset + np.array(self.host, np.int64) @ index
        return host, self.device_offset + np.array(self.device, np.int64) @ index


@dataclass
class Copy:
    name: str
    source: str
    target: str
    to_device: bool
    boxes: list[Box]
    host_count: int
    device_count: int
    shape: list[int] = field(default_factory=list)
    device_as: str = ""  # what the device holds, if it is not what the conversion says

    def write(self, folder: Path, generator: np.random.Generator) -> str:
        """Random bytes on both sides; the lines that describe the copy. Keeps what must come out."""
        host_format, device_format = (self.source, self.target) if self.to_device else (self.target, self.source)
        device_format = self.device_as or device_format
        per_stick = 1024 // item_bits(device_format)
        device_count = -(-self.device_count // per_stick) * per_stick
        host_count = -(-self.host_count // 8) * 8
        host = random_codes(host_format, host_count, generator)
        device = random_codes(device_format, device_count, generator)
        host_bytes, device_bytes = pack(host_format, host), pack(device_format, device)
        (folder / f"{self.name}.host").write_bytes(host_bytes)
        (folder / f"{self.name}.device").write_bytes(device_bytes)
        self.formats = host_format, device_format
        self._expect(host, device, decode(host_format, host_bytes), decode(device_format, device_bytes))
        codes = [FORMATS.index(f) for f in (self.source, self.target)]
        lines = [f"case {self.name} {int(self.to_device)} {codes[0]} {codes[1]} {len(device_bytes)}"]
        if self.shape:
            lines.append(f"shape {len(self.shape)} {' '.join(map(str, self.shape))}")
        for box in self.boxes:
            strides = [box.host, box.device] if self.to_device else [box.device, box.host]
            offsets = [box.host_offset, box.device_offset]
            numbers = [*box.sizes, *strides[0], *strides[1], *(offsets if self.to_device else offsets[::-1])]
            lines.append(f"box {len(box.sizes)} {' '.join(map(str, numbers))}")
        return "\n".join([*lines, "end", ""])

    def _expect(self, host: np.ndarray, device: np.ndarray, host_values: np.ndarray, device_values: np.ndarray) -> None:
        self.host, self.device = host.copy(), device.copy()
        same = self.source == self.target
        if self.to_device and not all(0 in box.sizes for box in self.boxes):
            self.device = np.zeros_like(device)  # what no box covers becomes zero
        for box in self.boxes:
            at_host, at_device = box.places()
            if self.to_device:
                moved = host[at_host] if same else encode(self.target, host_values[at_host])
                self.device[at_device] = moved
            else:
                self.host[at_host] = device[at_device] if same else encode(self.target, device_values[at_device])

    def check(self, folder: Path) -> None:
        for side, want, name in ((".host", self.host, self.formats[0]), (".device", self.device, self.formats[1])):
            got = (folder / f"{self.name}{side}").read_bytes()
            assert got == pack(name, want), f"{self.name}{side}: {decode(name, got)} is not {want}"


def layouts(stick: int) -> dict[str, tuple[list[Box], int, int]]:
    """Boxes, host elements, device elements. Sizes are innermost first."""
    rows, columns = 5, 3 * stick + 7
    whole, rest = columns // stick, columns % stick
    tiles = [
        Box([stick, rows, whole], [1, columns, stick], [1, stick, rows * stick]),
        Box([rest, rows], [1, columns], [1, stick], whole * stick, whole * rows * stick),
    ]
    return {
        "dense": ([Box([1000], [1], [1])], 1000, 1000),
        "tiled": (tiles, rows * columns, (whole + 1) * rows * stick),
        "transposed": ([Box([70, 33], [33, 1], [1, 70])], 70 * 33, 70 * 33),
        "gaps": ([Box([9, 11], [3, 40], [2, 30], 5, 7)], 12 * 40, 12 * 30),
        "backwards": ([Box([64, 3], [-1, 64], [1, 64], 63)], 192, 192),
        "repeated": ([Box([stick, 6], [0, 1], [1, stick])], 6, 6 * stick),
        "one": ([Box([], [], [], 3, 2)], 8, 8),
        "nothing": ([Box([4, 0], [1, 1], [1, 1])], 8, 8),
    }


def run(sdk: Sdk, folder: Path, copies: list[Copy]) -> None:
    generator = np.random.default_rng(1)
    (folder / "cases").write_text("".join(copy.write(folder, generator) for copy in copies))
    sdk.client("convert", folder)
    for copy in copies:
        copy.check(folder)


def test_there_are_35_pairs() -> None:
    assert len(PAIRS) == len(set(PAIRS)) == 35


@pytest.mark.parametrize("to_device", [True, False], ids=["in", "out"])
def test_pairs(sdk: Sdk, tmp_path: Path, to_device: bool) -> None:
    copies = []
    for source, target in PAIRS:
        stick = 1024 // item_bits(target if to_device else source)
        for name, (boxes, host, device) in layouts(stick).items():
            if name == "repeated" and not to_device:
                continue  # several values for one place
            copies.append(Copy(f"{source}-{target}-{name}", source, target, to_device, boxes, host, device))
    run(sdk, tmp_path, copies)


def test_large_copies_are_shared_by_threads(sdk: Sdk, tmp_path: Path) -> None:
    rows, columns = 512, 1024
    boxes = [Box([64, rows, columns // 64], [1, columns, 64], [1, 64, rows * 64])]
    n = rows * columns
    formats = [("IEEE_FP16", "SEN169_FP16"), ("IEEE_FP32", "SEN169_FP16"), ("IEEE_INT64", "IEEE_INT32")]
    pairs = itertools.product(formats, (True, False))
    run(sdk, tmp_path, [Copy(f"{a}-{b}-{to}", *((a, b) if to else (b, a)), to, boxes, n, n) for (a, b), to in pairs])


def test_several_writes_to_one_place(sdk: Sdk, tmp_path: Path) -> None:
    """A device dim of the host's that stands still on the card: any of the equal values."""
    copy = Copy("still", "IEEE_FP32", "IEEE_FP32", True, [Box([32, 4], [1, 0], [1, 0])], 32, 32)
    run(sdk, tmp_path, [copy])


def test_bool_with_the_layout_of_float32(sdk: Sdk, tmp_path: Path) -> None:
    """The front end says SEN169_FP16 -> BOOL of a result whose sticks have 32 elements."""
    copy = Copy("flags", "SEN169_FP16", "BOOL", False, [Box([32, 3], [1, 32], [1, 32])], 96, 96, [32, 3], "IEEE_FP32")
    run(sdk, tmp_path, [copy])


def test_infinities_and_nan_come_back(sdk: Sdk, tmp_path: Path) -> None:
    special = np.array([np.inf, -np.inf, np.nan, 65504, -65504, 0.0, 6e-8, 1.0], np.float16)
    codes = [FORMATS.index(f) for f in ("IEEE_FP16", "SEN169_FP16")]
    box = "box 1 8 1 1 0 0\nend\n"
    (tmp_path / "cases").write_text(
        f"case x 1 {codes[0]} {codes[1]} 128\n{box}case y 0 {codes[1]} {codes[0]} 128\n{box}"
    )
    (tmp_path / "x.host").write_bytes(special.tobytes())
    (tmp_path / "x.device").write_bytes(bytes(128))
    (tmp_path / "y.host").write_bytes(bytes(16))
    (tmp_path / "y.device").write_bytes(bytes(128))
    sdk.client("convert", tmp_path)
    got = np.frombuffer((tmp_path / "x.device").read_bytes(), np.uint16)
    assert got[:4].tolist() == [0x7FFE, 0xFFFE, 0x7FFF, 0x5DFF] and not got[8:].any()
    (tmp_path / "y.device").write_bytes(got.tobytes())
    sdk.client("convert", tmp_path)
    back = np.frombuffer((tmp_path / "y.host").read_bytes(), np.float16)
    assert back[0] == np.inf and back[1] == -np.inf and np.isnan(back[2]) and np.isfinite(back[3:]).all()


def test_uint8(sdk: Sdk) -> None:
    sdk.client("uint8")
