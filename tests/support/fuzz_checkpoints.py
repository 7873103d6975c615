# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save, damaged in the text of a layout, in a number, in a record or anywhere, loaded as weights."""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import pickletools
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import fuzz_numbers as numbers
import torch
from fuzz_numbers import MOST
from fuzz_views import attempt

from torch_spyre._C import SpyreTensorLayout

MARK = b"spyre_layout_v1;"
Records = dict[str, bytes]


@functools.cache
def saved(number: int) -> tuple[tuple[str, bytes], ...]:
    """The records of a good file."""
    plain = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    order = torch.spyre.to_with_layout(plain, SpyreTensorLayout([3, 4], [4, 1], torch.float32, [1, 0]))
    padded = torch.empty_strided((3, 7), (10, 1), device="spyre")
    padded.copy_(torch.arange(21.0).reshape(3, 7))
    values: list[Any] = [
        order,
        {"whole": order, "part": order[1:, ::2]},
        {"padded": padded, "numbers": torch.arange(70, dtype=torch.int32).to("spyre")},
        {"half": plain.half().to("spyre"), "bits": (plain > 3).to("spyre"), "bytes": plain.byte().to("spyre")},
        torch.nn.Linear(3, 2).to("spyre").state_dict(),
        torch.arange(5.0).to("spyre").expand(2, 5),
    ]
    file = io.BytesIO()
    torch.save(values[number % len(values)], file)
    with zipfile.ZipFile(file) as archive:
        return tuple((name, archive.read(name)) for name in archive.namelist())


def packed(records: Records) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return file.getvalue()


def pickle_name(records: Records) -> str:
    return next(name for name in records if name.endswith("data.pkl"))


def damaged_text(draw: random.Random, text: bytes) -> bytes:
    """The text of a layout with a number, a separator or a character changed."""
    fields = [f.split(b",") for f in text[len(MARK) :].rstrip(b";").split(b";")]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        field = draw.choice(fields)
        way = draw.random()
        new = draw.choice([*numbers.ABSURD, 0, 1, 2, 3, 5, 64])
        if way < 0.6:
            field[draw.randrange(len(field))] = b"%d" % new
        elif way < 0.7:
            field.append(b"%d" % new)
        elif way < 0.8 and len(field) > 1:
            field.pop()
        elif way < 0.85:
            fields = draw.sample(fields, len(fields))
        else:
            field[draw.randrange(len(field))] = draw.choice([b"", b"x", b"1e3", b"-", b" 1", b"9" * 40, b"\xc3\xa9"])
    made = MARK + b";".join(b",".join(f) for f in fields) + b";"
    return made if draw.random() < 0.9 else made[: draw.randrange(len(MARK), len(made))]


def change_layout(draw: random.Random, records: Records) -> None:
    name = pickle_name(records)
    data = records[name]
    places = [i for i in range(len(data)) if data.startswith(MARK, i)]
    if not places:
        return
    begin = draw.choice(places)
    length = int.from_bytes(data[begin - 4 : begin], "little")
    text = damaged_text(draw, data[begin : begin + length])
    records[name] = data[: begin - 4] + len(text).to_bytes(4, "little") + text + data[begin + length :]


def numbers_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Places of the integers of a pickle, which are sizes, strides and offsets."""
    operations = [(op.name, at) for op, _, at in pickletools.genops(data)]
    for (name, begin), (_, end) in itertools.pairwise(operations):
        if name in ("BININT", "BININT1", "BININT2", "LONG1"):
            yield begin, end


def change_number(draw: random.Random, records: Records) -> None:
    name = pickle_name(records)
    data = records[name]
    begin, end = draw.choice([*numbers_in(data)])
    new = pickle.dumps(draw.choice([*numbers.ABSURD, 0, 1, 2, 3, 7, 50]), 2)[2:-1]
    records[name] = data[:begin] + new + data[end:]


def change_record(draw: random.Random, records: Records) -> None:
    name = draw.choice([*records])
    data = bytearray(records[name])
    way = draw.random()
    if way < 0.2:
        data = data[: draw.randrange(len(data) + 1)]
    elif way < 0.3:
        data += bytes(draw.randrange(1, 200))
    elif data:
        for _ in range(draw.choice([1, 1, 2, 5])):
            data[draw.randrange(len(data))] = draw.randrange(256)
    records[name] = bytes(data)


def change_file(draw: random.Random, records: Records) -> bytes:
    data = bytearray(packed(records))
    for _ in range(draw.choice([1, 1, 3])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data if draw.random() < 0.8 else data[: draw.randrange(len(data))])


def tensors(value: Any) -> list[torch.Tensor]:
    found = value.values() if isinstance(value, dict) else [value]
    return [x for x in found if isinstance(x, torch.Tensor)]


def use(tensor: torch.Tensor) -> None:
    """What a program does with weights; all of it may be refused."""
    if tensor.numel() <= MOST:
        attempt(tensor.cpu)
        attempt(tensor.zero_)
    if tensor.untyped_storage().nbytes() <= 1 << 20:
        attempt(lambda: tensor.untyped_storage().cpu())
        attempt(lambda: torch.save(tensor, io.BytesIO()))


def run(draw: random.Random) -> str:
    records = dict(saved(draw.randrange(6)))
    way = draw.random()
    changes: list[Callable[[random.Random, Records], None]] = [change_layout, change_number, change_record]
    change = changes[0] if way < 0.6 else changes[1] if way < 0.8 else changes[2]
    change(draw, records)
    file = change_file(draw, records) if draw.random() < 0.05 else packed(records)
    loaded = attempt(lambda: torch.load(io.BytesIO(file), weights_only=True))
    if isinstance(loaded, Exception):
        return "refused"
    on_host = attempt(lambda: torch.load(io.BytesIO(file), weights_only=True, map_location="cpu"))
    assert not isinstance(on_host, Exception), on_host
    found = tensors(loaded)
    for got, want in zip(found, tensors(on_host), strict=True):
        assert (got.shape, got.stride(), got.storage_offset()) == (want.shape, want.stride(), want.storage_offset())
        if change is change_layout and got.numel() <= MOST:
            values = got.cpu()
            assert torch.equal(values, want), (want, values)  # a layout says where elements lie, never what they are
    for got in found:
        use(got)
    return "loaded"
