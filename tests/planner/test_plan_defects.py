# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_plan_defects.py
"""Programs on which a known planner for this card goes wrong; ours must get each of them right.

The last section of docs/planner.md has a table of the defects and their tests, here and in other files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_planner import check_ownership, check_placement
from torch.nn import functional

from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.hints import clear_tensor_dims, declare_tensor_dim, name_tensor_dims, spyre_hint
from torch_spyre._inductor.planning.placement import Request, place
from torch_spyre._inductor.planning.planner import Plan
from torch_spyre.ir.plan.tileops import Space
from torch_spyre.ops import fallbacks


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).to(torch.float16)


def compiled(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[torch.Tensor, Plan]:
    """The result on the host and the plan of the last kernel, checked element by element."""
    torch._dynamo.reset()
    before = len(inspect.records())
    inspect.start()
    try:
        result = torch.compile(fn, dynamic=False)(*args).cpu()
    finally:
        inspect.stop()
    plan = inspect.records()[before:][-1].plan
    check_ownership(plan, plan.kernel.cores)
    check_placement(plan)
    return result, plan


def close(got: torch.Tensor, want: torch.Tensor, steps: float = 4) -> None:
    """Within a few units of the 9-bit mantissa at the size of the result."""
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() <= steps * 2**-10 * want.abs().max()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def test_tile_loops_address_the_device_layout() -> None:
    """[1024, 4096] in 2 and in 4 chunks: trips advance by device coordinates, not by host strides."""
    declare_tensor_dim("rows", 1024)
    declare_tensor_dim("columns", 4096)
    x = half(1024, 4096)
    on_card = name_tensor_dims(x.to("spyre"), ["rows", "columns"])
    try:
        plain, _ = compiled(lambda x: torch.softmax(x * 3, -1), on_card)
        for count in (2, 4):

            def tiled(x: torch.Tensor, count: int = count) -> torch.Tensor:
                with spyre_hint(num_tiles_per_dim={"rows": count}):
                    return torch.softmax(x * 3, -1)

            got, plan = compiled(tiled, on_card)
            assert [loop.trips for loop in plan.kernel.loops] == [count]
            assert torch.equal(got, plain)
    finally:
        clear_tensor_dims()
    close(plain, torch.softmax(x.double() * 3, -1), 8)


def test_tile_loops_over_sticks() -> None:
    """The same along the stick dim: a trip begins some sticks on, each a whole column of 128-byte rows away."""
    declare_tensor_dim("rows", 1024)
    declare_tensor_dim("columns", 4096)
    x = half(1024, 4096)
    on_card = name_tensor_dims(x.to("spyre"), ["rows", "columns"])

    def tiled(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"columns": 4}):
            return torch.softmax(x * 3, 0)

    try:
        with config.patch(sencores=8):  # eight sticks for each core, in four trips
            got, plan = compiled(tiled, on_card)
    finally:
        clear_tensor_dims()
    assert [loop.trips for loop in plan.kernel.loops] == [4]
    assert torch.equal(got, compiled(lambda x: torch.softmax(x * 3, 0), x.to("spyre"))[0])
    close(got, torch.softmax(x.double() * 3, 0), 8)


@pytest.mark.parametrize("cores", [4, 8, 32])
def test_cores_read_only_what_they_wrote(cores: int) -> None:
    """(a + b) @ w with 4 rows and 512 columns: an add on 4 cores may not feed 32 cores out of LX."""
    a, b, w = half(4, 64), half(4, 64), half(64, 512)
    with config.patch(sencores=cores):
        got, plan = compiled(lambda a, b, w: (a + b) @ w, *(t.to("spyre") for t in (a, b, w)))
    close(got, (a.double() + b.double()) @ w.double())
    add, mm = plan.kernel.ops[-2:]
    if add.output.tensor.space is Space.LX:
        assert add.cores >= mm.cores


def test_a_mutated_temporary_has_one_place() -> None:
    """The pieces of a cat go into one buffer, whose lifetime begins with the first of them."""
    a, y = half(64, 256), half(64, 64)

    def fn(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.gelu(torch.cat([functional.silu(a)[:, 64:192], functional.silu(y)], 1))

    got, _ = compiled(fn, a.to("spyre"), y.to("spyre"))
    close(got, fn(a.double(), y.double()))


def test_free_blocks_of_the_pool_join() -> None:
    """A buffer as large as two freed neighbours takes their place."""
    requests = [Request("a", 128, 0, 1), Request("b", 256, 0, 1), Request("c", 128, 0, 9), Request("d", 384, 2, 3)]
    addresses, extent = place(requests, 1 << 20)
    assert extent == 512 and addresses["d"] not in range(1, 128)
    assert len({*addresses.values()}) >= 3


def test_a_pool_is_as_large_as_its_extent() -> None:
    """What lives at one time may fit where the addresses do not; then a request is refused, never placed outside."""
    requests = [Request("a", 256, 0, 1), Request("b", 256, 0, 9), Request("c", 512, 2, 3)]
    addresses, extent = place(requests, 768)
    assert addresses.keys() == {"a", "b", "c"} and extent <= 768
    assert all(at + {"a": 256, "b": 256, "c": 512}[name] <= 768 for name, at in addresses.items())
    addresses, extent = place([*requests, Request("d", 768, 5, 6)], 768)  # b lives all along
    assert not {"b", "d"} <= addresses.keys() and extent <= 768


def test_the_table_of_a_gather_begins_at_the_same_place_on_every_core() -> None:
    table, index = half(101, 192), torch.randint(0, 101, (85,))
    got, plan = compiled(lambda t, i: t[i] * 2, table.to("spyre"), index.to("spyre"))
    close(got, table.double()[index] * 2)
    assert max(op.cores for op in plan.kernel.ops) > 1


def test_indices_of_topk_are_integers() -> None:
    """Positions above 1024 have no exact code in a 16-bit float."""
    x = torch.randperm(5000).float().to("spyre")
    got, _ = compiled(lambda x: torch.topk(x, 3000)[1], x)
    assert got.dtype == torch.int64
    assert torch.equal(got, torch.topk(x.cpu(), 3000)[1])


def test_an_affine_layer_norm_moves_nothing_between_layouts() -> None:
    x, w, b = half(67, 256), half(256), half(256)
    got, plan = compiled(lambda x, w, b: functional.layer_norm(x, (256,), w, b), *(t.to("spyre") for t in (x, w, b)))
    assert copies(plan) == 0
    close(got, functional.layer_norm(x.double(), (256,), w.double(), b.double()), 2)


def test_fp8_matmul_has_a_layout() -> None:
    a, b = (torch.randn(*size).to(torch.float8_e4m3fn) for size in ((33, 256), (64, 256)))
    one = torch.ones(())

    def fn(a: torch.Tensor, b: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float16)

    got, _ = compiled(fn, *(t.to("spyre") for t in (a, b, one)))
    close(got, a.double() @ b.double().t(), 2)


def copies(plan: Plan) -> int:
    return sum(op.op == "ReStickifyOpHBM" for op in plan.kernel.ops)


def test_constants_do_not_hide_the_price_of_a_restickify() -> None:
    x, y = half(128, 192).to("spyre"), half(192, 128).to("spyre")
    without, plain = compiled(lambda x, y: x.t() + y, x, y)
    with_first, first = compiled(lambda x, y: (2.0 * x.t()) + y, x, y)
    assert copies(plain) == copies(first) == 1
    close(with_first, 2.0 * x.cpu().double().t() + y.cpu().double())
    close(without, x.cpu().double().t() + y.cpu().double())


def test_equal_restickifies_are_one() -> None:
    x, y, z = half(128, 192).to("spyre"), half(192, 128).to("spyre"), half(192, 128).to("spyre")
    got, plan = compiled(lambda x, y, z: (x.t() + y) * torch.exp(x.t() - z), x, y, z)
    assert copies(plan) == 1
    want = (x.cpu().double().t() + y.cpu().double()) * torch.exp(x.cpu().double().t() - z.cpu().double())
    close(got, want, 16)


def test_values_and_indices_of_topk_share_a_copy() -> None:
    x = half(128, 192).to("spyre")
    torch._dynamo.reset()
    inspect.start()
    try:
        values, indices = torch.compile(lambda x: torch.topk(x, 3, 0), dynamic=False)(x)
    finally:
        inspect.stop()
    assert copies(inspect.records()[-1].plan) <= 1
    assert torch.equal(values.cpu(), torch.topk(x.cpu(), 3, 0)[0])
    assert torch.equal(torch.gather(x.cpu(), 0, indices.cpu()), values.cpu())


@pytest.mark.parametrize("size", [(67, 100), (3, 65), (40, 127)])
def test_padding_of_a_stick_takes_no_part_in_a_mean(size: tuple[int, int]) -> None:
    """Filling the pad with 1/n instead of 0 would be an error of pad/n^2, which a loose tolerance does not see."""
    x = torch.randn(*size) + 8
    got, _ = compiled(lambda x: x.mean(-1), x.to("spyre"))
    assert (got.double() - x.double().mean(-1)).abs().max() < 1e-5


def test_grouped_keys_are_not_expanded() -> None:
    """Four query heads share a key: no tensor of the plan holds the key four times."""
    q, k = half(8, 64, 64), half(2, 64, 64)

    def fn(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q.view(2, 4, 64, 64) @ torch.exp(k).unsqueeze(1).transpose(-1, -2)

    got, plan = compiled(fn, q.to("spyre"), k.to("spyre"))
    close(got.double(), fn(q.double(), k.double()), 8)
    assert not any(b.kind == "temp" and b.numel >= 8 * 64 * 64 for b in plan.graph.buffers.values())


def test_a_causal_mask_is_no_tensor_from_the_host() -> None:
    q, k, v = (half(1, 4, 96, 64) for _ in range(3))

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with fallbacks.disabled():
        got, plan = compiled(fn, *(t.to("spyre") for t in (q, k, v)))
    close(got, fn(q.double(), k.double(), v.double()), 8)
    assert len([b for b in plan.graph.buffers.values() if b.kind == "input"]) == 3


def test_attention_scales_once() -> None:
    """The scale is a factor of the scores, not one of the queries and one of the keys."""
    q, k, v = (half(1, 4, 96, 64) for _ in range(3))
    sdpa = functional.scaled_dot_product_attention
    got, plan = compiled(lambda q, k, v: sdpa(q, k, v, scale=0.3), *(t.to("spyre") for t in (q, k, v)))
    close(got, sdpa(q.double(), k.double(), v.double(), scale=0.3), 8)
    assert [op.op for op in plan.kernel.ops].count("mul") <= 1


def test_the_table_of_defects_names_tests_that_exist() -> None:
    """Every defect of the table has one; `::name` stands for the file before it."""
    tests = Path(__file__).parents[1]
    table = (tests.parent / "docs" / "planner.md").read_text().split("## Defects that ours must not have")[1]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20
    for _, _, column, _ in rows:
        file = ""
        named = re.findall(r"`([\w.]*)::(\w+)`", column)
        assert named
        for given, name in named:
            file = given or file
            assert f"def {name}(" in next(tests.rglob(file)).read_text(), f"{file}::{name}"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: functional.embedding(i, x),
        lambda x, i: x.argmax(-1),
        lambda x, i: torch.sin(x) + torch.cos(x),
        lambda x, i: i + i * 3,
    ],
    ids=["embedding", "argmax", "sin and cos", "int64"],
)
def test_nothing_runs_on_the_host(fn: Callable[..., torch.Tensor]) -> None:
    x, i = torch.randn(70, 100), torch.randint(0, 70, (33,))
    with fallbacks.disabled():
        got, _ = compiled(fn, x.to("spyre"), i.to("spyre"))
        eager = fn(x.to("spyre"), i.to("spyre")).cpu()
    want = fn(x.double(), i)
    assert torch.equal(got, eager)
    assert (got.double() - want.double()).abs().max() <= 2.0**-20


def test_clamp_is_one_pass() -> None:
    x = half(64, 128)
    got, plan = compiled(lambda x: x.clamp(-0.5, 0.75), x.to("spyre"))
    assert [op.op for op in plan.kernel.ops if op.op not in ("dl16tofp32", "fp32todl16")] == ["clip"]
    close(got, x.double().clamp(-0.5, 0.75), 1)


def test_many_tensors_and_a_cat_are_one_launch() -> None:
    inputs = [half(64, 128) for _ in range(9)]

    def fn(*x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([x[0] + x[1], x[2] * x[3]], 1)
        return torch.relu(joined) + torch.cat([x[4] - x[5], x[6] + x[7] * x[8]], 1)

    before = len(inspect.records())
    got, _ = compiled(fn, *(t.to("spyre") for t in inputs))
    assert len([r for r in inspect.records()[before:] if not r.name.startswith("eager")]) == 1
    close(got, fn(*(t.double() for t in inputs)), 8)


def test_a_split_of_a_dim_that_is_read_in_steps() -> None:
    """p // 4 is all that one operand knows of p: cores must still get their own rows of it."""
    a, b = half(48, 192), half(192, 192)
    got, plan = compiled(lambda a, b: torch.repeat_interleave(a, 4, 0) * b, a.to("spyre"), b.to("spyre"))
    assert max(op.cores for op in plan.kernel.ops) > 1
    close(got, torch.repeat_interleave(a.double(), 4, 0) * b.double(), 4)


def test_a_weight_in_the_wrong_layout_is_copied_once_for_all_its_readers() -> None:
    x, w = half(64, 128).to("spyre"), half(256, 128).to("spyre")
    _, plan = compiled(lambda x, w: torch.relu(x @ w.t()) + (x * 2) @ w.t(), x, w)
    assert copies(plan) == 1


def test_planning_holds_no_state_between_graphs() -> None:
    def weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:  # once, as kernels know their lines
        return torch.softmax(x @ w, -1)

    x, w = half(64, 128).to("spyre"), half(128, 256).to("spyre")
    _, first = compiled(weights, x, w)
    compiled(lambda x, w: (x @ w).sum(0), x, w)
    _, again = compiled(weights, x, w)
    assert first.kernel == again.kernel
