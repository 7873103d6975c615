# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_compile.py
"""torch.compile on the card equals the float64 oracle within the format's rounding: odd sizes too, 1-D to 4-D."""

import pytest
import torch
from oracle import Bounded, assert_close_dl16, dl16, sum_error, to64
from torch._inductor import config as inductor_config
from torch._inductor import metrics

import torch_spyre.explain  # noqa: F401
from torch_spyre.predict import timing_only


def half(*size: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*size) * scale).to(torch.float16)


def compiled(fn, *args: torch.Tensor, **options) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False, **options)(*(a.to("spyre") for a in args)).cpu()


MATRIX_SIZES = [(64, 64, 64), (50, 200, 130), (1, 64, 300), (3, 5, 7), (128, 576, 192), (257, 96, 64)]


@pytest.mark.parametrize(("m", "k", "n"), MATRIX_SIZES)
def test_add_then_matmul(m: int, k: int, n: int) -> None:
    a, b, w = half(m, k), half(m, k), half(k, n, scale=k**-0.5)
    got = compiled(lambda a, b, w: (a + b) @ w, a, b, w)
    ((Bounded.of(a) + Bounded.of(b)).store() @ Bounded.of(w)).store().check(got)


@pytest.mark.parametrize("size", [(64,), (1000,), (5, 64), (33, 100), (4, 7, 130), (2, 3, 5, 65), (512, 1024)])
def test_softmax(size: tuple[int, ...]) -> None:
    x = half(*size, scale=3.0)
    got = compiled(lambda x: torch.softmax(x, -1), x)
    value = to64(dl16(x))
    exact = torch.softmax(torch.from_numpy(value), -1).numpy()
    # fp32 inside, one rounding at the end: exp and the sum are right to a few fp32 ulps.
    assert_close_dl16(got, exact, extra=exact * (size[-1] + 16) * 2.0**-23)


@pytest.mark.parametrize(
    ("rows", "inner", "hidden", "outer"), [(32, 64, 128, 64), (17, 100, 70, 33), (1, 576, 1536, 576)]
)
def test_mlp(rows: int, inner: int, hidden: int, outer: int) -> None:
    x, w1, b1 = half(rows, inner), half(hidden, inner, scale=inner**-0.5), half(hidden)
    w2, b2 = half(outer, hidden, scale=hidden**-0.5), half(outer)

    def mlp(x, w1, b1, w2, b2):
        linear = torch.nn.functional.linear
        return linear(torch.relu(linear(x, w1, b1)), w2, b2)

    got = compiled(mlp, x, w1, b1, w2, b2)
    b = Bounded.of
    h = ((b(x) @ b(w1.t())).store() + b(b1)).store().relu()
    ((h @ b(w2.t())).store() + b(b2)).store().check(got)


@pytest.mark.parametrize("size", [(64,), (130,), (5, 64), (33, 100), (4, 7, 130), (2, 3, 5, 65)])
def test_pointwise_chain(size: tuple[int, ...]) -> None:
    a, b = half(*size), half(*size) + 4

    def chain(a, b):
        return torch.where(a > 0, a * b - a, torch.exp(a) / b)

    x, y = Bounded.of(a), Bounded.of(b)
    got = compiled(chain, a, b)
    yes, no = ((x * y).store() - x).store(), (x.exp().store() / y).store()
    positive = x.value > 0
    import numpy as np

    Bounded(np.where(positive, yes.value, no.value), np.where(positive, yes.error, no.error)).check(got)


@pytest.mark.parametrize("size", [(64,), (33, 100), (4, 7, 130), (2, 3, 5, 65)])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(size: tuple[int, ...], dim: int, keepdim: bool) -> None:
    x = half(*size)
    got = compiled(lambda x: x.sum(dim, keepdim=keepdim), x)
    assert_close_dl16(got, dl16(x).sum(axis=dim, keepdims=keepdim), extra=sum_error(dl16(x), dim, keepdim))
    largest = compiled(lambda x: x.amax(dim, keepdim=keepdim), x)
    assert (to64(largest) == dl16(x).max(axis=dim, keepdims=keepdim)).all()


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_batched_matmul(batch: tuple[int, ...]) -> None:
    a, b = half(*batch, 30, 100), half(*batch, 100, 65, scale=0.1)
    got = compiled(lambda a, b: a @ b, a, b)
    (Bounded.of(a) @ Bounded.of(b)).store().check(got)


def test_the_worked_example_of_the_talk() -> None:
    t0, t1 = half(5, 10, 200), half(50, 200)
    got = compiled(lambda a, b: a.flatten(0, 1) + b, t0, t1)
    assert_close_dl16(got, dl16(t0).reshape(50, 200) + dl16(t1))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[3:17],
        lambda x: x[:, 64:100],
        lambda x: x[:, 3:50],
        lambda x: x.reshape(-1),
        lambda x: x.reshape(13, 2, 200).transpose(0, 1),
        lambda x: x[::2, 1::3],
        lambda x: x.unsqueeze(1).expand(26, 3, 200),
    ],
)
def test_views_inside_the_graph(view) -> None:
    x = half(26, 200)
    got = compiled(lambda x: view(x) + 1, x)
    assert_close_dl16(got, to64(view(torch.from_numpy(dl16(x)))) + 1)


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[3:17], lambda x: x[:, 3:50], lambda x: x[5]])
def test_views_as_inputs_honour_offset_and_stride(view) -> None:
    x = half(26, 200)
    on_card = view(x.to("spyre"))
    torch._dynamo.reset()
    got = torch.compile(lambda v: v * 2, dynamic=False)(on_card).cpu()
    assert_close_dl16(got, 2 * to64(view(torch.from_numpy(dl16(x)))))


def test_input_mutation() -> None:
    x, y = half(33, 100), half(33, 100)
    on_card = x.to("spyre")

    def step(x, y):
        x.add_(y)
        return x * 2

    torch._dynamo.reset()
    got = torch.compile(step, dynamic=False)(on_card, y.to("spyre")).cpu()
    after = (Bounded.of(x) + Bounded.of(y)).store()
    after.check(on_card.cpu())
    (after * 2.0).store().check(got)


def test_both_backend_names_give_the_same_bits() -> None:
    a, b, w = half(50, 100), half(50, 100), half(100, 70)

    def fn(a, b, w):
        return torch.softmax((a + b) @ w, -1)

    assert torch.equal(compiled(fn, a, b, w), compiled(fn, a, b, w, backend="spyre"))


def test_one_graph_serves_every_layout() -> None:
    """Dynamo compiles once for inputs that differ only in storage layout; results agree."""
    from torch._dynamo.testing import CompileCounterWithBackend

    from torch_spyre._C import SpyreTensorLayout, spyre_empty_with_layout

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    fn = torch.compile(lambda a, b: a @ b, backend=counter, dynamic=False)
    a, b = half(40, 70), half(70, 90)
    first = fn(a.to("spyre"), b.to("spyre")).cpu()
    swapped = spyre_empty_with_layout(
        [70, 90], [90, 1], torch.float16, SpyreTensorLayout([70, 90], [90, 1], torch.float16, [1, 0])
    )
    swapped.copy_(b)
    second = fn(a.to("spyre"), swapped).cpu()
    assert torch.equal(first, second)
    assert counter.frame_count == 1


def test_inductor_counts_the_kernels() -> None:
    metrics.reset()
    compiled(lambda x: torch.softmax(x.cos() + 1, -1), half(3, 70))
    assert metrics.generated_kernel_count == 1


def test_combo_kernels_change_nothing() -> None:
    x = half(2, 4, 8).to("spyre")
    both = lambda x: (*torch.var_mean(x, -1), *torch.var_mean(x, [0, 2]))  # noqa: E731
    with inductor_config.patch(combo_kernels=True):
        got = torch.compile(both, dynamic=False)(x)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(got, both(x), strict=True))


def test_draws_of_a_graph_come_in_the_order_of_the_program() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        dropped = torch.nn.functional.dropout(x, 0.5)
        left, right = torch.randn(4, 3, device=x.device), torch.randn(3, 4, device=x.device)
        return left @ right + dropped

    x = torch.ones(4, 4, device="spyre")
    results = []
    for call in (draws, torch.compile(draws, dynamic=False)):
        torch.manual_seed(4)
        results.append(call(x).cpu())
    assert torch.equal(*results)


def test_views_of_one_storage_as_inputs() -> None:
    """AOTAutograd makes one input of them: a tensor on all elements of the storage, not on all of its sticks."""

    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    x = torch.arange(5, device="spyre")
    assert torch.equal(torch.compile(write, dynamic=False)(x[1:3], x[2]).cpu(), torch.tensor(6))
    assert torch.empty(0, dtype=torch.int64, device="spyre").set_(x.untyped_storage()).tolist() == [0, 2, 3, 3, 4]


def test_draws_that_name_no_generator() -> None:
    @torch.compile(dynamic=False)
    def draw(x: torch.Tensor, generator: None) -> tuple[torch.Tensor, ...]:
        place = {"generator": generator, "device": x.device}
        return torch.rand([70], **place), torch.randn([70], **place), torch.randint(9, [70], **place)

    unit, normal, whole = (x.cpu() for x in draw(torch.zeros(1, device="spyre"), None))
    assert 0 <= unit.min() and unit.max() < 1 and normal.std() > 0.5 and set(whole.tolist()) <= set(range(9))


def test_products_of_two_dtypes_are_refused_by_name() -> None:
    a, b = torch.ones(2, 2, device="spyre"), torch.ones(2, 2, dtype=torch.int64, device="spyre")
    with pytest.raises(RuntimeError, match=r"expected .* and .* to have the same dtype, but got: .* != .*"):
        torch.compile(torch.mm, dynamic=False)(a, b)


def test_a_value_converted_to_two_dtypes() -> None:
    """Both conversions have one name and one operand; only the second saturates."""
    x = torch.tensor([300.7, -3.2, 5.5, -200.0, 70000.0])

    def call(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.int32) * 2).sum() * 0 + x.to(torch.int8).float().sum()

    assert compiled(call, x) == 127 - 3 + 5 - 128 + 127


def test_a_running_sum_of_bytes_longer_than_a_scratchpad() -> None:
    """Its check adds the same bytes as floats, one after the other without a copy of them in the scratchpad."""
    with timing_only():
        torch._dynamo.reset()
        torch.compile(lambda x: x.cumsum(0))(torch.empty(600_000, dtype=torch.int8, device="spyre"))
        torch.spyre.synchronize()
