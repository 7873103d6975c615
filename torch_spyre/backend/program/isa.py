# SPDX-License-Identifier: Apache-2.0
"""Codes of the program format: opcodes, spaces, and the operation and format tables.

The tables are rows of the card's own `.def` files, read here and included there, so the two sides cannot drift.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch_spyre import formats
from torch_spyre.errors import UnsupportedOp

_DEF_DIR = Path(__file__).resolve().parents[2] / "csrc" / "card" / "include" / "spyre"
_ROW = re.compile(r"^VOP\(([^)]*)\)", re.MULTILINE)

MAX_DIMS = 8
MAX_CORES = 32
MAX_INDICES = 4  # index tensors of one GATHER or SCATTER

# Instruction flags.
ACCUMULATE = 1  # REDUCE, MATMUL: the output is the initial value; SCATTER: adds
TAPS_SHIFT = 1  # MATMUL: two bits count the dims of k but the last one
MAX_TAPS = 3
MASKED = 2  # GATHER, SCATTER: an index out of range reads 0 or writes nothing


class Opcode(enum.IntEnum):
    END = 0
    BARRIER = 1
    LOOP = 2
    ENDLOOP = 3
    IF = 4
    ENDIF = 5
    SOP = 6
    VOP = 16
    REDUCE = 17
    MATMUL = 18
    COPY = 19
    RINGSUM = 20
    GATHER = 21
    SCATTER = 22
    IOTA = 23
    SCAN = 24
    ARGREDUCE = 25
    SORT = 26


class Space(enum.IntEnum):
    MEM = 1
    LX = 2
    LX_REMOTE = 3
    CONST = 4
    SCALAR = 5
    IMM = 6


class Sop(enum.IntEnum):
    ADD = 0
    SUB = 1
    MUL = 2
    FLOORDIV = 3
    MOD = 4
    MIN = 5
    MAX = 6


class Compute(enum.IntEnum):
    F32 = 0
    I32 = 1


class Rop(enum.IntEnum):
    SUM = 0
    MAX = 1
    MIN = 2
    PROD = 3


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class ScalarKind(enum.IntEnum):
    INTEGER = 0
    FP32 = 1


@dataclass(frozen=True)
class VopRow:
    code: int
    name: str
    operands: int


@dataclass(frozen=True)
class FormatRow:
    code: int
    name: str
    bytes: int  # 0: never stored by this card
    elems_per_stick: int


def _rows(file: str) -> list[list[str]]:
    text = (_DEF_DIR / file).read_text(encoding="utf-8")
    return [[field.strip() for field in match.split(",")] for match in _ROW.findall(text)]


VOPS: dict[str, VopRow] = {name: VopRow(int(c), name, int(n)) for c, name, n in _rows("vops.def")}
VOP_NAMES: dict[int, str] = {row.code: row.name for row in VOPS.values()}
FORMATS: dict[str, FormatRow] = {
    name: FormatRow(code, name, formats.BYTES.get(name, 0), formats.ELEMS_PER_STICK.get(name, 0))
    for name, code in formats.CODE.items()
}
FORMAT_BY_CODE: dict[int, FormatRow] = {row.code: row for row in FORMATS.values()}

SEN169_FP16 = FORMATS["SEN169_FP16"].code
IEEE_FP32 = FORMATS["IEEE_FP32"].code
IEEE_INT32 = FORMATS["IEEE_INT32"].code

# KTIR element type (as printed) to stored format. f16, bf16 and df16 have one encoding on this card, and so has a
# truth value, which vector comparisons write as 1 or 0. 64-bit integers are values only: memory holds 32 bits.
FORMAT_OF_TYPE: dict[str, int] = {
    "f16": SEN169_FP16,
    "bf16": SEN169_FP16,
    "!spyreop.df16": SEN169_FP16,
    "i1": SEN169_FP16,
    "f32": IEEE_FP32,
    "i32": IEEE_INT32,
    "si32": IEEE_INT32,
    "ui32": IEEE_INT32,
    "i64": IEEE_INT32,
    "si64": IEEE_INT32,
    "index": IEEE_INT32,
    "i16": FORMATS["SENINT16"].code,
    "i8": FORMATS["SENINT8"].code,
    "f8E4M3FN": FORMATS["SEN143_FP8"].code,
    "f8E5M2": FORMATS["SEN152_FP8"].code,
}


@lru_cache(maxsize=256)
def type_name(element: object) -> str:
    """An element type as KTIR prints it."""
    return str(element)


def format_of_type(printed: str) -> int:
    """Stored format of a KTIR element type."""
    try:
        return FORMAT_OF_TYPE[printed]
    except KeyError:
        raise UnsupportedOp(
            f"element type {printed} has no stored format on this card; use one of {', '.join(FORMAT_OF_TYPE)}"
        ) from None


def is_integer_type(printed: str) -> bool:
    """True for element types that the card computes in int32."""
    return printed in ("i32", "si32", "ui32", "i64", "si64", "index", "i16", "i8")


def format_bytes(code: int) -> int:
    return FORMAT_BY_CODE[code].bytes
