# SPDX-License-Identifier: Apache-2.0
"""How an operand touches its tensor, in the terms SuperDSC has: whole dims in some order, at most one in the sticks.

A device dim that several iteration dims count together, ``10 * outer + inner`` over 50 places, lies in memory like two
device dims of 5 and 10. So each iteration dim still has one place in the layout order, with an extent of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_spyre.errors import NotExpressible
from torch_spyre.ktir.tileops import Coord, LinearOperand, Operand, Space, Tensor, Term, TileOp
from torch_spyre.sdsc.formats import stick_elements


@dataclass(frozen=True)
class TensorAccess:
    """`extents`: device size of each dim the tensor has, inner to outer, in elements (the stick dim's in sticks)."""

    tensor: Tensor
    stick: str | None  # None: one element per stick
    extents: dict[str, int]

    @property
    def elements(self) -> int:
        """Per stick."""
        return stick_elements(self.tensor.format)

    def sticking_on(self, dim: str) -> TensorAccess:
        """The same access with a dim of one element taken as the stick dim."""
        return replace(self, stick=dim, extents={**self.extents, dim: 1})


def read_access(op: TileOp, operand: Operand | LinearOperand) -> TensorAccess:
    """Classify the coordinates, or raise NotExpressible with the reason."""
    tensor = operand.tensor
    if isinstance(operand, LinearOperand):
        raise NotExpressible(f"tensor {tensor.name} is touched at linear host offsets, not by device coordinates")
    elements = stick_elements(tensor.format)
    if not tensor.device_size or tensor.device_size[-1] != elements:
        raise NotExpressible(
            f"tensor {tensor.name} has device size {list(tensor.device_size)}; it must end in a stick of {elements}"
        )
    stick = _stick(op, tensor, operand.coords[-1])
    extents: dict[str, int] = {}
    for size, coord in reversed(list(zip(tensor.device_size, operand.coords, strict=True))[:-1]):
        for term, extent in _places(op, tensor, coord, size):
            if term.mod or term.div != (elements if term.dim == stick else 1) or term.dim in extents:
                raise NotExpressible(
                    f"tensor {tensor.name} has coordinate {term}; there are plain dims and a stick pair"
                )
            extents[term.dim] = extent
    if stick is not None and stick not in extents:
        if op.dim(stick).size > elements:
            raise NotExpressible(f"tensor {tensor.name} uses {stick} % {elements} without {stick} // {elements}")
        extents[stick] = 1
    return TensorAccess(tensor, stick, extents)


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


def _stick(op: TileOp, tensor: Tensor, coord: Coord) -> str | None:
    """The dim that fills the sticks; None if the lane is always 0."""
    terms = _terms(op, tensor, coord)
    if len(terms) > 1:
        raise NotExpressible(f"the lane of tensor {tensor.name} mixes dims {', '.join(t.dim for t in terms)}")
    if not terms:
        return None
    lane, elements = terms[0], tensor.device_size[-1]
    fits = lane.mod == elements or (lane.mod == 0 and op.dim(lane.dim).size <= elements)
    if lane.scale != 1 or lane.div != 1 or not fits:
        raise NotExpressible(f"the lane of tensor {tensor.name} is {lane}; only dim % {elements} fills sticks")
    return lane.dim


def _places(op: TileOp, tensor: Tensor, coord: Coord, size: int) -> list[tuple[Term, int]]:
    """Dims along one device dim with their extents, inner to outer."""
    terms = _terms(op, tensor, coord)
    if not terms:
        if size != 1:
            raise NotExpressible(f"tensor {tensor.name} is an offset view: index 0 of a device dim of {size}")
        return []
    if len(terms) == 1 and terms[0].scale != 1:
        raise NotExpressible(f"tensor {tensor.name} is a strided view: {terms[0].dim} advances by {terms[0].scale}")
    moving = [t for t in terms if term_range(op, tensor, t) > 1]
    for counted in (terms, moving):  # dims that stay at 0 may have a place, but need none
        found = places(counted, size) or []
        result = [(t, extent) for t, extent in found if t is not None and term_range(op, tensor, t) <= extent]
        if len(result) == len(counted) == len(found):
            return result + [(t, 1) for t in terms if t not in counted]
    names = ", ".join(t.dim for t in terms)
    raise NotExpressible(f"a coordinate of tensor {tensor.name} mixes dims {names}, which do not tile its {size}")


def term_range(op: TileOp, tensor: Tensor, term: Term) -> int:
    """Values that a term takes; in a scratchpad, those of one slice."""
    dim = op.dim(term.dim)
    count = -(-(min(dim.extent, dim.size) if tensor.space is Space.LX else dim.size) // term.div)
    return min(count, term.mod) if term.mod else count


def _terms(op: TileOp, tensor: Tensor, coord: Coord) -> list[Term]:
    """The terms of a coordinate that starts at 0; a modulus that never wraps is dropped."""
    if coord.const:
        raise NotExpressible(f"tensor {tensor.name} is an offset view: a coordinate starts at {coord.const}")
    never_wraps = [t.mod and op.dim(t.dim).size <= t.div * t.mod for t in coord.terms]
    return [replace(t, mod=0) if never else t for t, never in zip(coord.terms, never_wraps, strict=True)]
