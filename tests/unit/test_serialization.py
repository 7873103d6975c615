# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_serialization.py

torch.save and torch.load, pickle, deepcopy, safetensors, DLPack, meta and fake tensors.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_spyre._C import SpyreTensorLayout
from torch_spyre.errors import InvalidArgument, UnsupportedOp

FP16 = torch.float16
DTYPES = [FP16, torch.bfloat16, torch.float32, torch.bool, torch.int64, torch.int8, torch.uint8, torch.float8_e4m3fn]


def transposed(size: tuple[int, int] = (100, 70), dtype: torch.dtype = FP16) -> torch.Tensor:
    """A tensor on the card with its first dim in the stick."""
    host = (torch.arange(size[0] * size[1]) % 15).reshape(size).to(dtype)
    return torch.spyre.to_with_layout(host, SpyreTensorLayout(list(size), [size[1], 1], dtype, [1, 0]))


def reloaded(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = torch.equal(a.cpu().float(), b.cpu().float()) and a.dtype == b.dtype and a.stride() == b.stride()
    return same and a.device == b.device and a.device_tensor_layout() == b.device_tensor_layout()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_save_and_load_keep_the_layout(dtype: torch.dtype) -> None:
    x = transposed(dtype=dtype)
    assert alike(reloaded(x), x)
    assert alike(reloaded(torch.nn.Parameter(x, requires_grad=False)), x)


def test_views_still_share_after_loading() -> None:
    """In whichever order they are read: a view that comes first must not lay the storage out anew."""
    x = transposed()
    for order in (("view", "x"), ("x", "view")):
        both = {"x": x, "view": x[1:, ::3]}
        loaded = reloaded({name: both[name] for name in order})
        assert alike(loaded["x"], x) and alike(loaded["view"], x[1:, ::3])
        loaded["x"].zero_()
        assert loaded["view"].cpu().count_nonzero() == 0


def test_unusual_strides_are_kept() -> None:
    padded = torch.empty_strided((3, 70), (1000, 1), device="spyre")
    padded.copy_(torch.arange(210.0).reshape(3, 70))
    assert alike(reloaded(padded), padded)
    repeated = torch.arange(70.0).to("spyre").expand(4, 70)
    assert alike(reloaded(repeated), repeated)
    assert reloaded(torch.empty(0, 3, device="spyre")).shape == (0, 3)


def test_map_location_cpu() -> None:
    x = transposed()
    loaded = reloaded({"x": x, "n": torch.arange(5).to("spyre")}, map_location="cpu")
    assert loaded["x"].device.type == "cpu" and torch.equal(loaded["x"], x.cpu())
    assert loaded["n"].tolist() == [0, 1, 2, 3, 4]
    assert reloaded(x.cpu(), map_location="spyre").device.type == "spyre"


def test_a_file_loads_where_the_package_is_missing(tmp_path: Path) -> None:
    x = transposed()
    torch.save({"x": x, "module": torch.nn.Linear(64, 64).to("spyre").state_dict()}, tmp_path / "file.pt")
    torch.save(x.cpu(), tmp_path / "expected.pt")
    source = """
        import sys
        sys.modules["torch_spyre"] = None
        import torch
        assert not hasattr(torch, "spyre")
        loaded = torch.load(sys.argv[1] + "/file.pt", map_location="cpu", weights_only=True)
        assert torch.equal(loaded["x"], torch.load(sys.argv[1] + "/expected.pt"))
        assert loaded["module"]["weight"].shape == (64, 64)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.returncode == 0, done.stderr


def test_a_layout_that_does_not_fit_is_refused() -> None:
    buffer = io.BytesIO()
    torch.save(transposed((64, 64)), buffer)
    broken = buffer.getvalue().replace(b"spyre_layout_v1;1,64,64;", b"spyre_layout_v1;1,64,-4;")
    assert broken != buffer.getvalue()
    with pytest.raises((InvalidArgument, RuntimeError), match=r"layout|CRC|crc"):
        torch.load(io.BytesIO(broken))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pickle_and_deepcopy(dtype: torch.dtype) -> None:
    x = transposed(dtype=dtype)
    for value in (x, torch.nn.Parameter(x, requires_grad=False)):
        for twin in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert type(twin) is type(value) and alike(twin, value)
            twin.zero_()
    assert x.cpu().float().count_nonzero() > 0, "a copy shares nothing"


def test_deepcopy_keeps_sharing_inside() -> None:
    x = transposed()
    a, b = copy.deepcopy([x, x[3:]])
    a.zero_()
    assert b.cpu().count_nonzero() == 0


def test_the_older_file_format_says_what_to_do() -> None:
    file, host = io.BytesIO(), torch.ones(3)
    with pytest.raises(UnsupportedOp, match="default format"):
        torch.save(host.to("spyre"), file, _use_new_zipfile_serialization=False)
    file = io.BytesIO()
    torch.save(host, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    with pytest.raises(UnsupportedOp, match='map_location="cpu"'):
        torch.load(file, map_location="spyre")
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu"), host)


def test_numpy_and_dlpack_say_what_to_do() -> None:
    x = torch.ones(3, device="spyre")
    for attempt in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"cpu\(\)"):
            attempt()
    for attempt in (
        x.__dlpack__,
        x.__dlpack_device__,
        lambda: torch.from_dlpack(x),
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: np.from_dlpack(x),
    ):
        with pytest.raises(UnsupportedOp, match=r"DLPack .*\.cpu\(\)"):
            attempt()
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1, 1], "the host's own tensors still travel"
    assert np.from_dlpack(torch.ones(2)).tolist() == [1, 1]


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    host = {"half": torch.randn(3, 70).bfloat16().half(), "n": torch.arange(5), "s": torch.tensor(2.5)}
    file = tmp_path / "model.safetensors"
    safetensors.save_file(host, file)
    for device in ("spyre", "spyre:0", torch.device("spyre", 0)):
        loaded = safetensors.load_file(file, device=device)
        for name, value in host.items():
            assert loaded[name].device == torch.device("spyre:0") and torch.equal(loaded[name].cpu(), value)
    from safetensors import safe_open

    with safe_open(file, framework="pt", device="spyre") as opened:
        assert set(opened.keys()) == set(host)
        part = opened.get_slice("half")
        assert part.get_shape() == [3, 70] and torch.equal(part[1:, 2:9].cpu(), host["half"][1:, 2:9])
    assert safetensors.load_file(file)["n"].device.type == "cpu"
    safetensors.save_file({name: value.to("spyre") for name, value in host.items()}, tmp_path / "from_card")
    assert torch.equal(safetensors.load_file(tmp_path / "from_card")["half"], host["half"])


def test_meta_tensors() -> None:
    x = transposed()
    assert x.to("meta").stride() == x.stride() and x.to("meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta"):
        torch.empty(3, device="meta").to("spyre")
    module = torch.nn.Linear(64, 32, device="meta").to_empty(device="spyre")
    assert module.weight.device.type == "spyre"
    assert torch.empty_like(torch.empty(3, device="meta"), device="spyre").shape == (3,)


def test_fake_tensors() -> None:
    x = transposed()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert fake.device == x.device and fake.stride() == x.stride()
        assert fake.device_tensor_layout() is None
        result = (fake.t()[3:] + 1).to(torch.float32)
        assert result.device.type == "spyre" and result.shape == (67, 100)
        assert torch.empty(3, device="spyre").device == torch.device("spyre:0")
        assert fake.cpu().device.type == "cpu"
        assert torch.empty(2).to("spyre").device.type == "spyre"
    assert torch.spyre.memory_allocated() >= 0
