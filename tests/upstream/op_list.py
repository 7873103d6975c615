# SPDX-License-Identifier: Apache-2.0
"""The ops that the compiler must have on the card, by OpInfo name and class, and the dtypes and modes they run with."""

from __future__ import annotations

from typing import Any

import torch
from groups import case_name
from torch.testing._internal.common_methods_invocations import op_db

POINTWISE = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh deg2rad div eq erf erfc erfinv exp
    exp2 expm1 float_power floor floor_divide fmax fmin fmod frac ge gt heaviside hypot isclose isfinite isinf isnan
    isneginf isposinf isreal le lerp log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor logit lt masked_fill maximum minimum mul nan_to_num ne neg nn.functional.celu nn.functional.elu
    nn.functional.gelu nn.functional.glu nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish nn.functional.prelu
    nn.functional.relu nn.functional.relu6 nn.functional.selu nn.functional.silu nn.functional.softplus
    nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold positive pow
    rad2deg reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub tan tanh
    true_divide trunc where xlogy
"""

REDUCTIONS = """
    all amax amin aminmax any argmax argmin count_nonzero linalg.norm linalg.vector_norm log_softmax logsumexp max mean
    median min nanmean nanmedian nansum norm nn.functional.normalize prod softmax std std_mean sum sum_to_size trace var
    var_mean
"""

ORDER = "argsort cummax cummin cumprod cumsum isin kthvalue msort searchsorted bucketize sort topk"

MOVES = """
    __getitem__ arange cat chunk clone column_stack constant_pad_nd diag diagonal expand eye flip full full_like gather
    hstack index_add index_copy index_fill index_put index_select linspace masked_select narrow new_full new_zeros
    nn.functional.embedding nn.functional.one_hot nn.functional.pad nn.functional.pixel_shuffle ones_like permute repeat
    repeat_interleave reshape roll scatter scatter_add scatter_reduce index_reduce masked_scatter select_scatter
    slice_scatter split stack t take take_along_dim tile tril triu unbind unfold unsqueeze vstack zeros_like
"""

MATMUL = """
    __rmatmul__ addbmm addmm addmv addr baddbmm bmm cdist dot einsum inner kron linalg.multi_dot linalg.vecdot matmul mm
    mv nn.functional.bilinear nn.functional.linear outer tensordot vdot
"""

NN = """
    nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.batch_norm
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
    nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.group_norm nn.functional.huber_loss
    nn.functional.instance_norm nn.functional.kl_div nn.functional.l1_loss nn.functional.layer_norm
    nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.mse_loss nn.functional.nll_loss
    nn.functional.rms_norm nn.functional.scaled_dot_product_attention nn.functional.smooth_l1_loss
    nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool3d nn.functional.avg_pool3d
    nn.functional.max_pool3d nn.functional.conv3d
    nn.functional.interpolate nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
"""

CLASSES = {
    "pointwise": POINTWISE.split(),
    "reductions": REDUCTIONS.split(),
    "order": ORDER.split(),
    "moves": MOVES.split(),
    "matmul": MATMUL.split(),
    "nn": NN.split(),
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool)
MODES = ("eager", "compiled")
COMPILED_DTYPES = (torch.float16, torch.float32, torch.int64)
# Samples of one op, dtype and mode, evenly spread over what op_db has, and how many of them are differentiated. What
# takes the time is a program for each shape: 0.1 to 2 s of one core, compiled for training again as much.
SAMPLES = {"eager": 4, "compiled": 2}
BACKWARD_SAMPLES = {"eager": 4, "compiled": 1}
PINNED = {
    "pointwise": ["add", "sin", "pow", "remainder", "bitwise_xor", "nn.functional.gelu", "where"],
    "reductions": ["argmax", "prod", "std", "logsumexp"],
    "order": ["cumsum", "topk", "sort"],
    "moves": ["gather", "index_put", "cat", "roll", "scatter_add"],
    "matmul": ["baddbmm", "einsum"],
    "nn": ["nn.functional.conv2d", "nn.functional.group_norm", "nn.functional.max_pool2d"],
}
PINNED_DTYPES = (torch.float16, torch.float32)
PINNED_SAMPLES = {"eager": 2, "compiled": 1}

# (op or ""; dtype or ""; part of a failed sample's message; why it is so)
GAPS: tuple[tuple[str, str, str, str], ...] = (
    ("", "", "does not fit into 32 bits", "int64 beyond 32 bits has no place on the card"),
    ("", "", "outside the range of int32", "int64 beyond 32 bits has no place on the card"),
    (
        "nn.functional.scaled_dot_product_attention",
        "",
        "rounded steps give the same",
        "scores are stored in 16 bits before the softmax, and the samples' reach 95, where a step is 0.125: the same "
        "steps on the CPU, each rounded so, give the card's values",
    ),
    (
        "",
        "",
        "rounded steps give the same",
        "each step is stored in 16 bits, and terms cancel: the same steps on the CPU, each rounded so, give the card's "
        "values",
    ),
    (
        "",
        "float16",
        "the CPU in the same dtype misses",
        "terms that PyTorch's formula rounds to 16 bits each cancel: the CPU's own float16 gradient misses a quarter "
        "of the tolerance, with one bit more than the card has",
    ),
    (
        "",
        "float32",
        "the CPU in the same dtype misses",
        "terms that PyTorch's formula rounds to float32 each cancel: the CPU's own float32 gradient misses a quarter "
        "of the tolerance, too",
    ),
    (
        "nn.functional.batch_norm",
        "float32",
        "float64",
        "for an empty tensor PyTorch makes the statistics in float64, as on the CPU, and the card has no float64",
    ),
    ("nn.functional.embedding", "", "Sparse", "the card has no sparse tensors: sparse=True is refused"),
    ("", "", "complex", "the card has no complex numbers"),
    ("", "", "float64", "the card has no float64"),
    ("", "", "Double", "the card has no float64"),
)


def infos(kind: str, names: list[str] | None = None) -> list[Any]:
    """OpInfos of a class in op_db's order, each with at least one dtype here."""
    chosen = set(CLASSES[kind] if names is None else names)
    return [op for op in op_db if op.name in chosen and dtypes_of(op)]


def dtypes_of(op: Any) -> list[torch.dtype]:
    return [dtype for dtype in DTYPES if dtype in op.dtypes]


def runs(op: Any) -> list[tuple[torch.dtype, str]]:
    """What one op is run with: every dtype in eager mode, fewer compiled."""
    return [(d, m) for d in dtypes_of(op) for m in MODES if m == "eager" or d in COMPILED_DTYPES]


def every_case() -> list[tuple[str, str]]:
    return [(kind, case_name(op)) for kind in CLASSES for op in infos(kind)]
