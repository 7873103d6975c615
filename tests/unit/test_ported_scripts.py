# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_ported_scripts.py

What scripts written for another device do around their modules works here too, or fails with a named reason.
"""

from __future__ import annotations

import copy
import io
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.ops import eager, fallbacks


def test_a_traced_function_is_saved_and_loaded() -> None:
    x = torch.rand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(lambda x: x.tanh() + 1, x.to("spyre"))
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file)(x.to("spyre")).cpu(), x.tanh() + 1)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weight_norm_stays_on_the_card(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    host = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(70, 5), dim=dim)
    card = copy.deepcopy(host).to("spyre", dtype)
    x = torch.randn(3, 70)
    (host(x) ** 2).sum().backward()
    with fallbacks.disabled():
        (card(x.to("spyre", dtype)).float() ** 2).sum().backward()
    error = 1e-4 if dtype == torch.float32 else 2e-2
    for ours, theirs in zip(card.parameters(), host.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad.cpu().float(), theirs.grad, atol=error * scale, rtol=error)


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]], device="spyre"), x, (3,)),
    "sparse moved": lambda x: torch.eye(3).to_sparse().to("spyre"),
    "sparse csr moved": lambda x: torch.eye(3).to_sparse_csr().to("spyre") @ x,
    "sparse on the host": lambda x: torch.sparse.mm(torch.eye(3).to_sparse(), x.reshape(3, 1)),
    "quantized": lambda x: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8).to("spyre"),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors_that_the_card_has_not(kind: str) -> None:
    with pytest.raises(UnsupportedOp) as refused, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        KINDS[kind](torch.ones(3, device="spyre"))
    assert kind.split()[0] in str(refused.value) and len(str(refused.value)) < 300


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("compiled", [False, True])
def test_deterministic_scatters_stay_on_the_card(deterministic: None, compiled: bool) -> None:
    def scatters(x: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        added = x.index_add(0, places, rows)
        put = x.index_put((places,), rows, accumulate=True)
        written = x.clone()
        written[places[:2], 3] = rows[:2, 0]
        written[:, places] += 1
        column = places.unsqueeze(1).expand(5, 37)
        some = x.scatter(1, column.T[:4, :3].contiguous(), rows)
        return [added, put, written, some, x.scatter_add(0, column, rows), x.scatter(0, places[:, None], 7)]

    x, places, rows = torch.rand(4, 37), torch.tensor([3, 0, 3, 1, 3]), torch.rand(5, 37)
    torch._dynamo.reset()
    with fallbacks.disabled():
        run = torch.compile(scatters, fullgraph=True) if compiled else scatters
        results = run(x.to("spyre"), places.to("spyre"), rows.to("spyre"))
    assert torch.are_deterministic_algorithms_enabled()
    for ours, theirs in zip(results, scatters(x, places, rows), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rank": torch.linalg.matrix_rank,
    "rank of a symmetric": lambda x: torch.linalg.matrix_rank(x @ x.T, hermitian=True),
    "rank above": lambda x: torch.linalg.matrix_rank(x, atol=0.5, rtol=0.1),
    "rank above a tensor": lambda x: torch.linalg.matrix_rank(x, torch.full((), 0.5, device=x.device)),
    "ranks": lambda x: torch.linalg.matrix_rank(torch.stack([x, 0 * x])),
    "pinverse": torch.pinverse,
    "pinv": lambda x: torch.linalg.pinv(x @ x.T, 1e-3),
    "pinv within bounds": lambda x: torch.linalg.pinv(x, atol=1.0),
    "kaiser": lambda x: torch.kaiser_window(9, device=x.device),
    "kaiser symmetric": lambda x: torch.kaiser_window(8, False, 3.0, device=x.device),
    "kaiser of one": lambda x: torch.kaiser_window(1, device=x.device),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_with_steps_in_float64(name: str) -> None:
    x = torch.tensor([[2.0, 1.0, 0.5], [4.0, 2.0, 1.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(FORMULAS[name](x.to("spyre")).cpu(), FORMULAS[name](x), atol=1e-4, rtol=1e-4)


def test_an_interrupt_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, through = eager._planned, []

    def interrupted(*args: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        plan = planned(*args)
        through.append(args[0])
        return plan

    x = torch.ones(3, 41, device="spyre")
    monkeypatch.setattr(eager, "_planned", interrupted)
    monkeypatch.setattr(eager.lowered_calls, "load", lambda entry: None)
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            torch.special.log1p(x)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert through == [torch.ops.aten.log1p.default] and eager._compiling == []
    monkeypatch.undo()
    torch.testing.assert_close(torch.special.log1p(x).cpu(), torch.ones(3, 41).log1p())


def test_tensors_sent_to_another_process_are_copies() -> None:
    layer = torch.nn.Linear(3, 2).to("spyre")
    for value in (torch.arange(6.0, device="spyre").view(2, 3).T, layer.weight, layer):
        received = pickle.loads(bytes(ForkingPickler.dumps(value)))
        assert type(received) is type(value)
        ours, theirs = (list(v.parameters()) if isinstance(v, torch.nn.Module) else [v] for v in (received, value))
        for a, b in zip(ours, theirs, strict=True):
            assert a.device == b.device and a.stride() == b.stride() and a.requires_grad == b.requires_grad
            assert torch.equal(a.cpu(), b.cpu()) and a.data_ptr() != b.data_ptr()
    with pytest.raises(RuntimeError, match="detach"):
        ForkingPickler.dumps(layer.weight * 2)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_values_put_where_a_mask_says(shape: tuple[int, ...], accumulate: bool, compiled: bool) -> None:
    """`x[mask] = values`: one row for all places, or a row for each."""
    torch.manual_seed(0)
    x, values = torch.rand(6, 5), torch.rand(3, *shape) if shape[:1] != (1,) else torch.rand(shape)
    mask = torch.tensor([True, False, True, False, False, True])
    x, mask = (x, mask) if shape != () else (x, x >= x.flatten().topk(3).values[-1])
    torch._dynamo.reset()  # all share the frame of index_put, which is compiled a few times only
    run = torch.compile(torch.index_put, fullgraph=True, dynamic=False) if compiled else torch.index_put
    with fallbacks.disabled():
        result = run(x.to("spyre"), (mask.to("spyre"),), values.to("spyre"), accumulate=accumulate)
    torch.testing.assert_close(result.cpu(), x.index_put((mask,), values, accumulate=accumulate))


def test_too_few_values_for_a_mask() -> None:
    mask = torch.tensor([True, True, True, False], device="spyre")
    for count in (2, 4):
        x = torch.zeros(4, device="spyre")
        with pytest.raises(InvalidArgument, match="shape mismatch"):
            x[mask] = torch.ones(count, device="spyre")
            torch.spyre.synchronize()
        torch.spyre.reset()


QUANTIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.07, 3, -8, 7),
    "parameters": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.full((1,), 0.07, device=x.device), torch.full((1,), 3, dtype=torch.int32, device=x.device), -8, 7
    ),
    "channel": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.tensor([0.1, 0.05, 0.2]).to(x.device), torch.tensor([0, 1, -2]).int().to(x.device), 0, -8, 7
    ),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_simulated_quantization_stays_on_the_card(name: str) -> None:
    torch.manual_seed(0)
    host = torch.randn(3, 70).requires_grad_()
    card = host.detach().to("spyre").requires_grad_()
    with fallbacks.disabled():
        ours = QUANTIZERS[name](card)
        ours.pow(2).sum().backward()
    theirs = QUANTIZERS[name](host)
    theirs.pow(2).sum().backward()
    torch.testing.assert_close(ours.cpu(), theirs)
    assert card.grad is not None and host.grad is not None
    torch.testing.assert_close(card.grad.cpu(), host.grad)
