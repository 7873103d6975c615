# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_ambiguities.py: where KTIR leaves room (docs/ktir.md, A1 to A12), what happens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ktir_text import box, function, load, order, shape, store, tile, unary, view, whole

from torch_spyre import ktir
from torch_spyre.errors import InvalidProgram, SpyreError


def halves(*sizes: int) -> torch.Tensor:
    return (torch.arange(int(np.prod(sizes))).reshape(sizes) % 250).half()


@pytest.mark.parametrize("permutation", [(1, 2, 0), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("indirect", [False, True])
def test_a1_elements_come_in_the_lexicographic_order_of_the_map(permutation: tuple[int, ...], indirect: bool) -> None:
    """The element at index i is the one at p with order(p) = i, for cycles too, in direct and in indirect tiles."""
    sizes = (2, 3, 4)
    turned = [sizes[p] for p in permutation]
    if indirect:
        text = (
            "%tx = ktdp.construct_indirect_access_tile intermediate_variables(%a, %b, %c) %Vx[(%a), (%b), (%c)] "
            f"{{variables_space_set = {box(sizes)}, variables_space_order = {order(3, permutation)}}} "
            f": memref<{shape(sizes, 'f16')}> -> <{shape(turned, 'index')}>\n"
        )
    else:
        text = tile("tx", "Vx", sizes, ("0", "0", "0"), sizes, permutation=permutation)
    body = view("Vx", "%x", sizes) + text + whole("y", turned) + load("v", "tx", turned) + store("v", "ty", turned)
    x, y = halves(*sizes), torch.zeros(turned).half()
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    assert torch.equal(y, x.permute(permutation))


def test_a1_stores_go_the_same_way() -> None:
    sizes, permutation = (2, 3, 4), (1, 2, 0)
    turned = [sizes[p] for p in permutation]
    body = whole("x", turned) + view("Vy", "%y", sizes)
    body += tile("ty", "Vy", sizes, ("0", "0", "0"), sizes, permutation=permutation)
    body += load("v", "tx", turned) + store("v", "ty", turned)
    x, y = halves(*turned), torch.zeros(sizes).half()
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    assert torch.equal(y.permute(permutation), x)


@pytest.mark.parametrize("axis0_fastest", [True, False])
@pytest.mark.parametrize("grid", [(2, 3), (3, 2, 2)])
def test_a2_flat_ids_count_along_axis_0_first_unless_told_otherwise(axis0_fastest: bool, grid: tuple[int, ...]) -> None:
    """Everybody receives what tile 1 has; which coordinates tile 1 has is the question."""
    sizes = (*grid, 64)
    names = [f"%i{d}" for d in range(len(grid))]
    one = [1] * len(grid) + [64]
    body = f"{', '.join(names)} = ktdp.get_compute_tile_id : {', '.join(['index'] * len(grid))}\n"
    for name in "xy":
        body += view(f"V{name}", f"%{name}", sizes) + tile(f"t{name}", f"V{name}", sizes, [*names, "0"], one)
    kind = f"tensor<{shape(one, 'f16')}>"
    future = f"<({kind}), groups = affine_set<(g) : (g == 0)>>"
    body += load("v", "tx", one)
    body += (
        f"%f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : (i - 1 == 0)> -> {future} {{\n"
        f"^bb0(%g: index):\nktdp.yield_partial %v : {kind}\n}}\n"
        "%w = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = affine_set<(i)[g] : (i >= 0)> "
        f": {future} -> {kind}\n"
    ) + store("w", "ty", one)
    x, y = halves(*sizes), torch.zeros(sizes).half()
    ktir.load(function(body, "%x: index, %y: index", str(list(grid))), axis0_fastest=axis0_fastest).run(x, y)
    second = (1,) + (0,) * (len(grid) - 1) if axis0_fastest else (0,) * (len(grid) - 1) + (1,)
    assert torch.equal(y, x[second].expand(sizes))


def test_a3_tensor_empty_is_zero_for_sums_and_neutral_for_reductions() -> None:
    body = whole("x", (8, 64), "f32") + whole("y", (8,), "f32") + load("v", "tx", (8, 64), "f32")
    body += "%e = tensor.empty() : tensor<8xf32>\n"
    x = -torch.rand(8, 64) - 1
    for op, expected in (
        ("maximumf", x.amax(1)),
        ("minimumf", x.amin(1)),
        ("maxnumf", x.amax(1)),
        ("addf", x.double().sum(1).float()),
        ("mulf", x.double().prod(1).float()),
    ):
        text = body + (
            f"%r = linalg.reduce {{ arith.{op} }} ins(%v : tensor<8x64xf32>) outs(%e : tensor<8xf32>) "
            "dimensions = [1]\n"
        )
        y = torch.zeros(8)
        ktir.load(function(text + store("r", "ty", (8,), "f32"), "%x: index, %y: index")).run(x, y)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=0)


def test_a3_matmul_into_an_empty_tensor_and_the_poison_that_finds_it() -> None:
    body = whole("x", (16, 64)) + whole("y", (16, 16), "f32") + load("v", "tx", (16, 64))
    body += "%e = tensor.empty() : tensor<16x16xf32>\n%t0 = tensor.empty() : tensor<64x16xf16>\n"
    body += "%t = linalg.transpose ins(%v : tensor<16x64xf16>) outs(%t0 : tensor<64x16xf16>) permutation = [1, 0]\n"
    body += (
        "%r = linalg.matmul ins(%v, %t : tensor<16x64xf16>, tensor<64x16xf16>) outs(%e : tensor<16x16xf32>) "
        "-> tensor<16x16xf32>\n"
    )
    text = function(body + store("r", "ty", (16, 16), "f32"), "%x: index, %y: index")
    x, y = halves(16, 64) / 64, torch.zeros(16, 16)
    ktir.load(text).run(x, y)
    torch.testing.assert_close(y.double(), x.double() @ x.double().T, rtol=1e-6, atol=1e-6)
    ktir.load(text, poison_empty=True).run(x, y)
    assert y.isnan().all()


def test_a4_signed_division_truncates() -> None:
    values = torch.tensor([-7, -6, -1, 0, 1, 6, 7, 8], dtype=torch.int32)
    divisor = "%two = arith.constant dense<{}> : tensor<8xi32>\n"
    for by in (2, -2, 3):
        for op, expected in (("divsi", np.trunc(values.numpy() / by)), ("remsi", np.fmod(values.numpy(), by))):
            text = divisor.format(by) + f"%r = arith.{op} %v, %two : tensor<8xi32>"
            y = torch.zeros(8, dtype=torch.int32)
            ktir.load(unary(text, (8,), "i32")).run(values, y)
            assert np.array_equal(y.numpy(), expected), (op, by)


def test_a4_signed_division_of_scalars_truncates() -> None:
    """Offsets n / 4 and n rem 4 of a negative n, moved into the view."""
    body = "%c4 = arith.constant 4 : index\n%c8 = arith.constant 8 : index\n"
    for op in ("div", "rem"):
        body += f"%{op} = arith.{op}si %n, %c4 : index\n%at{op} = arith.addi %{op}, %c8 : index\n"
    body += view("Vx", "%x", (16,)) + whole("y", (2,))
    body += "".join(tile(f"t{op}", "Vx", (16,), (f"%at{op}",), (1,)) for op in ("div", "rem"))
    body += load("a", "tdiv", (1,)) + load("b", "trem", (1,))
    body += (
        "".join(tile(f"y{i}", "Vy", (2,), (str(i),), (1,)) for i in (0, 1))
        + store("a", "y0", (1,))
        + store("b", "y1", (1,))
    )
    module = ktir.load(function(body, "%x: index, %y: index, %n: index"))
    x = torch.arange(16).half()
    for n in (-7, -8, -1, 7, 13):
        y = torch.zeros(2).half()
        module.run(x, y, n)
        assert y.tolist() == [8 + int(n / 4), 8 + int(np.fmod(n, 4))], n


def test_a5_the_coordinate_set_masks_and_strict_refuses() -> None:
    """A view of 100 elements whose set holds 40, in a longer buffer."""
    body = ""
    for name in "xy":
        body += view(f"V{name}", f"%{name}", (100,), domain=box((40,))) + tile(
            f"t{name}", f"V{name}", (100,), ("0",), (64,)
        )
    body += "%one = arith.constant dense<1.0> : tensor<64xf16>\n" + load("v", "tx", (64,))
    body += (
        "%r = arith.addf %v, %one : tensor<64xf16>\n"
        + whole("z", (64,))
        + store("r", "ty", (64,))
        + store("r", "tz", (64,))
    )
    text = function(body, "%x: index, %y: index, %z: index")
    x, y, z = halves(100), torch.full((100,), 7.0).half(), torch.zeros(64).half()
    ktir.load(text).run(x, y, z)
    inside = torch.arange(100) < 40
    assert torch.equal(y, torch.where(inside, x + 1, 7.0).half()), "outside nothing is written"
    assert torch.equal(z, torch.where(inside, x, 0.0)[:64] + 1), "outside 0 is read"
    with pytest.raises(InvalidProgram):
        ktir.load(text, strict=True).compile()


def test_a6_a_matmul_accumulates_in_fp32_and_a_loop_rounds_each_step() -> None:
    depth = 2048
    x = torch.full((1, depth), 1.0).half()
    x[0, 0] = 1024.0  # the 16-bit format cannot count on from here by ones
    body = whole("x", (1, depth)) + whole("y", (1, 1)) + load("v", "tx", (1, depth))
    body += (
        f"%o = arith.constant dense<1.0> : tensor<{depth}x1xf16>\n%e = arith.constant dense<0.0> : tensor<1x1xf16>\n"
    )
    body += (
        f"%r = linalg.matmul ins(%v, %o : tensor<1x{depth}xf16>, tensor<{depth}x1xf16>) outs(%e : tensor<1x1xf16>) "
        "-> tensor<1x1xf16>\n"
    )
    y = torch.zeros(1, 1).half()
    ktir.load(function(body + store("r", "ty", (1, 1)), "%x: index, %y: index")).run(x, y)
    assert abs(y.item() - (1023 + depth)) <= 4
    loop = view("Vx", "%x", (1, depth)) + whole("y", (1, 1)) + "%start = arith.constant dense<0.0> : tensor<1x1xf16>\n"
    loop += "%o = arith.constant dense<1.0> : tensor<1x1xf16>\n%c0 = arith.constant 0 : index\n"
    loop += f"%c1 = arith.constant 1 : index\n%n = arith.constant {depth} : index\n"
    loop += "%r = scf.for %k = %c0 to %n step %c1 iter_args(%acc = %start) -> (tensor<1x1xf16>) {\n"
    loop += tile("t", "Vx", (1, depth), ("0", "%k"), (1, 1)) + load("v", "t", (1, 1))
    loop += (
        "%next = linalg.matmul ins(%v, %o : tensor<1x1xf16>, tensor<1x1xf16>) outs(%acc : tensor<1x1xf16>) "
        "-> tensor<1x1xf16>\nscf.yield %next : tensor<1x1xf16>\n}\n"
    )
    y = torch.zeros(1, 1).half()
    ktir.load(function(loop + store("r", "ty", (1, 1)), "%x: index, %y: index")).run(x, y)
    assert y.item() == 2048.0, "steps round to the carried type: up by 2 from 1024, and no further than 2048"


def test_a7_a_reduction_adds_up_in_fp32_before_it_rounds() -> None:
    x = torch.full((1, 2048), 1.0).half()
    x[0, 0] = 1024.0
    body = whole("x", (1, 2048)) + whole("y", (1,)) + load("v", "tx", (1, 2048))
    body += "%e = arith.constant dense<0.0> : tensor<1xf16>\n"
    body += "%r = linalg.reduce { arith.addf } ins(%v : tensor<1x2048xf16>) outs(%e : tensor<1xf16>) dimensions = [1]\n"
    y = torch.zeros(1).half()
    ktir.load(function(body + store("r", "ty", (1,)), "%x: index, %y: index")).run(x, y)
    assert abs(y.item() - 3071) <= 4


def test_a8_addresses_count_elements_or_sticks() -> None:
    """Address 128 in elements lies inside the first view; in sticks it lies far behind it."""
    body = (
        "%p = arith.constant 0 : index\n%q = arith.constant 128 : index\n"
        + view("P", "%p", (256,))
        + view("Q", "%q", (128,))
    )
    body += tile("tp", "P", (256,), ("0",), (256,)) + tile("tq", "Q", (128,), ("0",), (128,)) + whole("y", (128,))
    body += "%one = arith.constant dense<1.0> : tensor<256xf16>\n" + store("one", "tp", (256,))
    body += load("v", "tq", (128,)) + store("v", "ty", (128,))
    text = function(body, "%y: index")
    for sticks, expected in ((False, 1.0), (True, 5.0)):
        y, q = torch.zeros(128).half(), torch.full((128,), 5.0).half()
        ktir.load(text, stick_addresses=sticks).run(y, memory={128: q})
        assert torch.equal(y, torch.full((128,), expected).half())


def test_a10_casts_give_the_type_they_name() -> None:
    x = torch.tensor([1.0 + 2**-12, -2.7, 2.7, 3.5e4, 1e-3, -0.0, 100.0, -100.0])
    rounded = x.half().to("spyre").cpu()  # what the card's 16-bit format keeps
    for target, dtype, expected in (
        ("f16", torch.float16, rounded),
        ("bf16", torch.bfloat16, x.bfloat16().to("spyre").cpu()),
    ):
        y = torch.zeros(8, dtype=dtype)
        ktir.load(unary(f"%r = arith.truncf %v : tensor<8xf32> to tensor<8x{target}>", (8,), "f32", target)).run(x, y)
        torch.testing.assert_close(y.float(), expected.float(), rtol=2**-9, atol=0)
    y = torch.zeros(8)
    ktir.load(unary("%r = arith.extf %v : tensor<8xf16> to tensor<8xf32>", (8,), "f16", "f32")).run(rounded, y)
    assert torch.equal(y, rounded.float())
    for target, dtype in (("i32", torch.int32), ("i8", torch.int8)):
        small = x.clamp(-100, 100)
        y = torch.zeros(8, dtype=dtype)
        ktir.load(unary(f"%r = arith.fptosi %v : tensor<8xf32> to tensor<8x{target}>", (8,), "f32", target)).run(
            small, y
        )
        assert torch.equal(y, small.to(dtype))


@pytest.mark.parametrize("predicate", "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno".split())
def test_a10_comparisons_know_unordered_values(predicate: str) -> None:
    values = torch.tensor([float("nan"), -1.0, 0.0, 1.0, float("nan"), 1.0, 2.0, -0.0])
    other = torch.tensor([0.0, 1.0, 0.0, -1.0, float("nan"), float("nan"), 2.0, 0.0])
    body = whole("x", (8,), "f32") + whole("w", (8,), "f32") + whole("y", (8,), "f32")
    body += load("v", "tx", (8,), "f32") + load("u", "tw", (8,), "f32")
    body += (
        f"%c = arith.cmpf {predicate}, %v, %u : tensor<8xf32>\n%r = arith.uitofp %c : tensor<8xi1> to tensor<8xf32>\n"
    )
    y = torch.zeros(8)
    ktir.load(function(body + store("r", "ty", (8,), "f32"), "%x: index, %w: index, %y: index")).run(values, other, y)
    a, b = values.numpy(), other.numpy()
    unordered = np.isnan(a) | np.isnan(b)
    relation = {"eq": a == b, "gt": a > b, "ge": a >= b, "lt": a < b, "le": a <= b, "ne": (a != b) & ~unordered}
    if predicate in ("ord", "uno"):
        expected = ~unordered if predicate == "ord" else unordered
    else:
        expected = relation[predicate[1:]] & ~unordered | (unordered if predicate[0] == "u" else False)
    assert np.array_equal(y.numpy().astype(bool), expected)


def test_a11_a_step_that_is_not_positive_is_an_error() -> None:
    loop = "%c0 = arith.constant 0 : index\n%c8 = arith.constant 8 : index\n%s = arith.constant {} : index\n"
    loop += "scf.for %i = %c0 to %c8 step %s {{\n%j = arith.addi %i, %i : index\n}}\n"
    for step in (0, -1):
        with pytest.raises(InvalidProgram, match=f"the step must be positive, got {step}"):
            ktir.load(function(loop.format(step), ""))
    body = whole("x", (8,)) + "%c0 = arith.constant 0 : index\n%c8 = arith.constant 8 : index\n"
    body += "scf.for %i = %c0 to %c8 step %n {\n" + tile("t", "Vx", (8,), ("%i",), (1,)) + load("v", "t", (1,))
    body += "%r = arith.addf %v, %v : tensor<1xf16>\n" + store("r", "t", (1,)) + "}\n"
    module = ktir.load(function(body, "%x: index, %n: index"))
    x = torch.ones(8).half()
    module.run(x, 2)
    assert x.tolist() == [2, 1] * 4
    for step in (0, -1):
        with pytest.raises(SpyreError):
            module.run(x, step)


def test_a12_indices_are_64_bits_wide() -> None:
    body = "%big = arith.constant 34359738368 : index\n%d = arith.constant 4294967296 : index\n"
    body += "%eight = arith.divui %big, %d : index\n" + view("Vx", "%x", (64,)) + whole("y", (8,))
    body += tile("tx", "Vx", (64,), ("%eight",), (8,)) + load("v", "tx", (8,)) + store("v", "ty", (8,))
    x, y = torch.arange(64).half(), torch.zeros(8).half()
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    assert y.tolist() == list(range(8, 16))


def test_a6_a_loop_may_keep_its_sums_wide() -> None:
    """64 products of 1 on top of 4096: each is lost when every step rounds to 10 bits, none when the sum stays fp32."""
    text = """
    func.func @f(%a: index, %b: index, %o: index) attributes {grid = [1]} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %n = arith.constant 64 : index
      %av = ktdp.construct_memory_view %a, sizes: [64, 1], strides: [1, 1]
        { coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 >= 0)>,
          memory_space = #ktdp.memory_space<global> } : memref<64x1xf16>
      %bv = ktdp.construct_memory_view %b, sizes: [1, 64], strides: [64, 1]
        { coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0, d1 >= 0, -d1 + 63 >= 0)>,
          memory_space = #ktdp.memory_space<global> } : memref<1x64xf16>
      %ov = ktdp.construct_memory_view %o, sizes: [1, 64], strides: [64, 1]
        { coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0, d1 >= 0, -d1 + 63 >= 0)>,
          memory_space = #ktdp.memory_space<global> } : memref<1x64xf16>
      %start = arith.constant dense<4096.0> : tensor<1x64xf16>
      %sum = scf.for %k = %c0 to %n step %c1 iter_args(%acc = %start) -> (tensor<1x64xf16>) {
        %at = ktdp.construct_access_tile %av[%k, %c0] { access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0,
          d1 >= 0, -d1 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)> } : memref<64x1xf16>
          -> !ktdp.access_tile<1x1xindex>
        %bt = ktdp.construct_access_tile %bv[%c0, %c0] { access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0,
          d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)> } : memref<1x64xf16>
          -> !ktdp.access_tile<1x64xindex>
        %x = ktdp.load %at : !ktdp.access_tile<1x1xindex> -> tensor<1x1xf16>
        %y = ktdp.load %bt : !ktdp.access_tile<1x64xindex> -> tensor<1x64xf16>
        %next = linalg.matmul ins(%x, %y : tensor<1x1xf16>, tensor<1x64xf16>) outs(%acc : tensor<1x64xf16>)
          -> tensor<1x64xf16>
        scf.yield %next : tensor<1x64xf16>
      }
      %ot = ktdp.construct_access_tile %ov[%c0, %c0] { access_tile_set = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0,
        d1 >= 0, -d1 + 63 >= 0)>, access_tile_order = affine_map<(d0, d1) -> (d0, d1)> } : memref<1x64xf16>
        -> !ktdp.access_tile<1x64xindex>
      ktdp.store %sum, %ot : tensor<1x64xf16>, !ktdp.access_tile<1x64xindex>
      return
    }
    """
    zero = "%zero = arith.constant dense<0.0> : tensor<1x64xf16>\n"
    separate = text.replace("outs(%acc :", "outs(%zero :").replace("%next = linalg", "%p = linalg")
    end = "scf.yield %next"
    adds = (
        "%next = arith.addf %acc, %p : tensor<1x64xf16>\n",
        "%next = arith.addf %p, %acc : tensor<1x64xf16>\n",
        "%next = linalg.add ins(%acc, %p : tensor<1x64xf16>, tensor<1x64xf16>) outs(%zero : tensor<1x64xf16>) "
        "-> tensor<1x64xf16>\n",
    )
    a, b = torch.ones(64, 1).half(), torch.ones(1, 64).half()
    for source in (text, *(separate.replace("%start =", zero + "%start =").replace(end, add + end) for add in adds)):
        for wide, expected in ((False, 4096.0), (True, 4160.0)):
            out = torch.zeros(1, 64).half()
            ktir.load(source, wide_accumulate=wide).run(a, b, out)
            assert torch.equal(out, torch.full((1, 64), expected).half())
