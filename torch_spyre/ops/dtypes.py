# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch refuses for the dtypes of their tensors, such as ``abs`` of bool or ``softmax`` of int64.

The compiler would find a meaning for some of them, or compute in integers what has none there. Which dtypes an op takes
is known only to PyTorch's kernels, so a call on small tensors asks them, once per plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from torch_spyre.constants import DEVICE_NAME

# Besides the pointwise ones.
_ASKED = frozenset(
    """_log_softmax _softmax addbmm addmm addmv addr argmax argmin avg_pool2d avg_pool3d baddbmm bmm dot isin kthvalue
    logsumexp max_pool2d_with_indices max_pool3d_with_indices mean median mm mv nanmedian prod std std_mean topk trace
    var var_mean vdot""".split()
)
_SMALL = 4096  # elements; beyond, one element per dim stands for a tensor
_REFUSAL = re.compile(
    r"not implemented for '(Bool|Byte|Char|Short|Int|Long)'|can't be cast to the desired output type"
    r"|does not support bool|Boolean inputs not supported|only support floating point|Unsupported input type"
)


def check(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises what the CPU raises for these dtypes."""
    if torch.Tag.nondeterministic_seeded in op.tags:
        return
    if torch.Tag.pointwise not in op.tags and op._schema.name.split("::")[-1] not in _ASKED:
        return
    if not any(_whole_numbers(x) for x in (*args, *kwargs.values())):
        return
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # the question is no part of a trace
            small_args, small_kwargs = tree_map(_small, (tuple(args), kwargs))
            for name in kwargs.keys() & {"out", "values", "indices"}:
                small_kwargs[name] = small_kwargs[name].new_empty(0)
            op(*small_args, **small_kwargs)
    except Exception as error:  # of another kind too, where the sizes are not those of the call
        if _REFUSAL.search(str(error)):
            raise


# Ops whose decompositions take sizes and words that PyTorch refuses; its own shape functions know.
_SHAPED = re.compile(r"(reflection_pad|upsample_)\w+|scatter_reduce|clamp|amax|amin|max|min|argmax")


def check_sizes(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises what PyTorch's shape function of the op raises."""
    if _SHAPED.fullmatch(op._schema.name.split("::")[-1]):
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            shapes = tree_map(_shape_of, (tuple(args), kwargs))
            op(*shapes[0], **shapes[1])


def _shape_of(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x


def _whole_numbers(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_floating_point()


def _small(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.ones(x.shape if x.numel() <= _SMALL else [1] * x.dim(), dtype=x.dtype)
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE_NAME else x
