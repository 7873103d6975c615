# SPDX-License-Identifier: Apache-2.0
"""How an operand touches its tensor, in the terms SuperDSC has: whole dims in some order, at most one in the sticks.

A device dim that several iteration dims count together, ``10 * outer + inner`` over 50 places, is in memory like two
device dims of 5 and 10. So each iteration dim still has one place in the layout order, with an extent of its own. A
view that starts inside its tensor starts at a later address; places that it never moves along are places of a dim of
one element.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import Coord, LinearOperand, Operand, Space, Tensor, Term, TileOp
from torch_spyre.ir.superdsc.constant_formats import stick_elements, word_bytes

SKIPPED = "(skip"  # prefix of dims of one element that stand for places a view does not touch


@dataclass(frozen=True)
class TensorAccess:
    """`extents`: device size of each dim the tensor has, inner to outer, in elements (the stick dim's in sticks)."""

    tensor: Tensor
    stick: str | None  # None: one element per stick
    extents: dict[str, int]
    gathered: dict[str, int] | None = None  # dim -> input whose values are its coordinate

    @property
    def elements(self) -> int:
        """Per stick."""
        return stick_elements(self.tensor.format)

    def sticking_on(self, dim: str) -> TensorAccess:
        """The same access with a dim of one element taken as the stick dim."""
        return replace(self, stick=dim, extents={**self.extents, dim: 1})


def read_access(op: TileOp, operand: Operand | LinearOperand, gathered: dict[int, str] | None = None) -> TensorAccess:
    """Classify the coordinates, or raise NotExpressible with the reason.

    `gathered` names, by number of the index input, the dim that stands for a coordinate given by its values.
    """
    tensor = operand.tensor
    if isinstance(operand, LinearOperand):
        raise NotExpressible(f"tensor {tensor.name} is touched at linear host offsets, not by device coordinates")
    elements = stick_elements(tensor.format)
    if not tensor.device_size or tensor.device_size[-1] != elements:
        raise NotExpressible(
            f"tensor {tensor.name} has device size {list(tensor.device_size)}; it must end in a stick of {elements}"
        )
    if operand.coords[-1].const:
        raise NotExpressible(
            f"tensor {tensor.name} is an offset view: a stick starts at lane {operand.coords[-1].const}"
        )
    stick = _stick(op, tensor, operand.coords[-1])
    extents: dict[str, int] = {}
    named: dict[str, int] = {}
    for position in reversed(range(len(tensor.device_size) - 1)):
        size, coord = tensor.device_size[position], operand.coords[position]
        outermost = all(n == 1 for n in tensor.device_size[:position])
        if coord.index >= 0:
            dim = (gathered or {}).get(coord.index)
            if dim is None or dim in extents:
                raise NotExpressible(f"tensor {tensor.name} has a coordinate by index that no free dim stands for")
            extents[dim], named[dim] = size, coord.index
            continue
        for term, extent in _places(op, tensor, coord, size, outermost):
            if term is None:
                extents[f"{SKIPPED}{len(extents)})"] = extent
                continue
            if term.mod or term.div != (elements if term.dim == stick else 1) or term.dim in extents:
                raise NotExpressible(
                    f"tensor {tensor.name} has coordinate {term}; there are plain dims and a stick pair"
                )
            extents[term.dim] = extent
    if stick is not None and stick not in extents:
        if op.dim(stick).size > elements:
            raise NotExpressible(f"tensor {tensor.name} uses {stick} % {elements} without {stick} // {elements}")
        extents[stick] = 1
    while extents and list(extents)[-1].startswith(SKIPPED):
        extents.popitem()  # the outermost places do not change any stride
    return TensorAccess(at_first_element(operand).tensor, stick, extents, named or None)


def at_first_element(operand: Operand) -> Operand:
    """The same elements with every coordinate from 0: the tensor starts at a later byte."""
    tensor, stride, first = operand.tensor, 1, 0
    for size, coord in reversed(list(zip(tensor.device_size, operand.coords, strict=True))):
        first += coord.const * stride
        stride *= size
    base = tensor.base + first * word_bytes(tensor.format)
    coords = tuple(replace(c, const=0) for c in operand.coords)
    return Operand(replace(tensor, base=base), coords)


def places(terms: Sequence[Term], size: int) -> list[tuple[Term | None, int]] | None:
    """Terms of one device dim with their extents, inner to outer, if they count it as a mixed radix; else None.

    A term of None stands for inner places that no term moves along.
    """
    ordered = sorted(terms, key=lambda t: t.scale)
    bounds = [*(t.scale for t in ordered), size]
    if bounds[0] < 1 or any(outer % inner for inner, outer in itertools.pairwise(bounds)):
        return None
    rest: list[tuple[Term | None, int]] = [(None, bounds[0])] if bounds[0] > 1 else []
    return rest + [(t, bounds[i + 1] // t.scale) for i, t in enumerate(ordered)]


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit if unit > 0 else size


def _stick(op: TileOp, tensor: Tensor, coord: Coord) -> str | None:
    """The dim that fills the sticks; None if the lane is always 0."""
    terms = _terms(op, coord)
    if len(terms) > 1:
        raise NotExpressible(f"the lane of tensor {tensor.name} mixes dims {', '.join(t.dim for t in terms)}")
    if not terms:
        return None
    lane, elements = terms[0], tensor.device_size[-1]
    fits = lane.mod == elements or (lane.mod == 0 and op.dim(lane.dim).size <= elements)
    if lane.scale != 1 or lane.div != 1 or not fits:
        raise NotExpressible(f"the lane of tensor {tensor.name} is {lane}; only dim % {elements} fills sticks")
    return lane.dim


def _places(op: TileOp, tensor: Tensor, coord: Coord, size: int, outermost: bool) -> list[tuple[Term | None, int]]:
    """Dims along one device dim with their extents, inner to outer; None stands for places that are not touched.

    The size of the outermost device dim changes no stride, so any that the terms count evenly will do.
    """
    terms = _terms(op, coord)
    moving = [t for t in terms if term_range(op, tensor, t) > 1]
    if not moving:
        return [*([(None, size)] if size != 1 else []), *((t, 1) for t in terms)]
    if outermost:
        size = _round_up(size, max(t.scale for t in moving))
    for counted in (terms, moving):  # dims that stay at 0 may have a place, but need none
        found = places(counted, size) or []
        fits = all(t is None or term_range(op, tensor, t) <= extent for t, extent in found)
        if found and fits and sum(t is not None for t, _ in found) == len(counted):
            return [*found, *((t, 1) for t in terms if t not in counted)]
    names = ", ".join(t.dim for t in terms)
    raise NotExpressible(f"a coordinate of tensor {tensor.name} mixes dims {names}, which do not tile its {size}")


def term_range(op: TileOp, tensor: Tensor, term: Term) -> int:
    """Values that a term takes; in a scratchpad, those of one slice."""
    dim = op.dim(term.dim)
    count = -(-(min(dim.extent, dim.size) if tensor.space is Space.LX else dim.size) // term.div)
    return min(count, term.mod) if term.mod else count


def _terms(op: TileOp, coord: Coord) -> list[Term]:
    """The terms of a coordinate; a modulus that never wraps is dropped."""
    never_wraps = [t.mod and op.dim(t.dim).size <= t.div * t.mod for t in coord.terms]
    return [replace(t, mod=0) if never else t for t, never in zip(coord.terms, never_wraps, strict=True)]
