# SPDX-License-Identifier: Apache-2.0
"""From a row of a measurement file to the survey of the program that the compiler would emit for it."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.options import Options
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.ir.ktir.emit import kernel_function
from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.perf.calibration import plans as k
from torch_spyre.perf.device import Device
from torch_spyre.perf.survey import Survey, survey

MEASURED = Path(__file__).parents[1] / "measured"
_LX_USABLE = 0.78  # of LX: what the measured compiler's allocator gives to tensors, about 1.55 MB
_POINTWISE = {"neg": "neg", "gelu": "sigmoid"}  # gelu is one vector instruction on the card; so is sigmoid on ours
_BROADCAST = {"bcast": ("add", "r"), "mulbcast": ("mul", "r"), "bcastcol": ("add", "c")}
_MANY_ENTRIES = 32  # batches of attention, one entry for each head or position
_PLANNED = ("mm", "mmwd", "mmrt", "bmm_wd_3d2d")  # their planner's split is guessed when B is 1
_TWO_PRODUCTS = re.compile(r"E\d+ T(?P<rows>\d+) H(?P<cols>\d+)|E\d+ H(?P<cols_>\d+) EC=(?P<rows_>\d+)")
_REDUCTIONS = {"read": "sum", "sumrow": "sum", "mean": "sum", "amax": "max"}
# Some measured tensors exceed 256 MiB; their times fit a cut along rows, with which a core reaches over all of it.
_AS_MEASURED = Options(limit_span=False)


@dataclass(frozen=True)
class Row:
    """One measurement and the kernel it stands for."""

    label: str
    group: str  # class of the error table
    shape: str  # rows of one shape are left out together in cross-validation
    micros: float
    build: Callable[[], Kernel] | None  # None: the file does not say how it was divided
    assumed: bool = False  # the file does not record the core split; the most likely one is taken
    problem: str = ""  # matmuls of one problem, for the regret of choosing the split
    also: tuple[str, ...] = ()  # narrower classes of the error table that it belongs to as well
    lx_fraction: float = 0.0  # LX share of the back end that was measured; 0: the description's

    def on(self, device: Device) -> Device:
        """The card as it was set up for this measurement."""
        return device.with_values(cores__lx_fraction=self.lx_fraction) if self.lx_fraction else device


def load(path: str | Path) -> list[Row]:
    """Rows of a file with the columns of matmul.csv, non_matmul.csv or onchip_handoff.csv."""
    with open(path, newline="") as file:
        records = list(csv.DictReader(file))
    if not records:
        raise InvalidArgument(f"{path} has no rows")
    if "split_b_m_n_k" in records[0]:
        return [_matmul_row(r) for r in records]
    if "tiles" in records[0] and "rows" in records[0]:
        return [_vector_row(r) for r in records]
    if "handoff_bytes" in records[0]:
        return [row for r in records for row in _handed_over(r)]
    raise InvalidArgument(
        f"{path} has columns {list(records[0])}; expected those of matmul.csv, non_matmul.csv or onchip_handoff.csv"
    )


_SURVEYS: dict[str, Survey | None] = {}


def surveyed(row: Row) -> Survey | None:
    """The survey of the row's program; None if the file does not say how it was divided or we cannot compile that.

    Equal rows are compiled once.
    """
    if row.build is None:
        return None
    if row.label not in _SURVEYS:
        try:
            _SURVEYS[row.label] = survey(
                compile_module(kernel_function.emit(row.build()), options=_AS_MEASURED).program
            )
        except SpyreError:
            _SURVEYS[row.label] = None
    return _SURVEYS[row.label]


def _vector_row(r: dict[str, str]) -> Row:
    op, rows, cols, cores = r["op"], int(r["rows"]), int(r["cols"]), int(r["cores"])
    tiles, mid = int(r["tiles"] or 0), int(r["mid"] or 0)
    planned = r["lx_planning"] == "1"
    group, build = _vector_kernel(op, rows, cols, mid, tiles, cores, planned)
    label = f"{op} {rows}x{cols}{f'x{mid}' if mid else ''} tiles {tiles} cores {cores} lx {int(planned)}"
    return Row(label, group, f"{rows}x{cols}x{mid}", float(r["kernel_us"]), build)


def _vector_kernel(
    op: str, rows: int, cols: int, mid: int, tiles: int, cores: int, planned: bool
) -> tuple[str, Callable[[], Kernel] | None]:
    if op in _POINTWISE:
        return "pointwise", lambda: k.pointwise(_POINTWISE[op], rows, cols, cores)
    if op == "add":
        return "pointwise", lambda: k.pointwise("add", rows, cols, cores, 2)
    if op in _BROADCAST:
        name, dim = _BROADCAST[op]
        return "broadcast", lambda: k.pointwise(name, rows, cols, cores, 2, dim)
    if op in _REDUCTIONS:
        return "reductions", lambda: k.row_reduce(_REDUCTIONS[op], rows, cols, cores)
    simple: dict[str, tuple[str, Callable[[], Kernel]]] = {
        "write": ("pointwise", lambda: k.writer(rows, cols, cores)),
        "copy": ("copy", lambda: k.copy(rows, cols, cores)),
        "transpose": ("transpose", lambda: k.transpose(rows, cols, cores)),
        "transpose_outer": ("transpose", lambda: k.swap_outer(rows, mid, cols, cores)),
        "cat0": ("concat", lambda: k.concat(rows, cols, 0, cores)),
        "cat1": ("concat", lambda: k.concat(rows, cols, 1, cores)),
    }
    return simple.get(op) or _chained(op, rows, cols, tiles, cores, planned)


def _chained(
    op: str, rows: int, cols: int, tiles: int, cores: int, planned: bool
) -> tuple[str, Callable[[], Kernel] | None]:
    """Kernels of several ops, whose intermediates may stay in LX."""
    fits = rows * cols * 2 / cores / max(1, tiles) <= LX_BYTES * _LX_USABLE
    if op == "ctsum":
        return "column sums", lambda: k.column_sum(rows, cols, tiles, cores, planned and fits)
    if op.startswith("softmax"):
        return "softmax", lambda: k.softmax(rows, cols, max(1, tiles), cores, fits)
    if found := re.fullmatch(r"add_indep(\d+)", op):
        return "chains without LX", lambda: k.independent_adds(int(found[1]), rows, cols, cores)
    if found := re.fullmatch(r"add(\d+)(_sep)?", op):
        in_lx = planned and fits and not found[2]
        count = int(found[1])
        return f"chains with{'' if in_lx else 'out'} LX", lambda: k.chain(count, rows, cols, cores, in_lx)
    return "not modelled", None


def _handed_over(r: dict[str, str]) -> list[Row]:
    """A program of several ops, with the result of one handed to the next through memory and through LX.

    The files do not record core splits. Two products with memory between them tie with both cut along rows alone; with
    LX between them they are faster than any plan in which the first is cut so, so that plan is not known.
    """
    found = _TWO_PRODUCTS.fullmatch(r["config"]) if r["timer"] == "device" else None
    label, shape = f"{r['workload']} {r['config']} through", r["handoff_bytes"]
    unknown = "program, plan not recorded"
    through_lx = Row(f"{label} LX", unknown, shape, float(r["onchip_ms"]) * 1e3, None)
    micros = float(r["hbm_ms"]) * 1e3
    if found is None:
        return [Row(f"{label} memory", unknown, shape, micros, None), through_lx]
    m, n = (int(found[d] or found[f"{d}_"]) for d in ("rows", "cols"))
    build = partial(k.two_products, m, n, 32)
    return [Row(f"{label} memory", "two products in one program", shape, micros, build, assumed=True), through_lx]


def _matmul_row(r: dict[str, str]) -> Row:
    batch, m, n, kk, cores = (int(r[c]) for c in ("B", "M", "N", "K", "cores"))
    shape = f"{batch}x{m}x{n}x{kk}"
    shared, by_rows = r["op"] == "bmm_wd_3d2d", r.get("layout_kernel") == "out in"
    orders = r.get("layout_A") or "", r.get("layout_B") or ""
    kind = f"{r['op'] if shared else 'mm'} {'rows ' if by_rows else ''}{orders[0]} {orders[1]}"
    label = f"{kind} {shape} cores {cores} split {r['split_b_m_n_k']}"
    micros, split = float(r["kernel_us"]), _recorded(r["split_b_m_n_k"])
    guessed = split or _guessed_split(r["op"], batch, m, n, cores)
    if guessed is None:
        return Row(label, "matmul, split not recorded", shape, micros, None)
    order_a, order_b = (tuple(int(v) for v in o.split(",")) if o else (0, 1, 2) for o in orders)

    def build() -> Kernel:
        return k.matmul(batch, m, n, kk, guessed, cores, order_a, (0, 1) if shared else order_b, shared, by_rows)

    if by_rows or (r.get("layout_kernel") == "in out" and "lx_fraction" not in r):
        return Row(label, "weight layouts", shape, micros, build, assumed=True)
    if split is None:
        group = "batched, split assumed" if batch > 1 else "matmul, split assumed"
        return Row(label, group, shape, micros, build, assumed=True)
    if fraction := float(r.get("lx_fraction") or 0):
        group = f"SuperDSC files, LX share {fraction}"
        return Row(f"{label} lx {fraction}", group, shape, micros, build, lx_fraction=fraction)
    group, also = _matmul_group(batch, cores, split, shared)
    return Row(label, group, shape, micros, build, problem=f"{kind} {shape} cores {cores}", also=also)


def _recorded(split: str) -> tuple[int, ...] | None:
    found = re.fullmatch(r"(\d+)_(\d+)_(\d+)_(\d+)", split)
    return tuple(int(v) for v in found.groups()) if found else None


def _guessed_split(op: str, batch: int, m: int, n: int, cores: int) -> tuple[int, ...] | None:
    """What the measured compiler's planner most likely chose."""
    if batch > 1:
        return _few_columns(n, cores)
    if op not in _PLANNED:
        return None
    return (1, 1, cores, 1) if m == 1 else _balanced(cores)


def _balanced(cores: int) -> tuple[int, ...]:
    """What the measured compiler's planner most likely chose: 4x8, 4x4, 2x4, 2x2."""
    m = 1 << int(math.log2(cores)) // 2
    return 1, m, cores // m, 1


def _few_columns(n: int, cores: int) -> tuple[int, ...]:
    """What it most likely chose for batched matmuls, from rows that tie with recorded splits: slices of 512 columns."""
    columns = min(cores, max(2, n // 512))
    return 1, cores // columns, columns, 1


def _matmul_group(batch: int, cores: int, split: tuple[int, ...], shared: bool) -> tuple[str, tuple[str, ...]]:
    """The class, and narrower ones inside it."""
    if shared:
        return "batched, shared weight", ()
    if batch > 1:
        narrower = [f"thereof attention, {'K' if split[3] > 1 else 'other'} splits"] if batch >= _MANY_ENTRIES else []
        return "batched", tuple(narrower)
    if split[3] > 1:
        return "matmul K splits", ("thereof K cut by 8 and more",) if split[3] >= 8 else ()
    if cores < 32:
        return "matmul 1-16 cores", ()
    return "matmul 32 cores M/N splits", ("thereof cut along M only",) if split[2] == 1 else ()
