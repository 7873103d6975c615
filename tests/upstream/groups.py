# SPDX-License-Identifier: Apache-2.0
"""Which entries of PyTorch's op_db belong to which group, and the dtypes they run with.

Names are OpInfo names; every variant of a name belongs to the group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

# Every dtype that has a place on the card and that op_db has samples for.
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)

# Results that alias their input, at least for some arguments.
VIEWS = """
    T H mT mH as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk conj contiguous
    diagonal dsplit expand expand_as flatten hsplit linalg.diagonal meshgrid movedim narrow permute ravel real reshape
    reshape_as resolve_conj resolve_neg select slice split split_with_sizes squeeze t tensor_split transpose
    unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as vsplit
"""

CREATION = """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros
    zeros_like fill zero_ resize_ resize_as_ signal.windows.bartlett signal.windows.hamming signal.windows.hann
"""

# Moves elements without computing with them.
INDEXING_COPY = """
    __getitem__ alias_copy argwhere as_strided_copy as_strided_scatter block_diag cartesian_prod cat clone column_stack
    combinations constant_pad_nd diag diag_embed diagflat diagonal_copy diagonal_scatter dstack expand_copy flip fliplr
    flipud gather hstack index_add index_copy index_fill index_put index_select masked_fill masked_scatter masked_select
    narrow_copy nn.functional.embedding nn.functional.pad nn.functional.pixel_shuffle nonzero nonzero_static
    permute_copy put repeat repeat_interleave roll rot90 scatter scatter_add select_scatter slice_scatter
    split_with_sizes_copy squeeze_copy stack t_copy take take_along_dim tile transpose_copy tril triu unbind_copy
    unfold_copy unique unique_consecutive unsqueeze_copy view_copy vstack where _chunk_cat
    bfloat16 bool byte char float half int long short to
"""

RNG = """
    bernoulli cauchy exponential geometric log_normal multinomial nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.rrelu normal
    rand_like randint randint_like randn randn_like uniform
"""

GROUPS = {
    "views": VIEWS.split(),
    "creation": CREATION.split(),
    "indexing-copy": INDEXING_COPY.split(),
    "rng": RNG.split(),
}

# Values are computed, not moved: the card may round once where the host rounds in steps.
COMPUTED = {
    "linspace", "logspace", "arange", "index_add", "scatter", "scatter_add", "index_put", "put", "half",
    "bfloat16", "to",
    "signal.windows.bartlett", "signal.windows.hamming", "signal.windows.hann",
}  # fmt: skip
# PyTorch wants the tensors among these ops' arguments on the host, whatever the device.
HOST_ARGUMENTS = {"tensor_split"}
# Contents are not defined; only the tensor's shape, strides and place are compared.
UNINITIALIZED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip

# (part of the message of a failed sample, why it is so)
GAPS = (
    (
        "outside the bound (equal values)",
        "samples that compute: the card rounds once, the CPU each step of its 16-bit sum",
    ),
    ("outside the bound (two units in last place)", "near 0 the roundings of the steps show, which differ"),
)

# Large sample generators are cut to this many, evenly spread.
MAX_SAMPLES = 24
# What `make test` runs: one op of each kind, with the first samples only.
PINNED_SAMPLES = 4
PINNED_DTYPES = (torch.float16, torch.float32, torch.int64)
PINNED = {
    "views": ["as_strided", "expand", "permute", "select", "slice", "split", "transpose", "unfold", "view"],
    "creation": ["arange", "empty_strided", "eye", "full", "new_zeros", "ones_like"],
    "indexing-copy": ["__getitem__", "cat", "gather", "index_put", "index_select", "masked_select", "where"],
    "rng": ["bernoulli", "normal", "randint", "randn", "uniform", "nn.functional.dropout"],
}


def case_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def infos(group: str, names: list[str] | None = None) -> list[Any]:
    """OpInfos of a group in op_db's order. Samples of sparse or complex tensors alone have no dtype here."""
    chosen = set(GROUPS[group] if names is None else names)
    return [op for op in op_db if op.name in chosen and dtypes_of(op)]


def dtypes_of(op: Any) -> list[torch.dtype]:
    return [dtype for dtype in DTYPES if dtype in op.dtypes]
