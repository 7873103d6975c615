# SPDX-License-Identifier: Apache-2.0
"""Hand-planned Kernels for tests: pointwise, reduction, matmul, copy and softmax with given sizes and core splits.

Every tensor uses the default stick layout: host dims (d0, d1, …, dn) become device dims [d1, …, ceil(dn/E), d0, E],
where E is the number of elements per stick. Dims are named d0, d1, … (matmul: b0, …, m, n, k). `splits` counts slices
per dim; a split stick dim is cut at stick boundaries, so that the last slice may be shorter or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Dim,
    Immediate,
    Input,
    Kernel,
    KernelArg,
    LaunchScalar,
    Operand,
    Space,
    Tensor,
    Term,
    TileOp,
)

STICK = {"SEN169_FP16": 64, "IEEE_FP32": 32, "IEEE_INT32": 32, "SENINT8": 128, "SEN143_FP8": 128, "SEN152_FP8": 128}
FP16 = "SEN169_FP16"
FP32 = "IEEE_FP32"


def device_size(host: Sequence[int], format: str = FP16) -> tuple[int, ...]:
    """Default stick layout of a host shape."""
    stick = STICK[format]
    if not host:
        return (1, stick)
    sticks = -(-host[-1] // stick)
    return (*host[1:-1], sticks, *host[:1], stick) if len(host) > 1 else (sticks, stick)


def tensor_bytes(tensor: Tensor) -> int:
    return tensor.elements * 128 // STICK[tensor.format]


def memory_tensor(name: str, host: Sequence[int], arg: int, format: str = FP16, base: int = 0) -> Tensor:
    return Tensor(name, format, Space.MEMORY, device_size(host, format), base, arg)


def lx_tensor(name: str, host: Sequence[int], base: int, format: str = FP16) -> Tensor:
    """A scratchpad tensor; `host` is the shape of one core's slice."""
    return Tensor(name, format, Space.LX, device_size(host, format), base)


def operand(tensor: Tensor, dims: Sequence[str | None]) -> Operand:
    """Access in the default layout; `dims` names the iteration dim of each host dim, None stands for coordinate 0."""
    stick = STICK[tensor.format]

    def coord(dim: str | None, div: int = 1, mod: int = 0) -> Coord:
        return Coord((Term(dim, 1, div, mod),)) if dim is not None else Coord()

    if not dims:
        return Operand(tensor, (Coord(), Coord()))
    outer, inner = coord(dims[-1], div=stick), coord(dims[-1], mod=stick)
    if len(dims) == 1:
        return Operand(tensor, (outer, inner))
    return Operand(tensor, (*(coord(d) for d in dims[1:-1]), outer, coord(dims[0]), inner))


def make_dims(
    sizes: Mapping[str, int], splits: Mapping[str, int], sticks: Mapping[str, int] | None = None
) -> tuple[Dim, ...]:
    """Dims with their splits; those named in `sticks` are cut at multiples of that many elements."""
    dims = []
    for name, size in sizes.items():
        slices = splits.get(name, 1)
        if slices == 1:
            dims.append(Dim(name, size))
            continue
        unit = (sticks or {}).get(name, 1)
        units = -(-size // unit)
        dims.append(Dim(name, size, slices, -(-units // slices) * unit))
    return tuple(dims)


def make_core_order(dims: Sequence[Dim], reduced: Sequence[str] = ()) -> tuple[str, ...]:
    """Split dims, fastest first: reduced ones, then from inner to outer."""
    split = [d.name for d in reversed(dims) if d.slices > 1]
    return (*(d for d in split if d in reduced), *(d for d in split if d not in reduced))


def make_args(tensors: Sequence[Tensor], writes: Sequence[int]) -> tuple[KernelArg, ...]:
    """One launch argument per memory tensor, in order of Tensor.arg."""
    memory = sorted((t for t in tensors if t.space is Space.MEMORY), key=lambda t: t.arg)
    return tuple(
        KernelArg(
            t.name,
            t.base + tensor_bytes(t),
            Access.WRITE if t.arg in writes else Access.READ,
            "output" if t.arg in writes else "input",
        )
        for t in memory
    )


def _names(sizes: Sequence[int], prefix: str = "d") -> list[str]:
    return [f"{prefix}{i}" for i in range(len(sizes))]


def pointwise_kernel(
    op: str = "add",
    sizes: Sequence[int] = (64, 256),
    splits: Mapping[str, int] | None = None,
    *,
    inputs: int = 2,
    broadcast: Mapping[int, Sequence[str]] | None = None,
    scalars: Sequence[Immediate | LaunchScalar] = (),
    format: str = FP16,
    out_format: str | None = None,
    cores: int = 32,
    core_order: Sequence[str] | None = None,
) -> Kernel:
    """One pointwise op. `broadcast[i]` names the dims along which input i has size 1; `scalars` follow the tensors."""
    names = _names(sizes)
    stick = max(STICK[format], STICK[out_format or format])
    dims = make_dims(dict(zip(names, sizes, strict=True)), splits or {}, {names[-1]: stick})
    operands: list[Input] = []
    tensors: list[Tensor] = []
    for i in range(inputs):
        ones = (broadcast or {}).get(i, ())
        host = [1 if n in ones else s for n, s in zip(names, sizes, strict=True)]
        tensors.append(memory_tensor(f"in{i}", host, i, format))
        operands.append(operand(tensors[-1], [None if n in ones else n for n in names]))
    operands.extend(scalars)
    out = memory_tensor("out", sizes, inputs, out_format or format)
    order = tuple(core_order) if core_order is not None else make_core_order(dims)
    tile = TileOp(op, op, dims, tuple(operands), operand(out, names), core_order=order, origin=f"aten.{op}")
    formats = tuple(s.format for s in scalars if isinstance(s, LaunchScalar))
    return Kernel(f"{op}_kernel", make_args([*tensors, out], [inputs]), (tile,), formats, cores)


def reduce_kernel(
    op: str = "sum",
    sizes: Sequence[int] = (64, 256),
    reduced: Sequence[str] = ("d1",),
    splits: Mapping[str, int] | None = None,
    *,
    format: str = FP16,
    out_format: str | None = None,
    constants: Mapping[str, float] | None = None,
    cores: int = 32,
) -> Kernel:
    """One reduction with kept (size 1) dims in the output."""
    names = _names(sizes)
    out_format = out_format or format
    dims = make_dims(
        dict(zip(names, sizes, strict=True)), splits or {}, {names[-1]: max(STICK[format], STICK[out_format])}
    )
    source = memory_tensor("in0", sizes, 0, format)
    out = memory_tensor("out", [1 if n in reduced else s for n, s in zip(names, sizes, strict=True)], 1, out_format)
    tile = TileOp(
        op,
        op,
        dims,
        (operand(source, names),),
        operand(out, [None if n in reduced else n for n in names]),
        tuple(reduced),
        make_core_order(dims, reduced),
        dict(constants or {}),
        f"aten.{op}",
    )
    return Kernel(f"{op}_kernel", make_args([source, out], [1]), (tile,), (), cores)


def matmul_kernel(
    m: int = 64,
    n: int = 128,
    k: int = 128,
    splits: Mapping[str, int] | None = None,
    *,
    batch: Sequence[int] = (),
    format: str = FP16,
    out_format: str | None = None,
    cores: int = 32,
    core_order: Sequence[str] | None = None,
) -> Kernel:
    """c[b…, m, n] = a[b…, m, k] @ b[b…, k, n]."""
    out_format = out_format or format
    names = _names(batch, "b")
    sizes = {**dict(zip(names, batch, strict=True)), "m": m, "n": n, "k": k}
    dims = make_dims(sizes, splits or {}, {"n": STICK[format], "k": STICK[format]})
    a = memory_tensor("a", [*batch, m, k], 0, format)
    b = memory_tensor("b", [*batch, k, n], 1, format)
    c = memory_tensor("c", [*batch, m, n], 2, out_format)
    tile = TileOp(
        "matmul",
        "batchmatmul",
        dims,
        (operand(a, [*names, "m", "k"]), operand(b, [*names, "k", "n"])),
        operand(c, [*names, "m", "n"]),
        ("k",),
        tuple(core_order) if core_order is not None else make_core_order(dims, ("k",)),
        origin="aten.matmul",
    )
    return Kernel("matmul_kernel", make_args([a, b, c], [2]), (tile,), (), cores)


def copy_kernel(
    op: str = "identity",
    sizes: Sequence[int] = (64, 256),
    splits: Mapping[str, int] | None = None,
    *,
    format: str = FP16,
    cores: int = 32,
) -> Kernel:
    """A copy. ReStickifyOpHBM writes the 2-D host tensor with its first dim in the sticks."""
    names = _names(sizes)
    source = memory_tensor("in0", sizes, 0, format)
    restickify = op == "ReStickifyOpHBM"
    out_names = list(reversed(names)) if restickify else names
    stick_dims = {names[-1]: STICK[format]} | ({names[0]: STICK[format]} if restickify else {})
    dims = make_dims(dict(zip(names, sizes, strict=True)), splits or {}, stick_dims)
    size_of = dict(zip(names, sizes, strict=True))
    out = memory_tensor("out", [size_of[n] for n in out_names], 1, format)
    tile = TileOp(
        op,
        op,
        dims,
        (operand(source, names),),
        operand(out, out_names),
        core_order=make_core_order(dims),
        origin="aten.clone",
    )
    return Kernel(f"{op}_kernel", make_args([source, out], [1]), (tile,), (), cores)


def softmax_kernel(
    rows: int = 64,
    cols: int = 256,
    row_slices: int = 4,
    *,
    space: Space = Space.LX,
    format: str = FP16,
    cores: int = 32,
) -> Kernel:
    """Softmax over rows in five ops (max, sub, exp, sum, realdiv); intermediates in LX, or in memory (argument 2)."""
    dims = make_dims({"r": rows, "c": cols}, {"r": row_slices})
    order = make_core_order(dims)
    row, both = ("r", None), ("r", "c")
    tile_rows = dims[0].extent
    source, out = memory_tensor("in0", (rows, cols), 0, format), memory_tensor("out", (rows, cols), 1, format)
    base = 0
    temporaries: dict[str, Tensor] = {}
    for name, width in (("peak", 1), ("shifted", cols), ("power", cols), ("total", 1)):
        if space is Space.LX:
            tensor = lx_tensor(name, (tile_rows, width), base, format)
        else:
            tensor = memory_tensor(name, (rows, width), 2, format, base)
        temporaries[name] = tensor
        base += tensor_bytes(tensor)
    peak, total = operand(temporaries["peak"], row), operand(temporaries["total"], row)
    shifted, power = operand(temporaries["shifted"], both), operand(temporaries["power"], both)

    def tile(op: str, inputs: tuple[Input, ...], output: Operand, reduced: tuple[str, ...] = ()) -> TileOp:
        return TileOp(output.tensor.name, op, dims, inputs, output, reduced, order, origin="aten._softmax")

    ops = (
        tile("max", (operand(source, both),), peak, ("c",)),
        tile("sub", (operand(source, both), peak), shifted),
        tile("exp", (shifted,), power),
        tile("sum", (power,), total, ("c",)),
        tile("realdiv", (power, total), operand(out, both)),
    )
    args = make_args([source, out], [1])
    if space is Space.MEMORY:
        args = (*args, KernelArg("pool", base, Access.READ | Access.WRITE, "pool"))
    return Kernel("softmax_kernel", args, ops, (), cores, lx_scratch_base=base if space is Space.LX else 0)
