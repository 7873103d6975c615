# SPDX-License-Identifier: Apache-2.0
# pytest tests/ktir/test_ktir_grammar.py
"""docs/ktir-grammar.md against the parser: it names every operation and type of ktdp and spyreop, accepts what
the printer prints, and refuses nothing that the parser takes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import ebnf
import pytest

from torch_spyre import ktir
from torch_spyre.errors import SpyreError
from torch_spyre.ir.ktir.dialect.context import Ktdp
from torch_spyre.ir.ktir.dialect.spyreop import OPS
from torch_spyre.ir.ktir.dialect.spyreop_tensor import TENSOR_OPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ktir-grammar.md").read_text()
GRAMMAR = ebnf.Grammar(PAGE)
FILES = sorted([*(ROOT / "tests/support/ktir").glob("*.mlir"), *(ROOT / "torch_spyre/ktir/examples").glob("*.mlir")])
NAMED = re.compile(r"^ *(?:%[^=]* = )?(?:ktdp|spyreop)\.")
CONSUME = """
#all = affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>
#first = affine_set<(i)[g] : (i == 0)>
#one = affine_set<(g) : (g == 0)>
func.func @spread(%x: index) attributes {grid = [4]} {
  %zero = arith.constant dense<0.0> : tensor<64xf16>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #first -> <(tensor<64xf16>), groups = #one> {
  ^bb0(%g: index):
    ktdp.yield_partial %zero : tensor<64xf16>
  }
  %r = ktdp.inter_tile_consume(%f) consumer_tiles_per_group = #all : <(tensor<64xf16>), groups = #one> -> tensor<64xf16>
  return
}
"""


def operations(text: str) -> list[tuple[int, int]]:
    """(first, end) of the characters of each operation of the two dialects in printed text: a line, or the lines up to
    where its last bracket closes."""
    found, at = [], 0
    lines = text.splitlines(keepends=True)
    for n, line in enumerate(lines):
        if NAMED.match(line):
            whole = ""
            for more in lines[n:]:
                whole += more
                marks = [t for _, t in ebnf.tokens(whole)]
                if sum(map(marks.count, "({[<")) == sum(map(marks.count, ")}]>")):
                    break
            found.append((at, at + len(whole)))
        at += len(line)
    return found


def printed() -> list[str]:
    """All kernels as the printer prints them; some files have older spellings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ktir.KtirWarning)
        return [ktir.load(text).text for text in [*(f.read_text() for f in FILES), CONSUME]]


@pytest.fixture(scope="module")
def modules() -> list[str]:
    return printed()


def test_every_operation_and_type_has_a_rule() -> None:
    names = {op.name for op in (*Ktdp.operations, *TENSOR_OPS)}
    assert names <= GRAMMAR.terminals
    of_page = {t for t in GRAMMAR.terminals if t.startswith(("ktdp.", "spyreop."))}
    assert of_page == names, "the page names an operation that the dialects lack"
    types = {f"!{t.name}" if "space" not in t.name else f"#{t.name}" for t in Ktdp.attributes}
    assert types - GRAMMAR.terminals == {"#ktdp.spyre_memory_space"}, "older spellings are in the table"
    assert "`#ktdp.spyre_memory_space<" in PAGE and OPS


def test_every_production_is_used() -> None:
    used = set(re.findall(r"[\w-]+", re.sub(r'"[^"]*"', "", " ".join(GRAMMAR.rules.values()))))
    assert set(GRAMMAR.rules) - used == {"operation", "space", "df16"}
    assert used - set(GRAMMAR.rules) == set(re.findall(r"^\| ([A-Z, ]+) \|", PAGE, re.M)[0].split()) | {
        *("INTEGER", "TYPE", "SHAPE", "ATTRIBUTE", "ATTRIBUTES", "REGION", "INTRINSIC")
    }


def test_what_is_printed_is_in_the_grammar(modules: list[str]) -> None:
    seen = set()
    for text in modules:
        for first, end in operations(text):
            op = text[first:end]
            assert GRAMMAR.accepts(op, "operation"), f"{op}\nstops at {ebnf.tokens(op)[GRAMMAR.furthest :][:5]}"
            seen |= set(re.findall(r"\b(?:ktdp|spyreop)\.\w+", op))
    missing = {op.name for op in (*Ktdp.operations, *TENSOR_OPS)} - seen
    assert missing == {"ktdp.region_terminator"}, "it ends a region that is not printed"


def test_what_the_grammar_refuses_the_parser_refuses(modules: list[str]) -> None:
    """Each operation once, without each of its tokens."""
    refused = tried = 0
    done: set[str] = set()
    for text in sorted(modules, key=len):
        for first, end in operations(text):
            op = text[first:end]
            name = re.findall(r"\b(?:ktdp|spyreop)\.\w+", op)[0]
            if name in done:
                continue
            done.add(name)
            for without in shortened(op):
                tried += 1
                if not GRAMMAR.accepts(without, "operation"):
                    refused += 1
                    with pytest.raises((SpyreError, ValueError)):
                        print(without, ktir.load(text[:first] + without + text[end:], strict=True))
    assert refused > tried / 3 > 100, "the grammar says something"


def shortened(op: str) -> list[str]:
    """The text without each of its tokens; what stands in a region belongs to other operations."""
    head = op.partition("{\n")[0]
    return [head[: m.start()] + head[m.end() :] + op[len(head) :] for m in ebnf._TOKEN.finditer(head) if m.lastgroup]
