# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch refuses: for the sizes or dtypes of their tensors, for an ``out=`` that cannot hold the result,
for memory that is written twice, or read and written.

The compiler would find a meaning for many of them. What an op takes is known to PyTorch's shape functions and kernels,
so they are asked, once for each new signature: the shape function with tensors of the meta device that are laid out as
those of the call do, and, for small tensors and for the words of a refusal, the CPU with tensors of zeros. A kernel's
refusal counts if it does not depend on values: tensors of ones are refused with the same words.
"""

from __future__ import annotations

import functools
import numbers
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions import gradient_sizes
from torch_spyre.ops.eager import _scalar_tensors

aten = torch.ops.aten
Call = tuple[Sequence[Any], dict[str, Any]]

_SMALL = 4096  # elements of all tensors; up to these a kernel of the CPU takes no time
_MOST_BYTES = 1 << 31  # of tensors that only a refusal will look at; their pages are never touched
_OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
# Refused for reasons of the host: what it has no kernel for, or not in these dtypes, or not in two float types at once.
_OF_THE_HOST = re.compile(
    r"not implemented for '(Half|BFloat16|Float8_\w+)'|^\"?histogram|DefaultCPUAllocator"
    r"|expected scalar type (Half|BFloat16|Float) but found (Half|BFloat16|Float)"
)
_DTYPES = re.compile(
    r"not implemented for '(Bool|Byte|Char|Short|Int|Long)'|can't be cast to the desired output type|Found dtype"
    r"|does not support bool|Boolean inputs not supported|only support floating point|Unsupported input type"
    r"|out tensor to have dtype|cannot be converted to type \w+(::\w+)? without overflow|must not be a complex number"
    r"|Integer division with addcdiv"
)
# Besides the pointwise ones. Where tensors are too large to compute with, one element per dim shows whether these
# accept their dtypes.
_BY_ONE_ELEMENT = frozenset(
    """_log_softmax _softmax _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d addbmm addmm addmv addr argmax argmin baddbmm bmm cat dot isin
    logsumexp mean median mm mv nanmedian prod std std_mean topk trace upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean
    vdot""".split()
)
# And those for which it takes a few elements per dim: windows, and sizes that must fit each other.
_BY_FEW_ELEMENTS = frozenset(
    """_adaptive_avg_pool2d _adaptive_avg_pool3d _logcumsumexp _prelu_kernel adaptive_max_pool2d adaptive_max_pool3d
    avg_pool2d avg_pool3d binary_cross_entropy convolution_overrideable glu grid_sampler_2d grid_sampler_3d hardswish
    hardswish_ huber_loss im2col kthvalue log_sigmoid_forward max_pool2d_with_indices max_pool3d_with_indices
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    smooth_l1_loss soft_margin_loss""".split()
)
_FEW = 8
_BY_PLACES = frozenset(("index_put", "index_put_", "_index_put_impl_"))
# Every device of PyTorch refuses weights of another floating dtype here.
_OF_ONE_DTYPE = frozenset(("nll_loss_forward", "nll_loss2d_forward"))
# Run on the host, where sums of values must equal sizes.
_OF_VALUES = frozenset(("repeat_interleave", "segment_reduce"))
# Their decompositions look at more forms of scales than the CPU has kernels for, and refuse the others.
_BY_DECOMPOSITION = frozenset((aten._scaled_mm.default, aten._scaled_mm_v2.default))
# Ops that write the same element twice without harm on the CPU, where the last three warn.
OVERLAPPING = frozenset("fill_ zero_ masked_fill_ index_fill_ index_put_ _index_put_impl_".split())
_PUBLIC: dict[Any, Callable[..., Any]] = {
    # PyTorch's shape function takes fake tensors only.
    aten._weight_int4pack_mm.default: lambda x, packed, group, scales: x.new_empty(x.shape[0], packed.shape[0] * 8),
    aten._copy_from.default: lambda source, target, non_blocking=False: target.copy_(source),
    aten.convolution_overrideable.default: aten.convolution.default,
    aten.convolution_backward_overrideable.default: (
        lambda grad, x, weight, *form: aten.convolution_backward.default(grad, x, weight, [grad.shape[1]], *form)
    ),
}


def name_of(op: Any) -> str:
    return str(op._schema.name.split("::")[-1])


@functools.cache
def _tensor_places(op: Any) -> tuple[int | str, ...]:
    """Arguments that the schema declares as tensors: positions, or names of those given by keyword."""
    kinds = ("Tensor", "Optional[Tensor]")
    return tuple(a.name if a.kwarg_only else i for i, a in enumerate(op._schema.arguments) if str(a.type) in kinds)


def numbers_as_tensors(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The dispatcher hands over a number given in place of a tensor (``x % 2``) as a number: a 0-d tensor again."""
    for place in _tensor_places(op):
        value = kwargs.get(place) if isinstance(place, str) else args[place]
        if isinstance(value, numbers.Number):
            return _scalar_tensors(op, args, kwargs)
    return list(args), kwargs


def check(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises what PyTorch raises on the CPU for such a call."""
    if op.namespace != "aten" or name_of(op) in _OF_VALUES or op in _BY_DECOMPOSITION:
        return
    with torch._C.DisableTorchFunction():
        call = numbers_as_tensors(op, args, kwargs)
    gradient_sizes.check(name_of(op), call[0])
    # The question is no part of a trace or of autograd, and it is for the call itself to warn.
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch._C._AutoDispatchBelowAutograd():
        error = _C._without_warnings(functools.partial(_refusal, op, call))
    if error is not None:
        raise error


def _refusal(op: Any, call: Call) -> Exception | None:
    if not any(a.is_out for a in op._schema.arguments):
        return _refusal_of_the_cpu(op, call, *_refusal_by_shape(op, call))
    with _filters, warnings.catch_warnings():  # shape functions in Python warn of an out= that they resize
        warnings.simplefilter("ignore")
        return _refusal_of_the_cpu(op, call, *_refusal_by_shape(op, call))


_filters = threading.Lock()  # those of warnings belong to the process


def check_overlap(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Elements that share an address cannot be written one after the other by cores that work side by side."""
    if name_of(op) in OVERLAPPING:
        return
    for x in written(op, args, kwargs):
        if overlaps_itself(x):
            raise RuntimeError(_OVERLAP)


def written(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call writes."""
    found = [kwargs[place] if isinstance(place, str) else args[place] for place in _written_places(op)]
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]


@functools.cache
def _written_places(op: Any) -> tuple[int | str, ...]:
    if op is aten._copy_from.default:  # its schema does not say it
        return (1,)
    places = [(i, a) for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return tuple(a.name if a.kwarg_only else i for i, a in places)


def overlaps_itself(x: torch.Tensor) -> bool:
    return bool(torch._debug_has_internal_overlap(x) == 1)


def _refusal_by_shape(op: Any, call: Call) -> tuple[Exception | None, Any]:
    """(what the op's shape function raises, its results); (None, None) if the op has none."""
    try:
        return None, _PUBLIC.get(op, op)(*(twins := _Twins("meta").of(call))[0], **twins[1])
    except NotImplementedError:
        return None, None
    except Exception as error:
        return error, None


def _refusal_of_the_cpu(op: Any, call: Call, refusal: Exception | None, results: Any) -> Exception | None:
    if name_of(op) in _BY_PLACES and (error := _refusal_of_places(op, call)):
        return error
    # Some kernels of the CPU write as many elements as there are from the first one on.
    askable = all(_end(x) - x.storage_offset() >= x.numel() for x in written(op, *call))
    drawn = torch.Tag.nondeterministic_seeded in op.tags and _generator_place(op) is None
    if refusal is not None:
        if "meta tensors" in str(refusal):  # it wants to look at values
            return None
        known = askable and not drawn and _span_bytes(call) <= _MOST_BYTES
        return _confirmed(_answer(op, call, 0), refusal) if known else _plain(refusal)
    if not askable or drawn:
        return None
    if _elements((call, results)) <= _SMALL:
        error = _answer(op, call, 0)
        mixed = name_of(op) in _OF_ONE_DTYPE and "expected scalar type" in str(error)
        if error is None or (_of_the_host(error) and not mixed):
            return None
        return error if str(_answer(op, call, 1)) == str(error) else None
    if torch.Tag.pointwise in op.tags or name_of(op) in _BY_ONE_ELEMENT:
        return _of_dtypes(_answer(op, tree_map(_one_element, call), 1))
    if name_of(op) in _BY_FEW_ELEMENTS and not _all_floating(call):
        return _of_dtypes(_answer(op, tree_map(_few_elements, call), 1))
    return None


def _refusal_of_places(op: Any, call: Call) -> Exception | None:
    """A call of two dtypes fails anyway: the places that masks mark tell whether the CPU refuses the sizes first."""
    (x, indices, values, *rest), kwargs = call
    if x.dtype == values.dtype or _span_bytes(call) > _MOST_BYTES:
        return None
    places = [i if i is None else i.cpu() for i in indices]
    error = _answer(op, ((x, places, values, *rest), kwargs), 0)
    return error if "shape mismatch" in str(error) else None


def _of_dtypes(error: Exception | None) -> Exception | None:
    return error if error is not None and _DTYPES.search(str(error)) else None


def _all_floating(call: Call) -> bool:
    return all(x.dtype.is_floating_point for x in tree_leaves(call) if isinstance(x, torch.Tensor))


def _confirmed(error: Exception | None, refusal: Exception) -> Exception | None:
    """The CPU's words for what a shape function refuses; None if the CPU takes it."""
    return _plain(refusal) if error is not None and _of_the_host(error) else error


def _plain(refusal: Exception) -> Exception:
    """Shape functions that are written in Python state some of their conditions as assertions."""
    return RuntimeError(str(refusal)) if isinstance(refusal, AssertionError) else refusal


def _of_the_host(error: Exception) -> bool:
    text = str(error)
    unknown = isinstance(error, NotImplementedError) and "not implemented for '" not in text
    return unknown or _OF_THE_HOST.search(text) is not None


def _answer(op: Any, call: Call, value: int) -> Exception | None:
    """What the CPU raises for tensors that are filled with a value."""
    try:
        args, kwargs = _with_generator(op, *_Twins("cpu", value).of(call))
        _PUBLIC.get(op, op)(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


@functools.cache
def _generator_place(op: Any) -> int | str | None:
    found = ((i, a) for i, a in enumerate(op._schema.arguments) if a.name == "generator")
    return next((a.name if a.kwarg_only else i for i, a in found), None)


def _with_generator(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """A question draws no numbers from the generators of the process."""
    place = _generator_place(op)
    if isinstance(place, str):
        return args, {**kwargs, place: torch.Generator()}
    if place is not None:
        return [torch.Generator() if i == place else x for i, x in enumerate(args)], kwargs
    return args, kwargs


class _Twins:
    """Tensors on another device with the memory layout of those of a call, sharing memory where they do."""

    def __init__(self, device: str, value: int = 0) -> None:
        self.device, self.value = device, value

    def of(self, call: Call) -> Call:
        self.spans = spans(call)
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        twins: Call = tree_map(self.twin, call)
        return twins

    def twin(self, x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device(self.device)
        if isinstance(x, torch.Generator):
            return None if self.device == "meta" else torch.Generator()
        if not isinstance(x, torch.Tensor) or x.device.type != DEVICE_NAME:
            return x
        key = (x.untyped_storage()._cdata, x.dtype)
        first, end = self.spans[key]
        if key not in self.bases:
            make = torch.zeros if not self.value else torch.ones
            self.bases[key] = make(end - first, dtype=x.dtype, device=self.device)
        return self.bases[key].as_strided(x.shape, x.stride(), x.storage_offset() - first)


Spans = dict[tuple[int, torch.dtype], tuple[int, int]]


def spans(call: Any) -> Spans:
    """The part of each storage that the tensors of a call cover, in elements."""
    found: Spans = {}
    for x in tree_leaves(call):
        if isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME:
            key = (x.untyped_storage()._cdata, x.dtype)
            first, end = found.get(key, (x.storage_offset(), 0))
            found[key] = min(first, x.storage_offset()), max(end, _end(x))
    return found


def _end(x: torch.Tensor) -> int:
    steps = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return int(x.storage_offset()) + steps


def _span_bytes(call: Call) -> int:
    return sum((end - first) * dtype.itemsize for (_, dtype), (first, end) in spans(call).items())


def _elements(value: Any) -> int:
    return sum(max(x.numel(), _end(x) - x.storage_offset()) for x in tree_leaves(value) if isinstance(x, torch.Tensor))


def _few_elements(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.ones([min(n, _FEW) for n in x.shape], dtype=x.dtype)


def _one_element(x: Any) -> Any:
    return torch.ones([1] * x.dim(), dtype=x.dtype) if isinstance(x, torch.Tensor) else x
