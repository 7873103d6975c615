# SPDX-License-Identifier: Apache-2.0
"""Pages that are printed from the code: errors.md, reference.md, operator-table.md of the site, and
``python docs/site/generated.py > docs/public-api.md``."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_spyre import errors

ROOT = Path(__file__).parents[2]
ADVICE = tomllib.loads((Path(__file__).parent / "error_advice.toml").read_text())
# The public interface: what stays as it is from one version to the next, or is named in CHANGELOG.md. A module without
# names here has them in `__all__`.
PUBLIC: dict[str, tuple[str, ...]] = {
    "torch.spyre": (),
    "torch.spyre.memory": (),
    "torch_spyre": ("report",),
    "torch_spyre.constants": (
        "CORES",
        "DATA_SEGMENTS",
        "DEVICE_NAME",
        "LX_BYTES",
        "MAX_SPAN_BYTES",
        "SEGMENT_BYTES",
        "STICK_BYTES",
    ),
    "torch_spyre.errors": (),
    "torch_spyre.explain": (),
    "torch_spyre.explain.lines": ("Explained", "Line", "explained"),
    "torch_spyre.hints": (),
    "torch_spyre.knobs": ("get", "patch"),
    "torch_spyre.ktir": ("KtirWarning", "Module", "example", "examples", "load"),
    "torch_spyre.models.blocks": ("compile_blocks", "restore_blocks"),
    "torch_spyre.models.chat": ("Chat", "ask", "main"),
    "torch_spyre.models.checkpoint": ("architecture", "fill", "load"),
    "torch_spyre.models.full_size": ("ask", "on_host", "peak_bytes"),
    "torch_spyre.models.minilm": ("Embedder",),
    "torch_spyre.models.quantised_linear": ("quantise",),
    "torch_spyre.models.random_weights": ("RandomWeights", "described"),
    "torch_spyre.models.tensor_files": ("TensorFiles",),
    "torch_spyre.models.smollm2": ("checkpoint",),
    "torch_spyre.numerics.decoded": ("compare",),
    "torch_spyre.numerics.priority": ("find",),
    "torch_spyre.ops.fallbacks": (
        "FallbackWarning",
        "register_fallback",
        "register_fallback_default",
        "unregister_fallback",
    ),
    "torch_spyre.perf.device": ("assume", "load"),
    "torch_spyre.perf.timeline": ("estimate",),
    "torch_spyre.predict": (),
    "torch_spyre.profiler": ("export_chrome_trace", "is_available", "trace_handler"),
    "torch_spyre.runtime": (),
    "torch_spyre.sanitizer": (
        "Report",
        "clear",
        "disable",
        "enable",
        "enabled",
        "inject_fault",
        "print_reports",
        "reports",
        "sanitize",
    ),
    "torch_spyre.sdsc": (),
    "torch_spyre.sdsc.run": ("run",),
    "torch_spyre.streams": (),
    "torch_spyre.tensor_layouts": (),
}
# Published names with an underscore, which scripts for the public torch-spyre use, and where the same is in public.
PUBLISHED = {
    "torch_spyre._C.SpyreTensorLayout": "torch_spyre.tensor_layouts.SpyreTensorLayout",
    "torch_spyre._C.DataFormats": "torch_spyre.tensor_layouts.DataFormats",
    "torch_spyre._C.get_spyre_tensor_layout": "torch_spyre.tensor_layouts.get_spyre_tensor_layout",
    "torch_spyre._C.set_spyre_tensor_layout": "torch_spyre.tensor_layouts.set_spyre_tensor_layout",
    "torch_spyre._C.as_strided_with_layout": "torch_spyre.tensor_layouts.as_strided_with_layout",
    "torch_spyre._C.reinterpret_tensor_with_layout": "torch_spyre.tensor_layouts.reinterpret_tensor_with_layout",
    "torch_spyre._C.prepare_kernel": "torch_spyre.runtime.prepare_kernel",
    "torch_spyre._C.launch_jobplan": "torch_spyre.runtime.launch_jobplan",
    "torch_spyre._C.launch_kernel": "torch_spyre.runtime.launch_kernel",
    "torch_spyre._inductor.config": "torch_spyre.knobs",
}


def pages() -> dict[str, str]:
    return {"errors.md": error_index(), "reference.md": reference(), "operator-table.md": operator_table()}


def error_index() -> str:
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.SpyreError)]
    lines = [
        "# Index of errors",
        "",
        "Look up the class that a message begins with. All derive from `torch_spyre.errors.SpyreError`; `except` can "
        "also name the built-in class beside it. [Debugging](debugging.md) leads from an error to its cause.",
        "",
        "| class | also | says |",
        "|---|---|---|",
    ]
    for c in classes:
        lines.append(f"| [`{c.__name__}`](#{c.__name__.lower()}) | {_also(c)} | {_said(c)} |")
    for c in classes:
        if c is not errors.SpyreError:
            lines += ["", f"## {c.__name__}", "", _said(c), ""]
            lines += [f"* **{case}** {advice}" for case, advice in ADVICE[c.__name__].items()]
    return "\n".join(lines) + "\n"


def _also(c: type) -> str:
    builtin = [base for base in c.__mro__ if base.__module__ == "builtins"]
    return ", ".join(f"`{base.__name__}`" for base in builtin if base not in (Exception, BaseException, object))


def _said(c: type) -> str:
    return " ".join((inspect.getdoc(c) or "").split())


def operator_table() -> str:
    """One row for each op of PyTorch's own samples: samples right and all, by mode and dtype."""
    data = json.loads((ROOT / "tests/upstream/op_table.json").read_text())
    ops: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in data["rows"]:
        ops.setdefault((row["kind"], row["op"]), []).append(row)
    lines = [
        "# Operator table",
        "",
        f"PyTorch's own sample inputs of each op (OpInfo, torch {data['torch']}), run on the card and compared with "
        "the CPU in float64: samples that agree and all samples. `python tests/upstream/make_op_table.py` measures it. "
        "[Operators](operators.md) says what runs on the host, and why.",
        "",
        '<div class="searchable"></div>',
        "",
        "| op | kind | dtypes | eager | backward | compiled | on the host | gap |",
        "|---|---|---|---:|---:|---:|---|---|",
    ]
    for (kind, op), rows in sorted(ops.items(), key=lambda item: item[0][1]):
        eager = [row for row in rows if row["mode"] == "eager"]
        compiled = [row for row in rows if row["mode"] == "compiled"]
        cells = (
            f"`{op}`",
            kind,
            ", ".join(dict.fromkeys(row["dtype"] for row in rows)),
            _share(row["forward"] for row in eager),
            _share(row["backward"] for row in eager),
            _share(row["forward"] for row in compiled),
            ", ".join(sorted({name for row in rows for name in row["host"]})),
            "; ".join(sorted({row["gap"] for row in rows if row["gap"]})).replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(counts: Iterable[list[int]]) -> str:
    good, whole = (sum(part) for part in zip(*counts, strict=True)) if (counts := list(counts)) else (0, 0)
    return f"{good} of {whole}" if whole else "–"


def reference() -> str:
    lines = [
        "# Reference",
        "",
        "The public interface, from the docstrings. What is not here may change from one version to the next. Commands "
        "are in [tools](tools.md), environment variables in [knobs](knobs.md).",
    ]
    for name in PUBLIC:
        module = _module(name)
        lines += ["", f"## {name}", "", _summary(module) or _first_sentence(module), ""]
        for member, thing in members(name):
            lines += _member(member, thing)
    return "\n".join(lines) + "\n"


def public_api() -> str:
    """The names alone, for people who read the pages where they are stored."""
    lines = [_PUBLIC_API]
    for name in PUBLIC:
        lines += ["", f"## {name}", "", "| name | does |", "|---|---|"]
        lines += [f"| `{member}` | {_first_sentence(thing)} |" for member, thing in members(name)]
    lines += ["", *_PUBLISHED_NAMES, *(f"| `{name}` | `{public}` |" for name, public in PUBLISHED.items())]
    return "\n".join(lines) + "\n"


_PUBLIC_API = """# Public API

Use these names in your programs. They stay as they are from one version to the next, or [CHANGELOG](../CHANGELOG.md)
names the change. Everything else, and every name with an underscore, may change at any time. `make docs` builds a
reference with signatures and whole docstrings. Commands are in [tools](tools.md), environment variables in
[knobs](knobs.md).

`python docs/site/generated.py > docs/public-api.md` prints this page. A test compares it with the modules, and sees
that README, documentation and examples use no other name."""
_PUBLISHED_NAMES = (
    "## Published names with an underscore",
    "",
    "Scripts for the public torch-spyre use these. They work here too; in new code take the name on the right.",
    "",
    "| published | the same |",
    "|---|---|",
)


# What the extension has; docstrings of its functions are their signatures.
_NATIVE = {
    "SpyreTensorLayout": "How a tensor is stored in the sticks of card memory.",
    "as_strided_with_layout": "`torch.as_strided` that names a layout, which must be that of the storage.",
    "get_spyre_tensor_layout": "The layout of a tensor on the card.",
    "reinterpret_tensor_with_layout": "A view of another size and stride that names a layout, that of the storage.",
    "set_spyre_tensor_layout": "Gives a tensor that was not written yet another layout.",
    "view_start": "What a program knows of the place where a view begins, and the bytes that a launch adds.",
}


def _first_sentence(thing: Any) -> str:
    if isinstance(thing, (int, str)):
        return f"{thing:,}" if isinstance(thing, int) else f"`{thing}`"
    name = getattr(thing, "__name__", "")
    text = _NATIVE.get(name) or (inspect.getdoc(thing) or "").partition("\n\n")[0]
    text = " ".join(text.replace("``", "`").split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])|(?<=\.) (?=[a-z])", text, maxsplit=1)[0].replace("|", "\\|").rstrip(":")


def _module(name: str) -> ModuleType:
    if name.startswith("torch.spyre"):
        import torch

        api = torch.spyre  # type: ignore[attr-defined]
        return api.memory if name.endswith("memory") else api  # type: ignore[no-any-return]
    return importlib.import_module(name)


def members(name: str) -> list[tuple[str, Any]]:
    """The public names of a module with what they stand for."""
    module = _module(name)
    if name == "torch_spyre.errors":
        return [(n, c) for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, errors.SpyreError)]
    return [(member, getattr(module, member)) for member in PUBLIC[name] or module.__all__]


def _member(name: str, thing: Any) -> list[str]:
    if isinstance(thing, (int, str)):
        return [f"### {name}", "", f"`{thing!r}`", ""]
    try:
        call = str(inspect.signature(thing)).replace("torch_spyre.", "")
    except (TypeError, ValueError):
        call = ""
    return [f"### {name}", "", f"`{name}{call}`", "", _summary(thing), ""]


def _summary(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return text.replace("``", "`").replace("<", "&lt;") if not text.startswith(">>>") else ""


if __name__ == "__main__":
    print(public_api(), end="")
