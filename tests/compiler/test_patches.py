# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_patches.py

Changes to PyTorch's own objects are all in torch_spyre/patches.py, each with the hook that is missing upstream.
"""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from torch_spyre import patches

PACKAGE = Path(patches.__file__).parent
FOREIGN = ("torch", "safetensors", "transformers")
ABOVE = {"models/hooks.py"}  # transformers' generation; applied by patches.py, explained there


def foreign_names(tree: ast.AST) -> set[str]:
    """Names that stand for modules or objects of PyTorch in a file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] in FOREIGN}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in FOREIGN:
            names |= {a.asname or a.name for a in node.names}
    return names


def root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def assignments(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """(line, object whose attribute is set), also by setattr and delattr."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute):
                    yield node.lineno, part.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.lineno, node.args[0]


def changed(source: str) -> list[int]:
    tree = ast.parse(source)
    names = foreign_names(tree)
    return sorted(line for line, owner in assignments(tree) if root(owner) in names)


def test_the_search_finds_what_it_should() -> None:
    assert changed("import torch\ntorch.nn.Module.to = f\n") == [2]
    assert changed("from torch._inductor import lowering as l\nsetattr(l, 'x', 1)\nl.a.b += 2\n") == [2, 3]
    assert changed("import torch\ndef f(x):\n    x.to = 1\n    y = torch.ones(2)\n") == []


def test_no_other_file_changes_pytorch() -> None:
    files = {str(f.relative_to(PACKAGE)): f for f in PACKAGE.rglob("*.py") if f.name != "patches.py"}
    found = {name: lines for name, f in files.items() if name not in ABOVE and (lines := changed(f.read_text()))}
    assert found == {}, "belongs into torch_spyre/patches.py"


def test_every_change_names_the_missing_hook() -> None:
    applied = inspect.getsource(patches.apply_to_torch) + inspect.getsource(patches.apply_to_inductor)
    functions = {
        name: f for name, f in vars(patches).items() if inspect.isfunction(f) and f.__module__ == patches.__name__
    }
    ours = {name: f for name, f in functions.items() if f"    {name}()" in applied}
    assert len(ours) == applied.count("    _")
    for name, function in ours.items():
        text = " ".join((function.__doc__ or "").split())
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
    done = subprocess.run([sys.executable, "-c", SCAN], capture_output=True, text=True, timeout=300)
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
    assert named == patches.PATCHED
