# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_modules.py

Modules on the card: weights lie as matmul reads them, parameters stay parameters, tied ones stay tied; device_layout=.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_spyre
from torch_spyre._C import SpyreTensorLayout
from torch_spyre.errors import InvalidArgument

FP16 = torch.float16


class Tied(nn.Module):
    """An embedding whose table is also the weight of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(70, 64)
        self.head = nn.Linear(64, 70, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("position", torch.arange(4))


def in_stick(x: torch.Tensor, dim: int) -> bool:
    """Is this dim of a 2-D tensor inside the sticks?"""
    return x.device_tensor_layout().stride_map[-1] == x.stride(dim)


def test_linear_weights_lie_for_matmul() -> None:
    module = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).to("spyre", FP16)
    for linear in (module[0], module[2]):
        size = list(linear.weight.shape)
        assert linear.weight.device_tensor_layout() == SpyreTensorLayout(size, [size[1], 1], FP16, [1, 0])
        assert in_stick(linear.weight, 0)
        assert linear.bias.device_tensor_layout() == SpyreTensorLayout([size[0]], FP16)


def test_compiled_linear_moves_no_weight() -> None:
    module = nn.Linear(128, 256, dtype=FP16)
    x = torch.randn(32, 128, dtype=FP16)
    reference = module(x).float()
    module.to("spyre")
    torch_spyre.explain.start()
    earlier = len(torch_spyre.explain.last_kernels())
    with torch.no_grad():
        result = torch.compile(module)(x.to("spyre"))
    ops = [op.op for record in torch_spyre.explain.last_kernels()[earlier:] for op in record.plan.kernel.ops]
    assert "batchmatmul" in ops and "ReStickifyOpHBM" not in ops, ops
    torch.testing.assert_close(result.cpu().float(), reference, rtol=2**-7, atol=2**-8)


def test_other_matmul_weights() -> None:
    attention = nn.MultiheadAttention(64, 4).to("spyre")
    assert in_stick(attention.in_proj_weight, 0) and in_stick(attention.out_proj.weight, 0)
    lstm = nn.LSTM(64, 96).to("spyre")
    assert in_stick(lstm.weight_ih_l0, 0) and in_stick(lstm.weight_hh_l0, 0)
    convolution = nn.Conv1d(3, 5, 2).to("spyre")
    order = [1, 2, 0]  # one matrix for each place of the kernel, output channels in the sticks
    assert convolution.weight.device_tensor_layout() == SpyreTensorLayout([5, 3, 2], [6, 2, 1], torch.float32, order)
    assert in_stick(nn.Conv2d(3, 70, 3).to("spyre").weight, 0)
    assert in_stick(nn.ConvTranspose2d(3, 70, 3).to("spyre").weight, 1)
    assert in_stick(nn.Embedding(70, 64).to("spyre").weight, 1)


class Experts(nn.Module):
    """Stacked weights as transformers keeps them, with what its decorator says of them."""

    has_gate = True

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        self.up_proj = nn.Parameter(torch.randn(4, *((64, 128) if is_transposed else (128, 64))))
        self.bias = nn.Parameter(torch.randn(4, 128))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts_lie_one_after_the_other(is_transposed: bool) -> None:
    module = Experts(is_transposed).to("spyre", FP16)
    layout = module.up_proj.device_tensor_layout()
    assert list(layout.device_size) == [4, 2, 64, 64]  # experts, sticks of output features, input features, a stick
    assert in_stick(module.up_proj, 2 if is_transposed else 1)
    assert module.bias.device_tensor_layout() == SpyreTensorLayout([4, 128], FP16)


class ParallelExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.input_size, self.output_size = 4, 64, 128
        self.weight = nn.Parameter(torch.randn(4, 128, 64))


def test_parallel_experts_lie_one_after_the_other() -> None:
    weight = ParallelExperts().to("spyre", FP16).weight
    assert list(weight.device_tensor_layout().device_size) == [4, 2, 64, 64] and in_stick(weight, 1)


def test_parameters_stay_the_same_objects() -> None:
    module = nn.Linear(64, 32)
    weight, bias, values = module.weight, module.bias, module.weight.detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    assert module.to("spyre") is module
    assert module.weight is weight and module.bias is bias and type(weight) is nn.Parameter
    assert weight.device.type == "spyre" and weight.requires_grad and torch.equal(weight.detach().cpu(), values)
    assert optimizer.param_groups[0]["params"][0] is weight
    module.to("cpu")
    assert torch.equal(module.weight, values) and type(module.weight) is nn.Parameter


def test_gradients_and_frozen_parameters_move() -> None:
    module = nn.Linear(8, 8)
    module.bias.requires_grad_(False)
    module(torch.ones(2, 8)).sum().backward()
    gradient = module.weight.grad.clone()
    module.to("spyre")
    assert torch.equal(module.weight.grad.cpu(), gradient) and module.weight.grad.device.type == "spyre"
    assert not module.bias.requires_grad and module.bias.grad is None


def test_a_parameter_in_use_is_replaced() -> None:
    module = nn.Linear(8, 8)
    kept = module(torch.ones(2, 8))  # its graph holds on to the weight
    module.to("spyre")
    assert module.weight.device.type == "spyre" and type(module.weight) is nn.Parameter
    assert kept.device.type == "cpu"


def test_tied_weights_stay_tied() -> None:
    module = Tied().to("spyre", FP16)
    assert module.head.weight is module.embedding.weight
    assert module.head.weight.dtype == FP16 and in_stick(module.head.weight, 0)
    held = Tied()
    graph = held.head(torch.ones(2, 64))
    held.to("spyre")
    assert held.head.weight is held.embedding.weight and graph is not None


def test_dtype_argument() -> None:
    module = Tied().to(device="spyre", dtype=torch.bfloat16)
    assert module.head.weight.dtype == torch.bfloat16
    assert module.position.dtype == torch.int64 and module.position.device.type == "spyre", "integers keep their dtype"
    module.to(FP16)
    assert module.head.weight.dtype == FP16 and module.head.weight.device.type == "spyre"
    with pytest.raises(InvalidArgument, match="float64"):
        nn.Linear(3, 4).to("spyre", torch.float64)
    assert nn.Linear(3, 4).to(torch.ones(1, dtype=FP16, device="spyre")).weight.dtype == FP16


def test_already_there_is_untouched() -> None:
    module = nn.Linear(64, 64).to("spyre")
    before = module.weight.untyped_storage().data_ptr()
    module.to("spyre:0")
    assert module.weight.untyped_storage().data_ptr() == before
    assert nn.Linear(3, 4).spyre().weight.device.type == "spyre"
    assert nn.Linear(3, 4).to(torch.float64).weight.dtype == torch.float64, "other targets are PyTorch's own"


def test_to_with_a_layout() -> None:
    host = torch.randn(100, 70).bfloat16().half()
    layout = SpyreTensorLayout([100, 70], [70, 1], FP16, [1, 0])
    for made in (
        host.to(device_layout=layout),
        host.to("spyre", device_layout=layout),
        host.float().to("spyre", FP16, device_layout=layout),
        host.to("spyre").to(device_layout=layout),
        torch.spyre.to_with_layout(host, layout),
    ):
        assert made.device_tensor_layout() == layout and made.dtype == FP16
        assert torch.equal(made.cpu(), host)
        assert made.to(device_layout=layout) is made
        assert made.to(device_layout=layout, copy=True) is not made
    assert host.device_tensor_layout() is None
    with pytest.raises(InvalidArgument, match="does not store"):
        host.float().to(device_layout=layout)
    with pytest.raises(InvalidArgument, match="cpu"):
        host.to("cpu", device_layout=layout)


def test_to_with_a_layout_passes_gradients() -> None:
    x = torch.ones(4, 70, requires_grad=True)
    layout = SpyreTensorLayout([4, 70], [70, 1], torch.float32, [1, 0])
    y = x.to(device_layout=layout)
    y.backward(torch.ones(4, 70, device="spyre"))
    assert torch.equal(x.grad, torch.ones(4, 70))


def test_empty_with_a_layout() -> None:
    layout = SpyreTensorLayout([40, 60], [60, 1], FP16, [1, 0])
    for made in (
        torch.empty((40, 60), device_layout=layout, dtype=FP16),
        torch.empty(40, 60, device_layout=layout, dtype=FP16, device="spyre"),
        torch.empty(size=(40, 60), device_layout=layout, dtype=FP16),
        torch.spyre.empty_with_layout((40, 60), layout, FP16, "spyre:0"),
    ):
        assert made.device_tensor_layout() == layout and made.shape == (40, 60)
    assert torch.empty(2, device_layout=SpyreTensorLayout([2], torch.float32), requires_grad=True).requires_grad


def test_the_patched_functions_still_compile_and_follow_contexts() -> None:
    with torch.device("spyre"):
        assert torch.empty(3).device.type == torch.zeros(3).device.type == "spyre"

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32) + torch.empty(3, device=x.device).fill_(1)

    x = torch.ones(3, dtype=FP16)
    assert torch.compile(f, backend="eager", fullgraph=True)(x).tolist() == [2, 2, 2]


class Counting(torch.nn.Module):
    """Keeps state of its own and moves it in `_apply`, as metrics do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.seen = torch.zeros(3)
        self.history = [torch.ones(2), torch.ones(2, dtype=torch.int32)]

    def _apply(self, fn, *args):  # type: ignore[no-untyped-def]
        super()._apply(fn, *args)
        self.seen, self.history = fn(self.seen), [fn(x) for x in self.history]
        return self


@pytest.mark.parametrize("nested", [False, True])
def test_state_that_a_module_moves_itself(nested: bool) -> None:
    counting = Counting()
    weight = counting.layer.weight
    whole = torch.nn.Sequential(torch.nn.LSTM(3, 3), counting) if nested else counting
    assert whole.to("spyre", torch.float16) is whole
    tensors = [counting.seen, *counting.history, *whole.parameters()]
    assert {t.device.type for t in tensors} == {"spyre"}
    assert counting.seen.dtype == torch.float16 and counting.history[1].dtype == torch.int32
    assert counting.layer.weight is weight, "parameters stay the same objects"
    assert counting.layer.weight.device_tensor_layout().stride_map[-1] == 3, "in the layout of products"
    whole.to("cpu")
    assert {t.device.type for t in [counting.seen, *counting.history, *whole.parameters()]} == {"cpu"}
