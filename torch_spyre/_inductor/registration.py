# SPDX-License-Identifier: Apache-2.0
"""Registers the device with Inductor. Imported the first time something is compiled, never by ``import torch``.

Inductor asks the device module for `Scheduling`, `PythonWrapperCodegen`, `CppWrapperCodegen` and `WrapperFxCodegen`;
torch.spyre passes those names on to this module, and importing it registers everything.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.common import register_backend_for_device, register_device_op_overrides

from torch_spyre._inductor import config, decompositions
from torch_spyre._inductor.codegen import (
    SpyreDeviceOpOverrides,
    SpyreScheduling,
    SpyreWrapperCodegen,
    register_groups,
)
from torch_spyre._inductor.lowering import entries, recompute
from torch_spyre._inductor.lowering.view_writes import ViewWrites
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp
from torch_spyre.patches import applied

Scheduling = SpyreScheduling
PythonWrapperCodegen = SpyreWrapperCodegen
# None: with all of them present Inductor would register the device again and drop our custom config.
CppWrapperCodegen = None
WrapperFxCodegen = None


class NoCppWrapper(PythonWrapperCodegen):
    """What Inductor asks for when it shall write C++ host code."""

    @staticmethod
    def create(*_: Any, **__: Any) -> Any:
        raise UnsupportedOp(
            "AOTInductor packages and cpp_wrapper need host code in C++, which this backend does not write; run the "
            "exported program as it is (program.module()) or with torch.compile, whose kernels are cached on disk"
        )


def _register() -> None:
    register_backend_for_device(
        DEVICE_NAME,
        SpyreScheduling,
        SpyreWrapperCodegen,
        NoCppWrapper,
        device_custom_pass=ViewWrites(),
        device_custom_config=config,
    )
    register_device_op_overrides(DEVICE_NAME, SpyreDeviceOpOverrides())
    register_groups()
    entries.register()
    decompositions.register()
    recompute.register()
    applied.apply_to_inductor()


_register()
