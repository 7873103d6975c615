# SPDX-License-Identifier: Apache-2.0
"""Pages that are printed from the code: errors.md, reference.md, operator-table.md."""

from __future__ import annotations

import importlib
import inspect
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_spyre import errors

ROOT = Path(__file__).parents[2]
ADVICE = tomllib.loads((Path(__file__).parent / "error_advice.toml").read_text())
# The public interface: what stays as it is from one version to the next, or is named in CHANGELOG.md.
PUBLIC = {
    "torch.spyre": "The device, as `torch.cuda` is for GPUs. `import torch` is enough.",
    "torch_spyre": "",
    "torch_spyre.errors": "Every class is in the [index of errors](errors.md).",
    "torch_spyre.explain": "",
    "torch_spyre.hints": "",
    "torch_spyre.ktir": "",
    "torch_spyre.knobs": "All knobs are in [their table](knobs.md).",
    "torch_spyre.tensor_layouts": "",
    "torch_spyre.models.blocks": "",
    "torch_spyre.models.checkpoint": "",
    "torch_spyre.predict": "",
    "torch_spyre.profiler": "",
    "torch_spyre.sanitizer": "",
    "torch_spyre.sdsc": "",
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
    for name, note in PUBLIC.items():
        module = _module(name)
        lines += ["", f"## {name}", "", note or _summary(module), ""]
        for member, thing in members(module):
            lines += _member(member, thing)
    return "\n".join(lines) + "\n"


def _module(name: str) -> ModuleType:
    if name == "torch.spyre":
        import torch

        return torch.spyre  # type: ignore[no-any-return, attr-defined]
    return importlib.import_module(name)


def members(module: ModuleType) -> list[tuple[str, Any]]:
    """What a module declares (``__all__``), or the functions and classes of its package that have no underscore."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return [(name, getattr(module, name)) for name in declared]
    home = module.__name__.split(".")[0]
    return [
        (name, thing)
        for name, thing in sorted(vars(module).items())
        if not name.startswith("_")
        and (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__.split(".")[0] == home
    ]


def _member(name: str, thing: Any) -> list[str]:
    try:
        call = str(inspect.signature(thing)).replace("torch_spyre.", "")
    except (TypeError, ValueError):
        call = ""
    return [f"### {name}", "", f"`{name}{call}`", "", _summary(thing), ""]


def _summary(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return text.replace("``", "`").replace("<", "&lt;") if not text.startswith(">>>") else ""


if __name__ == "__main__":
    print(error_index(), end="")
