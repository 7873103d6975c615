# SPDX-License-Identifier: Apache-2.0
"""Every change to objects of PyTorch and of two packages above it. No other file of this project makes one; a test sees
to that (tests/compiler/test_patches.py).

Each function below is one change: it names the hook that is missing upstream, and with that hook it could go. All
the rest goes through hooks that PyTorch 2.13 has: the autoload entry point, the device module and its `Scheduling` and
`PythonWrapperCodegen`, `register_backend_for_device`, `register_interface_for_device`, `register_device_op_overrides`,
Dynamo's backend entry point, torch.library, the decomposition table, the table of lowerings (entries that look at the
device first and pass other devices on), the patterns of the joint graph, and the registries of torch._logging.

How ``torch.compile(backend="spyre")`` and the default backend differ
---------------------------------------------------------------------
They do not, in what they compile: both run Inductor's `compile_fx` with the same tables, and a test compares their
TileGraphs. `backend="spyre"` is the primary entry; the default one is there because scripts written for other devices
name none. Only this differs: `backend="spyre"` merges ``mode=`` and ``options=`` itself, which PyTorch does for its own
backend; and the default backend first imports the registration when it meets a tensor on the card.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from torch_spyre import _finished, logging_config
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import amp, modules, serialization, tensors

# Attributes of torch that hold a function of this file once everything is applied, for people who wonder and the test.
PATCHED = frozenset(
    {
        "torch.empty",
        "torch.to_dlpack",
        "torch._C._to_dlpack",
        "torch._C._to_dlpack_versioned",
        "torch.utils.dlpack.to_dlpack",
        "torch.Tensor.__dlpack__",
        "torch.Tensor.__dlpack_device__",
        "torch.Tensor.device_tensor_layout",
        "torch.Tensor.to",
        "torch.amp.GradScaler.unscale_",
        "torch.nn.Module.spyre",
        "torch.nn.Module.to",
        "torch.storage.TypedStorage.__reduce__",
        "torch.storage.UntypedStorage._set_from_file",
        "torch.storage.UntypedStorage._write_file",
        "torch.storage._StorageBase.__reduce__",
        "torch._inductor.fx_passes.fuse_attention._sfdp_params_check",
        "torch._inductor.lowering.index_put_impl_",
        "torch._inductor.lowering.is_gpu",
        "torch._inductor.lowering.scatter_fallback",
        "torch._inductor.scheduler.Scheduler.unfusable_node",
        "torch._logging._internal._parse_log_settings",
        "torch._tensor_str._tensor_str",
    }
)


def _with_own_signature(function: Any) -> Any:
    """Says what the function itself takes: what it wraps is a builtin, of which `inspect` knows nothing."""
    function.__signature__ = inspect.signature(function, follow_wrapped=False)
    return function


def _print_from_host() -> None:
    """Printing computes on the tensor (abs, isfinite, masked_select). PyTorch copies tensors of a fixed list of devices
    to the host first; a device cannot put itself on that list."""
    original = torch._tensor_str._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> Any:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    torch._tensor_str._tensor_str = tensor_str


def _layout_of_a_tensor() -> None:
    """``Tensor.device_tensor_layout()``. Missing hook: attributes of a tensor that belong to its device."""
    torch.Tensor.device_tensor_layout = tensors.device_tensor_layout


def _to_with_layout() -> None:
    """``Tensor.to(…, device_layout=…)``. Missing hook: options of a conversion that belong to the target device."""
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, device_layout: Any = None, **kwargs: Any) -> torch.Tensor:
        if device_layout is None:
            return original(self, *args, **kwargs)
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return tensors.to_with_layout(self, device_layout, dtype, device, non_blocking, copy)

    torch.Tensor.to = _with_own_signature(to)


def _empty_with_layout() -> None:
    """``torch.empty(size, device_layout=…)``. Missing hook: options of a factory that belong to its device."""
    original = torch.empty
    # PyTorch remembers the functions that take `with torch.device(…)` when the first such block runs: it must see the
    # original, because that is what the wrapper calls.
    _device_constructors()

    @functools.wraps(original)
    def empty(*size: Any, device_layout: Any = None, **kwargs: Any) -> torch.Tensor:
        if device_layout is None:
            return original(*size, **kwargs)
        shape = kwargs.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        return tensors.empty_with_layout(shape, device_layout, **kwargs)

    torch.empty = _with_own_signature(empty)


def _modules_in_matmul_layout() -> None:
    """``nn.Module.to`` lays out weights for matmul and keeps tied ones tied. Missing hook: a device's say in how a
    module's parameters are placed; PyTorch moves each one alone and replaces it by a new object."""
    original = torch.nn.Module.to

    @functools.wraps(original)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type != DEVICE_NAME or memory_format is not None:
            return original(self, *args, **kwargs)
        return modules.load_to_spyre(self, device, dtype, non_blocking)

    def spyre(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        index = device.index if isinstance(device, torch.device) else device
        return self.to(torch.device(DEVICE_NAME) if index is None else torch.device(DEVICE_NAME, index))

    to._spyre_patched = True  # type: ignore[attr-defined]
    torch.nn.Module.to = to
    torch.nn.Module.spyre = spyre


def _pickle_storages() -> None:
    """``pickle.dumps(tensor)`` reads storages at their data pointer. Missing hook: storage bytes of a device whose data
    pointer is no address."""
    for kind in (torch.storage.TypedStorage, torch.storage._StorageBase):
        _replace_reduce(kind)


def _refuse_older_files() -> None:
    """``torch.save(…, _use_new_zipfile_serialization=False)`` reads storages at their data pointer, and loading such a
    file writes there. Missing hook: as above."""
    for name in ("_write_file", "_set_from_file"):
        _guard_older_files(name)


def _guard_older_files(name: str) -> None:
    original = getattr(torch.UntypedStorage, name)

    @functools.wraps(original)
    def on_host(self: torch.UntypedStorage, *args: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            serialization.refuse_older_files()
        return original(self, *args)

    setattr(torch.UntypedStorage, name, _with_own_signature(on_host))


def _send_to_processes() -> None:
    """torch.multiprocessing sends handles of memory. Missing hook: a device whose memory cannot be shared."""
    storages = (torch.UntypedStorage, torch.storage.TypedStorage)
    for kind in (torch.Tensor, torch.nn.Parameter, *storages):
        original = ForkingPickler._extra_reducers[kind]  # type: ignore[attr-defined]
        ForkingPickler.register(kind, serialization.copied_to_processes(original))


def _replace_reduce(kind: Any) -> None:
    original = kind.__reduce__

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        untyped = getattr(self, "_untyped_storage", self)  # a typed one warns when it is asked for its device
        return serialization.reduce_storage(self) if untyped.device.type == DEVICE_NAME else original(self)

    kind.__reduce__ = __reduce__


def _refuse_dlpack() -> None:
    """PyTorch exports tensors of any renamed device with their data pointer. Missing hook: a device's refusal."""
    for owner, name in ((torch.Tensor, "__dlpack__"), (torch.Tensor, "__dlpack_device__")):
        _guard_dlpack(owner, name)
    for owner in (torch, torch.utils.dlpack, torch._C):
        for name in ("to_dlpack", "_to_dlpack", "_to_dlpack_versioned"):
            if hasattr(owner, name):
                _guard_dlpack(owner, name)


def _guard_dlpack(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == DEVICE_NAME:
            serialization.refuse_dlpack(tensor)
        return original(tensor, *args, **kwargs)

    setattr(owner, name, _with_own_signature(export))


def _safetensors_onto_the_card() -> None:
    """safetensors knows a fixed list of device names. Missing hook: a name registered with PyTorch."""
    serialization.WhenImported("safetensors", serialization.accept_cards).install()


def _scale_of_gradients() -> None:
    """``torch.amp.GradScaler("spyre")``. It takes the reciprocal of the scale in float64, except on one named device.
    Missing hook: a device's word that it has no float64."""
    torch.amp.GradScaler.unscale_ = amp.without_float64(torch.amp.GradScaler.unscale_)


def _generation_of_transformers() -> None:
    """transformers' `generate` lists devices too; what is missing there is said in models/hooks.py."""

    def accept(module: ModuleType) -> None:
        from torch_spyre.models import hooks  # late: start-up

        hooks.accept_cards(module)

    serialization.WhenImported("transformers.generation.utils", accept).install()


def _levels_in_torch_logs() -> None:
    """``TORCH_LOGS=spyre.runtime:DEBUG``. PyTorch rejects the whole variable if one of its entries names a level.
    Missing hook: a parser for the names that a package registered."""
    from torch._logging import _internal

    original = _internal._parse_log_settings

    def parse(settings: str) -> Any:
        _, rest = logging_config.parse_torch_logs(settings)
        state = _internal.LogState()
        if rest:
            theirs = original(rest)
            state.log_qname_to_level.update(theirs.log_qname_to_level)
            state.artifact_names.update(theirs.artifact_names)
        logging_config.enable_in(state)
        return state

    _internal._parse_log_settings = parse


# Inductor


def _keep_scaled_softmax() -> None:
    """Inductor moves the scale of softmax(x * s) past the maximum, which rounds differently from the eager operation.

    Missing hook: a pattern that a device can decline. We put the device into the check of those two patterns.
    """
    from torch._inductor.fx_passes import joint_graph

    handlers = (joint_graph.mul_softmax_pattern, joint_graph.div_softmax_pattern)
    for entries in joint_graph.pass_patterns[1].patterns.values():
        for entry in entries:
            if getattr(entry, "handler", None) in handlers:
                entry.extra_check = _unless_on_spyre(entry.extra_check)


def _unless_on_spyre(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def decide(match: Any) -> bool:
        example = match.output_node().meta.get("val")
        if isinstance(example, torch.Tensor) and example.device.type == DEVICE_NAME:
            return False
        return check(match)

    return decide


def _keep_attention() -> None:
    """Inductor replaces softmax(q @ k.T) @ v by one attention op, whose decomposition rounds differently and differs in
    fully masked rows.

    Missing hook: as above. Patterns are registered at the first compilation for each device: those to come consult the
    check in their module, those already there get it now.
    """
    from torch._inductor.fx_passes import fuse_attention, joint_graph
    from torch._inductor.pattern_matcher import ReplacementPatternEntry

    fuse_attention._sfdp_params_check = _unless_on_spyre(fuse_attention._sfdp_params_check)
    for entries in joint_graph.patterns.patterns.values():
        for entry in entries:
            if isinstance(entry, ReplacementPatternEntry):
                entry.extra_check = _unless_on_spyre(entry.extra_check)


def _results_on_the_card() -> None:
    """A pointwise op with a 0-d host tensor as its first operand would be placed on the host, where its generated code
    reads a card tensor by its address.

    Missing hook: the list of devices that win over the host, which `make_pointwise` asks for by `is_gpu`.
    """
    from torch._inductor import lowering

    upstream = lowering.is_gpu
    lowering.is_gpu = lambda device: device == DEVICE_NAME or upstream(device)


def _leave_fusion_to_the_planner() -> None:
    """Inductor compares each pair of nodes that touch the same buffer before it asks the back end, which always says
    no: an eighth of the time that a large graph takes.

    Missing hook: a back end that fuses nothing.
    """
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler

    upstream = Scheduler.unfusable_node

    @functools.wraps(upstream)
    def unfusable_node(self: Scheduler, node: BaseSchedulerNode) -> bool:
        device = node.get_device()
        return (device is not None and device.type == DEVICE_NAME) or upstream(self, node)

    Scheduler.unfusable_node = unfusable_node


def _scatters_in_a_fixed_order() -> None:
    """With ``torch.use_deterministic_algorithms`` Inductor leaves scatters to kernels of the host. The card writes and
    adds in a fixed order, so it takes them as ever.

    Missing hook: a device's word that its scatters are deterministic.
    """
    from torch._inductor import lowering

    index_put, scatter = lowering.index_put_impl_, lowering.scatter_fallback

    def index_put_impl_(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _as_deterministic(index_put, self.get_device().type)(self, *args, **kwargs)

    def scatter_fallback(op: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return _as_deterministic(scatter, self.get_device().type)(op, self, *args, **kwargs)

    lowering.index_put_impl_ = index_put_impl_
    lowering.scatter_fallback = scatter_fallback


_unasked = threading.local()


def _as_deterministic(call: Callable[..., Any], device: str | None) -> Callable[..., Any]:
    """The call, in which this thread hears that nobody asked for determinism: the device is deterministic anyway."""
    asked = torch.are_deterministic_algorithms_enabled
    if device != DEVICE_NAME or not asked():
        return call

    def answer() -> bool:
        return not getattr(_unasked, "here", False) and torch._C._get_deterministic_algorithms()

    def called(*args: Any, **kwargs: Any) -> Any:
        _unasked.here = True
        torch.are_deterministic_algorithms_enabled = answer
        try:
            return call(*args, **kwargs)
        finally:
            _unasked.here, torch.are_deterministic_algorithms_enabled = False, asked

    return called


def apply_to_torch() -> None:
    """When the device is registered. Nothing of Inductor is imported here."""
    _print_from_host()
    _layout_of_a_tensor()
    _to_with_layout()
    _empty_with_layout()
    _modules_in_matmul_layout()
    _pickle_storages()
    _refuse_older_files()
    _send_to_processes()
    _refuse_dlpack()
    _levels_in_torch_logs()
    _safetensors_onto_the_card()
    _scale_of_gradients()
    _generation_of_transformers()


def apply_to_inductor() -> None:
    """When something is first compiled."""
    _keep_scaled_softmax()
    _keep_attention()
    _results_on_the_card()
    _leave_fusion_to_the_planner()
    _scatters_in_a_fixed_order()


_finished(__name__)
