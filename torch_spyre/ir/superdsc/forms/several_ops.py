# SPDX-License-Identifier: Apache-2.0
"""A file with several ops as one JSON per op, in the order in which they run.

A file may have several top keys, several descriptions (`dscs_`) that all cores run one after the other, or several ops
(`computeOp_`) over the tensors of one description. Each is told as the file that has it alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.superdsc.schema import Json

_MAX_OPS = 1024


def split(data: Json) -> list[Json]:
    """What cannot be told apart is left as it is, for the reader of single files to name."""
    try:
        found = [one for entry in _entries(data) for one in _descriptions(entry)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidProgram(f"SuperDSC is malformed: {type(error).__name__}: {error}") from error
    except RecursionError:
        raise InvalidProgram("SuperDSC is malformed: it is nested too deeply") from None
    if len(found) > _MAX_OPS:
        raise UnsupportedOp(f"{len(found)} ops in one file; {_MAX_OPS} are known")
    return found


def _entries(data: Json) -> Iterator[Json]:
    """Each top key alone, in the order of their numbers; files in a list one after the other."""
    if isinstance(data, list) and data:
        for part in data:
            yield from _entries(part)
        return
    if not isinstance(data, dict) or len(data) < 2:
        yield data
        return
    numbers = {key: re.fullmatch(r"(\d{1,9})_\w+", str(key)) for key in data}
    strange = [key for key, match in numbers.items() if match is None]
    if strange:
        raise InvalidProgram(f"top key {strange[0]!r} is not <index>_<opfunc>")
    for key in sorted(data, key=lambda k: int(numbers[k][1])):  # type: ignore[index]
        yield {key: data[key]}


def _descriptions(entry: Json) -> Iterator[Json]:
    """Each of `dscs_` alone, in the order of the schedule."""
    key, body = _only(entry)
    dscs = body.get("dscs_") if isinstance(body, dict) else None
    if not isinstance(dscs, list):
        yield entry
        return
    if body.get("datadscs_"):
        raise UnsupportedOp(f"{key}: datadscs_; what runs is read from dscs_")
    if len(dscs) < 2:
        yield from _computes(entry)
        return
    number = str(key).partition("_")[0]
    for place in _schedule(str(key), body, len(dscs)):
        opfunc, dsc = _only(dscs[place])
        if not isinstance(dsc, dict) or not isinstance(dsc.get("N_"), dict):
            raise InvalidProgram(f"{key}: dscs_[{place}] has no sizes N_")
        dims = {name.removesuffix("_") for name, size in dsc["N_"].items() if not isinstance(size, dict | list)}
        slices = {d: n for d, n in body.get("numWkSlicesPerDim_", {}).items() if d in dims}
        cores = {c: {d: s for d, s in p.items() if d in dims} for c, p in body.get("coreIdToWkSlice_", {}).items()}
        own = {**body, "dscs_": [{opfunc: dsc}], "numWkSlicesPerDim_": slices, "coreIdToWkSlice_": cores}
        own.pop("coreIdToDsc_", None)
        own.pop("coreIdToDscSchedule", None)
        yield from _computes({f"{number}_{opfunc}": own})


def _schedule(key: str, body: dict[str, Json], count: int) -> list[int]:
    """Which descriptions run, in order: that of the schedule if it has one for all cores, else as they are listed."""
    schedules = body.get("coreIdToDscSchedule")
    if not schedules:
        return list(range(count))
    found = {tuple(tuple(entry) for entry in steps) for steps in schedules.values()}
    if len(found) != 1:
        raise UnsupportedOp(f"{key}: coreIdToDscSchedule differs between cores; all cores run the same here")
    (steps,) = found
    if any(len(entry) != 4 or entry[0] != -1 or not 0 <= entry[1] < count for entry in steps):
        raise UnsupportedOp(f"{key}: coreIdToDscSchedule {list(steps)}; entries [-1, index in dscs_, …] are known")
    return [entry[1] for entry in steps]


def _computes(entry: Json) -> Iterator[Json]:
    """Each op of a description alone, over all of its tensors."""
    key, body = _only(entry)
    _, dsc = _only(body["dscs_"][0]) if body["dscs_"] else ("", None)
    computes = dsc.get("computeOp_") if isinstance(dsc, dict) else None
    if not isinstance(dsc, dict) or not isinstance(computes, list) or len(computes) < 2:
        yield entry
        return
    number = str(key).partition("_")[0]
    for compute in computes:
        opfunc = compute.get("opFuncName") if isinstance(compute, dict) else None
        if not isinstance(opfunc, str):
            raise InvalidProgram(f"{key}: a computeOp_ without opFuncName")
        yield {f"{number}_{opfunc}": {**body, "dscs_": [{opfunc: {**dsc, "computeOp_": [compute]}}]}}


def _only(data: Json) -> tuple[str, Json]:
    if not isinstance(data, dict) or len(data) != 1:
        return "", None
    return next(iter(data.items()))
