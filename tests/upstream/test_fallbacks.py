# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_fallbacks.py
"""Host fallbacks: right results, aliasing and out= kept, warned once, counted, cached, and off on request."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_spyre
from torch_spyre import knobs
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ops import eager, fallbacks


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


def card(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="spyre", dtype=torch.float32)


def test_warns_once_with_the_users_line_and_counts() -> None:
    x = card(3, 1, 2)
    with pytest.warns(fallbacks.FallbackWarning, match=r"aten\.lgamma\.default is falling back to cpu") as seen:
        x.lgamma()
        x.lgamma()
    ours = [w for w in seen if issubclass(w.category, fallbacks.FallbackWarning)]
    assert len(ours) == 1 and ours[0].filename == __file__
    for part in (
        "it has no device operation yet (",
        "torch_spyre.report()",
        "SPYRE_FALLBACK=0",
        "SPYRE_FALLBACK_WARN=0",
    ):
        assert part in str(ours[0].message).partition("falling back to cpu: ")[2]
    (row,) = torch_spyre.report()
    assert (row.op, row.calls, row.moved_bytes) == ("aten.lgamma.default", 2, 2 * (12 + 12))
    assert "aten.lgamma.default" in str(torch_spyre.report())


def test_no_warning_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host refuses did not fall back, be it for its arguments or because the card cannot hold the result."""
    x = card(4, 1, 1, 3).reshape(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fallbacks.FallbackWarning)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.linalg.solve(x, x.half())
        with pytest.raises(UnsupportedOp, match="cannot be on the card"):
            torch.linalg.eigvals(x)
    assert list(torch_spyre.report()) == []


def test_a_warning_as_an_error_leaves_the_arguments() -> None:
    x = card(3, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fallbacks.FallbackWarning)
        with pytest.raises(fallbacks.FallbackWarning):
            x.lgamma_()
    assert x.tolist() == [3, 1, 2]


def test_counts_without_a_warning_on_request() -> None:
    with knobs.patch(fallback_warn=False), warnings.catch_warnings():
        warnings.simplefilter("error", fallbacks.FallbackWarning)
        card(3, 1, 2).lgamma()
    assert [row.op for row in torch_spyre.report()] == ["aten.lgamma.default"]


def test_report_starts_empty() -> None:
    assert list(torch_spyre.report()) == []
    assert str(torch_spyre.report()).startswith("no op fell back to cpu")


def test_refused_signature_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 17, device="spyre")
    x.lgamma()
    monkeypatch.setattr(fallbacks, "compile_op", None)
    x.lgamma()
    with pytest.raises(TypeError):  # another signature asks the compiler
        x[:2].lgamma()


def test_an_op_whose_result_is_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to plan: the compiler, which would look for a result in memory, is not asked."""
    monkeypatch.setattr(fallbacks, "compile_op", None)
    with torch.library._scoped_library("spyre_test", "FRAGMENT") as library:
        library.define("counted(Tensor x) -> int")
        library.impl("counted", lambda x: x.numel(), "CPU")
        assert torch.ops.spyre_test.counted(card(1, 2)) == 2


def test_device_ops_do_not_fall_back() -> None:
    x = card(1, 2, 3)
    (x + 1).relu().sum().item()
    assert list(torch_spyre.report()) == []


@pytest.mark.parametrize("how", ["context", "knob"])
def test_off(how: str) -> None:
    x = card(3, 1, 2)
    with fallbacks.disabled() if how == "context" else knobs.patch(fallback=False):
        with pytest.raises(UnsupportedOp, match="lgamma"):
            x.lgamma()
        with pytest.raises(UnsupportedOp, match="poisson"):
            torch.poisson(x)
    x.lgamma()


def test_errors_in_the_call_stay_errors() -> None:
    x = card(1, 2)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sort(dim=3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.searchsorted(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="same device"):
        x.index_select(0, torch.tensor([0]))
    assert list(torch_spyre.report()) == []


def test_dtype_without_a_place_on_the_card_is_an_error() -> None:
    with pytest.raises(UnsupportedOp, match="complex"):
        torch.fft.fft(card(1, 2, 3))


def test_in_place_writes_the_view_and_returns_the_argument() -> None:
    base = torch.zeros(4, 6, device="spyre")
    view = base[1:3, ::2]
    index = torch.tensor([1], device="spyre")
    result = view.index_fill_(1, index, 7)
    assert result is view
    want = torch.zeros(4, 6)
    want[1:3, 2] = 7
    assert torch.equal(base.cpu(), want)


def test_arguments_that_share_a_storage_share_one_on_the_host() -> None:
    base = torch.arange(8.0).to("spyre")
    other = torch.arange(8.0)
    index = torch.tensor([2, 0])
    for x, i in ((base, index.to("spyre")), (other, index)):
        x[:4].index_copy_(0, i, x[4:6])
    assert torch.equal(base.cpu(), other)


def test_out_is_written_resized_and_returned() -> None:
    x = card(3, 1, 2)
    values, indices = torch.empty(0, device="spyre"), torch.empty(0, device="spyre", dtype=torch.int64)
    result = torch.sort(x, out=(values, indices))
    assert result[0] is values and result[1] is indices
    assert values.tolist() == [1, 2, 3] and indices.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (lambda x: x.nonzero(), [[0], [2]]),
        (lambda x: x[x > 1], [3, 2]),
        (lambda x: x.unique(), [0, 2, 3]),
        (lambda x: x.argsort(), [1, 2, 0]),
        (lambda x: x.cumsum(0), [3, 3, 5]),
    ],
    ids=["nonzero", "mask", "unique", "argsort", "cumsum"],
)
def test_results_are_on_the_card(call, want) -> None:
    result = call(card(3, 0, 2))
    assert result.device.type == "spyre" and result.tolist() == want


def test_numbers_promote_as_numbers() -> None:
    x = torch.tensor([5, 7], device="spyre", dtype=torch.int32)
    assert (x % 3).dtype == torch.int32 and (x % 3).tolist() == [2, 1]
    h = torch.tensor([5.0, 7.0], device="spyre", dtype=torch.float16)
    assert torch.fmod(h, 3).dtype == torch.float16


def test_autograd_goes_through() -> None:
    x = card(3, 1, 2).requires_grad_()
    x.sort().values[0].backward()
    assert x.grad is not None and x.grad.device.type == "spyre" and x.grad.tolist() == [0, 1, 0]


def test_inside_inference_mode_and_threads() -> None:
    import threading

    x, seen = card(3, 1, 2), []
    with torch.inference_mode():
        assert x.sort().values.tolist() == [1, 2, 3]
    threads = [threading.Thread(target=lambda: seen.append(x.sort().values.tolist())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [[1, 2, 3]] * 4


def test_under_a_default_device() -> None:
    x = card(3, 1, 2)
    with torch.device("spyre"):
        assert x.sort().values.tolist() == [1, 2, 3]
        assert (x % 2).tolist() == [1, 1, 0]
        assert x.lgamma()[1].item() == 0
        assert torch.arange(3).device.type == "spyre"
    assert "aten.lgamma.default" in {row.op for row in torch_spyre.report()}


def test_another_number_is_the_same_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    x = card(3, 1, 2)
    x % 2
    monkeypatch.setattr(fallbacks, "compile_op", None)
    assert (x % 3).tolist() == [0, 1, 2]


def test_as_error_filter_does_not_lose_the_state() -> None:
    x = card(3, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fallbacks.FallbackWarning)
        with pytest.raises(fallbacks.FallbackWarning):
            x.lgamma()
    assert list(torch_spyre.report()) == []
    assert x.lgamma()[1].item() == 0


def test_the_compiler_is_reached_through_the_fallback() -> None:
    assert fallbacks.compile_op is eager.compile_op


@pytest.mark.parametrize(
    "call",
    [torch.fft.rfft, lambda x: x.expand(3, 3).to_sparse_csr(), lambda x: torch.linalg.eigvals(x.expand(3, 3))],
    ids=["complex", "sparse", "eigenvalues"],
)
def test_a_result_without_a_place_on_the_card_names_the_op(call) -> None:
    with pytest.raises(UnsupportedOp, match=r"aten\._.*gives what cannot be on the card .*\.cpu\(\)"):
        call(card(1, 2, 3))


def test_an_op_without_an_abstract_form_runs_once() -> None:
    torch.histogram(card(1, 2, 3), 2)
    (row,) = torch_spyre.report()
    assert row.calls == 1 and row.line.startswith(__file__)
