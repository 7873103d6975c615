# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_patches.py

Changes to PyTorch's own objects are all in torch_spyre/patches, each with the hook that is missing upstream.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from torch_spyre.patches import applied

PATCHES = Path(applied.__file__).parent
PACKAGE = PATCHES.parent
FOREIGN = ("torch", "safetensors", "transformers")
# Writes to Inductor's table of lowerings; adds to its count of kernels, as every backend does.
TABLES = {"_inductor/lowering/guards.py", "_inductor/codegen.py"}


def foreign_names(tree: ast.AST) -> set[str]:
    """Names that stand for modules or objects of PyTorch in a file, also by another name: ``ops = torch.ops.aten``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] in FOREIGN}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in FOREIGN:
            names |= {a.asname or a.name for a in node.names}
    aliases = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_path(node.value)]
    names |= {t.id for node in aliases if root(node.value) in names for t in node.targets if isinstance(t, ast.Name)}
    return names


def is_path(node: ast.expr) -> bool:
    """``a.b.c``"""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def assignments(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """(line, object whose attribute or item is set), also by setattr, delattr and __setattr__."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, (ast.Attribute, ast.Subscript)):
                    yield node.lineno, part.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.lineno, node.args[0]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__setattr__":
            yield node.lineno, node.args[0]


def classes_replaced(tree: ast.AST) -> Iterator[int]:
    """Lines that name `__class__` to set it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store):
            yield node.lineno
        if isinstance(node, ast.Call) and any(
            isinstance(a, ast.Constant) and a.value == "__class__" for a in node.args
        ):
            yield node.lineno


def mocks(tree: ast.AST) -> Iterator[int]:
    """Lines that import unittest or its mock."""
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(m.split(".")[0] in ("unittest", "mock") for m in modules):
            yield node.lineno


def changed(source: str) -> list[int]:
    tree = ast.parse(source)
    names = foreign_names(tree)
    set_here = [line for line, owner in assignments(tree) if root(owner) in names]
    return sorted({*set_here, *classes_replaced(tree), *mocks(tree)})


def test_the_search_finds_what_it_should() -> None:
    assert changed("import torch\ntorch.nn.Module.to = f\n") == [2]
    assert changed("from torch._inductor import lowering as l\nsetattr(l, 'x', 1)\nl.a.b += 2\n") == [2, 3]
    assert changed("from torch._inductor.lowering import lowerings\nlowerings[op] = f\n") == [2]
    assert changed("import torch\nframes = torch._C._dynamo\nframes.x = 1\n") == [3]
    assert changed("from unittest import mock\n") == [1]
    assert changed("m.__class__ = C\nModuleType.__setattr__(m, '__class__', C)\n") == [1, 2]
    assert changed("import torch\ndef f(x):\n    x.to = 1\n    y = torch.ones(2)\n    x.__class__\n") == []


def test_no_other_file_changes_pytorch() -> None:
    files = {str(f.relative_to(PACKAGE)): f for f in PACKAGE.rglob("*.py") if f.parent != PATCHES}
    found = {name: lines for name, f in files.items() if name not in TABLES and (lines := changed(f.read_text()))}
    assert found == {}, "belongs into torch_spyre/patches"


def test_the_compiler_is_hidden_from_dynamo_by_the_public_name() -> None:
    """Private calls of Dynamo's frame evaluation change what PyTorch does as much as an assignment would."""
    private = re.compile(r"set_code_exec_strategy|_FrameExecStrategy|set_eval_frame")
    assert [f for f in PACKAGE.rglob("*.py") if private.search(f.read_text())] == []


def test_every_change_names_the_missing_hook() -> None:
    made = inspect.getsource(applied.apply_to_torch) + inspect.getsource(applied.apply_to_inductor)
    calls = re.findall(r"^    (\w+)\.(\w+)\(\)$", made, re.MULTILINE)
    assert len(calls) == made.count("()\n")
    for module, name in calls:
        text = " ".join((getattr(getattr(applied, module), name).__doc__ or "").split())
        assert "issing" in text or "cannot" in text, f"{name} does not say which hook is missing"


SCAN = """
import inspect, json, sys
import torch

def compile_something():
    x = torch.ones(3, 64, dtype=torch.float16).to("spyre")
    torch.compile(lambda v: torch.softmax(v * 2, -1), backend="spyre")(x)

compile_something()
import torch_spyre
package = torch_spyre.__path__[0]

def ours(function):
    return function.__code__.co_filename.startswith(package)

found = set()
for name, module in list(sys.modules.items()):
    generated = name.startswith("torch._inductor.runtime.compile_tasks.")
    if name.split(".")[0] != "torch" or name.startswith("torch.spyre") or generated or module is None:
        continue
    for key, value in list(vars(module).items()):
        if inspect.isfunction(value) and ours(value):
            found.add(f"{name}.{key}")
        elif inspect.isclass(value) and value.__module__ == name:
            found |= {f"{name}.{key}.{k}" for k, v in list(vars(value).items()) if inspect.isfunction(v) and ours(v)}
print(json.dumps(sorted(found)))
"""


def test_a_running_process_has_just_the_listed_ones() -> None:
    """Every function of this package that hangs on a module or class of torch, after compiling something."""
    done = subprocess.run([sys.executable, "-c", SCAN], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    found = set(json.loads(done.stdout.splitlines()[-1]))
    # One class or function may be known under several names.
    aliases = {
        "torch._tensor.Tensor": "torch.Tensor",
        "torch.nn.modules.module.Module": "torch.nn.Module",
        "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    }
    named = set()
    for name in found:
        for long, short in aliases.items():
            name = name.replace(long + ".", short + ".")
        named.add(name)
    assert named == applied.PATCHED
