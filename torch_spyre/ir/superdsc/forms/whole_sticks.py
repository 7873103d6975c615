# SPDX-License-Identifier: Apache-2.0
"""Results with one value per stick that later ops read as whole sticks, in LX.

A reduction over the stick dim stores one value per stick. The next pointwise op may run over the same sticks with all
their lanes, and only lane 0 of what it computes is read in the end. In memory the other lanes hold something; a
scratchpad holds nothing that was not written, so there the value fills its stick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.ir.plan.tileops import Coord, Dim, Operand, Term, TileOp
from torch_spyre.ir.superdsc import bundle_rules, class_rules, rules
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.ir.superdsc.stick_sets import Runs

LANE = "lane"


def with_values(sdsc: SuperDSC) -> SuperDSC:
    """layernormscale has one value per stick, also where a file gives its tensors the dim of the lanes."""
    if sdsc.opfunc != voc.NORM_SCALE or rules.names_problems(sdsc):
        return sdsc
    tensors = []
    for tensor in sdsc.tensors:
        primary = sdsc.primary[tensor.label]
        lanes = {
            d
            for d, n in zip(primary.stick_dims, primary.stick_sizes, strict=True)
            if sdsc.sizes[d] == n and sdsc.slices[d] == 1
        }
        scale = [-2 if d in lanes else s for d, s in zip(primary.order, tensor.scale, strict=True)]
        tensors.append(replace(tensor, scale=tuple(scale)))
    return replace(sdsc, tensors=tuple(tensors))


def steps(sdscs: Sequence[SuperDSC]) -> set[int]:
    """The ops whose values must fill their sticks."""
    found = set()
    for i, sdsc in enumerate(sdscs):
        output = sdsc.compute.outputs[0]
        if sdsc.allocations[output].component != "lx" or not _has_one_value(sdsc, output):
            continue
        if _read_whole(bundle_rules.block(sdsc, output, i).runs, sdscs[i + 1 :]):
            found.add(i)
    return found


def _read_whole(sticks: Runs, later: Sequence[SuperDSC]) -> bool:
    """Is any of the sticks read with all its lanes before something else is written there?"""
    for sdsc in later:
        reads = (bundle_rules.block(sdsc, t, 0) for t in class_rules.inputs_of(sdsc) if _takes_lanes(sdsc, t))
        if any(not r.memory and r.runs.meets(sticks) for r in reads):
            return True
        written = bundle_rules.block(sdsc, sdsc.compute.outputs[0], 0)
        if not written.memory:
            sticks = sticks.minus(written.runs)
        if sticks.empty:
            break
    return False


def _takes_lanes(sdsc: SuperDSC, tensor: int) -> bool:
    """Does an op take more than lane 0 of a tensor's sticks? Of a dim that is masked to one element it does not."""
    scale = sdsc.scale(tensor)
    return any(scale[level.dim] > 0 and sdsc.valid(level.dim) > 1 for level in sdsc.geometry(tensor).sticks)


def _has_one_value(sdsc: SuperDSC, output: int) -> bool:
    scale = sdsc.scale(output)
    lacks_sticks = all(scale[level.dim] < 0 for level in sdsc.geometry(output).sticks)
    return lacks_sticks and not any(sdsc.slices[d] > 1 for d in class_rules.combined_dims(sdsc))


def tensor_dims(sdsc: SuperDSC, tensor: int) -> list[Dim]:
    """Dims of a copy of a tensor: each core its slice, also cores that differ only in a dim which the tensor lacks."""
    present = sdsc.present(tensor)
    dims = []
    for dim in sdsc.sizes:
        slices = sdsc.slices[dim]
        if dim in present:
            dims.append(Dim(dim, sdsc.valid(dim), slices, sdsc.core_sizes[dim] if slices > 1 else 0))
        elif slices > 1:
            dims.append(Dim(dim, slices, slices, 1))
    return dims


def fill(sdsc: SuperDSC, result: Operand, core_order: tuple[str, ...]) -> TileOp:
    """Each core copies lane 0 of its sticks to all lanes."""
    dims = tensor_dims(sdsc, sdsc.compute.outputs[0])
    source = Operand(result.tensor, (*result.coords[:-1], Coord()))
    target = Operand(result.tensor, (*result.coords[:-1], Coord((Term(LANE),))))
    return TileOp(
        f"{sdsc.title} lanes",
        "identity",
        (*dims, Dim(LANE, result.tensor.device_size[-1])),
        (source,),
        target,
        core_order=core_order,
        origin=f"SuperDSC {sdsc.title}",
    )
