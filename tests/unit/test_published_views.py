# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_published_views.py

Published odds and ends of the runtime: views that name their layout, index tensors on the host, raw streams.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_spyre import _C
from torch_spyre.device.interface import SpyreInterface
from torch_spyre.errors import InvalidArgument


def test_views_with_a_layout() -> None:
    x = torch.randn(6, 70).half().to("spyre")
    layout = _C.get_spyre_tensor_layout(x)
    view = _C.as_strided_with_layout(x[1:], [2, 70], [70, 1], 140, layout)  # the offset replaces
    assert torch.equal(view.cpu(), x.cpu()[2:4]) and view.data_ptr() == x[2:].data_ptr()
    assert torch.equal(_C.as_strided_with_layout(x[1:], [2, 70], [70, 1], None, layout).cpu(), x.cpu()[1:3])
    moved = _C.reinterpret_tensor_with_layout(x[1:], [2, 70], [70, 1], 140, layout)  # the offset adds
    assert torch.equal(moved.cpu(), x.cpu()[3:5])
    view.fill_(1)
    assert x.cpu()[2:4].eq(1).all() and _C.get_spyre_tensor_layout(view) == layout


def test_a_view_cannot_change_the_layout_of_its_storage() -> None:
    x = torch.randn(6, 70).half().to("spyre")
    other = _C.SpyreTensorLayout([6, 70], [70, 1], torch.float16, [1, 0])
    for function in (_C.as_strided_with_layout, _C.reinterpret_tensor_with_layout):
        with pytest.raises(InvalidArgument, match=r"laid out as .* not as .*device_layout"):
            function(x, [6, 70], [70, 1], 0, other)
    with pytest.raises(RuntimeError):
        _C.as_strided_with_layout(torch.ones(3), [3], [1], 0, other)


@pytest.mark.parametrize("index", [[2, 0, 3], [True, False, True, True]], ids=["places", "mask"])
def test_index_tensors_on_the_host(index: list[int]) -> None:
    """As on other accelerators: the index is moved, the table decides where the work is."""
    host, places = torch.randn(4, 70), torch.tensor(index)
    x = host.to("spyre")
    assert torch.equal(x[places].cpu(), host[places]) and x[places].device.type == "spyre"
    x[places] = 7.0
    host[places] = 7.0
    assert torch.equal(x.cpu(), host)
    x.index_put_((places,), torch.tensor(1.0), accumulate=True)
    assert torch.equal(x.cpu(), host.index_put((places,), torch.tensor(1.0), accumulate=True))
    assert torch.equal(x[:, torch.tensor([1, 5])].cpu(), x.cpu()[:, [1, 5]])


def test_index_tensors_on_the_host_in_a_graph() -> None:
    x, places = torch.randn(4, 70), torch.tensor([3, 1])
    got = torch.compile(lambda v, i: v[i] * 2, backend="spyre")(x.to("spyre"), places)
    assert torch.equal(got.cpu(), x[places] * 2)


def test_other_operands_must_be_on_the_card() -> None:
    x = torch.randn(4, 70).to("spyre")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(4, 70)
    with pytest.raises(RuntimeError, match="same device"):
        x[torch.tensor([0, 1])] = torch.randn(2, 70)


def test_raw_streams_are_the_current_ones() -> None:
    assert SpyreInterface.get_raw_stream(0) == 0
    side = torch.spyre.Stream()
    with torch.spyre.stream(side):
        assert SpyreInterface.get_raw_stream(0) == side.stream_id != 0
    assert SpyreInterface.get_raw_stream(0) == 0


def test_kernels_run_from_spyrecode_directories(tmp_path: Path) -> None:
    """DUMP_SPYRE_CODE: every launch of a compiled kernel goes through prepare_kernel and launch_jobplan."""
    code = (
        "import torch\n"
        "from torch_spyre.runtime import jobplan\n"
        "launched = []\n"
        "original = jobplan.JobPlan.launch\n"
        "jobplan.JobPlan.launch = lambda self, args: (launched.append(self.name), original(self, args))[1]\n"
        "x = torch.randn(5, 70).half()\n"
        "fn = torch.compile(lambda a, b: torch.softmax(a * 2 + b, -1), backend='spyre', dynamic=False)\n"
        "for _ in range(2):\n"
        "    got = fn(x.to('spyre'), x[:1].to('spyre'))\n"
        "want = torch.softmax(x.float() * 2 + x[:1].float(), -1)\n"
        "torch.testing.assert_close(got.cpu().float(), want, atol=2**-8, rtol=2**-7)\n"
        "print(launched)\n"
    )
    environment = {**os.environ, "DUMP_SPYRE_CODE": "1", "SPYRE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['spyre_kernel_0', 'spyre_kernel_0']"
    assert list(tmp_path.glob("??/*/spyrecode.json"))
