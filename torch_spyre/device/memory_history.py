# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots in the format of torch.cuda's memory viewer (pytorch.org/memory_viz, torch.cuda._memory_viz).

One viewer segment is one 16 GiB memory segment of a card, from its first byte to the end of its last live block;
holes are inactive blocks, so fragmentation shows as it is. Addresses are card addresses.

What the format cannot carry: layouts and number formats of a block (it has sizes only), and memory that is live on the
card but held by no Python object when recording cannot see it; the latter is summed in ``unattributed_bytes``, a key
that viewers ignore.
"""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.device.selection import device_index
from torch_spyre.errors import InvalidArgument

_ADDRESS_MASK = (1 << 40) - 1  # a data_ptr is an opaque tag, the device and the card address
_DEFAULT_ENTRIES = 100_000

Frames = list[dict[str, Any]]


@dataclass
class Block:
    address: int
    bytes: int
    frames: Frames = field(default_factory=list)


@dataclass
class _History:
    """What has been recorded. `live` maps (device, address) to the block there."""

    enabled: str | None = None
    stacks: bool = True
    entries: dict[int, deque[dict[str, Any]]] = field(default_factory=dict)
    max_entries: int = _DEFAULT_ENTRIES
    live: dict[tuple[int, int], Block] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, device: int, action: str, block: Block, frames: Frames) -> None:
        if self.enabled != "all":
            return
        entries = self.entries.setdefault(device, deque(maxlen=self.max_entries))
        entries.append(
            {
                "action": action,
                "addr": block.address,
                "size": block.bytes,
                "stream": 0,
                "time_us": time.time_ns() // 1000,
                "frames": frames,
            }
        )


_history = _History()


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = _DEFAULT_ENTRIES,
    device: Any = None,
    clear_history: bool = False,
) -> None:
    """Starts ("all": events and live blocks, "state": live blocks) or stops (None) recording on all devices.

    `context` None leaves out stack traces. `stacks` and `device` are accepted for code written for torch.cuda.
    """
    if enabled not in ("all", "state", None):
        raise InvalidArgument(f"_record_memory_history: enabled={enabled!r}; legal values are 'all', 'state' and None")
    with _history.lock:
        if clear_history or enabled is None or _history.max_entries != max_entries:
            _history.entries.clear()
        if enabled is not None and _history.enabled is None:
            _history.live = _live_blocks()  # memory from before has no event and no stack
        _history.enabled = enabled
        _history.stacks = context is not None
        _history.max_entries = max_entries
    _install_hook(enabled is not None)


def _install_hook(on: bool) -> None:
    """Every allocation and free from the allocator itself, where the extension reports them."""
    setter = getattr(_C, "_set_memory_hook", None)
    if setter is not None:
        setter(_on_memory_event if on else None)


def _on_memory_event(device: int, address: int, change: int) -> None:
    """`change` bytes at `address`: positive for an allocation, negative for a free."""
    address &= _ADDRESS_MASK
    with _history.lock:
        frames = _frames() if _history.stacks else []
        if change > 0:
            block = Block(address, change, frames)
            _history.live[device, address] = block
            _history.add(device, "alloc", block, frames)
        else:
            known = _history.live.pop((device, address), None)
            _free(device, known or Block(address, -change), frames)


def _free(device: int, block: Block, frames: Frames) -> None:
    _history.add(device, "free_requested", block, frames)
    _history.add(device, "free_completed", block, frames)


def _frames() -> Frames:
    """The caller's stack, innermost first."""
    found: Frames = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        found.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _live_blocks() -> dict[tuple[int, int], Block]:
    """Storages of all tensors that Python can reach."""
    found: dict[tuple[int, int], Block] = {}
    for x in gc.get_objects():
        if not issubclass(type(x), torch.Tensor):
            continue
        try:
            if x.device.type != DEVICE_NAME or isinstance(x, torch._subclasses.FakeTensor):
                continue
            token = x.untyped_storage().data_ptr()
            size = _C.get_spyre_tensor_layout(x).device_bytes()
        except Exception:  # wrapper subclasses and tensors without a storage own no memory
            continue
        if token:
            address = token & _ADDRESS_MASK
            whole = -(-size // STICK_BYTES) * STICK_BYTES
            found.setdefault((x.device.index, address), Block(address, whole))
    return found


def _sample() -> None:
    """Without a hook, events are the differences between two looks at the live tensors."""
    if hasattr(_C, "_set_memory_hook") and _history.enabled:
        return
    before, now = _history.live, _live_blocks()
    for key, block in before.items():
        if key not in now or now[key].bytes != block.bytes:
            _free(key[0], block, [])
    for key, block in now.items():
        if key in before and before[key].bytes == block.bytes:
            now[key] = before[key]
        else:
            _history.add(key[0], "alloc", block, [])
    _history.live = now


def _snapshot(device: Any = None) -> dict[str, Any]:
    """The state of one device, or of all, as torch.cuda.memory._snapshot describes it."""
    wanted = None if device is None else device_index(device)
    with _history.lock:
        _sample()
        segments: list[dict[str, Any]] = []
        unattributed = [0] * _C.device_count()
        for index in range(_C.device_count()):
            if wanted not in (None, index):
                continue
            blocks = [b for (owner, _), b in _history.live.items() if owner == index]
            segments += _segments(index, blocks)
            allocated = int(torch.accelerator.memory_allocated(index))
            unattributed[index] = max(0, allocated - sum(b.bytes for b in blocks))
        traces = [list(_history.entries.get(i, ())) for i in range(_C.device_count())]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"backend": "torch_spyre", "expandable_segments": False},
        "unattributed_bytes": unattributed,
    }


def _segments(device: int, blocks: list[Block]) -> list[dict[str, Any]]:
    by_segment: dict[int, list[Block]] = {}
    for block in sorted(blocks, key=lambda b: b.address):
        by_segment.setdefault(block.address // SEGMENT_BYTES, []).append(block)
    return [_segment(device, number * SEGMENT_BYTES, found) for number, found in by_segment.items()]


def _segment(device: int, base: int, live: list[Block]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = base
    for block in live:
        if block.address > at:
            blocks.append(_viewer_block(at, block.address - at, "inactive", []))
        blocks.append(_viewer_block(block.address, block.bytes, "active_allocated", block.frames))
        at = block.address + block.bytes
    used = sum(b.bytes for b in live)
    return {
        "device": device,
        "address": base,
        "total_size": at - base,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _viewer_block(address: int, size: int, state: str, frames: Frames) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a file that pytorch.org/memory_viz opens."""
    with open(filename, "wb") as f:
        pickle.dump(_snapshot(), f)
