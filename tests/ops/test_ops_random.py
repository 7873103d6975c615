# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_random.py
"""Random numbers made on the card: words against a model of Philox, distributions, seeds, dropout and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.utils.checkpoint import checkpoint

from torch_spyre import _C, knobs
from torch_spyre.ops import fallbacks

N = 20_000
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def on_the_card() -> Iterator[None]:
    """Whatever a test draws must not come from the host."""
    fallbacks.reset()
    with fallbacks.disabled():
        yield
    assert not fallbacks.report()


def philox_words(number: NDArray[np.uint64], low: int, high: int) -> NDArray[np.uint64]:
    """Word e % 4 of block e / 4 of Philox4x32-10 (Salmon et al., 2011)."""
    mask = np.uint64(0xFFFFFFFF)
    zero = np.zeros_like(number)
    c = [number // np.uint64(4), zero, zero, zero]
    k0, k1 = low & 0xFFFFFFFF, high & 0xFFFFFFFF
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            b & mask,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            a & mask,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.choose((number % np.uint64(4)).astype(np.int64), c)


def next_key() -> tuple[int, int]:
    """The key that the next draw will get."""
    state = torch.spyre.get_rng_state()
    key = _C.draw_key()
    torch.spyre.set_rng_state(state)
    return key


@pytest.mark.parametrize("cores", [1, 5, 32])
@pytest.mark.parametrize("size", [(7,), (37, 130), (3, 5, 70)])
def test_words_follow_from_the_number_of_the_element(size: tuple[int, ...], cores: int) -> None:
    torch.spyre.manual_seed(17)
    key = next_key()
    with knobs.patch(sencores=cores):
        _C.clear_eager_cache()
        got = torch.empty(size, device="spyre").uniform_().cpu()
    _C.clear_eager_cache()
    number = np.arange(math.prod(size), dtype=np.uint64).reshape(size)
    want = (philox_words(number, *key) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    assert np.array_equal(got.numpy(), want)


def test_a_strided_tensor_gets_the_numbers_of_a_dense_one() -> None:
    dense, strided = torch.empty(6, 70, device="spyre"), torch.empty(70, 6, device="spyre").t()
    for x in (dense, strided):
        torch.spyre.manual_seed(3)
        x.normal_()
    assert torch.equal(dense.cpu(), strided.cpu())


def moments(x: torch.Tensor, mean: float, deviation: float) -> None:
    values = x.detach().cpu().double()
    n = values.numel()
    assert abs(values.mean() - mean) < 5 * deviation / math.sqrt(n) + 2.0**-8 * abs(mean)
    assert abs(values.std() - deviation) < 0.05 * deviation


DRAWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(x.shape, device=x.device, dtype=x.dtype), 0, 1),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-2, 4), 1, 3**0.5),
    "normal_": (lambda x: torch.empty_like(x).normal_(3, 2), 3, 2),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2), 0.5, 0.5),
    "geometric_": (lambda x: torch.empty_like(x).geometric_(0.25), 4, 12**0.5),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(0, 0.5).log(), 0, 0.5),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.75), 0.75, 0.1875**0.5),
    "randint": (lambda x: torch.randint(0, 11, x.shape, device=x.device), 5, 10**0.5),
    "dropout": (lambda x: F.dropout(x, 0.5), 1, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_compiled_draws_have_the_same_distribution(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    torch._dynamo.reset()
    compiled = torch.compile(draw, backend="spyre")
    x = torch.ones(N, device="spyre")
    torch.spyre.manual_seed(1)
    first, second = compiled(x), compiled(x)
    moments(first, mean, deviation)
    assert not torch.equal(first.cpu(), second.cpu())
    torch.spyre.manual_seed(1)
    assert torch.equal(compiled(x).cpu(), first.cpu())


@pytest.mark.parametrize("name", ["geometric_", "log_normal_"])
def test_eager_draws_that_no_other_test_has(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    moments(draw(torch.ones(N, device="spyre")), mean, deviation)


def test_cauchy_has_its_quartiles() -> None:
    values = torch.empty(N, device="spyre").cauchy_(2, 3).cpu()
    quartiles = values.quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert torch.allclose(quartiles, torch.tensor([-1.0, 2.0, 5.0]), atol=0.3)


@pytest.mark.parametrize("backend", ["spyre", "inductor"])
def test_draws_of_one_graph_differ(backend: str) -> None:
    torch._dynamo.reset()

    def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x), torch.rand_like(x) + x

    x = torch.zeros(256, device="spyre")
    a, b, c = (r.cpu() for r in torch.compile(draws, backend=backend)(x))
    assert not torch.equal(a, b) and not torch.equal(b, c) and not torch.equal(a, c)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dropout_and_its_gradient_share_the_mask(compiled: bool, dtype: torch.dtype) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(x @ w), 0.25) * 2

    torch._dynamo.reset()
    run = torch.compile(layer, backend="spyre") if compiled else layer
    x = torch.ones(64, 64, device="spyre", dtype=dtype, requires_grad=True)
    w = torch.full((64, 128), 1 / 64, device="spyre", dtype=dtype)
    y = run(x, w)
    kept = y.detach().cpu() != 0
    assert abs(kept.double().mean() - 0.75) < 0.03
    y.sum().backward()
    slope = torch.autograd.functional.jacobian(F.gelu, torch.ones(1, dtype=torch.float64)).item()
    want = kept.double().sum(1, keepdim=True).expand(64, 64) * slope * 2 / 0.75 / 64
    assert x.grad is not None
    assert torch.allclose(x.grad.cpu().double(), want, rtol=2e-2 if dtype == torch.float16 else 1e-4)


def test_dropout_in_attention_keeps_the_mean() -> None:
    q, k, v = (torch.ones(1, 4, 128, 64, device="spyre") for _ in range(3))
    torch._dynamo.reset()
    attend = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), backend="spyre")
    assert abs(attend(q, k, v).cpu().mean() - 1) < 0.05


def test_dynamic_sizes_draw_anew() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="spyre", dynamic=True)
    for n in (1000, 1500, 2000):
        kept = (compiled(torch.ones(n, device="spyre")).cpu() != 0).double()
        assert kept.shape == (n,) and abs(kept.mean() - 0.5) < 0.1


@pytest.mark.parametrize("compiled", [False, True])
def test_multinomial(compiled: bool) -> None:
    torch._dynamo.reset()
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0], device="spyre").expand(2000, 4)

    def draw(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.multinomial(w, 1), torch.multinomial(w, 3), torch.multinomial(w, 4, replacement=True)

    one, all_three, replaced = (r.cpu() for r in (torch.compile(draw, backend="spyre") if compiled else draw)(weights))
    want = torch.tensor([1.0, 0.0, 3.0, 4.0]) / 8
    for drawn in (one, replaced, all_three[:, :1]):
        share = drawn.flatten().bincount(minlength=4) / drawn.numel()
        assert share[1] == 0 and torch.allclose(share, want, atol=0.06)
    assert (all_three.sort(1).values == torch.tensor([0, 2, 3])).all()
    after_three = all_three[all_three[:, 0] == 3][:, 1]  # the rest is drawn by the weights that are left
    assert abs((after_three == 2).double().mean() - 0.75) < 0.06


def test_state_and_offset_of_a_generator() -> None:
    generator = torch.Generator("spyre").manual_seed(4)
    first = torch.rand(9, device="spyre", generator=generator).cpu()
    state = generator.get_state()
    second = torch.rand(9, device="spyre", generator=generator).cpu()
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(9, device="spyre", generator=generator.set_state(state)).cpu(), second)
    with pytest.raises(RuntimeError, match="16 bytes"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


@pytest.mark.parametrize(
    "call",
    [lambda x: x.uniform_(2, 1), lambda x: x.normal_(0, -1), lambda x: x.bernoulli_(2), lambda x: x.random_(3, 3)],
)
def test_wrong_parameters_raise(call: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="expects"):
        call(torch.empty(4, device="spyre"))


def dropped_twice(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(torch.sin(x) + 2, 0.5) * torch.cos(x) + 3, 0.3) * torch.sin(x)


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = checkpoint(dropped_twice, x, use_reentrant=False)
    return x


@pytest.mark.parametrize("run", [checkpointed, torch.compile(checkpointed, fullgraph=True)], ids=["eager", "compiled"])
def test_a_checkpointed_block_draws_the_same_again(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Without checkpointing the gradient comes from masks that were kept: it must be the same, whatever is drawn."""
    kept: list[torch.Size] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.shape)
        return x

    gradients = []
    for fn in (lambda x: dropped_twice(dropped_twice(x)), run):
        torch.manual_seed(5)
        x = torch.linspace(0.1, 1.4, 1000).to("spyre").requires_grad_()
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            y = fn(x)
        y.sum().backward()
        assert x.grad is not None
        gradients.append((y.detach().cpu(), x.grad.cpu()))
    (y, grad), (again, grad_again) = gradients
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(grad_again, grad)
    assert kept.count(torch.Size([1000])) <= 2, "the inputs of the blocks alone"


@pytest.mark.parametrize("device", ["cpu", "spyre"])
def test_saving_the_state_inside_compiled_code(device: str) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        state = torch.spyre.get_rng_state()
        result = x * 2
        torch.spyre.set_rng_state(state)
        return result

    x = torch.arange(6.0)
    assert torch.equal(torch.compile(doubled, dynamic=False)(x.to(device)).cpu(), x * 2)


@pytest.mark.parametrize("backend", ["eager", "spyre"])
@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.randn_like, lambda x, **o: torch.randint_like(x, 9, **o),
     lambda x, **o: torch.randint_like(x, 2, 9, **o)],
)  # fmt: skip
def test_numbers_like_a_tensor_have_its_strides(backend: str, draw: Callable[..., torch.Tensor]) -> None:
    def views(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[:, :, ::2, 1].permute(2, 0, 1), x.to(memory_format=torch.channels_last), x[:, :1].expand(2, 3, 4, 5)]

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        formats = [{}, {"memory_format": torch.contiguous_format}, {"memory_format": torch.preserve_format}]
        return [draw(view, **options) for view in views(x) for options in formats]

    x = torch.zeros(2, 3, 4, 5)
    got = torch.compile(run, backend=backend, dynamic=False)(x.to("spyre"))
    assert [y.stride() for y in got] == [y.stride() for y in run(x)]
