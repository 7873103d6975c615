# SPDX-License-Identifier: Apache-2.0
"""Kernels of the measured operations, planned as the compiler plans them: default stick layouts, given core splits.

Host dims (d0, …, dn) become device dims [d1, …, ceil(dn/64), d0, 64]; all tensors are fp16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_spyre.constants import LX_BYTES
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Dim,
    Input,
    Kernel,
    KernelArg,
    Operand,
    Space,
    Tensor,
    Term,
    TileOp,
)

FP16 = "SEN169_FP16"
STICK = 64
_STICK_DIMS = ("c", "n", "k")
Names = Sequence[str | None]


def device_size(host: Sequence[int]) -> tuple[int, ...]:
    sticks = -(-host[-1] // STICK)
    return (*host[1:-1], sticks, *host[:1], STICK) if len(host) > 1 else (sticks, STICK)


def slices(units: int, cores: int) -> int:
    """The largest even division of `units` that does not need more than `cores`."""
    return next(n for n in range(min(units, cores), 0, -1) if units % n == 0)


def make_dims(sizes: Mapping[str, int], splits: Mapping[str, int]) -> tuple[Dim, ...]:
    """Dims with their splits; c, n and k are in sticks and are cut between them, so the last slice may be short."""
    dims = []
    for name, size in sizes.items():
        count = splits.get(name, 1)
        unit = STICK if name in _STICK_DIMS else 1
        units = -(-size // unit)
        tile = -(-units // count) * unit
        dims.append(Dim(name, size, count, tile) if count > 1 else Dim(name, size))
    return tuple(dims)


def core_order(dims: Sequence[Dim], reduced: Sequence[str] = ()) -> tuple[str, ...]:
    """Split dims, fastest first: reduced ones, then from inner to outer."""
    split = [d.name for d in reversed(dims) if d.slices > 1]
    return (*(d for d in split if d in reduced), *(d for d in split if d not in reduced))


def operand(tensor: Tensor, names: Names, start: Mapping[str, int] | None = None) -> Operand:
    """`names` gives the iteration dim of each host dim (None: coordinate 0); `start` shifts a dim by whole sticks."""

    def coord(name: str | None, div: int = 1, mod: int = 0) -> Coord:
        shift = (start or {}).get(name or "", 0)
        if name is None:
            return Coord()
        return Coord((Term(name, 1, div, mod),), 0 if mod else shift // div)

    outer, inner = coord(names[-1], div=STICK), coord(names[-1], mod=STICK)
    if len(names) == 1:
        return Operand(tensor, (outer, inner))
    return Operand(tensor, (*(coord(d) for d in names[1:-1]), outer, coord(names[0]), inner))


@dataclass
class Builder:
    """Collects tensors and ops of one kernel."""

    name: str
    cores: int
    args: list[KernelArg] = field(default_factory=list)
    ops: list[TileOp] = field(default_factory=list)
    lx_top: int = 0

    def memory(self, name: str, host: Sequence[int], role: str = "input") -> Tensor:
        tensor = Tensor(name, FP16, Space.MEMORY, device_size(host), 0, len(self.args))
        access = {"input": Access.READ, "output": Access.WRITE | Access.READ}.get(role, Access.READ | Access.WRITE)
        self.args.append(KernelArg(name, tensor.elements * 2, access, role))
        return tensor

    def scratch(self, name: str, host: Sequence[int], base: int) -> Tensor:
        """A scratchpad tensor at `base`; `host` is the shape of one core's slice."""
        tensor = Tensor(name, FP16, Space.LX, device_size(host), base)
        self.lx_top = max(self.lx_top, base + tensor.elements * 2)
        return tensor

    def op(
        self, op: str, dims: tuple[Dim, ...], inputs: tuple[Input, ...], output: Operand, reduced: tuple[str, ...] = ()
    ) -> None:
        name = f"{op}{len(self.ops)}"
        self.ops.append(TileOp(name, op, dims, inputs, output, reduced, core_order(dims, reduced), origin=self.name))

    def kernel(self) -> Kernel:
        return Kernel(self.name, tuple(self.args), tuple(self.ops), cores=self.cores, lx_scratch_base=self.lx_top)


def split_widest(rows: int, cols: int, cores: int) -> dict[str, int]:
    """Pointwise work is cut along the dim with more rows or sticks; rows win a tie."""
    sticks = max(1, cols // STICK)
    return {"c": slices(sticks, cores)} if sticks > rows else {"r": slices(rows, cores)}


def pointwise(op: str, rows: int, cols: int, cores: int, inputs: int = 1, broadcast: str = "") -> Kernel:
    """`broadcast` names the dim along which the last input has size 1."""
    b = Builder(op, cores)
    dims = make_dims({"r": rows, "c": cols}, split_widest(rows, cols, cores))
    ins: list[Input] = []
    for i in range(inputs):
        small = broadcast if i == inputs - 1 else ""
        host = (1 if small == "r" else rows, 1 if small == "c" else cols)
        names = (None if small == "r" else "r", None if small == "c" else "c")
        ins.append(operand(b.memory(f"in{i}", host), names))
    b.op(op, dims, tuple(ins), operand(b.memory("out", (rows, cols), "output"), ("r", "c")))
    return b.kernel()


def writer(rows: int, cols: int, cores: int) -> Kernel:
    """Outer product of a column and a row: almost only writes."""
    b = Builder("write", cores)
    dims = make_dims({"r": rows, "c": cols}, split_widest(rows, cols, cores))
    column = operand(b.memory("column", (rows, 1)), ("r", None))
    row = operand(b.memory("row", (1, cols)), (None, "c"))
    b.op("mul", dims, (column, row), operand(b.memory("out", (rows, cols), "output"), ("r", "c")))
    return b.kernel()


def copy(rows: int, cols: int, cores: int) -> Kernel:
    return pointwise("identity", rows, cols, cores)


def transpose(rows: int, cols: int, cores: int) -> Kernel:
    b = Builder("transpose", cores)
    first, second = ("r", "c") if rows > cols else ("c", "r")
    sticks = {"r": max(1, rows // STICK), "c": max(1, cols // STICK)}
    splits = {first: slices(sticks[first], cores)}
    splits[second] = slices(sticks[second], cores // splits[first])
    dims = make_dims({"r": rows, "c": cols}, splits)
    source, out = b.memory("in", (rows, cols)), b.memory("out", (cols, rows), "output")
    b.op("ReStickifyOpHBM", dims, (operand(source, ("r", "c")),), operand(out, ("c", "r")))
    return b.kernel()


def swap_outer(rows: int, mid: int, cols: int, cores: int) -> Kernel:
    """[rows, mid, cols] to [mid, rows, cols]."""
    b = Builder("transpose_outer", cores)
    dims = make_dims({"r": rows, "x": mid, "c": cols}, split_widest(rows, cols, cores))
    source, out = b.memory("in", (rows, mid, cols)), b.memory("out", (mid, rows, cols), "output")
    b.op("identity", dims, (operand(source, ("r", "x", "c")),), operand(out, ("x", "r", "c")))
    return b.kernel()


def concat(rows: int, cols: int, dim: int, cores: int) -> Kernel:
    """Concatenates [rows, cols] with a tensor half as long in `dim`."""
    b = Builder(f"cat{dim}", cores)
    shapes = [(rows, cols), (rows // 2, cols) if dim == 0 else (rows, cols // 2)]
    sources = [b.memory(f"in{i}", shape) for i, shape in enumerate(shapes)]
    out = b.memory("out", (rows + rows // 2, cols) if dim == 0 else (rows, cols + cols // 2), "output")
    for i, (source, (r, c)) in enumerate(zip(sources, shapes, strict=True)):
        dims = make_dims({"r": r, "c": c}, split_widest(r, c, cores))
        start = {"r" if dim == 0 else "c": shapes[0][dim]} if i else None
        b.op("identity", dims, (operand(source, ("r", "c")),), operand(out, ("r", "c"), start))
    return b.kernel()


def row_reduce(op: str, rows: int, cols: int, cores: int) -> Kernel:
    b = Builder(op, cores)
    dims = make_dims({"r": rows, "c": cols}, {"r": slices(rows, cores)})
    source, out = b.memory("in", (rows, cols)), b.memory("out", (rows, 1), "output")
    b.op(op, dims, (operand(source, ("r", "c")),), operand(out, ("r", None)), ("c",))
    return b.kernel()


def column_sum(rows: int, cols: int, tiles: int, cores: int, planned: bool) -> Kernel:
    """Sum over rows. With row tiles each tile is sliced out of the input, summed and added to the result.

    The slice stays in LX if its copy and its sum are cut alike, which needs more sticks than rows.
    """
    b = Builder("column_sum", cores)
    source, out = b.memory("in", (rows, cols)), b.memory("out", (1, cols), "output")
    height = rows // max(1, tiles)
    sticks = max(1, cols // STICK)
    splits = {"c": slices(sticks, cores)}
    if tiles <= 1:
        splits["r"] = slices(height, cores // splits["c"])
    dims = make_dims({"r": height, "c": cols}, splits)
    line = (dims[1],)
    in_lx = planned and sticks >= height
    copy_dims = dims if in_lx else make_dims({"r": height, "c": cols}, split_widest(height, cols, cores))
    for t in range(max(1, tiles)):
        tile = operand(source, ("r", "c"), {"r": t * height})
        if tiles > 1:
            inner = dims[1].extent
            part = (
                b.scratch("tile", (height, inner), 128 * inner) if in_lx else b.memory(f"s{t}", (height, cols), "pool")
            )
            b.op("identity", copy_dims, (tile,), operand(part, ("r", "c")))
            tile = operand(part, ("r", "c"))
        if t == 0:
            b.op("sum", dims, (tile,), operand(out, (None, "c")), ("r",))
        else:
            partial = operand(b.scratch("partial", (1, dims[1].extent), 0), (None, "c"))
            b.op("sum", dims, (tile,), partial, ("r",))
            b.op("add", line, (operand(out, (None, "c")), partial), operand(out, (None, "c")))
    return b.kernel()


def chain(count: int, rows: int, cols: int, cores: int, in_lx: bool) -> Kernel:
    """x0 + x1 + … with `count` operands; intermediates in LX or in memory."""
    b = Builder(f"add{count}", cores)
    dims = make_dims({"r": rows, "c": cols}, split_widest(rows, cols, cores))
    local = tuple(d.extent for d in dims)
    names = ("r", "c")
    left = operand(b.memory("in0", (rows, cols)), names)
    for i in range(1, count):
        right = operand(b.memory(f"in{i}", (rows, cols)), names)
        if i == count - 1:
            result = b.memory("out", (rows, cols), "output")
        elif in_lx:
            result = b.scratch(f"t{i}", local, 0)
        else:
            result = b.memory(f"t{i}", (rows, cols), "pool")
        b.op("add", dims, (left, right), operand(result, names))
        left = operand(result, names)
    return b.kernel()


def independent_adds(count: int, rows: int, cols: int, cores: int) -> Kernel:
    b = Builder(f"add_indep{count}", cores)
    dims = make_dims({"r": rows, "c": cols}, split_widest(rows, cols, cores))
    for i in range(count):
        ins = tuple(operand(b.memory(f"in{i}{j}", (rows, cols)), ("r", "c")) for j in range(2))
        b.op("add", dims, ins, operand(b.memory(f"out{i}", (rows, cols), "output"), ("r", "c")))
    return b.kernel()


def softmax(rows: int, cols: int, tiles: int, cores: int, in_lx: bool) -> Kernel:
    """Row softmax for each row tile: load, max, sub, exp, sum, divide; in LX one intermediate is updated in place."""
    b = Builder("softmax", cores)
    source, out = b.memory("in", (rows, cols)), b.memory("out", (rows, cols), "output")
    height = rows // tiles
    dims = make_dims({"r": height, "c": cols}, {"r": slices(height, cores)})
    local = dims[0].extent
    row, both = ("r", None), ("r", "c")
    for t in range(tiles):
        start = {"r": t * height}
        x = operand(source, both, start)
        if in_lx:
            column = local * STICK * 2
            peak, total = (operand(b.scratch(n, (local, 1), i * column), row) for i, n in enumerate(("peak", "total")))
            shifted = power = operand(b.scratch("body", (local, cols), 2 * column), both)
            b.op("identity", dims, (x,), power)
            x = power
        else:
            peak, total = (operand(b.memory(f"{n}{t}", (height, 1), "pool"), row) for n in ("peak", "total"))
            shifted, power = (operand(b.memory(f"{n}{t}", (height, cols), "pool"), both) for n in ("s", "p"))
        b.op("max", dims, (x,), peak, ("c",))
        b.op("sub", dims, (x, peak), shifted)
        b.op("exp", dims, (shifted,), power)
        b.op("sum", dims, (power,), total, ("c",))
        b.op("realdiv", dims, (power, total), operand(out, both, start))
    return b.kernel()


def matmul(
    batch: int,
    m: int,
    n: int,
    k: int,
    split: Sequence[int],
    cores: int,
    order_a: Sequence[int] = (0, 1, 2),
    order_b: Sequence[int] = (0, 1, 2),
    shared_b: bool = False,
    weight_rows: bool = False,
) -> Kernel:
    """[batch,] m×k times k×n; `order` is the host dim order of a batched operand, `split` is over b, m, n, k.

    `weight_rows`: the rows of a 2-D right operand are contiguous, not the sticks of a column.
    """
    b = Builder("matmul", cores)
    sizes = {**({"b": batch} if batch > 1 else {}), "m": m, "n": n, "k": max(k, STICK)}
    dims = make_dims(sizes, dict(zip("bmnk", split, strict=True)))

    def tensor(name: str, names: tuple[str, ...], order: Sequence[int], role: str = "input") -> Operand:
        if batch > 1 and name != "flat":
            names = tuple(("b", *names)[i] for i in order)
        return operand(b.memory(name, [sizes[d] for d in names], role), names)

    left = tensor("a", ("m", "k"), order_a)
    right = tensor("flat" if shared_b else "b", ("k", "n"), order_b)
    if weight_rows:
        right = _by_rows(right, sizes["k"], sizes["n"])
    out = tensor("c", ("m", "n"), (1, 0, 2) if shared_b else (0, 1, 2), "output")
    for tile, start in _column_tiles(dims, split[3]):
        b.op("batchmatmul", tile, (left, _at(right, start)), _at(out, start), ("k",))
    return b.kernel()


def two_products(rows: int, cols: int, cores: int) -> Kernel:
    """(p @ x) @ w with p [rows, rows], x [rows, cols] and w [cols, cols], both cut along rows alone."""
    b = Builder("two_products", cores)
    p, x, w = (b.memory(name, host) for name, host in (("p", (rows, rows)), ("x", (rows, cols)), ("w", (cols, cols))))
    h, out = b.memory("h", (rows, cols), "pool"), b.memory("out", (rows, cols), "output")
    for left, right, result, depth in ((p, x, h, rows), (h, w, out, cols)):
        dims = make_dims({"m": rows, "n": cols, "k": depth}, {"m": cores})
        operands = operand(left, ("m", "k")), operand(right, ("k", "n"))
        b.op("batchmatmul", dims, operands, operand(result, ("m", "n")), ("k",))
    return b.kernel()


def _by_rows(weight: Operand, k: int, n: int) -> Operand:
    columns, row, inner = weight.coords
    return Operand(replace(weight.tensor, device_size=(k, n // STICK, STICK)), (row, columns, inner))


def _column_tiles(dims: tuple[Dim, ...], ways: int) -> list[tuple[tuple[Dim, ...], int]]:
    """Partial sums of a k split must fit LX as fp32: wide tiles are cut along n."""
    m, n = dims[-3], dims[-2]
    tiles = 1
    while ways > 1 and m.extent * n.extent // tiles * 4 > LX_BYTES * 3 // 4:
        tiles *= 2
    width = n.size // tiles
    cut = (*dims[:-2], *make_dims({"n": width}, {"n": n.slices}), dims[-1])
    return [(cut, t * width) for t in range(tiles)]


def _at(access: Operand, column: int) -> Operand:
    """The same access, `column` elements to the right."""
    if column == 0:
        return access
    coords = tuple(
        Coord(c.terms, c.const + column // STICK) if c.terms and c.terms[0].dim == "n" and c.terms[0].div > 1 else c
        for c in access.coords
    )
    return Operand(access.tensor, coords)
