# SPDX-License-Identifier: Apache-2.0
"""KTIR in the making, and the values that it names."""

from __future__ import annotations

from xdsl.ir import SSAValue

from torch_spyre.triton.lowering.linear import Linear


class Text:
    """Lines of KTIR, in order; `values` are those from outside."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[str, SSAValue] = {}
        self._names: dict[SSAValue, str] = {}
        self._count = 0

    def name(self, line: str) -> str:
        """A new value, computed by a line without its left side."""
        self._count += 1
        made = f"%t{self._count}"
        self.lines.append(f"{made} = {line}")
        return made

    def value(self, value: SSAValue) -> str:
        if value not in self._names:
            name = f"v{len(self.values)}"
            self.values[name], self._names[value] = value, f"%{name}"
        return self._names[value]

    def index(self, value: SSAValue) -> str:
        if str(value.type) == "index":
            return self.value(value)
        return self.name(f"arith.index_cast {self.value(value)} : {value.type} to index")

    def number(self, value: int) -> str:
        return self.name(f"arith.constant {value} : index")

    def sum(self, form: Linear) -> str:
        total = None if form.const and form.terms else self.number(form.const) if not form.terms else None
        for monomial, count in form.terms.items():
            product = self.index(monomial[0])
            for more in monomial[1:]:
                product = self.name(f"arith.muli {product}, {self.index(more)} : index")
            if count != 1:
                product = self.name(f"arith.muli {product}, {self.number(count)} : index")
            total = product if total is None else self.name(f"arith.addi {total}, {product} : index")
        if form.terms and form.const:
            total = self.name(f"arith.addi {total}, {self.number(form.const)} : index")
        assert total is not None
        return total

    def least(self, names: list[str]) -> str:
        result = names[0]
        for other in names[1:]:
            result = self.name(f"arith.minsi {result}, {other} : index")
        return result
