# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_control.py. Conditions and loops, with what they carry and give back."""

from __future__ import annotations

import numpy as np
import pytest
from ktir_write import Writer, f16
from program_interp import round_sen169

from torch_spyre import ktir
from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.program import assembler as asm
from torch_spyre.errors import InvalidProgram, SpyreError, UnsupportedOp


def rows(w: Writer, name: str, array: np.ndarray) -> str:
    return w.array(name, array)


def row(w: Writer, view: str, array: np.ndarray, at: str) -> tuple[str, list[int]]:
    return w.tile(view, array.shape, "f16", [at, w.index(0)], [1, array.shape[1]])


def test_conditions_with_results() -> None:
    """Tensors and indices from both branches."""
    a = f16(4, 8)
    w = Writer((4,))
    (i,) = w.ids()
    va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
    c = w.op(f"arith.cmpi slt, {i}, {w.index(2)} : index")
    x = w.load(row(w, va, a, i))
    y, target = w.name(), w.name()
    w.add(f"{y}, {target} = scf.if {c} -> (tensor<1x8xf16>, index) {{")
    n = w.op(f"arith.negf {x} : tensor<1x8xf16>")
    up = w.sum(i, 2)
    w.add(f"scf.yield {n}, {up} : tensor<1x8xf16>, index\n}} else {{")
    d = w.op(f"arith.addf {x}, {x} : tensor<1x8xf16>")
    down = w.op(f"arith.subi {i}, {w.index(2)} : index")
    w.add(f"scf.yield {d}, {down} : tensor<1x8xf16>, index\n}}")
    w.store(y, row(w, vo, a, target))
    np.testing.assert_array_equal(w.run()["o"], [a[2] * 2, a[3] * 2, -a[0], -a[1]])


@pytest.mark.parametrize("kind", ["index", "i32"])
def test_loops_of_any_integer_type_carry_integers(kind: str) -> None:
    """Row numbers 0, 1, 3, 6, 10 … by a carried sum, written to row k; the final sum says where the last row goes."""
    a = f16(16, 8)
    w = Writer()
    va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
    zero, one, five = (w.op(f"arith.constant {v} : {kind}") for v in (0, 1, 5))
    final = w.name()
    suffix = "" if kind == "index" else f" : {kind}"
    w.add(f"{final} = scf.for %k = {zero} to {five} step {one} iter_args(%s = {zero}) -> ({kind}){suffix} {{")
    s, k = (v if kind == "index" else w.op(f"arith.index_cast {v} : {kind} to index") for v in ("%s", "%k"))
    w.store(w.load(row(w, va, a, s)), row(w, vo, a, k))
    up = w.op(f"arith.addi %k, {one} : {kind}")
    following = w.op(f"arith.addi %s, {up} : {kind}")
    w.add(f"scf.yield {following} : {kind}\n}}")
    last = final if kind == "index" else w.op(f"arith.index_cast {final} : {kind} to index")
    w.store(w.load(row(w, va, a, w.index(1))), row(w, vo, a, last))
    expected = np.zeros_like(a)
    expected[:5] = a[[0, 1, 3, 6, 10]]
    expected[15] = a[1]
    np.testing.assert_array_equal(w.run()["o"], expected)


def test_loops_carry_truth_values() -> None:
    """A flag that turns around: every second row is copied."""
    a = f16(6, 8)
    w = Writer()
    va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
    yes = w.op("arith.constant true")
    last = w.name()
    w.add(f"{last} = scf.for %k = {w.index(0)} to {w.index(6)} step {w.index(1)} iter_args(%t = {yes}) -> (i1) {{")
    w.add("scf.if %t {")
    w.store(w.load(row(w, va, a, "%k")), row(w, vo, a, "%k"))
    w.add("}")
    turned = w.op(f"arith.xori %t, {yes} : i1")
    w.add(f"scf.yield {turned} : i1\n}}")
    np.testing.assert_array_equal(w.run()["o"], np.where(np.arange(6)[:, None] % 2, 0, a))


def test_carried_values_are_replaced_together() -> None:
    """A swap of two tensors and of two indices every iteration, three times."""
    a = f16(4, 8)
    w = Writer()
    va = rows(w, "a", a)
    x, y = (w.load(row(w, va, a, w.index(i))) for i in (0, 1))
    u, v, p, q = (w.name() for _ in range(4))
    w.add(
        f"{u}, {v}, {p}, {q} = scf.for %k = {w.index(0)} to {w.index(3)} step {w.index(1)} "
        f"iter_args(%x = {x}, %y = {y}, %p = {w.index(2)}, %q = {w.index(3)}) -> "
        "(tensor<1x8xf16>, tensor<1x8xf16>, index, index) {\n"
        "scf.yield %y, %x, %q, %p : tensor<1x8xf16>, tensor<1x8xf16>, index, index\n}"
    )
    vo = rows(w, "o", np.zeros_like(a))
    w.store(u, row(w, vo, a, w.index(0)))
    w.store(v, row(w, vo, a, w.index(1)))
    w.store(w.load(row(w, va, a, p)), row(w, vo, a, w.index(2)))
    w.store(w.load(row(w, va, a, q)), row(w, vo, a, w.index(3)))
    np.testing.assert_array_equal(w.run()["o"], a[[1, 0, 3, 2]])


def test_a_carried_tensor_is_changed_in_place_only_after_its_last_use() -> None:
    """acc' = acc + x, and acc (the old one) is stored after acc' has been computed."""
    a = f16(5, 8)
    w = Writer()
    va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
    zero = w.op("arith.constant dense<0.0> : tensor<1x8xf16>")
    total = w.name()
    w.add(
        f"{total} = scf.for %k = {w.index(0)} to {w.index(5)} step {w.index(1)} iter_args(%s = {zero}) -> "
        f"(tensor<1x8xf16>) {{"
    )
    x = w.load(row(w, va, a, "%k"))
    n = w.op(f"arith.addf %s, {x} : tensor<1x8xf16>")
    w.store("%s", row(w, vo, a, "%k"))
    w.add(f"scf.yield {n} : tensor<1x8xf16>\n}}")
    out = w.run()["o"]
    running = np.zeros(8, np.float32)
    for k in range(5):
        np.testing.assert_array_equal(out[k], running)
        running = round_sen169(running + a[k])


def test_nested_loops_with_bounds_from_ids_and_counters() -> None:
    """Core c takes rows 4c + i for i <= c, columns in blocks of two up to 2i + 2."""
    a = f16(16, 8)
    w = Writer((4,))
    (c,) = w.ids()
    va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
    end = w.sum(c, 1)
    base = w.product(c, 4)
    w.add(f"scf.for %i = {w.index(0)} to {end} step {w.index(1)} {{")
    stop = w.sum(w.product("%i", 2), 2)
    w.add(f"scf.for %j = {w.index(0)} to {stop} step {w.index(2)} {{")
    at = [w.sum(base, "%i"), "%j"]
    x = w.load(w.tile(va, a.shape, "f16", at, [1, 2]))
    w.store(w.op(f"arith.negf {x} : tensor<1x2xf16>"), w.tile(vo, a.shape, "f16", at, [1, 2]))
    w.add("}\n}")
    expected = np.zeros_like(a)
    for core in range(4):
        for i in range(core + 1):
            expected[4 * core + i, : 2 * i + 2] = -a[4 * core + i, : 2 * i + 2]
    np.testing.assert_array_equal(w.run()["o"], expected)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_must_be_positive(step: int) -> None:
    """A11."""
    w = Writer()
    w.add(f"scf.for %i = {w.index(0)} to {w.index(4)} step {w.index(step)} {{\n}}")
    with pytest.raises(InvalidProgram, match="step"):
        w.compile()


def test_a_step_that_is_bound_when_compiling() -> None:
    a = f16(7, 8)
    for step in (1, 2, 3):
        w = Writer()
        va, vo = rows(w, "a", a), rows(w, "o", np.zeros_like(a))
        w.arguments.append("%step: index")
        w.add(f"scf.for %i = {w.index(0)} to {w.index(7)} step %step {{")
        w.store(w.load(row(w, va, a, "%i")), row(w, vo, a, "%i"))
        w.add("}")
        expected = np.zeros_like(a)
        expected[::step] = a[::step]
        np.testing.assert_array_equal(w.run(bind={"step": step})["o"], expected)
    w.scalars.append(2)
    with pytest.raises(UnsupportedOp, match="step"):
        w.run()


def test_parallel_loops_reduce() -> None:
    """Sum over i and j of a[i, 2j:2j+2], in scf.parallel."""
    a = f16(3, 8)
    w = Writer()
    va = rows(w, "a", a)
    zero = w.op("arith.constant dense<0.0> : tensor<1x2xf32>")
    total = w.name()
    w.add(
        f"{total} = scf.parallel (%i, %j) = ({w.index(0)}, {w.index(0)}) to ({w.index(3)}, {w.index(8)}) step "
        f"({w.index(1)}, {w.index(2)}) init ({zero}) -> tensor<1x2xf32> {{"
    )
    x = w.load(w.tile(va, a.shape, "f16", ["%i", "%j"], [1, 2]))
    wide = w.op(f"arith.extf {x} : tensor<1x2xf16> to tensor<1x2xf32>")
    w.add(
        f"scf.reduce({wide} : tensor<1x2xf32>) {{\n^bb0(%l: tensor<1x2xf32>, %r: tensor<1x2xf32>):\n"
        "%s = arith.addf %l, %r : tensor<1x2xf32>\nscf.reduce.return %s : tensor<1x2xf32>\n}\n}"
    )
    w.output("o", total, [1, 2], "f32")
    np.testing.assert_allclose(w.run()["o"][0], a.reshape(-1, 2).astype(np.float64).sum(0), rtol=1e-6)


def test_forall_writes_slices_of_shared_outputs() -> None:
    a = f16(6, 8)
    w = Writer()
    x = w.input("a", a)
    e = w.op("tensor.empty() : tensor<6x8xf16>")
    y = w.name()
    w.add(f"{y} = scf.forall (%i, %j) in (6, 2) shared_outs(%o = {e}) -> (tensor<6x8xf16>) {{")
    column = w.product("%j", 4)
    part = w.op(f"tensor.extract_slice {x}[%i, {column}] [1, 4] [1, 1] : tensor<6x8xf16> to tensor<1x4xf16>")
    n = w.op(f"arith.negf {part} : tensor<1x4xf16>")
    w.add(
        "scf.forall.in_parallel {\n"
        f"tensor.parallel_insert_slice {n} into %o[%i, {column}] [1, 4] [1, 1] : tensor<1x4xf16> into "
        "tensor<6x8xf16>\n}\n}"
    )
    w.output("o", y, [6, 8])
    np.testing.assert_array_equal(w.run()["o"], -a)


def test_conditions_that_are_data_are_refused() -> None:
    w = Writer()
    x = w.input("a", f16(8))
    e = w.op(f"tensor.extract {x}[{w.index(0)}] : tensor<8xf16>")
    c = w.op(f"arith.cmpf ogt, {e}, {w.op('arith.constant 0.0 : f16')} : f16")
    w.add(f"scf.if {c} {{")
    w.store(x, w.whole("o", np.zeros(8)))
    w.add("}")
    with pytest.raises(UnsupportedOp, match="condition"):
        w.compile()


def test_while_loops_are_refused_by_name() -> None:
    text = """module { func.func @f(%a: index) attributes {grid = [1]} {
      %c = arith.constant 0 : index
      %r = scf.while (%i = %c) : (index) -> index {
        %p = arith.cmpi slt, %i, %c : index
        scf.condition(%p) %i : index
      } do {
      ^bb0(%j: index):
        scf.yield %j : index
      }
      return } }"""
    with pytest.raises(SpyreError):
        compile_module(ktir.parse(text))


def test_an_accumulator_needs_no_copies() -> None:
    """A sum over K in f32: one fill, the loop with its product, one narrowing store."""
    a, b = f16(16, 256), f16(256, 64, seed=1)
    w = Writer()
    va, vb = w.array("a", a), w.array("b", b)
    zero = w.op("arith.constant dense<0.0> : tensor<16x64xf32>")
    total = w.name()
    w.add(
        f"{total} = scf.for %k = {w.index(0)} to {w.index(256)} step {w.index(64)} iter_args(%acc = "
        f"{zero}) -> (tensor<16x64xf32>) {{"
    )
    x = w.load(w.tile(va, a.shape, "f16", [w.index(0), "%k"], [16, 64]))
    y = w.load(w.tile(vb, b.shape, "f16", ["%k", w.index(0)], [64, 64]))
    n = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<16x64xf16>, tensor<64x64xf16>) outs(%acc : "
        "tensor<16x64xf32>) -> tensor<16x64xf32>"
    )
    w.add(f"scf.yield {n} : tensor<16x64xf32>\n}}")
    w.output("o", w.op(f"arith.truncf {total} : tensor<16x64xf32> to tensor<16x64xf16>"), [16, 64])
    kinds = [type(i) for i in w.compile().instructions]
    assert kinds.count(asm.CopyInst) == 1 and kinds.count(asm.VopInst) == 1
    np.testing.assert_allclose(w.run()["o"], a.astype(np.float64) @ b.astype(np.float64), rtol=2**-9, atol=1e-4)
