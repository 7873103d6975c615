# SPDX-License-Identifier: Apache-2.0
"""Every change to objects of PyTorch and of two packages above it. No other part of this project makes one; a test sees
to that (tests/compiler/test_patches.py).

Each function named in `apply_to_torch` and `apply_to_inductor` is one change. It names the hook that is missing
upstream, and with that hook it could go. All the rest goes through hooks that PyTorch 2.13 has: the autoload entry
point, the device module and its `Scheduling` and `PythonWrapperCodegen`, `register_backend_for_device`,
`register_interface_for_device`, `register_device_op_overrides`, Dynamo's backend entry point, `torch.compiler.disable`,
torch.library, `copyreg`, the decomposition table, the table of lowerings (entries that look at the device first and
pass other devices on, `_inductor/guards.py`), the patterns of the joint graph, and the registries of torch._logging.

How ``torch.compile(backend="spyre")`` and the default backend differ
---------------------------------------------------------------------
They do not, in what they compile: both run Inductor's `compile_fx` with the same tables, and a test compares their
TileGraphs. `backend="spyre"` is the primary entry; the default one is there because scripts written for other devices
name none. Only this differs: `backend="spyre"` merges ``mode=`` and ``options=`` itself, which PyTorch does for its own
backend; and the default backend first imports the registration when it meets a tensor on the card.
"""

from __future__ import annotations

from torch_spyre import _finished
from torch_spyre.patches import files, inductor, libraries, reports, tensors

# Attributes of torch that hold a function of this package once everything is applied, for people who wonder and for the
# test.
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
        "torch.storage.UntypedStorage._set_from_file",
        "torch.storage.UntypedStorage._write_file",
        "torch._inductor.fx_passes.fuse_attention._sfdp_params_check",
        "torch._inductor.lowering.is_gpu",
        "torch._inductor.scheduler.Scheduler.unfusable_node",
        "torch._logging._internal._parse_log_settings",
        "torch._tensor_str._tensor_str",
    }
)


def apply_to_torch() -> None:
    """When the device is registered. Nothing of Inductor is imported here."""
    reports.print_from_host()
    reports.levels_in_torch_logs()
    tensors.layout_of_a_tensor()
    tensors.to_with_layout()
    tensors.empty_with_layout()
    tensors.modules_in_matmul_layout()
    tensors.scale_of_gradients()
    files.pickle_storages()
    files.refuse_older_files()
    files.send_to_processes()
    files.refuse_dlpack()
    libraries.safetensors_onto_the_card()
    libraries.generation_of_transformers()
    inductor.changes_of_config()


def apply_to_inductor() -> None:
    """When something is first compiled."""
    inductor.keep_scaled_softmax()
    inductor.keep_attention()
    inductor.results_on_the_card()
    inductor.leave_fusion_to_the_planner()


_finished(__name__)
