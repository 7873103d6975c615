# SPDX-License-Identifier: Apache-2.0
"""Which changes are made, and when."""

from __future__ import annotations

from torch_spyre.patches import (
    data_parallel,
    inductor,
    jit_checks,
    process_groups,
    reports,
    saved_files,
    tensor_methods,
    triton_kernels,
)

# Attributes of torch that hold a function of this package once everything is applied, for people who wonder and for the
# test. Where Triton is installed, `torch.utils._triton.has_triton` is one more.
PATCHED = frozenset(
    {
        "torch.empty",
        "torch.to_dlpack",
        "torch._C._broadcast",
        "torch._C._broadcast_coalesced",
        "torch._C._broadcast_out",
        "torch._C._gather",
        "torch._C._gather_out",
        "torch._C._scatter",
        "torch._C._scatter_out",
        "torch._C._to_dlpack",
        "torch._C._to_dlpack_versioned",
        "torch.utils.dlpack.to_dlpack",
        "torch.Tensor.__dlpack__",
        "torch.Tensor.__dlpack_device__",
        "torch.Tensor.device_tensor_layout",
        "torch.Tensor.to",
        "torch.amp.GradScaler.unscale_",
        "torch.distributed.distributed_c10d._new_process_group_helper",
        "torch.nn.attention.flex_attention._validate_device",  # by `integrations`, once that module is imported
        "torch.nn.Module.spyre",
        "torch.nn.Module.to",
        "torch.storage.UntypedStorage._set_from_file",
        "torch.storage.UntypedStorage._write_file",
        "torch.jit._trace._check_trace",
        "torch._inductor.fx_passes.fuse_attention._sfdp_params_check",
        "torch._inductor.lowering.is_gpu",
        # By Inductor's own `set_group_algorithm_for_combo_kernels`.
        "torch._inductor.scheduler.ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels",
        "torch._inductor.scheduler.Scheduler.unfusable_node",
        "torch._logging._internal._parse_log_settings",
        "torch._tensor_str._tensor_str",
    }
)


def apply_to_torch() -> None:
    """When the device is registered. Nothing of Inductor is imported here."""
    reports.print_from_host()
    reports.levels_in_torch_logs()
    tensor_methods.layout_of_a_tensor()
    tensor_methods.to_with_layout()
    tensor_methods.empty_with_layout()
    tensor_methods.modules_in_matmul_layout()
    tensor_methods.scale_of_gradients()
    saved_files.pickle_storages()
    saved_files.refuse_older_files()
    saved_files.send_to_processes()
    saved_files.refuse_dlpack()
    data_parallel.moves_between_cards()
    process_groups.default_backend_of_groups()
    jit_checks.check_of_traces()
    inductor.changes_of_config()
    triton_kernels.known_to_dynamo()


def apply_to_inductor() -> None:
    """When something is first compiled."""
    inductor.keep_scaled_softmax()
    inductor.keep_attention()
    inductor.results_on_the_card()
    inductor.leave_fusion_to_the_planner()
    inductor.write_in_place()
    triton_kernels.timed_on_the_card()
