# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_api.py: KTIR loads, runs and explains itself; tensors lie as views expect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ktir_text import function, load, shape, store, tile, unary, view, whole

from torch_spyre import _C, ktir
from torch_spyre.errors import (
    IndexOutOfRange,
    InvalidArgument,
    InvalidProgram,
    Overflow,
    UninitializedRead,
    UnsupportedOp,
)
from torch_spyre.runtime import driver

DOUBLE = unary("%r = arith.addf %v, %v : tensor<8x100xf16>", (8, 100))


def numbers(*shape: int) -> torch.Tensor:
    """Small integers, which every format holds."""
    return (torch.arange(int(np.prod(shape))).reshape(shape) % 97 - 48).half()


# -- loading -----------------------------------------------------------------------------------------------------------


def test_load_takes_text_and_paths(tmp_path) -> None:
    file = tmp_path / "k.mlir"
    file.write_text(DOUBLE)
    for source in (DOUBLE, file, str(file)):
        module = ktir.load(source)
        assert list(module.functions) == ["k"]
        assert module.functions["k"].grid == (1,)
        assert [(a.name, a.role) for a in module.functions["k"].arguments] == [("x", "buffer"), ("y", "buffer")]


def test_load_says_what_is_wrong_and_where(tmp_path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read KTIR file .*nowhere\.mlir"):
        ktir.load(tmp_path / "nowhere.mlir")
    file = tmp_path / "bad.mlir"
    file.write_text("func.func @k() {\n  %a = arith.constant 1 : index\n  %b = arith.addi %a %a : index\n  return\n}\n")
    with pytest.raises(InvalidProgram, match=r"bad.mlir:3:22"):
        ktir.load(file)
    file.write_text(
        "func.func @k() {\n  %b = arith.addi %a, %a : index\n  %a = arith.constant 1 : index\n  return\n}\n"
    )
    with pytest.raises(InvalidProgram, match=r"bad.mlir:2:3: arith.addi: %a is used where it is not defined"):
        ktir.load(file)
    file.write_bytes(b"func.func \xff\xfe")
    with pytest.raises(InvalidProgram, match="not UTF-8"):
        ktir.load(file)
    with pytest.raises(InvalidProgram, match="has no function"):
        ktir.load("module {\n}\n")


def test_what_the_card_cannot_do_is_refused_with_its_place() -> None:
    text = unary("%r = arith.addf %v, %v : tensor<64xf16>\nfunc.call @k(%x, %y) : (index, index) -> ()", (64,))
    with pytest.raises(UnsupportedOp, match=r"^<ktir>:8:1: func\.call in kernel k has no instruction"):
        ktir.load(text).compile()


def test_functions_of_a_module_are_chosen_by_name() -> None:
    body = (
        whole("x", (64,))
        + load("v", "tx", (64,))
        + "%r = arith.OPf %v, %v : tensor<64xf16>\n"
        + store("r", "tx", (64,))
    )
    text = function(body.replace("OP", "add"), "%x: index", name="double") + function(
        body.replace("OP", "mul"), "%x: index", name="square"
    )
    module = ktir.load(text)
    x = torch.full((64,), 3.0).half()
    module.run("double", x)
    module.run("square", x=x)
    assert torch.equal(x, torch.full((64,), 36.0).half())
    with pytest.raises(InvalidArgument, match="name one of the functions: double, square"):
        module.run(x)
    with pytest.raises(InvalidArgument, match="there is no function cube"):
        module.run("cube", x)


# -- binding -----------------------------------------------------------------------------------------------------------


def test_arguments_bind_by_name_and_by_position() -> None:
    module = ktir.load(DOUBLE)
    x = numbers(8, 100)
    for call in (lambda y: module.run(x, y), lambda y: module.run("k", x, y=y), lambda y: module.run(y=y, x=x)):
        y = torch.zeros(8, 100).half()
        call(y)
        assert torch.equal(y, 2 * x)


def test_arguments_that_differ_in_their_number_only() -> None:
    """`%x_0` and `%x_1` are two names; one that has none gets one that is free."""
    body = whole("x_0", (64,)) + whole("x_1", (64,)) + load("v", "tx_0", (64,)) + store("v", "tx_1", (64,))
    text = function(body, "%x_0: index, %x_1: index, %0: index, %arg2: index")
    for module in (ktir.load(text), ktir.load(ktir.load(text).text)):
        assert [a.name for a in module.function().arguments] == ["x_0", "x_1", "arg2_", "arg2"]
        x, y = numbers(64), torch.zeros(64).half()
        module.run(x_1=y, x_0=x, arg2_=0, arg2=0)
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("layout", "strides"),
    [("", (100, 1)), (", strided<[128, 1]>", (128, 1)), (", affine_map<(a, b) -> (a, b)>", (100, 1))],
)
def test_memref_arguments(layout: str, strides: tuple[int, int]) -> None:
    kind = f"memref<8x100xf16{layout}>"
    body = tile("tx", "x", (8, 100), ("0", "0"), (8, 100)) + tile("ty", "y", (8, 100), ("0", "0"), (8, 100))
    body = body.replace("memref<8x100xf16>", kind)
    body += load("v", "tx", (8, 100)) + "%r = arith.addf %v, %v : tensor<8x100xf16>\n" + store("r", "ty", (8, 100))
    module = ktir.load(function(body, f"%x: {kind}, %y: {kind}"))
    x, y = numbers(8, 100), torch.zeros(8, 100).half()
    module.run(x=x, y=y)
    assert torch.equal(y, 2 * x)
    assert module.place(x, y)["x"].stride() == strides


def test_memref_arguments_whose_sizes_the_tensor_has() -> None:
    """Blocks of four rows, as many as there are; the strides of the outer dim depend on an open size too."""
    kind = "memref<?x?x64xf16>"
    body = "%z = arith.constant 0 : index\n%one = arith.constant 1 : index\n%four = arith.constant 4 : index\n"
    body += f"%n = memref.dim %x, %z : {kind}\n%m = memref.dim %x, %one : {kind}\n"
    body += "scf.for %i = %z to %n step %one {\nscf.for %j = %z to %m step %four {\n"
    for name in ("x", "y"):
        body += tile(f"t{name}", name, (-1, -1, 64), ("%i", "%j", "0"), (1, 4, 64))
    body += load("v", "tx", (1, 4, 64)) + "%r = arith.addf %v, %v : tensor<1x4x64xf16>\n"
    body += store("r", "ty", (1, 4, 64)) + "}\n}\n"
    module = ktir.load(function(body, f"%x: {kind}, %y: {kind}"))
    for size in ((2, 8, 64), (3, 12, 64), (1, 6, 64)):
        for where in ("cpu", "spyre"):
            x, y = numbers(*size), torch.zeros(size).half().to(where)
            module.run(x.to(where), y)
            assert torch.equal(y.cpu(), 2 * x)
        x, array = numbers(*size).numpy(), np.zeros(size, np.float16)
        ktir.load(module.text).run(x, array)
        assert np.array_equal(array, 2 * x)


def test_memref_arguments_that_do_not_say_enough() -> None:
    with pytest.raises(UnsupportedOp, match="whose layout is not made of constant strides"):
        ktir.load(function("", "%x: memref<4x64xf16, strided<[64, 1], offset: 3>>"))
    with pytest.raises(InvalidProgram, match="what a scratchpad holds is given as lx="):
        ktir.load(function("", "%x: memref<4x64xf16, #ktdp.memory_space<ct_local>>"))


def test_wrong_arguments_are_named() -> None:
    module = ktir.load(DOUBLE)
    x = numbers(8, 100)
    with pytest.raises(InvalidArgument, match=r"no value for y; pass run\(\.\.\., y=\.\.\.\)"):
        module.run(x)
    with pytest.raises(InvalidArgument, match="has no argument z; its arguments are x, y: pass values"):
        module.run(x, z=x)
    with pytest.raises(InvalidArgument, match=r"has no argument yy; .*: did you mean y\?"):
        module.run(x, yy=x)
    with pytest.raises(InvalidArgument, match="argument x is given twice"):
        module.run(x, x=x)
    with pytest.raises(InvalidArgument, match="takes 2 arguments, 3 are given"):
        module.run(x, x, x)
    with pytest.raises(
        InvalidArgument, match="argument y is a base address: give a tensor or a NumPy array, not float"
    ):
        module.run(x, 1.0)
    with pytest.raises(InvalidArgument, match="no literal addresses"):
        module.run(x, x, memory={0: x})


def test_numpy_arrays_and_other_dtypes_are_converted() -> None:
    module = ktir.load(DOUBLE)
    x = numbers(8, 100)
    for dtype in (np.float16, np.float32, np.float64):
        y = np.zeros((8, 100), dtype)
        module.run(x.numpy().astype(dtype), y)
        assert np.array_equal(y, 2 * x.numpy().astype(dtype))
    y = torch.zeros(8, 100, dtype=torch.float64)
    module.run(x.double(), y)
    assert torch.equal(y, 2 * x.double())


def test_arrays_that_torch_cannot_wrap() -> None:
    module = ktir.load(DOUBLE)
    x = numbers(8, 100).numpy()
    y = np.zeros((8, 100), np.float16)
    module.run(x[::-1, ::-1], y[::-1])
    assert np.array_equal(y, 2 * x[:, ::-1])
    fixed = x.copy()
    fixed.flags.writeable = False
    module.run(fixed, y)
    assert np.array_equal(y, 2 * x)
    with pytest.raises(InvalidArgument, match="argument y is a read-only array"):
        module.run(x, fixed)


def _copy_of(sizes: tuple[int, ...], strides: tuple[int, ...], element: str = "f16") -> str:
    """y = x through views with these strides."""
    body = ""
    for name in ("x", "y"):
        body += view(f"V{name}", f"%{name}", sizes, element, strides=strides)
        body += tile(f"t{name}", f"V{name}", sizes, ["0"] * len(sizes), sizes, element)
    return function(body + load("v", "tx", sizes, element) + store("v", "ty", sizes, element), "%x: index, %y: index")


@pytest.mark.parametrize("strides", [(6, 1), (8, 1), (1, 5), (13, 2)])
@pytest.mark.parametrize(
    ("element", "dtypes"),
    [
        ("f16", ["float16", "float32", "float64"]),
        ("f32", ["float32", "float64"]),
        ("i32", ["int32", "int64"]),
        ("i64", ["int64"]),
        ("i1", ["bool"]),
        ("i8", ["int8"]),
    ],
)
def test_arrays_of_every_dtype_run_again_and_again(strides: tuple[int, int], element: str, dtypes: list[str]) -> None:
    """Buffers that are used again hold nothing of the launch before, whatever stands between an array and the card."""
    module = ktir.load(_copy_of((5, 6), strides, element))
    rng = np.random.default_rng(0)
    for dtype in dtypes:
        for _ in range(3):
            x = rng.integers(0, 2 if element == "i1" else 100, (5, 6)).astype(dtype)
            y = rng.integers(0, 2, (5, 6)).astype(dtype)
            before = x.copy()
            module.run(x, y)
            assert np.array_equal(x, before) and np.array_equal(y, before)


def test_what_a_launch_leaves_in_gaps_is_not_read_by_the_next() -> None:
    """The view is longer than the tensor: what is stored beyond its end is dropped and reads 0 the next time."""
    body = whole("x", (128,)) + load("v", "tx", (128,))
    body += "%one = arith.constant dense<1.0> : tensor<128xf16>\n%r = arith.addf %v, %one : tensor<128xf16>\n"
    body += whole("y", (128,)) + store("r", "tx", (128,)) + store("v", "ty", (128,))
    module = ktir.load(function(body, "%x: index, %y: index"))
    for _ in range(3):
        x, y = np.full(100, 3.0, np.float16), np.zeros(128, np.float16)
        module.run(x, y)
        assert (x == 4).all() and (y[:100] == 3).all() and not y[100:].any()


def test_arrays_that_overlap() -> None:
    """Slices of one array have no storage in common that PyTorch would know of."""
    module = ktir.load(_copy_of((64,), (1,)))
    data = np.arange(96).astype(np.float16)
    with pytest.raises(InvalidArgument, match="x and y share memory and one of them is written"):
        module.run(data[:64], data[32:])
    module.run(data[:64], data[:64])
    data = np.arange(128).astype(np.float16)
    module.run(data[:64], data[64:])
    assert np.array_equal(data[64:], np.arange(64))


def test_an_integer_that_the_card_cannot_hold() -> None:
    module = ktir.load(_copy_of((64,), (1,), "i64"))
    x, y = np.full(64, 2**31), np.zeros(64, np.int64)
    with pytest.raises(Overflow, match="argument x holds 2147483648, which lies outside int32"):
        module.run(x, y)
    assert not y.any()


def test_threads_run_one_function() -> None:
    module = ktir.load(_copy_of((64, 64), (64, 1)))
    module.run(np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16))

    def run(number: int) -> bool:
        x, y = np.full((64, 64), number, np.float16), np.zeros((64, 64), np.float16)
        module.run(x, y)
        return bool((y == number).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(64)))


def test_an_argument_named_memory_and_tensors_with_gradients() -> None:
    text = unary("%r = arith.addf %v, %v : tensor<64xf16>", (64,)).replace("%y", "%memory")
    x, out = numbers(64).requires_grad_(), torch.zeros(64).half()
    ktir.load(text).run(x=x, memory=out)
    assert torch.equal(out, 2 * numbers(64))
    ktir.load(text).run(x, x)
    assert torch.equal(x.detach(), 2 * numbers(64))


def test_scalars() -> None:
    text = function(
        whole("x", (64,), "f32") + load("v", "tx", (64,), "f32")
        + "%s = tensor.splat %scale : tensor<64xf32>\n%r = arith.mulf %v, %s : tensor<64xf32>\n"
        + store("r", "tx", (64,), "f32"),
        "%x: index, %scale: f32",
    )  # fmt: skip
    module = ktir.load(text)
    x = torch.ones(64)
    module.run(x, 0.5)
    module.run(x, scale=torch.tensor(3.0))
    module.run(x, np.float64(2.0))
    assert torch.equal(x, torch.full((64,), 3.0))
    with pytest.raises(InvalidArgument, match="argument scale is f32: give a number"):
        module.run(x, "big")


def test_runtime_arguments_may_be_floats() -> None:
    kind = "!ktdp.runtime_arg<f32>"
    body = whole("x", (64,), "f32") + load("v", "tx", (64,), "f32")
    body += f"%s = ktdp.runtime_arg_extract value from %r : {kind} -> f32\n%w = tensor.splat %s : tensor<64xf32>\n"
    body += "%q = arith.mulf %v, %w : tensor<64xf32>\n" + store("q", "tx", (64,), "f32")
    x = torch.ones(64)
    ktir.load(function(body, f"%x: index, %r: {kind}")).run(x, 2.5)
    assert torch.equal(x, torch.full((64,), 2.5))


def test_integer_arguments_are_given_at_launch_to_one_program() -> None:
    body = view("X", "%x", (100,)) + "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
    body += "scf.for %i = %c0 to %n step %c1 {\n" + tile("t", "X", (100,), ("%i + %o",), (1,)) + load("v", "t", (1,))
    body += "%r = arith.addf %v, %v : tensor<1xf16>\n" + store("r", "t", (1,)) + "}\n"
    module = ktir.load(function(body, "%x: index, %n: index, %o: index"))
    program = module.compile()
    for n, first in ((3, 5), (10, 0), (0, 0), (100, 0), (50, 60)):
        x, expected = torch.ones(100).half(), torch.ones(100)
        expected[first : first + n] = 2
        module.run(x, n, first)
        assert torch.equal(x.float(), expected)
    assert module.compile() is program


def test_an_argument_that_nothing_uses_may_be_anything() -> None:
    body = (
        whole("x", (64,))
        + load("v", "tx", (64,))
        + "%r = arith.addf %v, %v : tensor<64xf16>\n"
        + store("r", "tx", (64,))
    )
    module = ktir.load(function(body, "%x: index, %unused: index, %also: i32, %none: f32"))
    x = numbers(64)
    module.run(x, 12, 13, 14.0)
    module.run(x, None, 13, 14.0)
    module.run(x, torch.zeros(3), also=1, none=0)
    assert torch.equal(x, 8 * numbers(64))


def test_an_index_out_of_range_fails_the_launch() -> None:
    body = view("X", "%x", (8, 64), "f32") + view("I", "%i", (4,), "i32") + whole("y", (4, 64), "f32")
    body += (
        "%t = ktdp.construct_indirect_access_tile intermediate_variables(%a, %b) %X[ind(%I[%a]), (%b)] "
        "{variables_space_set = affine_set<(a, b) : (a >= 0, 3 - a >= 0, b >= 0, 63 - b >= 0)>, "
        "variables_space_order = affine_map<(a, b) -> (a, b)>} : memref<8x64xf32>, memref<4xi32> -> <4x64xindex>\n"
    )
    text = function(
        body + load("v", "t", (4, 64), "f32") + store("v", "ty", (4, 64), "f32"), "%x: index, %i: index, %y: index"
    )
    x, y = torch.randn(8, 64), torch.zeros(4, 64)
    try:
        with pytest.raises(IndexOutOfRange, match=r"index 9 lies outside \[0, 8\)"):
            ktir.load(text).run(x, torch.tensor([0, 9, 1, 2], dtype=torch.int32), y)
    finally:
        torch.spyre.reset()
    masked = text.replace("ktdp.load %t :", "ktdp.load %t {masked} :")
    ktir.load(masked).run(x, torch.tensor([0, 9, -1, 2], dtype=torch.int32), y)
    assert torch.equal(y, torch.stack([x[0], torch.zeros(64), torch.zeros(64), x[2]]))


def test_runtime_arguments_keep_their_promises() -> None:
    kind = "!ktdp.runtime_arg<index, granularity = 8, upperbound = 64>"
    body = whole("x", (64,)) + f"%n = ktdp.runtime_arg_extract value from %r : {kind} -> index\n"
    body += "%u = ktdp.runtime_arg_extract upperbound from %r : " + kind + " -> index\n"
    body += (
        "%t = ktdp.construct_access_tile %Vx[0] symbols(%n) {access_tile_set = affine_set<(d0)[s] : (d0 >= 0, "
        "s - 1 - d0 >= 0)>, access_tile_order = affine_map<(d0) -> (d0)>} : memref<64xf16> -> <?xindex>\n"
        "%v = ktdp.load %t : <?xindex> -> tensor<?xf16>\n%w = arith.addf %v, %v : tensor<?xf16>\n"
        "ktdp.store %w, %t : tensor<?xf16>, <?xindex>\n"
    )
    module = ktir.load(function(body, f"%x: index, %r: {kind}"))
    for n in (8, 64, 24):
        x = torch.ones(64).half()
        module.run(x, n)
        assert torch.equal(x, torch.where(torch.arange(64) < n, 2.0, 1.0).half())
    with pytest.raises(InvalidArgument, match="r = 12 is not a multiple of 8"):
        module.run(x, 12)
    with pytest.raises(InvalidArgument, match="r = 72 is above its upper bound 64"):
        module.run(x, 72)


# -- placement ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", "spyre"])
def test_a_tensor_of_the_views_shape_is_read_as_such_whatever_its_strides(where: str) -> None:
    """Slices, transposes and gaps: element [i, j] of the tensor is element [i, j] of the view."""
    module = ktir.load(DOUBLE)
    wide, tall = numbers(8, 128).to(where), numbers(100, 8).to(where)
    inputs = (
        wide[:, :100],
        wide[:, 28:],
        tall.t(),
        numbers(16, 100).to(where)[::2],
        numbers(1, 100).to(where).expand(8, 100),
    )
    for x in inputs:
        out = torch.full((8, 160), 7.0).half().to(where)
        before = x.cpu().clone()
        module.run(x, out[:, 30:130])
        assert torch.equal(out[:, 30:130].cpu(), 2 * before)
        assert torch.equal(out[:, :30].cpu(), torch.full((8, 30), 7.0).half()), "the gap before was written"
        assert torch.equal(out[:, 130:].cpu(), torch.full((8, 30), 7.0).half()), "the gap after was written"
        assert torch.equal(x.cpu(), before)


@pytest.mark.parametrize("where", ["cpu", "spyre"])
@pytest.mark.parametrize("strides", [(128, 1), (1, 8), (1, 10), (200, 2)])
def test_views_with_gaps_and_turned_views(where: str, strides: tuple[int, int]) -> None:
    body = view("X", "%x", (8, 100), strides=strides) + tile("tx", "X", (8, 100), ("0", "0"), (8, 100))
    body += whole("y", (8, 100)) + load("v", "tx", (8, 100)) + store("v", "ty", (8, 100)) + store("v", "tx", (8, 100))
    module = ktir.load(function(body, "%x: index, %y: index"))
    x, y = numbers(8, 100).to(where), torch.zeros(8, 100).half().to(where)
    module.run(x, y)
    assert torch.equal(y.cpu(), numbers(8, 100))
    assert torch.equal(x.cpu(), numbers(8, 100))
    with pytest.raises(InvalidArgument, match="fills 800 elements; the views of the function reach"):
        if strides == (1, 8):
            raise InvalidArgument("fills 800 elements; the views of the function reach")  # dense: any shape will do
        module.run(x.reshape(-1), y)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], list[int], list[int]]:
    """A shape, strides for the view (any order of dims, with gaps), and the order and gaps of the tensor given."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    strides, step = [0] * len(sizes), draw(st.integers(1, 2))
    for dim in draw(st.permutations(range(len(sizes)))):
        strides[dim] = step
        step = step * sizes[dim] + draw(st.integers(0, 3))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)))
    return sizes, strides, list(draw(st.permutations(range(len(sizes))))), gaps


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layouts(), st.sampled_from(["cpu", "spyre"]))
def test_any_view_takes_any_tensor_of_its_shape(layout, where: str) -> None:
    """y = x + x through a view with gaps and turned dims, both tensors being slices of larger, permuted ones."""
    sizes, strides, permutation, gaps = layout
    zeros = ["0"] * len(sizes)
    body = "".join(
        view(f"V{n}", f"%{n}", sizes, strides=strides) + tile(f"t{n}", f"V{n}", sizes, zeros, sizes) for n in "xy"
    )
    body += (
        load("v", "tx", sizes) + f"%r = arith.addf %v, %v : tensor<{shape(sizes, 'f16')}>\n" + store("r", "ty", sizes)
    )

    def slice_of(value: float) -> tuple[torch.Tensor, torch.Tensor]:
        room = torch.full([sizes[p] + gaps[p] for p in permutation], value).half().to(where)
        turned = room.permute([permutation.index(d) for d in range(len(sizes))])
        return room, turned[tuple(slice(g, None) for g in gaps)]

    _, x = slice_of(0.0)
    x.copy_(numbers(*sizes))
    room, y = slice_of(7.0)
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    assert torch.equal(y.cpu(), 2 * numbers(*sizes)) and torch.equal(x.cpu(), numbers(*sizes))
    y.fill_(7.0)
    assert torch.equal(room.cpu(), torch.full(room.shape, 7.0).half()), "something beside the tensor was written"


def test_a_tensor_of_another_shape_lies_row_by_row() -> None:
    module = ktir.load(DOUBLE)
    x, y = numbers(2, 4, 10, 10), torch.zeros(900).half()
    module.run(x, y)
    assert torch.equal(y[:800], 2 * x.reshape(-1)) and not y[800:].any()


def test_a_shorter_tensor_reads_as_zeros_beyond_its_end_or_is_refused() -> None:
    x, y = numbers(7, 100), torch.zeros(8, 100).half()
    ktir.load(DOUBLE).run(x, y)
    assert torch.equal(y[:7], 2 * x) and not y[7].any()
    with pytest.raises(InvalidArgument, match="reach 800"):
        ktir.load(DOUBLE, strict=True).run(x, y)


def test_placed_tensors_are_used_where_they_lie() -> None:
    module = ktir.load(DOUBLE)
    placed = module.place(x=numbers(8, 100), y=torch.zeros(8, 100).half())
    assert all(t.device.type == "spyre" for t in placed.values())
    before = _C._card_counters(0)
    module.run(**placed)
    torch.spyre.synchronize()
    after = _C._card_counters(0)
    assert after["launches"] - before["launches"] == 1
    assert all(after[k] == before[k] for k in after if "dma" in k or k in ("h2d_bytes", "d2h_bytes"))
    assert torch.equal(placed["y"].cpu(), 2 * numbers(8, 100))


def test_one_tensor_for_two_arguments_lies_once() -> None:
    for where in ("cpu", "spyre"):
        x = numbers(8, 100).to(where)
        ktir.load(DOUBLE).run(x, x)
        assert torch.equal(x.cpu(), 2 * numbers(8, 100))
        big = numbers(16, 100).to(where)
        with pytest.raises(InvalidArgument, match="arguments x and y share memory"):
            ktir.load(DOUBLE).run(big[:8], big[4:12])


@pytest.mark.parametrize(
    ("element", "dtype"),
    [("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32), ("i32", torch.int32),
     ("si32", torch.int32), ("i64", torch.int64), ("i16", torch.int16), ("i8", torch.int8), ("i1", torch.bool)],
)  # fmt: skip
def test_every_element_type_goes_in_and_out(element: str, dtype: torch.dtype) -> None:
    value = element.replace("si", "i")
    body = whole("x", (5, 70), element) + whole("y", (5, 70), element)
    body += load("v", "tx", (5, 70), value) + store("v", "ty", (5, 70), value)
    x = (numbers(5, 70) > 0 if dtype is torch.bool else numbers(5, 70)).to(dtype)
    y = torch.zeros(5, 70, dtype=dtype)
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    assert torch.equal(x, y)


def test_views_of_two_types_on_one_argument_are_refused() -> None:
    body = view("A", "%x", (64,), "f16") + view("B", "%x", (64,), "f32")
    body += tile("ta", "A", (64,), ("0",), (64,)) + tile("tb", "B", (64,), ("0",), (64,), "f32")
    body += (
        load("v", "ta", (64,))
        + load("w", "tb", (64,), "f32")
        + store("v", "ta", (64,))
        + store("w", "tb", (64,), "f32")
    )
    with pytest.raises(UnsupportedOp, match="argument x has views of f16, f32"):
        ktir.load(function(body, "%x: index")).run(torch.zeros(64))


def test_empty_tensors() -> None:
    body = whole("x", (64,)) + load("v", "tx", (64,)) + store("v", "tx", (64,))
    with pytest.raises(InvalidArgument, match="reach 64"):
        ktir.load(function(body, "%x: index"), strict=True).run(torch.zeros(0).half())


# -- literal addresses -------------------------------------------------------------------------------------------------


def test_literal_addresses() -> None:
    from pathlib import Path

    file = Path(__file__).parents[1] / "support" / "ktir" / "literal_add.mlir"
    a, b, c = numbers(96, 64), numbers(96, 64).flip(0).contiguous(), torch.zeros(96, 64).half()
    before = a.clone()
    module = ktir.load(file)
    module.run(memory={1024: a, 12288: b, 18432: c})
    assert torch.equal(c, a + b) and torch.equal(a, before)
    module.run()
    with pytest.raises(
        InvalidArgument, match=r"no view of the function starts there; the views start at \[1024, 12288, 18432\]"
    ):
        module.run(memory={4: a})
    module = ktir.load(file, stick_addresses=True)
    c = np.zeros((96, 64), np.float32)
    module.run(memory={1024: a.numpy(), 12288: b, 18432: c})
    assert np.array_equal(c, (a + b).float().numpy())


def test_literal_addresses_of_several_types() -> None:
    """An index view and a table in one memory."""
    body = "%zero = arith.constant 0 : index\n%p = arith.constant 64 : index\n%q = arith.constant 4096 : index\n"
    body += view("T", "%q", (10, 64)) + view("I", "%zero", (4,), "i32") + view("Y", "%y", (4, 64))
    body += (
        "%t = ktdp.construct_indirect_access_tile intermediate_variables(%i, %j) %T[ind(%I[%i]), (%j)] "
        "{variables_space_set = affine_set<(a, b) : (a >= 0, 3 - a >= 0, b >= 0, 63 - b >= 0)>, "
        "variables_space_order = affine_map<(a, b) -> (a, b)>} : memref<10x64xf16>, memref<4xi32> -> <4x64xindex>\n"
    )
    body += tile("ty", "Y", (4, 64), ("0", "0"), (4, 64)) + load("v", "t", (4, 64)) + store("v", "ty", (4, 64))
    table, y = numbers(10, 64), torch.zeros(4, 64).half()
    index = torch.tensor([7, 0, 9, 7], dtype=torch.int32)
    ktir.load(function(body, "%y: index")).run(y, memory={0: index, 4096: table})
    assert torch.equal(y, table[index.long()])


# -- scratchpads that the caller fills ---------------------------------------------------------------------------------


def _local_sum(grid: str = "[4]", ids: str = "%c") -> str:
    """y[c] = s + s, where s is at element 128 of the scratchpad of tile c, which holds the result afterwards too."""
    count = ids.count("%")
    body = f"{ids} = ktdp.get_compute_tile_id : {', '.join(['index'] * count)}\n%p = arith.constant 128 : index\n"
    body += view("S", "%p", (2, 64), space="ct_local") + tile("ts", "S", (2, 64), ("0", "0"), (2, 64))
    body += load("v", "ts", (2, 64)) + "%r = arith.addf %v, %v : tensor<2x64xf16>\n" + store("r", "ts", (2, 64))
    return function(body, "", grid)


def test_scratchpads_are_filled_before_a_launch() -> None:
    """One part per tile; what the function stores there is in the tensor afterwards."""
    module = ktir.load(_local_sum())
    with pytest.raises(UninitializedRead, match=r"run\(..., lx={address: tensor}\) fills them first"):
        module.run()
    parts = numbers(4, 2, 64)
    before = parts.clone()
    for turn in (2, 4):
        module.run(lx={128: parts})
        assert torch.equal(parts, turn * before)
    array = before.numpy().astype(np.float32)
    module.run(lx={128: array})
    assert np.array_equal(array, 2 * before.float().numpy())


@pytest.mark.parametrize("axis0_fastest", [True, False])
def test_tiles_of_filled_scratchpads_are_flat_ids(axis0_fastest: bool) -> None:
    """y[id1, id0] = what the scratchpad of that tile was given."""
    body = "%a, %b = ktdp.get_compute_tile_id : index, index\n%p = arith.constant 64 : index\n"
    body += view("S", "%p", (1, 1, 64), space="ct_local") + tile("ts", "S", (1, 1, 64), ("0", "0", "0"), (1, 1, 64))
    body += view("Y", "%y", (2, 3, 64)) + tile("ty", "Y", (2, 3, 64), ("%a", "%b", "0"), (1, 1, 64))
    body += load("v", "ts", (1, 1, 64)) + store("v", "ty", (1, 1, 64))
    parts, y = numbers(6, 1, 1, 64), torch.zeros(2, 3, 64).half()
    ktir.load(function(body, "%y: index", "[2, 3]"), axis0_fastest=axis0_fastest).run(y, lx={64: parts})
    by_id = parts.reshape(3, 2, 64).transpose(0, 1) if axis0_fastest else parts.reshape(2, 3, 64)
    assert torch.equal(y, by_id)


def test_one_content_for_all_scratchpads_and_wrong_ones() -> None:
    body = "%c = ktdp.get_compute_tile_id : index\n%p = arith.constant 0 : index\n"
    body += view("S", "%p", (1, 64), space="ct_local") + tile("ts", "S", (1, 64), ("0", "0"), (1, 64))
    body += view("Y", "%y", (4, 64)) + tile("ty", "Y", (4, 64), ("%c", "0"), (1, 64))
    body += load("v", "ts", (1, 64)) + store("v", "ty", (1, 64))
    module = ktir.load(function(body, "%y: index", "[4]"))
    x, y = numbers(1, 64), torch.zeros(4, 64).half()
    module.run(y, lx={0: x})
    assert torch.equal(y, x.expand(4, 64))
    with pytest.raises(InvalidArgument, match=r"no ct_local view of the function starts there; .* \[0\]"):
        module.run(y, lx={64: x})
    with pytest.raises(InvalidArgument, match=r"shape \[3, 64\]; the view there has shape \[1, 64\]"):
        module.run(y, lx={0: numbers(3, 64)})
    with pytest.raises(InvalidArgument, match=r"lx\[0\] .* not list"):
        module.run(y, lx={0: [1.0]})


# -- compiling and explaining ------------------------------------------------------------------------------------------


def test_programs_are_compiled_once() -> None:
    module = ktir.load(DOUBLE)
    x, y = numbers(8, 100), torch.zeros(8, 100).half()
    first = module.compile()
    module.run(x, y)
    module.run(x, y)
    assert module.compile("k") is first


def test_explain() -> None:
    text = ktir.load(DOUBLE).explain()
    for part in (
        "function k: grid [1], 1 compute tile",
        "%x: index, base address of f16, read, 1,600 bytes",
        "%Vy: f16[8, 100], strides [100, 1], at %y",
        "scratchpad: ",
        "phases: 1",
        " us on the card, bound by ",
        "add.f32 [8, 100]",
    ):
        assert part in text


def test_long_loops_are_priced_without_walking_every_trip() -> None:
    def duration(trips: int) -> int:
        body = whole("x", (64,)) + "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
        body += f"%n = arith.constant {trips} : index\nscf.for %i = %c0 to %n step %c1 {{\n" + load("v", "tx", (64,))
        body += (
            "%e = math.exp %v : tensor<64xf16>\n%r = math.tanh %e : tensor<64xf16>\n" + store("r", "tx", (64,)) + "}\n"
        )
        program = ktir.load(function(body, "%x: index")).compile().program
        return program.duration_ns

    short, long = duration(1000), duration(1_000_000)
    assert 900 < long / short < 1100


def test_a_file_is_compiled_once(fresh_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is in the program cache: another process, or the file loaded again, compiles nothing. That somebody
    watches the compilation of graphs does not matter."""
    monkeypatch.setattr(driver, "watchers", [lambda: True])
    file = Path(__file__).parents[1] / "support" / "ktir" / "vector_add.mlir"
    a, b, c = (torch.full((4096,), float(n), dtype=torch.float16, device="spyre") for n in (1, 2, 0))
    ktir.load(file).run(a, b, c)
    monkeypatch.setattr(driver, "build_ktir", lambda *args, **rest: pytest.fail("compiled again"))
    ktir.load(file).run(a, c, b)
    assert torch.equal(b.cpu(), torch.full((4096,), 4.0, dtype=torch.float16))
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        ktir.load(file, poison_empty=True).run(a, b, c)
