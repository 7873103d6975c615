# SPDX-License-Identifier: Apache-2.0
"""The kernels that PyTorch's own tests launch (torch.testing._internal.triton_utils)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.testing._internal.triton_utils as kernels
import triton
from case import Case, Values

N = 100


def blocks(meta: Any) -> tuple[int]:
    return (triton.cdiv(N, meta["BLOCK_SIZE"]),)


def pair() -> Values:
    return [torch.randn(N), torch.randn(N)]


def added(name: str, *more: Any, inputs: Any = pair, formula: Any = torch.add, **constants: Any) -> Case:
    """`kernel(x, y, out, n, …)`."""
    constants = {"BLOCK_SIZE": 16} | constants if "autotuned" not in name else constants

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        getattr(kernels, name)[blocks](x, y, out, N, *more, **constants)
        return out

    return Case(name, inputs, call, formula, gradients=False)


def one(name: str, call: Callable[..., Any], inputs: Any, formula: Any) -> Case:
    return Case(name, inputs, call, formula, gradients=False)


def single() -> Values:
    return [torch.randn(N)]


def out_first(name: str) -> Case:
    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        getattr(kernels, name)[blocks](out, N, BLOCK_SIZE=16)
        return out

    return one(name, call, single, torch.ones_like)


def assembly(name: str) -> Case:
    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        getattr(kernels, name)[blocks](x, out, N, BLOCK_SIZE=16)
        return out

    return one(name, call, single, lambda x: torch.exp2(torch.cos(x)))


def shifted(name: str) -> Case:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        getattr(kernels, name)[(1,)](x, y, out, 16, BLOCK=64)
        return out

    return one(
        name, call, lambda: [torch.randint(0, 2**30, (64,)).int() for _ in range(2)], lambda x, y: (y << 16) | (x >> 16)
    )


def weird_order(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.add_kernel_autotuned_weird_param_order[blocks](x, y, N, out_ptr=out)
    return out


def two_dims(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    size = x.shape[0]
    kernels.add_kernel_2d_autotuned[
        lambda m: (triton.cdiv(size, m["BLOCK_SIZE_X"]), triton.cdiv(size, m["BLOCK_SIZE_Y"]))
    ](x, x, out, size, size)
    return out


def descriptors_1d(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    made = [kernels.create_tensor_descriptor_shim(t, [64]) for t in (x, y, out)]
    kernels.add_kernel_with_tma_1d_new_api[(triton.cdiv(x.numel(), 64),)](*made, BLOCK_SIZE=64)
    return out


def descriptors_2d(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    made = [kernels.create_tensor_descriptor_shim(t, [16, 32]) for t in (x, y, out)]
    kernels.add_kernel_with_tma_2d_new_api[(3, 2)](*made, BLOCK_SIZE_X=16, BLOCK_SIZE_Y=32)
    return out


def device_descriptors(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.add_kernel_on_device_tma_new_api[(3, 3)](x, y, out, *x.shape, None, BLOCK_SIZE=16)
    return out


def old_descriptors(name: str) -> Case:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        getattr(kernels, name)[(3, 2)](x, y, out, 32, 32) if "2d" in name else getattr(kernels, name)[(2,)](
            x, y, out, 64
        )
        return out

    return one(name, call, lambda: [torch.randn(48, 64), torch.randn(48, 64)], torch.add)


def old_on_device(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    workspace = torch.zeros(1024, dtype=torch.int8, device=x.device)
    kernels.add_kernel_on_device_tma_old_api[(3, 3)](x, y, out, *x.shape, workspace, BLOCK_SIZE=16)
    return out


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.mul2_kernel[blocks](x, out, N, BLOCK_SIZE=16)
    return out


def doubled_in_place(x: torch.Tensor) -> torch.Tensor:
    kernels.mul2_inplace_kernel[blocks](x, N, BLOCK_SIZE=16)
    return x


@triton.jit
def keeps_positive(x, out, BLOCK_SIZE: triton.language.constexpr):  # type: ignore[no-untyped-def]
    place = triton.language.arange(0, BLOCK_SIZE)
    triton.language.store(out + place, kernels.zero_negs(triton.language.load(x + place)))


def positive(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    keeps_positive[(1,)](x, out, BLOCK_SIZE=64)
    return out


def indirection(activation: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        kernels.indirection_kernel[blocks](x, out, N, BLOCK_SIZE=16, ACTIVATION=activation)
        return out

    return call


def strided(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(16, 64, device=x.device)
    kernels.double_strided_kernel[(4, 2)](x, out, x.stride(0), out.stride(0), X_BLOCK_SIZE=16, Y_BLOCK_SIZE=8)
    return out


def block_pointers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.add_kernel_with_block_ptr[blocks](x, y, out, N, BLOCK_SIZE=16)
    return out


def block_pointers_2d(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.kernel_with_block_ptr_2d[blocks](x, out, N, BLOCK_SIZE=16)
    return out


def out_of_order(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.add_kernel_out_of_order_fn2[blocks](x, y, N, out, BLOCK_SIZE=16)
    return out


def strange_product(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(64, 64, dtype=torch.float16, device=a.device)
    size = 32
    kernels.strange_config_matmul_kernel[
        lambda m: (triton.cdiv(64, m["BLOCK_SIZE_M"]) * triton.cdiv(64, m["BLOCK_SIZE_N"]),)
    ](a, b, out, rows, size, size)
    return out


def masked(x: torch.Tensor, y: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernels.masked_add_kernel_with_bool_tensor[blocks](x, y, keep, out, N, BLOCK_SIZE=16)
    return out


def first_block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat(((x + y)[:16], (x * y)[16:]))


def square() -> Values:
    return [torch.randn(48, 48), torch.randn(48, 48)]


CASES = [
    added("add_kernel"),
    added("sub_kernel", formula=torch.sub),
    Case(
        "add_kernel_with_optional_param",
        pair,
        lambda x, y: added("add_kernel_with_optional_param", ARGS_PASSED="two").call(x, y),
        torch.add,
        gradients=False,
    ),
    added("add_kernel_with_none_param_and_equal_to_1_arg", 1, ARGS_PASSED="two"),
    added("add_kernel_autotuned"),
    added("sub_kernel_autotuned", formula=torch.sub),
    one("add_kernel_autotuned_weird_param_order", weird_order, pair, torch.add),
    one("add_kernel_2d_autotuned", two_dims, lambda: [torch.randn(40, 40)], lambda x: x + x.T),
    added("add_kernel_autotuned_with_unsupported_args"),
    added("add_kernel_with_scaling", 2.5, formula=lambda x, y: (x + y) * 2.5),
    old_descriptors("add_kernel_with_tma_1d_old_api"),
    old_descriptors("add_kernel_with_tma_2d_old_api"),
    one("add_kernel_with_tma_1d_new_api", descriptors_1d, pair, torch.add),
    one(
        "add_kernel_with_tma_2d_new_api", descriptors_2d, lambda: [torch.randn(48, 64), torch.randn(48, 64)], torch.add
    ),
    one("add_kernel_on_device_tma_old_api", old_on_device, square, torch.add),
    one("add_kernel_on_device_tma_new_api", device_descriptors, square, torch.add),
    one("mul2_kernel", doubled, single, lambda x: 2 * x),
    one("mul2_inplace_kernel", doubled_in_place, single, lambda x: 2 * x),
    one("zero_negs", positive, lambda: [torch.randn(64)], lambda x: x.clamp(min=0)),
    one("indirection_kernel, mul2", indirection("mul2_inplace_kernel"), single, lambda x: 2 * x),
    one("indirection_kernel, add", indirection("add_kernel"), single, lambda x: x),
    one("double_strided_kernel", strided, lambda: [torch.randn(16, 64)], lambda x: 2 * x),
    shifted("inline_asm_kernel_is_pure_true"),
    shifted("inline_asm_kernel_is_pure_false"),
    one("add_kernel_with_block_ptr", block_pointers, pair, torch.add),
    one("kernel_with_block_ptr_2d", block_pointers_2d, lambda: [torch.randn(N, 1)], lambda x: x),
    added("add_kernel_with_import"),
    added("cond_op_kernel", formula=first_block),
    added("atomic_add_kernel"),
    added("add_4_times_kernel"),
    one("add_kernel_out_of_order_fn2", out_of_order, pair, torch.add),
    one(
        "strange_config_matmul_kernel",
        strange_product,
        lambda: [torch.zeros(64, 64).half(), torch.zeros(64, 64).half(), torch.tensor([0]).int()],
        lambda a, b, m: torch.zeros(64, 64, dtype=torch.float64),
    ),
    out_first("kernel_with_docstring_double_quotes"),
    out_first("kernel_with_docstring_single_quotes"),
    out_first("kernel_with_backslash_in_docstring"),
    assembly("kernel_inline_asm_double_quotes"),
    assembly("kernel_inline_asm_single_quotes"),
    assembly("kernel_inline_asm_rocm_double_quotes"),
    assembly("kernel_inline_asm_rocm_single_quotes"),
    added("add_kernel_with_boolean_param", True),
    one(
        "masked_add_kernel_with_bool_tensor",
        masked,
        lambda: [*pair(), torch.rand(N) > 0.5],
        lambda x, y, keep: torch.where(keep, x + y, x),
    ),
]
