# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_native_calls.py
"""Native functions called with None, wrong numbers and wrong tensors raise; each in a process of its own, which lives.

What such calls do at random is fuzz_calls.py's business; here are those that crashed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from torch_spyre import _C
from torch_spyre.errors import InvalidArgument

BEFORE = """
    import torch
    from torch_spyre import _C, _card
    t = torch.arange(12.0, device="spyre")
    layout = _C.SpyreTensorLayout([12], torch.float32)
    """
AFTER = """
    assert (t + 1).cpu().tolist() == list(range(1, 13))
    print("alive")
    """
CALLS = {
    "a plan without a program": ("_C.LaunchPlan(None, [], [])", "InvalidArgument"),
    "an eager plan without a launch": ("_C.EagerPlan(None, [], [])", "InvalidArgument"),
    "a bucket without a launch": ("_C.BucketPlan(None, [], [], (0, 0), (0, 1), [], [], [])", "InvalidArgument"),
    "a launcher without a plan": ('_C.KernelLauncher("a", lambda x: None)(t)', "TypeError"),
    "a launcher whose miss is a number": ('_C.KernelLauncher("a", lambda x: 3)(t)', "TypeError"),
    "a format out of the table": ("_C.DataFormats(200).elems_per_stick()", "InvalidArgument"),
    "a format below 0": ("_C.DataFormats(-1)", "InvalidArgument"),
    "a pickled format": ("_C.DataFormats.__new__(_C.DataFormats).__setstate__(77)", "InvalidArgument"),
    "an arrangement": ("_C.ElementArrangement(9)", "InvalidArgument"),
    "None as self": ("_C.Recording.start(None)", "TypeError"),
    "None as a program": ("_C.Program.disassemble(None)", "TypeError"),
    "None as a card": ("_card.Card.idle(None)", "TypeError"),
    "None as a layout": ("_C.SpyreTensorLayout.device_bytes(None)", "TypeError"),
    "a device that wraps": ("_C.total_memory(256)", "RuntimeError"),
    "a device below 0": ("_C.set_device(-5)", "RuntimeError"),
    "a format of the card": ("_card.encode(1.0, 200)", "InvalidArgument"),
    "no knobs reader": ("_C._set_eager_knobs_reader(None)", ""),
    "elements wider than the array": (
        "_card.Card().dma_in(torch.zeros(8).char().numpy(), 128, 1, [1, 32], [32, 1], format=11)", "InvalidArgument",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    call, error = CALLS[name]
    attempt = f"""
    try:
        {call}
        raised = ""
    except Exception as error:
        raised = type(error).__name__
    assert raised == {error!r}, raised
    """
    source = "".join(textwrap.dedent(part) for part in (BEFORE, attempt, AFTER))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0 and "alive" in done.stdout, done.stderr[-2000:]


def test_reinterpreted_tensors_end_with_their_storage() -> None:
    x = torch.arange(5.0).to("spyre")
    assert _C.reinterpret_tensor(x, [2, 2], [1, 2], 1).tolist() == [[1, 3], [2, 4]]
    huge = 1 << 62
    for size, stride, offset in (([8], [1], 0), ([2], [1], 4), ([2], [huge], 0), ([1], [1], -1), ([1], [1], huge)):
        with pytest.raises(RuntimeError, match=r"out of bounds|overflowed|invalid storage offset"):
            _C.reinterpret_tensor(x, size, stride, offset)
    with pytest.raises(RuntimeError, match="expected a tensor on spyre"):
        _C.reinterpret_tensor(x.cpu(), [1], [1])


@pytest.mark.parametrize(
    ("device_size", "stride_map"),
    [([], []), ([1, 64], [1]), ([-1, 64], [1, 1]), ([2, 64], [-2, 1]), ([1 << 62, 64], [1, 1]), ([3], [1 << 62])],
)
def test_what_is_no_layout(device_size: list[int], stride_map: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="is no layout"):
        _C.SpyreTensorLayout(device_size, stride_map, _C.DataFormats.SEN169_FP16)
