# SPDX-License-Identifier: Apache-2.0
"""Reads back what `Graph.text` prints, so that a test can show the graph that it starts from."""

from __future__ import annotations

import re

from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Graph, Load, Node, Position, Value
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.ir.plan.tileops import Term

_HEAD = re.compile(r"graph (\w+)\((.*?)\) -> \((.*?)\)")
_BUFFER = re.compile(r"(input|output|temp|scalar) (\w+): (\w+)\[(.*?)\] stride \[(.*?)\]")
_NODE = re.compile(r"(\w+): (\w+)\[(.*?)\] = (\w+)\((.*)\) over (.*)")
_TERM = re.compile(r"(?:(-?\d+)\*)?\(?([a-z_@]\w*)(?://(\d+))?(?:%(\d+))?\)?")


def parse(text: str) -> Graph:
    lines = [line.strip() for line in text.strip().splitlines()]
    name, inputs, outputs = _matched(_HEAD, lines[0])
    graph = Graph(name, {}, [], _words(inputs), _words(outputs))
    for line in lines[1:]:
        if found := _BUFFER.fullmatch(line):
            kind, buffer, dtype, size, stride = found.groups()
            graph.buffers[buffer] = Buffer(buffer, dtype, _numbers(size), _numbers(stride), kind)
        elif line.startswith("reduces "):
            graph.nodes[-1].reduced = tuple(_words(line.removeprefix("reduces ")))
        elif line.startswith("along "):
            graph.nodes[-1].along = line.removeprefix("along ")
        else:
            graph.nodes.append(_node(*_matched(_NODE, line)))
    return graph


def _matched(pattern: re.Pattern[str], line: str) -> tuple[str, ...]:
    found = pattern.fullmatch(line)
    assert found, f"not a line of a graph: {line}"
    return found.groups()


def _node(name: str, output: str, index: str, op: str, operands: str, dims: str) -> Node:
    sizes = tuple((d, int(n)) for d, n in (word.split(":") for word in _words(dims.replace("one point", ""))))
    return Node(name, op, sizes, tuple(_value(v) for v in _words(operands)), Load(output, _index(index)))


def _value(text: str) -> Value:
    if text.endswith("]"):
        buffer, _, index = text[:-1].partition("[")
        return Load(buffer, _index(index))
    if text.startswith("position("):
        return Position(_index(text[len("position(") : -1]))
    return Const(int(text), "int32") if text.lstrip("-").isdigit() else Const(float(text), "float32")


def _index(text: str) -> Index:
    terms, const = [], 0
    for part in text.split("+"):
        if part.lstrip("-").isdigit():
            const = int(part)
        else:
            scale, dim, div, mod = _matched(_TERM, part)
            terms.append(Term(dim, int(scale or 1), int(div or 1), int(mod or 0)))
    return Index(tuple(terms), const)


def _words(text: str) -> list[str]:
    return text.split(", ") if text else []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in _words(text))
