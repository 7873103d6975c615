# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_device.py

The device as PyTorch sees it: autoload, memory, random numbers, streams, serialisation, errors.
"""

from __future__ import annotations

import copy
import gc
import io
import signal
import warnings

import pytest
import torch
from processes import run_python

from torch_spyre.errors import InvalidArgument, UnsupportedOp

FP16 = torch.float16


def test_import_torch_brings_the_device_and_starts_nothing() -> None:
    """Silent, no compiler imported, no card open: not by the import, nor by asking about devices."""
    done = run_python(
        """
        import sys
        import torch
        heavy = [m for m in ("torch._dynamo", "torch._inductor", "xdsl", "torch_spyre.ops.eager") if m in sys.modules]
        assert not heavy, heavy
        assert torch.spyre.is_available() and torch.spyre.device_count() == 1 and torch.spyre.current_device() == 0
        torch.manual_seed(3)
        torch.spyre.synchronize()
        torch.spyre.get_device_properties()
        assert torch.accelerator.current_accelerator().type == "spyre"
        assert not torch.spyre.is_initialized()
        torch.empty(2, device="spyre")
        assert torch.spyre.is_initialized()
        import torch_spyre
        torch_spyre._autoload()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("first", ["import torch", "import torch._dynamo"])
def test_dynamo_knows_the_device_before_anything_is_compiled(first: str) -> None:
    done = run_python(
        f"""
        {first}
        from torch._dynamo.device_interface import get_interface_for_device
        assert get_interface_for_device("spyre").device_count() == 1
        assert get_interface_for_device(torch.device("spyre:0")).current_device() == 0
        assert not torch.spyre.is_initialized()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_autoload_is_fast() -> None:
    done = run_python(
        """
        import time
        import torch
        start = time.process_time()
        import torch_spyre
        torch_spyre._autoload()
        print(time.process_time() - start)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert float(done.stdout) < 0.15, done


@pytest.mark.parametrize(
    "module", ["patches.applied", "device.memory_history", "device.amp", "decompositions.attention", "ops.published"]
)
def test_a_submodule_imported_before_torch(module: str) -> None:
    """Its own ``import torch`` loads the device, which needs that very module."""
    done = run_python(
        f"""
        import torch_spyre.{module} as first
        import torch
        assert torch.ones(3, device="spyre").device.type == "spyre"
        import torch_spyre
        assert torch_spyre.{module} is first
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_autoload_can_be_switched_off() -> None:
    done = run_python("import torch; print(hasattr(torch, 'spyre'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"AIU_WORLD_SIZE": "4"}, 4),
        ({"AIU_WORLD_SIZE": "4", "SPYRE_DEVICES": "0, 2,2, 9"}, 2),
        ({"AIU_WORLD_SIZE": "2", "SPYRE_DEVICES": "0"}, 1),
        ({}, 1),
    ],
)
def test_device_count(environment: dict[str, str], count: int) -> None:
    done = run_python("import torch; print(torch.spyre.device_count())", **environment)
    assert done.stdout == f"{count}\n"


def test_two_devices() -> None:
    done = run_python(
        """
        import torch
        a = torch.arange(4.0).to("spyre:1")
        assert a.device == torch.device("spyre:1")
        with torch.spyre.device(1):
            assert torch.empty(2, device="spyre").device.index == 1
        assert a.to("spyre:0").tolist() == [0, 1, 2, 3]
        assert torch.spyre.memory_allocated(1) == 128 and torch.spyre.memory_allocated(0) == 0
        try:
            a + torch.ones(4, device="spyre:0")
        except RuntimeError as error:
            assert "spyre:0" in str(error) and "spyre:1" in str(error) and "aten::add" in str(error), error
        else:
            raise SystemExit("mixed devices were accepted")
        """,
        AIU_WORLD_SIZE="2",
    )
    assert done.returncode == 0, done.stderr


def test_data_pointer_is_a_token() -> None:
    """Reading host memory at data_ptr() faults."""
    done = run_python(
        """
        import ctypes
        import torch
        x = torch.ones(4, dtype=torch.float16, device="spyre")
        assert x.data_ptr() > 0
        ctypes.string_at(x.data_ptr(), 2)
        """
    )
    assert done.returncode == -signal.SIGSEGV


def test_use_after_fork_raises() -> None:
    done = run_python(
        """
        import os
        import torch
        x = torch.ones(4, dtype=torch.float16, device="spyre")
        pid = os.fork()
        if pid == 0:
            assert torch.spyre._is_in_bad_fork()
            try:
                torch.ones(4, dtype=torch.float16, device="spyre")
            except RuntimeError as error:
                del x
                os._exit(0 if "spawn" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert x.cpu().tolist() == [1, 1, 1, 1]
        """
    )
    assert done.returncode == 0, done.stderr


def test_fork_before_use_is_fine() -> None:
    done = run_python(
        """
        import os
        import torch
        pid = os.fork()
        if pid == 0:
            os._exit(0 if torch.ones(2, device="spyre").tolist() == [1, 1] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_memory_is_freed_by_reference_count() -> None:
    gc.collect()
    before = torch.spyre.memory_allocated()
    x = torch.empty(64, 64, dtype=FP16, device="spyre")
    assert torch.spyre.memory_allocated() == before + 8192
    view = x[3:, 5]
    del x
    assert torch.spyre.memory_allocated() == before + 8192
    del view
    assert torch.spyre.memory_allocated() == before
    assert torch.spyre.max_memory_allocated() >= before + 8192
    torch.spyre.reset_peak_memory_stats()
    assert torch.spyre.max_memory_allocated() == before
    assert torch.spyre.memory_stats()["allocated_bytes.all.current"] == before


def test_empty_tensors_take_no_memory() -> None:
    before = torch.spyre.memory_allocated()
    x = torch.empty(0, 5, device="spyre")
    assert (x.data_ptr(), torch.spyre.memory_allocated()) == (0, before)
    assert x.cpu().shape == (0, 5)


def test_out_of_memory_is_recoverable() -> None:
    before = torch.spyre.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate \d+ bytes; \d+ of \d+ bytes are free"):
        torch.empty(1 << 40, dtype=FP16, device="spyre")
    assert torch.spyre.memory_allocated() == before
    assert torch.ones(3, dtype=FP16).to("spyre").tolist() == [1.0, 1.0, 1.0]


def test_a_card_that_is_not_there_is_named() -> None:
    for index in (5, 100):
        with pytest.raises(RuntimeError, match=rf"Device index {index} out of range \[0, 1\); AIU_WORLD_SIZE says"):
            torch.ones(3, device=f"spyre:{index}")


def test_complex_numbers_are_told_what_to_do() -> None:
    with pytest.raises(UnsupportedOp, match=r"does not support dtype complex64; .*\.cpu\(\).*view_as_real"):
        torch.ones(3, dtype=torch.complex64, device="spyre")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_unsupported_dtypes(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    for make in (lambda: torch.zeros(2, dtype=dtype).to("spyre"), lambda: torch.empty(2, dtype=dtype, device="spyre")):
        with pytest.raises(UnsupportedOp, match=f"Spyre backend does not support dtype {name}"):
            make()


def test_factory_errors() -> None:
    with pytest.raises(RuntimeError, match="required rank 4 tensor"):
        torch.empty(2, 3, device="spyre", memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="Pin memory"):
        torch.empty(2, device="spyre", pin_memory=True)
    with pytest.raises(UnsupportedOp, match="reinterpret"):
        torch.zeros(4, dtype=FP16, device="spyre").view(torch.int16)
    with pytest.raises((InvalidArgument, RuntimeError), match="out of range"):
        torch.spyre.set_device(7)


def test_only_int64_warns() -> None:
    done = run_python(
        """
        import sys
        import warnings
        import torch
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for dtype in (torch.float16, torch.float32, torch.bfloat16, torch.bool, torch.int32, torch.int8):
                torch.ones(2, dtype=dtype).to("spyre").cpu()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            here = ("<string>", sys._getframe().f_lineno + 1)
            torch.ones(2, dtype=torch.int64).to("spyre")
            torch.ones(2, dtype=torch.int64).to("spyre")
        assert ["does not support int64" in str(w.message) for w in seen] == [True], seen
        assert (seen[0].filename, seen[0].lineno) == here, seen[0]
        torch.spyre.set_downcast_warning(False)
        assert torch.spyre.get_downcast_warning() is False
        """
    )
    assert done.returncode == 0, done.stderr


def test_printing() -> None:
    x = torch.tensor([1, 2], dtype=FP16, device="spyre")
    assert repr(x) == "tensor([1., 2.], device='spyre:0', dtype=torch.float16)"
    text = repr(torch.zeros(2000, 3, dtype=FP16, device="spyre", requires_grad=True))
    assert "..." in text and "requires_grad=True" in text
    assert repr(torch.empty(0, device="spyre")) == "tensor([], device='spyre:0')"
    assert str(torch.ones((), device="spyre")) == "tensor(1., device='spyre:0')"


def test_random_numbers_follow_the_seed() -> None:
    torch.manual_seed(5)
    first = torch.randn(100, dtype=torch.float32, device="spyre").cpu()
    second = torch.randn(100, dtype=torch.float32, device="spyre").cpu()
    torch.spyre.manual_seed(5)
    assert torch.equal(torch.randn(100, dtype=torch.float32, device="spyre").cpu(), first)
    state = torch.spyre.get_rng_state()
    assert torch.equal(torch.randn(100, dtype=torch.float32, device="spyre").cpu(), second)
    torch.spyre.set_rng_state(state)
    assert torch.equal(torch.randn(100, dtype=torch.float32, device="spyre").cpu(), second)
    assert torch.spyre.initial_seed() == 5
    torch.manual_seed(5)
    torch.randn(100)
    assert torch.equal(torch.randn(100, dtype=torch.float32, device="spyre").cpu(), first), "the host draws on its own"


def test_own_generators() -> None:
    generator = torch.Generator(device="spyre").manual_seed(11)
    a = torch.rand(10, device="spyre", generator=generator)
    torch.manual_seed(11)
    b = torch.rand(10, device="spyre")
    assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(torch.rand(10, device="spyre", generator=generator).cpu(), a.cpu())
    for fill in ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_"):
        getattr(torch.empty(70, device="spyre"), fill)(generator=generator)
    torch.empty(70, device="spyre").bernoulli_(0.5, generator=generator)
    torch.empty(70, device="spyre").geometric_(0.5, generator=generator)
    drawn = torch.randint(3, 9, (500,), device="spyre").cpu()
    assert drawn.min() == 3 and drawn.max() == 8
    assert sorted(torch.randperm(40, device="spyre").tolist()) == list(range(40))


def test_streams() -> None:
    assert torch.spyre.current_stream() == torch.spyre.default_stream()
    assert torch.spyre.default_stream().id == 0
    low, high = torch.spyre.Stream(), torch.spyre.Stream("spyre:0", priority=-1)
    assert 1 <= low.id <= 32 < high.id <= 64
    assert (low.priority, high.priority) == (0, -1)
    with torch.spyre.stream(low) as inside:
        assert torch.spyre.current_stream() == low == inside
        x = torch.ones(100, dtype=FP16, device="spyre")
    assert torch.spyre.current_stream().id == 0
    low.synchronize()
    assert low.query() and low.device() == torch.device("spyre", 0)
    assert repr(low) == f"<torch_spyre.Stream device=0 id={low.id}>"
    torch.spyre.synchronize("spyre:0")
    torch.accelerator.synchronize()
    other = torch.Stream("spyre")
    with other:
        assert torch.accelerator.current_stream() == other
    assert x.sum is not None


def test_save_load_and_copy() -> None:
    x = torch.randn(5, 70).to(torch.bfloat16).to(FP16).to("spyre")
    buffer = io.BytesIO()
    torch.save({"x": x, "view": x[1:, ::2], "n": torch.arange(7, device="cpu").to("spyre")}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded["x"].device.type == "spyre"
    assert torch.equal(loaded["x"].cpu(), x.cpu())
    assert torch.equal(loaded["view"].cpu(), x[1:, ::2].cpu())
    assert loaded["view"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    assert loaded["n"].tolist() == list(range(7))
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, map_location="cpu")["x"], x.cpu())
    assert torch.equal(copy.deepcopy(torch.nn.Parameter(x)).cpu(), x.cpu())


def test_resize_keeps_the_flat_prefix() -> None:
    x = torch.arange(6.0).to("spyre")
    view = x[2:4]
    x.resize_(4, 5)
    assert x.cpu().flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert view.tolist() == [2, 3]
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    y = torch.empty(0, dtype=FP16, device="spyre").resize_(64, 64)
    assert torch.spyre.get_spyre_tensor_layout(y).device_size == [1, 64, 64]


def test_set_shares_the_storage() -> None:
    x = torch.arange(12.0).to("spyre")
    y = torch.empty(0, device="spyre").set_(x.untyped_storage(), 2, (2, 3), (5, 1))
    assert y.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert y.is_set_to(torch.empty(0, device="spyre").set_(y))
    longer = torch.empty(0, device="spyre").set_(x.untyped_storage(), 0, (1000,), (1,))  # grows it, as on the CPU
    longer[12:] = 1
    assert longer[:14].tolist() == [*range(12), 1, 1] and x.tolist() == [*range(12)]


def test_a_part_of_a_storage_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match=r"a data pointer is no address; slice a tensor"):
        torch.arange(6.0, device="spyre").untyped_storage()[0:4].tolist()


def test_modules_move() -> None:
    module = torch.nn.Linear(70, 30, dtype=FP16)
    weight = module.weight.detach().clone()
    module.to("spyre")
    assert module.weight.is_spyre and module.weight.requires_grad
    torch.testing.assert_close(module.weight.detach().cpu(), weight, rtol=2**-9, atol=0)
    with torch.device("spyre"):
        assert torch.zeros(3).device.type == "spyre"


def test_mixed_devices_raise_before_anything_else() -> None:
    with pytest.raises(RuntimeError, match=r"spyre:0 and cpu! \(aten::\w+"):
        torch.ones(4, device="spyre") + torch.ones(4)


def test_no_warnings_from_plain_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(3, 4, dtype=FP16, device="spyre")
        assert x.t().unsqueeze(0).cpu().shape == (1, 4, 3)


def test_properties() -> None:
    properties = torch.spyre.get_device_properties("spyre:0")
    assert properties.multi_processor_count == 32
    assert properties.total_memory == torch.spyre.total_memory() == 112 << 30
    assert torch.spyre.get_device_name() == properties.name
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    free, total = torch.spyre.mem_get_info()
    assert 0 < free <= total == properties.total_memory
