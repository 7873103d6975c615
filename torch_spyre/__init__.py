# SPDX-License-Identifier: Apache-2.0
"""The PyTorch device `spyre`.

``import torch`` is enough: PyTorch finds `_autoload` through the entry point group ``torch.backends``. It names the
device, registers ``torch.spyre`` and opens nothing; no card starts before the first allocation, and the compiler is
imported when something is first compiled. Set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to switch it off.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch_spyre.constants import DEVICE_NAME

__version__ = "0.1.0"


def _autoload() -> None:
    """Registers the device once; later calls do nothing."""
    if getattr(_autoload, "_ran", False):
        return
    _autoload._ran = True  # type: ignore[attr-defined]

    import torch

    torch.utils.rename_privateuse1_backend(DEVICE_NAME)
    from torch_spyre import _C, distributed, integrations, knobs, logging_config  # late: start-up
    from torch_spyre.decompositions import attention, fused_layers  # late: start-up
    from torch_spyre.device import amp, api, small_eps  # late: start-up
    from torch_spyre.integrations.when_imported import when_imported  # late: start-up
    from torch_spyre.ops import published  # late: start-up
    from torch_spyre.ops.kernels import composites, dense_only, grouped  # late: start-up
    from torch_spyre.patches import applied  # late: start-up

    api._set_compiler(_compiler)
    knobs.set_compiler_config(lambda: importlib.import_module("torch_spyre._inductor.config"))  # late: start-up
    torch._register_device_module(DEVICE_NAME, api)
    torch.utils.generate_methods_for_privateuse1_backend()
    applied.apply_to_torch()
    distributed.register()
    integrations.install()
    when_imported("torch._dynamo.device_interface", _name_interface)
    attention.register()
    composites.register()
    dense_only.register()
    fused_layers.register()
    grouped.register()
    amp.register()
    small_eps.register()
    published.register()
    logging_config.register_with_torch()
    vars(_C)["__getattr__"] = _extension_attribute
    # As torch.compiler.disable, which would import Dynamo here instead of when an op is first compiled.
    _C.set_eager_compiler(torch._disable_dynamo(_compile_op))
    _C._set_launch_blocking(knobs.get("launch_blocking"))


def _name_interface(module: Any) -> None:
    """Libraries ask Dynamo about a device before anything is compiled for it."""
    from torch_spyre.device.interface import SpyreInterface  # late: it imports Dynamo

    module.register_interface_for_device(DEVICE_NAME, SpyreInterface)


def _extension_attribute(name: str) -> Any:
    """The published names of the extension that are written in Python, imported when first used."""
    if name in ("JobPlan", "launch_jobplan", "launch_kernel", "prepare_kernel"):
        return getattr(importlib.import_module("torch_spyre.runtime.jobplan"), name)  # late: start-up
    raise AttributeError(f"module 'torch_spyre._C' has no attribute {name!r}")


def _compiler() -> Any:
    """The compiler as Inductor asks for it; importing it registers the device there."""
    return importlib.import_module("torch_spyre._inductor.registration")  # late: start-up


def _compile_op(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Stands for the eager compiler until an op needs it: importing it costs more than all of `import torch`."""
    from torch_spyre import _C  # late: start-up
    from torch_spyre.ops.fallbacks import compile_or_run  # late: start-up

    _C.set_eager_compiler(compile_or_run)
    return compile_or_run(op, args, dict(kwargs))


def report() -> Any:
    """What did not run as one graph on the card: host fallbacks, graph breaks, recompiles.

    ``print(torch_spyre.report())`` for people, ``torch_spyre.report().to_dict()`` for programs.
    """
    from torch_spyre import reporting  # late: start-up

    return reporting.report()


def __getattr__(name: str) -> Any:
    """Submodules on first use, so that ``torch_spyre.explain`` needs no import of its own."""
    if name.startswith("__"):
        raise AttributeError(f"module 'torch_spyre' has no attribute {name!r}")
    if name == "_C":
        import torch  # noqa: F401  (the extension needs libtorch in the process)
    try:
        return importlib.import_module(f"torch_spyre.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"torch_spyre.{name}":
            raise
        raise AttributeError(f"module 'torch_spyre' has no attribute {name!r}") from None
