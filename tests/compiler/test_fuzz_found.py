# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_fuzz_found.py
"""What random graphs have found (graph_fuzz.py), each as a small program: right, and compiled equals eager by bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_fuzz_oracle import Lockstep, host_values
from torch.nn import functional

from torch_spyre import _C, sanitizer
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre.ops import fallbacks


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half().to("spyre")


def check(fn: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    """Results of `fn`: every op of the eager run is right, and the compiled run has the same bits."""
    torch._dynamo.reset()
    with fallbacks.disabled():
        with Lockstep():
            eager = fn(*args)
        compiled = torch.compile(fn, dynamic=False, fullgraph=True)(*args)
    pairs = list(zip(eager, compiled, strict=True)) if isinstance(eager, tuple) else [(eager, compiled)]
    for one, two in pairs:
        assert torch.equal(host_values(one), host_values(two))
    return [two for _, two in pairs]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: functional.layer_norm(x, (70,), w[0], w[1]),
        lambda x, w: functional.group_norm(x, 7),
        lambda x, w: torch.logsumexp(x, -1),
        lambda x, w: functional.celu(x, 0.7),
        lambda x, w: functional.binary_cross_entropy_with_logits(x, w.sigmoid()),
        lambda x, w: torch.addr(x, w[:, 0], w[0]),
        lambda x, w: torch.lerp(torch.relu(x), w, 0.3),
        lambda x, w: torch.addcmul(x, x, w.abs(), value=0.5),
        lambda x, w: torch.add(x, w.abs(), alpha=0.3),
        lambda x, w: functional.avg_pool2d(torch.stack([x, w]), 2),
        lambda x, w: functional.glu(x),
        lambda x, w: functional.nll_loss(x, w[:, 0].abs().long() % 3),
        lambda x, w: functional.nll_loss(x, w[:, 0].abs().long() % 3, w[0].abs(), ignore_index=1),
        lambda x, w: functional.nll_loss(x.view(2, 3, 70), w[:2].abs().long() % 3),
    ],
    ids=[
        "layer_norm",
        "group_norm",
        "logsumexp",
        "celu",
        "bce",
        "addr",
        "lerp",
        "addcmul",
        "alpha",
        "avg_pool2d",
        "glu",
        "nll_loss",
        "weighted",
        "nll_loss2d",
    ],
)
def test_eager_and_compiled_ops_round_once(fn: Callable[..., Any]) -> None:
    """PyTorch's composite kernels and Inductor's decompositions go step by step; each step would store its result."""
    check(fn, half(6, 70), half(6, 70))


def test_neighbours_do_not_change_the_order_of_a_sum() -> None:
    """How often k is cut follows from the matmul's shape, not from what would suit the ops around it."""
    a, b, c = (torch.randn(*size).to("spyre") for size in ((31, 256), (256, 80), (31, 80)))
    check(lambda a, b, c: (a @ b) + torch.sigmoid(c) * c.abs(), a, b, c)


def test_knobs_reach_eager_plans() -> None:
    _C.clear_eager_cache()
    inspect.start()
    try:
        with config.patch(sencores=3):
            half(60, 200) * half(60, 200)
        plan = inspect.records()[-1].plan
    finally:
        inspect.stop()
        _C.clear_eager_cache()
    assert 1 < max(op.cores for op in plan.kernel.ops) <= 3


@pytest.mark.parametrize("op", ["sort", "cumsum", "argmax", "topk"])
def test_along_a_dim_that_a_reshape_joined(op: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "sort": lambda x: torch.sort(x.reshape(1, -1), dim=-1, stable=True),
        "cumsum": lambda x: x.reshape(1, -1).cumsum(-1),
        "argmax": lambda x: x.reshape(1, -1).argmax(-1),
        "topk": lambda x: torch.topk(x.t().reshape(-1), 5)[0],
    }
    check(calls[op], half(3, 256))


@pytest.mark.parametrize(("n", "start"), [(63, 3), (64, 5), (130, 7)])
def test_repeats_of_a_tensor_that_starts_inside_a_stick(n: int, start: int) -> None:
    x = half(n + 9).narrow(0, start, n)
    check(lambda x: (x.repeat([3]), x.repeat([2, 2]) * 2), x)


def test_order_of_nothing() -> None:
    """The k largest along one dim of a tensor that is empty along another."""
    x = half(5, 3, 0)
    values, places = check(lambda x: torch.topk(x, 2, 0), x)
    assert values.shape == places.shape == (2, 3, 0)
    check(lambda x: (*torch.topk(x[0, 0], 0), *torch.topk(x.sum(), 1), *torch.topk(x[:, :, :1].sum(-1), 0, 1)), x)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_quotients_are_rounded_to_whole_numbers_before_they_are_stored(mode: str, dtype: torch.dtype) -> None:
    """27.99 is 28 in 16 bits."""
    x, y = (torch.randn(40, 70) * 20).to(dtype).to("spyre"), (torch.rand(40, 70) + 0.5).to(dtype).to("spyre")
    check(lambda x, y: (torch.div(x, y, rounding_mode=mode), torch.div(x, 0.375, rounding_mode=mode)), x, y)
    assert x.dtype == torch.div(x, y, rounding_mode=mode).dtype


def test_the_gradient_of_a_mean_is_divided_and_not_multiplied() -> None:
    """By 511, not by the nearest number to 1/511."""
    x, w = torch.randn(511, 65).to("spyre"), torch.randn(65).to("spyre")

    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x.requires_grad_().mean(0) * w).sum(), x)[0]

    compiled = torch.compile(lambda x, w: (x.mean(0) * w).sum(), dynamic=False)
    want = gradient(x, w)
    assert torch.equal(torch.autograd.grad(compiled(x, w), x)[0].cpu(), want.cpu())
    assert torch.equal(want.cpu(), (w.cpu() / 511).expand(511, 65))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_become_elements_are_of_the_element_type(dtype: torch.dtype) -> None:
    """0.001 is no number of fp16 or bf16. Filled in place or in a graph, or copied from the host, it is one value."""
    x = torch.ones(4, 70).to(dtype).to("spyre")

    def filled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = x > 0
        return (
            torch.full_like(x, 0.001),
            x.masked_fill(mask, 0.001),
            torch.where(mask, 0.001, x),
            x.clone().fill_(0.001),
        )

    want = torch.full((4, 70), 0.001, dtype=dtype).to("spyre").float().cpu()
    for result in [*filled(x), *torch.compile(filled, dynamic=False)(x)]:
        assert torch.equal(result.float().cpu(), want)


def test_steps_with_a_number_promote_all_operands() -> None:
    x, y = torch.arange(6, dtype=torch.int32).to("spyre"), half(6)
    (result,) = check(lambda x, y: torch.addcmul(x, x, y, value=0.5), x, y)
    assert result.dtype == torch.float16


@pytest.mark.parametrize("op", [torch.max, torch.min, lambda x: x.amax(0), lambda x: x.argmax()])
def test_the_largest_of_nothing_is_refused_by_name(op: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, IndexError), match=r"there is none|numel\(\) == 0|zero-size|non-zero size"):
        op(half(0, 3))


def test_tile_loops_hand_over_through_memory_under_other_names() -> None:
    """A norm calls the rows of its input otherwise than the op before it; each core still reads what it wrote."""
    x, w, b = half(511, 3, 5, 32), half(32, 32), half(32)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = functional.linear(x, w, b)
        z = torch.remainder(y, functional.rms_norm(torch.floor(y), [32]).abs() + 0.5)
        return (
            (y.abs() + 0.1) ** x.clamp(-2, 2),
            torch.std(z, [0, 2, 3], keepdim=True, correction=0),
            functional.selu(z),
        )

    with config.patch(sencores=2):
        _C.clear_eager_cache()
        check(fn, x, w, b)
    _C.clear_eager_cache()


def test_tile_loops_over_a_copy_by_linear_offset_have_equal_trips() -> None:
    """37 rows on each of seven cores, in trips of eight, read from a buffer whose sticks run across them."""
    a, b, c = half(256, 4, 5, 1), half(1, 4, 5, 256, 8), half(4, 1, 8)

    def gradient(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        x = a.detach().requires_grad_()
        return torch.autograd.grad(run(x), x)[0].cpu()

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("abcd,dbcaz->bdz", x, b) / (c.abs() + 0.5)
        return torch.sort(x, dim=0, stable=True)[0].sum() + y.sum()

    want = gradient(fn)
    torch._dynamo.reset()
    with config.patch(sencores=7, dxp_lx_frac_avail=0.99):
        assert torch.allclose(gradient(torch.compile(fn, dynamic=False)), want, rtol=2**-8, atol=2**-8)


def test_a_number_of_decimals_is_rounded_to_before_it_is_stored() -> None:
    """Ten times -1.3496 is a tie in 16 bits."""
    check(lambda x: (torch.round(x, decimals=1), torch.round(x * 30, decimals=-1)), half(40, 70))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_extremes_of_narrow_integers(dtype: torch.dtype) -> None:
    """A reduction starts from the least int32, which no narrower type has."""
    x = torch.randint(0, 100, (12, 130), dtype=dtype)
    check(lambda x: (x.amax(-1), x.amin(0), x.max()), x.to("spyre"))
    assert torch.equal(x.to("spyre").amax(-1).cpu(), x.amax(-1))


@pytest.mark.parametrize("size", [(512, 127), (128, 4, 126)])
def test_a_staged_operand_holds_what_its_widest_reader_reads(size: tuple[int, ...]) -> None:
    """The first reader leaves out the last column, inside a stick that the others read to its end."""
    check(lambda x: torch.logcumsumexp(x, -1), half(*size))
    check(lambda x: (torch.nn.functional.pad(x[..., :-1].float(), (1, 0)), x.float() * 2, x.float() - 1), half(*size))


@pytest.mark.parametrize("n", [63, 65, 130])
def test_a_flip_of_what_was_repeated(n: int) -> None:
    """Offsets count down from the end, to below zero in the part of the last tile that does not exist."""
    check(lambda x: (x.repeat(2).flip(0) + 1, torch.cat([x, x]).flip(0)), half(n))


def test_sizes_that_vary_are_added_to_positions() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        places = torch.arange(n, device=x.device)
        return places + n, places * n, n - places, torch.add(places, places, alpha=n), x.roll(1, 0)

    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in (13, 14, 65):
        x = half(n, 5)
        for one, two in zip(fn(x), compiled(x), strict=True):
            assert torch.equal(one.cpu(), two.cpu())


def test_eight_dims_of_which_one_is_cut() -> None:
    """One dim more than a tile instruction has; those of one step on a core are no dims of its instruction."""
    x = half(4, 2, 2, 2, 2, 2, 4, 5)
    check(lambda x: torch.cat([x, x], 0).frac(), x)
    with config.patch(sencores=1):
        _C.clear_eager_cache()
        check(lambda x: torch.cat([x, x], 0).frac(), x)
    _C.clear_eager_cache()


def test_no_elements_in_seven_dims() -> None:
    x = torch.randn(2, 3, 1, 3, 4, 31, 0).half().to("spyre")
    assert x.select(3, 0)[0].shape == (3, 1, 4, 31, 0)
    assert torch.equal((x + 1).sum((-1, 0)).cpu(), torch.zeros(3, 1, 3, 4, 31).half())


def test_a_result_of_a_resized_out_tensor_keeps_the_order_of_strides() -> None:
    """PyTorch's `abs` fills an empty tensor with `abs.out`."""
    x = torch.randn(4, 5, 6).half()
    for y in (x.permute(2, 0, 1), x.transpose(0, 1), x):
        on_card = y.to("spyre")
        assert on_card.stride() == y.stride()
        assert torch.abs(on_card).stride() == torch.abs(y).stride()
        out = torch.empty(0, dtype=torch.float16, device="spyre")
        assert torch.add(on_card, 1, out=out).stride() == torch.add(y, 1).stride()
        assert torch.equal(out.cpu(), (on_card + 1).cpu())


@pytest.mark.parametrize("size", [(5, 70), (1, 70)])
def test_a_running_logarithm_is_a_new_tensor_laid_out_row_by_row(size: tuple[int, int]) -> None:
    x = torch.randn(*size).t()
    y = x.to("spyre")
    for result in (torch.logcumsumexp(y, -1), torch.compile(torch.logcumsumexp, dynamic=False)(y, -1)):
        assert result.stride() == torch.logcumsumexp(x, -1).stride()
        assert result.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
        torch.testing.assert_close(result.cpu(), torch.logcumsumexp(x, -1), rtol=2**-18, atol=2**-18)


def test_thirds_of_a_size_that_varies() -> None:
    """A place n // 3 is no polynomial of n, so nothing is proved about it: planned for each size."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = torch.tensor_split(x, 3, -2)
        return first * 2, second.softmax(0), third.sum(0), x[x.shape[0] // 3]

    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in (64, 65, 192):
        x = half(n, 4)
        for one, two in zip(fn(x), compiled(x), strict=True):
            assert torch.equal(one.cpu(), two.cpu())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.floor_divide(x, 0.75),
        lambda x: torch.div(x, -3.0, rounding_mode="floor"),
        lambda x: torch.copysign(x, -1.0),
    ],
)
def test_a_number_as_second_operand_keeps_the_order_of_dims(fn: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(4, 8, 3).half().transpose(0, -1)
    assert fn(x.to("spyre")).stride() == fn(x).stride()


def test_noise_that_is_not_used_is_not_read() -> None:
    x = half(3, 70)
    with sanitizer.sanitize():
        got = functional.rrelu(x, training=False)
    expected = functional.rrelu(x.cpu().float(), training=False)
    torch.testing.assert_close(got.cpu().float(), expected, rtol=2**-9, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("write", [lambda v, x: v.add_(x), lambda v, x: v.copy_(x * 2)])
def test_a_part_of_varying_size_leaves_the_rest_alone(write: Callable[..., Any], compiled: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(write, dynamic=True) if compiled else write
    for n in (4, 5, 6, 3, 7):
        for start in (6, 0):
            whole, x = torch.zeros(40).half(), torch.ones(n).half()
            on_card = whole.to("spyre")
            run(on_card[start : start + n], x.to("spyre"))
            write(whole[start : start + n], x)
            assert torch.equal(on_card.cpu(), whole)


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_rest_of_a_tensor_behind_rows_whose_number_varies(dynamic: bool | None) -> None:
    """50 - n is -1 times n - 50, and neither is the size of a dim."""
    torch._dynamo.reset()
    ways: list[Callable[..., Any]] = [
        lambda b, x: torch.cat([x, b[len(x) :]]),
        lambda b, x: torch.cat([b[len(x) :] * 2, x]),
        lambda b, x: b[len(x) :].flatten() + 1,
        lambda b, x: b[len(x) :].sum(0),
        lambda b, x: b.copy_(torch.cat([x, b[len(x) :]])),
    ]
    compiled = [torch.compile(way, dynamic=dynamic, fullgraph=True) for way in ways]
    for n in (5, 6, 17):
        for way, run in zip(ways, compiled, strict=True):
            whole, part = torch.randint(-9, 9, (50, 3)).half(), torch.randint(-9, 9, (n, 3)).half()
            on_card, x = whole.to("spyre"), part.to("spyre")
            if dynamic is None:
                torch._dynamo.mark_dynamic(x, 0)
            assert torch.equal(run(on_card, x).cpu(), way(whole, part))
            assert torch.equal(on_card.cpu(), whole)


@pytest.mark.parametrize(
    "whole",
    [
        lambda x, y: torch.cat([x, y]),
        lambda x, y: functional.pad(x, (1, 2)),
        lambda x, y: x.slice_scatter(y, 0, 1, 4),
        lambda x, y: x.slice_scatter(y.repeat(2), 0, 0, 6),
        lambda x, y: torch.select_scatter(x, y[0], 0, 2),
        lambda x, y: torch.cat([y]),
    ],
    ids=["cat", "pad", "slice", "all", "select", "one"],
)
def test_what_is_put_together_and_then_written(whole: Callable[..., Any]) -> None:
    """Inductor makes the second write one in place: its buffer took the place of the one that the parts go to."""

    def written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = whole(x, y)
        z[z > 1] = 0
        z[:2] += 1
        z[torch.arange(2, device=z.device)] = 5
        return z, x + 0, y + 0

    x = torch.tensor([-2.0, 0.5, 2.0, 0.5, -0.5, 3.0]).half()
    y = torch.tensor([1.0, 2.0, 3.0]).half()
    for one, two in zip(check(written, x.to("spyre"), y.to("spyre")), written(x, y), strict=True):
        assert torch.equal(one.cpu(), two)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_rows_that_two_cores_write(start: int) -> None:
    """Two rows on each core, and a second write one row further, which the next core does not see in its scratchpad."""

    def written(x: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z[start:] += 1
        return (z * 2).clamp(-1, 1)

    x = torch.randint(-9, 9, (64, 3)).half() / 8
    (found,) = check(written, x.to("spyre"))
    assert torch.equal(found.cpu(), written(x))


@pytest.mark.parametrize("cores", [5, 7])
def test_strips_end_with_the_slice_of_a_core(cores: int) -> None:
    """Rows are gathered in strips; the last one of a slice that strips do not divide went on into what lies behind."""

    def written(x: torch.Tensor) -> torch.Tensor:
        z = x * 2
        y = z.roll(1, 0)
        y[1:] += z[:-1]
        return y

    x = (torch.arange(4096)[:, None] % 61 + 64 * (torch.arange(512) // 64)).half()
    with config.patch(sencores=cores):
        found = torch.compile(written, dynamic=False, fullgraph=True)(x.to("spyre"))
    wanted = written(x.float())
    assert ((found.cpu().float() - wanted).abs() <= wanted.abs() * 2**-9).all()


def test_tile_loops_that_cut_within_sticks() -> None:
    x = torch.randn(1500, 333)
    with config.patch(sencores=2):
        found = torch.compile(lambda x: x.repeat(2, 1)[7:] + 1, dynamic=False, fullgraph=True)(x.to("spyre"))
    assert torch.equal(found.cpu(), x.repeat(2, 1)[7:] + 1)
