# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_contract.py
"""What `torch_spyre/triton/adapter.py` relies on in Triton, and Triton in it, in each version the package names."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import subprocess
import sys

import feature_kernels as kernels
import pytest
import torch
import triton
import triton.backends
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

from torch_spyre.errors import UnsupportedOp
from torch_spyre.triton import adapter

OPTIONS = {
    "num_warps", "num_ctas", "num_stages", "warp_size", "arch", "debug", "sanitize_overflow", "enable_fp_fusion",
    "launch_cooperative_grid", "instrumentation_mode", "fpsan_homomorphic_casts", "ir_override", "extern_libs",
    "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "allowed_dot_input_precisions",
    "default_dot_input_precision", "max_num_imprecise_acc_default",
}  # fmt: skip


def test_version_is_one_that_the_package_names() -> None:
    version = tuple(int(part) for part in triton.__version__.split(".")[:3])
    assert (3, 7, 1) <= version < (3, 10)


def test_triton_finds_the_plug_in() -> None:
    found = triton.backends.backends["spyre"]
    assert found.compiler is adapter.SpyreBackend and found.driver is adapter.SpyreDriver
    for module, base in (("compiler", BaseBackend), ("driver", DriverBase)):
        names = vars(importlib.import_module(f"torch_spyre.triton.{module}")).values()
        assert sum(inspect.isclass(value) and issubclass(value, base) for value in names) == 1


def test_nothing_abstract_is_left() -> None:
    assert not inspect.isabstract(adapter.SpyreBackend) and not inspect.isabstract(adapter.SpyreDriver)


def test_driver_is_active_without_a_gpu() -> None:
    assert not torch.cuda.is_available()
    assert isinstance(driver.active, adapter.SpyreDriver)
    assert driver.active.get_current_target().backend == "spyre"
    assert driver.active.get_current_device() == "spyre:0"
    assert driver.active.get_active_torch_device() == torch.device("spyre", 0)
    assert driver.active.get_device_interface().synchronize is torch.spyre.synchronize


@pytest.mark.parametrize("first", ["import torch", "import triton", "import torch_spyre.triton", "import torch_spyre"])
def test_any_order_of_imports(first: str) -> None:
    code = f"{first}\nfrom triton.runtime.driver import driver\nprint(type(driver.active).__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "SpyreDriver", found.stderr


def test_importing_triton_brings_no_compiler_along() -> None:
    code = "import triton, sys; print('xdsl' in sys.modules)"
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "False"


def test_another_backend_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "nvidia")
    assert not adapter.SpyreDriver.is_active()
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "spyre")
    assert adapter.SpyreDriver.is_active()


def test_backend() -> None:
    backend = adapter.SpyreBackend(GPUTarget("spyre", 0, 32))
    assert not backend.supports_target(GPUTarget("cuda", 90, 32))
    options = backend.parse_options({"num_warps": 8, "arch": None, "not an option": 1})
    assert OPTIONS <= set(vars(options)) and options.num_warps == 8
    assert options.hash() != backend.parse_options({}).hash() and "spyre" in backend.hash()
    stages: dict[str, object] = {}
    backend.add_stages(stages, options, Language.TRITON)
    assert list(stages) == ["ttir", backend.binary_ext]
    with pytest.raises(UnsupportedOp, match="Gluon"):
        backend.add_stages({}, options, Language.GLUON)
    with pytest.raises(UnsupportedOp, match="num_ctas=2"):
        backend.parse_options({"num_ctas": 2})


def test_launcher_gets_all_parameters_in_order() -> None:
    x, out = torch.randn(100).to("spyre"), torch.zeros(100, device="spyre")
    compiled = kernels.add[(1,)](x, x, out, 100, BLOCK=128)
    assert tuple(compiled.src.signature.values()) == ("*fp32", "*fp32", "*fp32", "i32", "constexpr")
    assert compiled.asm["spyre"].startswith(b"#loc") and b"tt.func public @add" in compiled.asm["spyre"]
    assert compiled.metadata.shared == 0 and compiled.metadata.name == "add"
    binary = compiled.asm["spyre"]
    loaded = driver.active.utils.load_binary("add", binary, 0, "spyre:0")
    assert len(loaded) == 5 and loaded[4] >= 1024 * 32
    assert driver.active.utils.get_device_properties("spyre:0")["max_shared_mem"] > 0


def test_hooks_are_called() -> None:
    seen: list[str] = []
    knobs = triton.knobs.runtime
    enter, leave = (lambda _: seen.append("enter")), (lambda _: seen.append("leave"))
    knobs.launch_enter_hook.add(enter)
    knobs.launch_exit_hook.add(leave)
    try:
        x = torch.zeros(64, device="spyre")
        kernels.add[(1,)](x, x, x, 64, BLOCK=64)
    finally:
        knobs.launch_enter_hook.remove(enter)
        knobs.launch_exit_hook.remove(leave)
    assert seen == ["enter", "leave"]


def test_ttir_of_a_kernel_without_launching() -> None:
    types = {"x": "*fp16", "y": "*fp16", "out": "*fp16", "n": "i32"}
    name, text = adapter.ttir_of(kernels.add, types, {"BLOCK": 64})
    assert name == "add" and "tensor<64x!tt.ptr<f16>>" in text
