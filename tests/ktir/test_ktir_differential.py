# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_differential.py [-m slow]: changed kernels agree with an interpreter.

A mutation may move tiles, change sizes, strides, sets, loops, operations and groups. What does not compile, and what
the interpreter calls undefined, is left out; all else must agree to the rounding of the 16-bit format.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import ktir_reference as reference
import numpy as np
import pytest
import torch
from test_ktir_fuzz import CORPUS, SECONDS, _lines, _numbers, _values, time_limit

from torch_spyre import ktir
from torch_spyre.errors import SpyreError
from torch_spyre.ktir.linear_memory import dtype_of

KERNELS = [
    n for n in CORPUS if "1024" not in n and "8192" not in n and n not in ("topk", "literal_add", "paged_attention")
]
MUTATIONS = (_numbers, _numbers, _values, _values, _lines)
TOLERANCE = 0.02  # of the largest result: roundings of the 16-bit format add up along a kernel


def mutated(seed: int) -> str:
    rng = random.Random(seed)
    text = CORPUS[rng.choice(KERNELS)]
    for _ in range(rng.choice((1, 1, 2))):
        text = rng.choice(MUTATIONS)(rng, text)
    return text


def inputs(function: Any, compiled: Any, integers: dict[int, int], rng: np.random.Generator) -> list[Any]:
    """A plain run of elements for each base address, a number for each scalar."""
    values: list[Any] = []
    needed = {p: compiled.args[i].bytes for i, p in enumerate(compiled.buffers)}
    for argument in function.arguments:
        if argument.role != "buffer":
            values.append(integers.get(argument.position, 0.5))
            continue
        element = argument.elements[0] if argument.elements else "f16"
        count = max(1, needed.get(argument.position, 0) // 2)
        # A tensor of the shape of a view would take the strides of the view.
        count += any(tuple(v.op.static_sizes.get_values()) == (count,) for v in argument.views)
        if count > 1 << 20:
            raise reference.TooLong
        if "i" in element:
            values.append(torch.from_numpy(rng.integers(0, 4, count).astype(np.int32)).to(dtype_of(element)))
        else:
            values.append(torch.from_numpy(rng.integers(-8, 9, count) / 8).to(dtype_of(element)))
    return values


def compare(text: str) -> str:
    """What became of a text: an error, a reason why it cannot be compared, or agreement."""
    with warnings.catch_warnings(), time_limit(SECONDS):
        warnings.simplefilter("ignore")
        try:
            module = ktir.load(text + "\n")
            function = module.function()
            integers = {a.position: 4 for a in function.arguments if a.role == "integer"}
            compiled = module.compile(None, **{function.arguments[p].name: v for p, v in integers.items()})
        except SpyreError as error:
            return type(error).__name__
        try:
            values = inputs(function, compiled, integers, np.random.default_rng(1))
            expected = [
                reference.Memory(v.double().numpy().copy()) if isinstance(v, torch.Tensor) else v for v in values
            ]
            reference.Interpreter(function, expected).run()
        except (reference.Undefined, reference.TooLong, NotImplementedError) as error:
            return type(error).__name__
        try:
            module.run(*values)
        except SpyreError as error:
            torch.spyre.reset()
            return type(error).__name__
    for argument, value, wanted in zip(function.arguments, values, expected, strict=True):
        if isinstance(value, torch.Tensor):
            agree(argument.name, value.double().numpy(), wanted.data)
    return "agrees"


def compare_seeds(text_of: Callable[[int], str], seeds: range, share: float) -> None:
    """Compares the text of every seed; at least `share` of them must be comparable and agree."""
    seen: dict[str, int] = {}
    for seed in seeds:
        text = text_of(seed)
        try:
            kind = compare(text)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{text}") from error
        seen[kind] = seen.get(kind, 0) + 1
    print(seen)
    assert seen.get("agrees", 0) >= len(seeds) * share, f"too few could be compared: {seen}"


def agree(name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    usable = np.isfinite(expected) & (np.abs(expected) < 6e4)
    scale = np.abs(expected[usable]).max(initial=0.0)
    wrong = usable & ~(np.abs(actual - expected) <= TOLERANCE * scale + 1e-3)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise AssertionError(f"{name}[{at}] is {actual[at]}, expected {expected[at]} ({int(wrong.sum())} differ)")


def check(seeds: range) -> None:
    seen: dict[str, int] = {}
    for seed in seeds:
        text = mutated(seed)
        try:
            kind = compare(text)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{text}") from error
        seen[kind] = seen.get(kind, 0) + 1
    print(seen)
    assert seen.get("agrees", 0) > len(seeds) // 30, f"too few mutations can be compared: {seen}"


@pytest.mark.parametrize("name", KERNELS)
def test_the_interpreter_agrees_on_the_kernels_themselves(name: str) -> None:
    assert compare(CORPUS[name]) == "agrees"


def test_mutations() -> None:
    check(range(150))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_mutations(part: int) -> None:
    check(range(1000 + 300 * part, 1300 + 300 * part))
