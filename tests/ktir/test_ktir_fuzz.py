# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_fuzz.py [-m slow]: mutated KTIR ends in a named error or in a program, never else.

Each case takes a kernel and changes tokens, lines or characters; what still parses is compiled and proved by the card.
"""

from __future__ import annotations

import random
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from torch_spyre import ktir
from torch_spyre.errors import SpyreError

FOLDER = Path(__file__).parents[1] / "support" / "ktir"
CORPUS = {file.stem: file.read_text() for file in sorted(FOLDER.glob("*.mlir"))}
TOKEN = re.compile(r'"[^"\n]*"|[%#!@^]?[A-Za-z_][\w.$]*|\d+\.\d+(?:e[-+]?\d+)?|0x[0-9A-Fa-f]+|\d+|->|\s+|.', re.DOTALL)
NUMBERS = "0 1 2 3 4 7 8 16 31 32 33 63 64 65 100 128 1000 4095 4096 65536 1000000 2147483647 2147483648 -1".split()
WORDS = (
    "f16 f32 i1 i8 i32 i64 si32 index bf16 f64 i128 none tensor memref ? >= == <= + - * floordiv mod ceildiv ( ) { } [ "
    "] < > , : -> = x symbols ind sizes strides global ct_local arith.addf arith.mulf arith.addi arith.maximumf "
    "math.exp linalg.add linalg.reduce scf.for scf.if ktdp.load ktdp.store tensor.empty dense true 0x7C00 unknown.op"
).split()
SECONDS = 60


class TookTooLong(BaseException):
    pass


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"no answer after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _tokens(rng: random.Random, text: str) -> str:
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        i = rng.randrange(len(tokens))
        kind = rng.randrange(6)
        if kind == 0:
            tokens[i] = ""
        elif kind == 1:
            tokens[i] = tokens[i] + " " + tokens[i]
        elif kind == 2:
            j = rng.randrange(len(tokens))
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 3:
            tokens[i] = rng.choice(tokens)
        else:
            tokens[i] = rng.choice(WORDS)
    return "".join(tokens)


def _numbers(rng: random.Random, text: str) -> str:
    places = [m for m in re.finditer(r"\d+", text)]
    for match in sorted(rng.sample(places, min(len(places), rng.choice((1, 1, 2, 4)))), key=lambda m: -m.start()):
        text = text[: match.start()] + rng.choice(NUMBERS) + text[match.end() :]
    return text


def _values(rng: random.Random, text: str) -> str:
    """Uses of values and types trade places: much of that still parses."""
    pattern = rng.choice((r"%[A-Za-z]\w*", r"#\w+", r"\b(?:f16|f32|i32|index)\b", r"tensor<[^<>]*>", r"\b\w+\.\w+\b"))
    places = [m for m in re.finditer(pattern, text)]
    if len(places) < 2:
        return text
    match, other = rng.choice(places), rng.choice(places)
    return text[: match.start()] + other.group() + text[match.end() :]


def _lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines = lines[: max(i, 1)]
    return "".join(lines)


def _characters(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice((1, 2, 5))):
        i = rng.randrange(len(text))
        text = text[:i] + rng.choice(("", chr(rng.randrange(32, 127)), chr(rng.randrange(1, 0x2FF)))) + text[i + 1 :]
    return text


def _splice(rng: random.Random, text: str) -> str:
    other = rng.choice(list(CORPUS.values()))
    i, j = rng.randrange(len(text)), rng.randrange(len(other))
    return text[:i] + other[j:]


MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (
    _tokens, _tokens, _numbers, _numbers, _values, _values, _values, _lines, _lines, _characters, _splice,
)  # fmt: skip


def mutated(seed: int) -> str:
    rng = random.Random(seed)
    text = CORPUS[rng.choice(list(CORPUS))]
    for _ in range(rng.choice((1, 1, 1, 2))):
        text = rng.choice(MUTATIONS)(rng, text)
    return text


def outcome(text: str) -> str:
    """What became of a text; any other exception than a named one is a failure of the test."""
    with warnings.catch_warnings(), time_limit(SECONDS):
        warnings.simplefilter("ignore")
        try:
            module = ktir.load(text + "\n")
            for function in module.functions.values():
                values = {a.name: 8 for a in function.arguments if a.role == "integer"}
                module.compile(function.name, **values)
        except SpyreError as error:
            assert str(error), "an error without a message"
            return type(error).__name__
    return "program"


def check(seeds: range) -> None:
    seen: dict[str, int] = {}
    for seed in seeds:
        text = mutated(seed)
        try:
            kind = outcome(text)
        except (Exception, TookTooLong) as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{text}") from error
        seen[kind] = seen.get(kind, 0) + 1
    print(seen)
    assert seen.get("program", 0) > len(seeds) // 20, f"too few mutations reach the back end: {seen}"


def test_mutations() -> None:
    check(range(300))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_mutations(part: int) -> None:
    check(range(1000 + 500 * part, 1500 + 500 * part))


def test_hostile_texts() -> None:
    for text in (
        "\n",
        "module\n",
        "(" * 5000 + "\n",
        "func.func @k() {" * 2000 + "\n",
        "func.func @k() {\n%a = arith.constant " + "9" * 5000 + " : index\nreturn\n}\n",
        "#a = #b\n#b = #a\nfunc.func @k() attributes {x = #a} {\nreturn\n}\n",
        "func.func @k() {\n%a = arith.constant dense<" + "[" * 3000 + "> : tensor<1xf16>\nreturn\n}\n",
        "func.func @k() loc(\n",
        '"\n',
        "\0\0\0\n",
        "func.func @k() {\n%a = arith.constant dense<0.0> : tensor<99999999999x99999999999xf16>\nreturn\n}\n",
        "func.func @k() attributes {grid = [9223372036854775808]} {\nreturn\n}\n",
    ):
        assert outcome(text) != "TookTooLong"
