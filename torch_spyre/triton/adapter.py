# SPDX-License-Identifier: Apache-2.0
"""All that is private to Triton and may change with its version, in one place (tests/triton_kernels/test_contract.py).

Triton 3.7.1 to 3.9: the backend gives one stage, whose result is the text of the kernel as TTIR; the launcher receives
the parameters as Python objects and hands them to `kernels`, which knows nothing of Triton.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.backends.driver import DriverBase

from torch_spyre.constants import CORES, DEVICE_NAME, LX_BYTES
from torch_spyre.errors import InvalidArgument, ScratchpadFull, UnsupportedOp

_THREADS = 1 << 30  # what a launch asks of warps and threads means nothing to a core


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a launch. Those that schedule threads are accepted and change nothing."""

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    maxnreg: int | None = None
    arch: str = DEVICE_NAME
    debug: bool = False
    sanitize_overflow: bool = False
    enable_fp_fusion: bool = False
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    ir_override: str | None = None
    extern_libs: tuple[Any, ...] = ()
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e4nv", "fp8e5")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    backend_name: str = DEVICE_NAME

    def hash(self) -> str:
        return hashlib.sha256(repr(sorted(self.__dict__.items())).encode()).hexdigest()


class SpyreBackend(BaseBackend):
    """Stages of the compiler that Triton runs and caches: its own TTIR, then that text as bytes."""

    binary_ext = "spyre"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == DEVICE_NAME)

    def hash(self) -> str:
        from torch_spyre import __version__  # late: the package may be in the middle of its own import

        return f"{DEVICE_NAME}-{__version__}"

    def parse_options(self, opts: dict[str, Any]) -> Options:
        known = {field.name for field in dataclasses.fields(Options)}
        options = Options(**{k: v for k, v in opts.items() if k in known and v is not None and k != "arch"})
        if options.num_ctas > 1:
            raise UnsupportedOp(f"num_ctas={options.num_ctas}: cores share no clusters; leave it at 1")
        return options

    def add_stages(self, stages: dict[str, Any], options: Options, language: Any = None) -> None:
        if language not in (None, Language.TRITON):
            raise UnsupportedOp("Gluon kernels, which are written for the threads of a GPU; write them with triton.jit")
        stages["ttir"] = _make_ttir
        stages[self.binary_ext] = _make_text

    def load_dialects(self, context: Any) -> None:
        """TTIR needs no dialect of ours."""

    def get_codegen_implementation(self, options: Options) -> dict[str, Any]:
        return {"min_dot_size": lambda left, right: (1, 1, 1)}

    def get_module_map(self) -> dict[str, Any]:
        """libdevice names come from the wheel's own module, as calls of `__nv_…`, which the lowering knows."""
        return {"triton.language.extra.libdevice": importlib.import_module("triton.language.extra.cuda.libdevice")}

    def pack_metadata(self, metadata: Any) -> Any:
        return metadata.name


# Functions of Triton's library whose body is a network of exchanges, while the card has an instruction.
_KEPT = re.compile(r"triton\.language\.standard\.(sort|topk|flip)__")


def _keep_library_calls(module: Any) -> None:
    """Calls of these functions stay calls, from which the lowering reads what they do."""
    names: list[str] = []

    def note(op: Any) -> None:
        if op.get_name() == "tt.func":
            names.append(op.get_str_attr("sym_name"))

    module.walk(note)
    for name in filter(_KEPT.match, names):
        module.get_function(name).set_attr("noinline", ir.builder(module.context).get_bool_attr(True))


def _make_ttir(module: Any, metadata: dict[str, Any]) -> Any:
    _keep_library_calls(module)
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    manager.run(module, "make_ttir")
    metadata["shared"] = 0
    metadata["name"] = module.get_entry_func_name()
    return module


def _make_text(module: Any, metadata: dict[str, Any]) -> bytes:
    return str(module).encode()


class Launcher:
    """Triton makes one for each compiled kernel and calls it with all parameters, constants included."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._kinds = tuple(src.signature.values())
        self._names = tuple(src.signature)
        plain = [(i, kind) for i, kind in enumerate(self._kinds) if kind != "constexpr"]
        self._is_plain = all(isinstance(kind, str) and not kind.startswith("tensordesc") for _, kind in plain)
        self._places = [(i, self._is_plain and _is_float(kind)) for i, kind in plain]
        self._plain_names = [self._names[i] for i, _ in plain]

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: Any,
        function: Any,
        packed: Any,
        launch_metadata: Any,
        enter: Callable[[Any], None] | None,
        leave: Callable[[Any], None] | None,
        *arguments: Any,
    ) -> None:
        if enter is not None:
            enter(launch_metadata)
        names, values = self._plain_names, []
        if self._is_plain:
            for i, is_float in self._places:
                values.append(float(arguments[i]) if is_float else arguments[i])
        else:
            names, values = map(list, zip(*_flat(self._kinds, arguments, self._names), strict=True))
        try:
            function((grid_x, grid_y, grid_z), names, values)
        except ScratchpadFull as error:
            from triton.runtime.errors import OutOfResources  # late: tuning skips configurations that raise it

            raise OutOfResources(error.needed, error.available, f"LX scratchpad ({error})") from error
        if leave is not None:
            leave(launch_metadata)


def _flat(kinds: Any, values: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Name and value of each argument of the TTIR function: tuples and descriptors taken apart, constants left out."""
    for i, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        name = names[i] if i < len(names) else names[-1]
        if isinstance(kind, tuple):
            yield from _flat(kind, value, [name] * len(kind))
        elif kind.startswith("tensordesc"):
            if "nan" in str(getattr(value, "padding", "zero")).lower():
                raise UnsupportedOp(f"{name}: a descriptor that pads with NaN; the card pads with 0")
            for part in (value.base, *value.shape, *value.strides):
                yield name, part
        elif kind != "constexpr":
            yield name, float(value) if _is_float(kind) else value


def _is_float(kind: str) -> bool:
    return kind.startswith(("fp", "bf"))


class _Utils:
    """What Triton asks of a driver about programs and devices."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: Any) -> tuple[Any, Any, int, int, int]:
        from torch_spyre.triton.kernels import Kernel  # late: torch

        kernel = Kernel(name, binary.decode())
        return kernel, kernel, 0, 0, _THREADS

    def unload_module(self, module: Any) -> None:
        """Programs live as long as their process."""

    def get_device_properties(self, device: Any) -> dict[str, int]:
        return {"max_shared_mem": LX_BYTES, "multiprocessor_count": CORES, "warpSize": 1, "max_num_regs": 0}


class SpyreDriver(DriverBase):
    """The driver that Triton finds active on a machine without a GPU."""

    launcher_cls = Launcher

    def __init__(self) -> None:
        super().__init__()
        self.utils = _Utils()
        self._number: Callable[[], int] | None = None  # of the current card

    @staticmethod
    def is_active() -> bool:
        """If it is asked for, or if there is nothing else."""
        wanted = os.environ.get("TRITON_DEFAULT_BACKEND")
        return wanted == DEVICE_NAME if wanted else not _other_accelerators()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(DEVICE_NAME, 0, 1)

    def get_current_device(self) -> str:
        """With the name of the device: kernels keep what they compiled by this key, for all drivers alike."""
        if self._number is None:
            from torch_spyre import _C  # late: torch

            self._number = _C.current_device
        return _device_name(self._number())

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device(self.get_current_device())

    def get_current_stream(self, device: Any) -> int:
        """Launches go to the current stream of the card of their tensors."""
        return 0

    def get_device_interface(self) -> Any:
        from torch_spyre.triton.benchmarking import Interface  # late: torch

        return Interface()

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise UnsupportedOp(f"a C++ launcher for an argument of type {ty}; launches of the card need none")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        from torch_spyre.triton.benchmarking import card_milliseconds  # late: torch

        return card_milliseconds

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, dtype=torch.float32, device=DEVICE_NAME)

    def clear_cache(self, cache: Any) -> None:
        """A scratchpad holds nothing when a kernel starts. `do_bench` calls this before each run that it measures."""
        from torch_spyre.triton.benchmarking import Event  # late: torch

        Event.clear()


@functools.cache
def _device_name(number: int) -> str:
    return f"{DEVICE_NAME}:{number}"


@functools.cache
def _other_accelerators() -> bool:
    import torch

    return bool(torch.cuda.is_available() or torch.xpu.is_available())


def check_kernel(value: object) -> Any:
    """A function made by `triton.jit`, behind autotuning and heuristics."""
    while not hasattr(value, "params") and hasattr(value, "fn"):
        value = value.fn
    if not hasattr(value, "params"):
        raise InvalidArgument(f"{value!r} is no kernel; give a function decorated with triton.jit")
    return value


def ttir_of(kernel: object, signature: dict[str, str], constants: dict[str, Any]) -> tuple[str, str]:
    """The name and the TTIR of a kernel for types such as ``*fp16`` and values of its constants."""
    from triton.compiler import ASTSource, make_backend

    function = check_kernel(kernel)
    backend = make_backend(GPUTarget(DEVICE_NAME, 0, 1))
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    names = list(function.arg_names)
    kinds = {name: "constexpr" if name in constants else signature[name] for name in names}
    source = ASTSource(function, kinds, {(names.index(name),): value for name, value in constants.items()})
    made = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(backend.target, options, *made, context)
    metadata: dict[str, Any] = {}
    return metadata.get("name") or function.__name__, str(_make_ttir(module, metadata))
