# SPDX-License-Identifier: Apache-2.0
"""Every environment variable and config value, one typed row each.

Reading: ``knobs.get("sencores")`` or ``knobs.sencores``. An environment variable is parsed when it is read, so hot
paths keep the value. Rows of the group "compiler" also live in `torch_spyre._inductor.config`, whose active rows enter
Inductor's cache key: once that module is loaded it holds their values, and its ``patch`` and ours agree.

``python -m torch_spyre.knobs`` prints docs/knobs.md. This file imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch_spyre.errors import InvalidArgument

Value = bool | int | float | str | None

_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no", "")


def _default_cache_dir() -> str:
    """Beside Inductor's own cache when the user moved that, so that one variable moves both.

    Inductor itself sets the variable to its default when it is first used, which must not move ours.
    """
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    own, name = os.path.split(inductor or "")
    if inductor and not (own == tempfile.gettempdir() and name.startswith("torchinductor_")):
        return os.path.join(inductor, "spyre")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "torch_spyre")


def _default_runtime_dir() -> str:
    """A directory that only this user writes and that does not outlive the session where the system offers one."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(session, "torch_spyre") if session else f"/tmp/torch_spyre-{os.getuid()}"


@dataclass(frozen=True)
class Knob:
    """One row. Empty `env`: a config value without a variable. A row without effect is a published name: its value is
    checked, and nothing reads it."""

    name: str
    env: str
    type: type
    default: Value | Callable[[], Value]
    doc: str
    group: str
    status: str = "no effect"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    default_text: str = ""

    @property
    def plans(self) -> bool:
        """Do plans depend on it? Then it belongs into the keys of caches."""
        return self.group == "compiler" and self.status == "active"

    @property
    def label(self) -> str:
        return self.env or self.name

    def default_value(self) -> Value:
        return self.default() if callable(self.default) else self.default

    def legal(self) -> str:
        """The legal values in words."""
        if self.type is bool:
            return "0 or 1"
        if self.choices:
            return ", ".join(self.choices)
        if self.type is str:
            return "text"
        kind = "integer" if self.type is int else "number"
        if self.low is not None and self.high is not None:
            return f"{kind} {self.low:g}..{self.high:g}"
        return kind if self.low is None else f"{kind} >= {self.low:g}"

    def parse(self, text: str) -> Value:
        """Value of the environment variable's text."""
        try:
            return self.check(_PARSERS[self.type](text.strip()))
        except InvalidArgument:
            raise
        except ValueError:
            raise self._error(text) from None

    def check(self, value: Value) -> Value:
        """`value`, or InvalidArgument if the row does not allow it. None means unset where that is the default."""
        if value is None and self.default is None:
            return value
        if self.type is float and type(value) is int:
            value = float(value)
        good = type(value) is self.type
        if good and self.choices:
            good = value in self.choices
        if good and isinstance(value, (int, float)):
            good = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        if not good:
            raise self._error(value)
        return value

    def _error(self, value: object) -> InvalidArgument:
        return InvalidArgument(f"invalid {self.label} value {value}: legal values are {self.legal()}")


def _parse_bool(text: str) -> bool:
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    return int(word) != 0  # published scripts also set other digits


_PARSERS: dict[type, Callable[[str], Value]] = {bool: _parse_bool, int: int, float: float, str: str}

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

GROUPS = {
    "card": "The software card",
    "device": "Device enumeration",
    "runtime": "Runtime and caches",
    "compiler": "Compiler, also in `torch_spyre._inductor.config`",
    "log": "Logs and debugging",
    "closed": "Published for the closed stack",
}

TABLE: tuple[Knob, ...] = (
    # -- card
    Knob("host_threads", "SPYRE_HOST_THREADS", int, 0, "host threads that run the 32 cores; results never depend on it",
         "card", "active", low=0, default_text="0 (hardware threads)"),
    Knob("triton_backend", "TRITON_DEFAULT_BACKEND", str, None,
         "Triton's own choice of backend: spyre takes the card also where there is a GPU", "runtime", "active",
         default_text="the card where there is no GPU"),
    Knob("links", "SPYRE_LINKS", str, "auto",
         "how ranks of one host exchange data: shared memory, or TCP as between hosts; results never depend on it",
         "runtime", "active", choices=("auto", "tcp")),
    Knob("isa", "SPYRE_ISA", str, "auto", "instruction set of the card's kernels; results never depend on it",
         "card", "active", choices=("auto", "portable", "avx2", "avx512")),
    Knob("host_memory_gb", "SPYRE_HOST_MEMORY_GB", float, None,
         "host memory (GiB) that the cards of the process may commit; more raises OutOfMemory",
         "card", "active", low=0, default_text="80 % of physical memory"),
    Knob("timing_only", "SPYRE_TIMING_ONLY", bool, False,
         "cards keep the time but compute nothing: results are zeros, no memory is committed", "card", "active"),
    Knob("sanitize", "SPYRE_SANITIZE", bool, False,
         "check launches while they run (docs/sanitizer.md): races, unwritten memory, NaN and overflow origins; read "
         "when a card is opened", "card", "active"),
    # -- device
    Knob("world_size", "AIU_WORLD_SIZE", int, None, "number of cards; with SPYRE_DEVICES, a cap", "device", "active",
         low=1),
    Knob("devices", "SPYRE_DEVICES", str, None, "comma list of card numbers to use; device i is the i-th", "device",
         "active"),
    Knob("flex_device", "FLEX_DEVICE", str, None,
         "kind of card, each one the software card: PF (default), VF, or MOCK, which ignores SPYRE_DEVICES", "device",
         "active"),
    Knob("local_rank", "LOCAL_RANK", int, None, "device of a process that never calls set_device", "device", "active",
         low=0),
    Knob("local_processes", "LOCAL_WORLD_SIZE", int, 1,
         "processes of this host that work together, set by launchers: so many cards, and CPUs are shared among them",
         "device", "active", low=1),
    Knob("started_processes", "WORLD_SIZE", int, 1,
         "processes that a launcher started; accelerate and Lightning refuse the card if there are several", "device",
         "active", low=1),
    # -- runtime
    Knob("cache_dir", "SPYRE_CACHE_DIR", str, _default_cache_dir, "directory of the program cache", "runtime", "active",
         default_text="`spyre/` in TORCHINDUCTOR_CACHE_DIR if that is set, else `~/.cache/torch_spyre`"),
    Knob("runtime_dir", "SPYRE_RUNTIME_DIR", str, _default_runtime_dir, "directory of the status files of spyre-smi",
         "runtime", "active",
         default_text="`torch_spyre/` in XDG_RUNTIME_DIR if that is set, else `/tmp/torch_spyre-<uid>`"),
    Knob("smi_interval", "SPYRE_SMI_INTERVAL", float, 1.0,
         "seconds between two status files of a process for spyre-smi; 0: none", "runtime", "active", low=0),
    Knob("downcast_warn", "TORCH_SPYRE_DOWNCAST_WARN", bool, True, "warn once that int64 is stored as int32",
         "runtime", "active"),
    Knob("fallback", "SPYRE_FALLBACK", bool, True,
         "run an eager op that the compiler refuses on the CPU; 0 raises UnsupportedOp", "runtime", "active"),
    Knob("fallback_warn", "SPYRE_FALLBACK_WARN", bool, True, "warn once for each op that runs on the CPU", "runtime",
         "active"),
    Knob("integrations", "SPYRE_INTEGRATIONS", bool, True,
         "accelerate, transformers, Lightning and others choose the card where they would choose a GPU", "runtime",
         "active"),
    Knob("generate_on_host", "SPYRE_GENERATE_ON_HOST", bool, True,
         "transformers' generate() keeps ids and masks, which grow with every token, on the host", "runtime", "active"),
    Knob("replay_steps", "SPYRE_REPLAY_STEPS", bool, True,
         "compile_blocks() replays the launches of a decoding step, without the Python of the model", "runtime",
         "active"),
    Knob("launch_blocking", "SPYRE_LAUNCH_BLOCKING", bool, False,
         "wait for each launch, so that an error of the card is raised at the line that made it", "runtime", "active"),
    Knob("dump_spyre_code", "DUMP_SPYRE_CODE", bool, False,
         "run compiled kernels of static size as JobPlans from SpyreCode directories, the entries of the program cache",
         "runtime", "active"),
    Knob("allow_tiled_launch", "SPYRE_ALLOW_TILED_LAUNCH", bool, True, "let a launch cover several tiles", "runtime"),
    Knob("sdk_idle_s", "SPYRE_SDK_IDLE_S", float, 600.0,
         "seconds without a request after which the compile server of the SDK's dxp_standalone ends", "runtime",
         "active", low=0.1),
    Knob("comms_timeout_s", "SPYRE_COMMS_TIMEOUT_S", int, 300,
         "seconds that the SDK's spyre_comms waits for other ranks", "runtime", "active", low=1),
    Knob("comms_port", "SPYRE_COMMS_PORT", int, None,
         "where rank 0 of the SDK's spyre_comms listens for ranks of other hosts", "runtime", "active", low=1,
         high=65535, default_text="MASTER_PORT + 1"),
    Knob("inductor_subprocess", "IS_INDUCTOR_SPAWNED_SUBPROCESS", bool, False,
         "set by Inductor in its compile workers, where no card may be opened", "runtime"),
    Knob("use_profiler", "USE_SPYRE_PROFILER", bool, None, "build and test the profiler", "runtime",
         default_text="unset"),
    # -- compiler
    Knob("sencores", "SENCORES", int, 32, "cores the planner may use", "compiler", "active", low=1, high=32),
    Knob("cut_k", "SPYRE_CUT_K", bool, True,
         "cut the inner dim of a small matmul over idle cores; if not (serving), a row's bits depend on no other row",
         "compiler", "active"),
    Knob("plan", "SPYRE_PLAN", str, "card",
         "what plans may use: all that the card does, or only what SuperDSC can say, so that every kernel has bundles",
         "compiler", "active", choices=("card", "sdsc")),
    Knob("errata", "SPYRE_ERRATA", str, "none",
         "deviations of the real card to reproduce: exp (of 16 bits, never below 2^-24) or none", "compiler", "active",
         choices=("none", "exp")),
    Knob("lx_planning", "LX_PLANNING", bool, True, "keep intermediates in the scratchpad (LX)", "compiler", "active"),
    Knob("co_optimizing_lx_planning", "CO_OPTIMIZING_LX_PLANNING", bool, False,
         "choose core splits and scratchpad placement together", "compiler"),
    Knob("hbm_planning", "SPYRE_INDUCTOR_MEMORY_PLAN", bool, True,
         "share one memory pool between the intermediates of a graph", "compiler"),
    Knob("enable_fusion", "SPYRE_INDUCTOR_ENABLE_FUSION", bool, True, "pack several ops into one program", "compiler"),
    Knob("chunk_large_tensors", "CHUNK_LARGE_TENSORS", bool, False, "cut ops whose span exceeds 256 MiB per core",
         "compiler"),
    Knob("global_stick_optimizer", "GLOBAL_STICK_OPTIMIZER", bool, True,
         "choose layouts over the whole graph, not op by op", "compiler"),
    Knob("allow_all_ops_in_lx_planning", "", bool, False, "let every op's result live in the scratchpad", "compiler"),
    Knob("lx_boundary_clones", "LX_BOUNDARY_CLONES", bool, False,
         "copy inputs that are read twice, and outputs, through the scratchpad", "compiler"),
    Knob("dxp_lx_frac_avail", "DXP_LX_FRAC_AVAIL", float, 0.2,
         "fraction of the scratchpad kept from the planner for the back end (despite its name)", "compiler",
         "active", low=0, high=1),
    Knob("dynamic_buckets", "SPYRE_DYNAMIC_BUCKETS", bool, True,
         "one program for a range of sizes of a dynamic dim, where that gives the same results", "compiler", "active"),
    Knob("max_buckets", "MAX_BUCKETS", int, 32, "most programs that a kernel with dynamic dims keeps", "compiler",
         "active", low=1),
    Knob("min_default_granularity", "MIN_DEFAULT_GRANULARITY", int, 4, "smallest bucket step of a dynamic dim",
         "compiler", low=1),
    Knob("ignore_work_division_hints", "SPYRE_INDUCTOR_IGNORE_HINTS", bool, False, "ignore core splits given as hints",
         "compiler", "active"),
    Knob("core_id_k_fast_emission", "SPYRE_CORE_ID_K_FAST_EMISSION", bool, True,
         "number cores so that the partial sums of one output come from ring neighbours", "compiler"),
    Knob("bundle_symbolic_args", "BUNDLE_SYMBOLIC_ARGS", bool, False, "SuperDSC bundles with symbolic addresses",
         "compiler"),
    Knob("unroll_loops", "UNROLL_LOOPS", bool, True, "unroll tile loops in SuperDSC bundles", "compiler"),
    Knob("layout_solver", "", str, "greedy", "how the scratchpad planner orders buffers", "compiler",
         choices=("greedy", "firstfit", "bestfit")),
    # -- log
    Knob("dump", "SPYRE_DUMP", str, "", "directory that receives every form of each kernel, TileGraph to program",
         "log", "active", default_text="empty (no dump)"),
    Knob("dump_inputs", "SPYRE_DUMP_INPUTS", bool, False,
         "with SPYRE_DUMP: save the values of each kernel's last launch beside its reproducer (eager ops: the first; "
         "kernels of dynamic size: none)",
         "log", "active"),
    Knob("debug", "TORCH_SPYRE_DEBUG", int, 0, "1: DEBUG logging everywhere (deprecated: TORCH_LOGS)", "log", "active"),
    Knob("inductor_log", "SPYRE_INDUCTOR_LOG", bool, False, "log the compiler (deprecated: TORCH_LOGS)", "log",
         "active"),
    Knob("inductor_log_level", "SPYRE_INDUCTOR_LOG_LEVEL", str, "WARNING",
         "level of the compiler's log (deprecated: TORCH_LOGS)", "log", "active", choices=_LOG_LEVELS),
    Knob("log_file", "SPYRE_LOG_FILE", str, "", "file that receives the log", "log", "active",
         default_text="empty (stderr)"),
    # -- closed
    Knob("sendnn_log", "TORCH_SENDNN_LOG", str, "CRITICAL", "no such component here", "closed"),
    Knob("deeprt_verbose", "DT_DEEPRT_VERBOSE", int, -1, "no such component here", "closed"),
    Knob("dtlog_level", "DTLOG_LEVEL", str, "error", "no such component here", "closed"),
)  # fmt: skip

ROWS: dict[str, Knob] = {row.name: row for row in TABLE}

_overrides: dict[str, Value] = {}
_config: ModuleType | None = None


def _row(name: str) -> Knob:
    try:
        return ROWS[name]
    except KeyError:
        raise AttributeError(f"no knob named {name!r}; see docs/knobs.md for the list") from None


def from_env(name: str) -> Any:
    """Value that the environment gives, without overrides."""
    row = _row(name)
    text = os.environ.get(row.env) if row.env else None
    return row.default_value() if text is None else row.parse(text)


def get(name: str) -> Any:
    """Value in force: patched, else from the compiler's config module, else from the environment."""
    row = _row(name)
    if name in _overrides:
        return _overrides[name]
    if row.group == "compiler" and _config is not None:
        return row.check(getattr(_config, name))
    return from_env(name)


def planning() -> dict[str, Value]:
    """The values in force that plans depend on."""
    return {row.name: get(row.name) for row in TABLE if row.plans}


def attach(config: ModuleType) -> None:
    """Called by `_inductor/config.py` when it is loaded: from then on it holds the compiler's values."""
    global _config
    _config = config
    for action in _when_attached:
        action(config)


_when_attached: list[Callable[[ModuleType], None]] = []


def when_attached(action: Callable[[ModuleType], None]) -> None:
    """`action` is called with the compiler's config module, now or when it is loaded."""
    _when_attached.append(action)
    if _config is not None:
        action(_config)


def set_compiler_config(load: Callable[[], Any]) -> None:
    """Says how to get the config module that holds the rows of the group "compiler". The package does when it loads the
    device; without torch there is none."""
    global _compiler_config
    _compiler_config = load


_compiler_config: Callable[[], Any] | None = None
_listeners: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """`listener` is called when a value of the compiler's config module was set, in the thread for which it was."""
    _listeners.append(listener)


def changed() -> None:
    """A value of the compiler's config module was set."""
    for listener in _listeners:
        listener()


@contextlib.contextmanager
def patch(**values: Value) -> Iterator[None]:
    """Sets knobs for a ``with`` block. Compiler rows go through the config module, for Inductor's cache key."""
    checked = {name: _row(name).check(value) for name, value in values.items()}
    with contextlib.ExitStack() as stack:
        compiler = {}
        if _compiler_config is not None:
            compiler = {name: value for name, value in checked.items() if ROWS[name].group == "compiler"}
        if compiler and _compiler_config is not None:
            stack.enter_context(_compiler_config().patch(**compiler))
        before = dict(_overrides)
        stack.callback(_restore, before)
        _overrides.update({name: value for name, value in checked.items() if name not in compiler})
        yield


def _restore(before: dict[str, Value]) -> None:
    _overrides.clear()
    _overrides.update(before)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return get(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *ROWS])


def _default_cell(row: Knob) -> str:
    if row.default_text:
        return row.default_text
    if row.default is None:
        return "unset"
    return str(int(row.default)) if isinstance(row.default, bool) else str(row.default)


def markdown() -> str:
    """The page docs/knobs.md."""
    lines = [
        "# Knobs",
        "",
        "Generated by `python -m torch_spyre.knobs > docs/knobs.md` from `torch_spyre/knobs.py`; edit that file.",
        "",
        "Read a value with `torch_spyre.knobs.<name>`, change it for a block with `torch_spyre.knobs.patch(<name>=…)`.",
        "A value that is not legal raises `InvalidArgument` (a `ValueError`) that names the variable. Booleans take",
        "0/1, true/false, on/off, yes/no. The compiler's values are also attributes of `torch_spyre._inductor.config`.",
        "",
        "Status *active*: the value is used. *no effect*: a published name that scripts may set; the value is checked,",
        "and nothing reads it, so it changes no program and is in no cache key. Published variables that locate closed",
        "SDKs at build time have no meaning here and are not listed. PyTorch's own variables (`TORCH_LOGS`,",
        "`TORCHINDUCTOR_CACHE_DIR`, …) keep theirs.",
    ]
    for group, title in GROUPS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| name | variable | legal values | default | status | |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| `{row.name}` | {f'`{row.env}`' if row.env else '–'} | {row.legal()} | {_default_cell(row)} "
            f"| {row.status} | {row.doc} |"
            for row in TABLE
            if row.group == group
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
