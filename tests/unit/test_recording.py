# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_recording.py: launches written down and made again; what they depend on compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre.errors import InvalidArgument


def _card(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float16).to("spyre")


def _record(code: Callable[[], Any]) -> tuple[Any, Any]:
    recording = _C.Recording()
    recording.start()
    try:
        return recording, code()
    finally:
        recording.stop()


def _formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * weight + x, 0).clone()


def test_replay_computes_on_what_lies_there_now() -> None:
    x, weight = _card([1, 2, 3, 4]), _card([0.5, 0.25, 1, 2])
    recording, y = _record(lambda: _formula(x, weight))
    assert len(recording) >= 3 and recording.spoiled == ""
    for values in ([4, 3, 2, 1], [0, 0, 1, 0]):
        x.copy_(torch.tensor(values, dtype=torch.float16))
        expected = _formula(x, weight).cpu()
        recording.replay()
        assert torch.equal(y.cpu(), expected)


def test_memory_of_a_recording_belongs_to_it() -> None:
    x = _card([1.0] * 4096)
    recording, y = _record(lambda: ((x + 1) * 2 - 3).sum())
    others = [_card([7.0] * 4096) for _ in range(16)]
    recording.replay()
    assert float(y) == 4096.0
    assert all(torch.equal(o.cpu(), torch.full((4096,), 7.0, dtype=torch.float16)) for o in others)


def test_the_same_code_is_the_same_recording() -> None:
    x, weight, other = _card([1, 2]), _card([3, 4]), _card([3, 4])
    first, _ = _record(lambda: _formula(x, weight))
    again, _ = _record(lambda: _formula(x, weight))
    assert again.same_as(first)
    assert not _record(lambda: _formula(x, other))[0].same_as(first), "outside memory counts by its address"
    assert not _record(lambda: _formula(x, weight) + 1)[0].same_as(first)
    one, _ = _record(lambda: torch.add(x, weight, alpha=0.5))
    two, _ = _record(lambda: torch.add(x, weight, alpha=0.75))
    assert not one.same_as(two), "numbers of a launch count"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (lambda x: x + x.cpu().to("spyre"), "read by the host"),
        (lambda x: x + float(x[0]), "read by the host"),
        (lambda x: x + torch.ones(2, dtype=torch.float16).to("spyre"), "from the host"),
        (lambda x: x + torch.rand_like(x), "random"),
    ],
)
def test_what_a_replay_could_not_repeat_spoils(code: Callable[[torch.Tensor], torch.Tensor], reason: str) -> None:
    x = _card([1, 2])
    recording, _ = _record(lambda: code(x))
    assert reason in recording.spoiled
    with pytest.raises(InvalidArgument, match="cannot be replayed"):
        recording.replay()


def test_one_recording_at_a_time() -> None:
    recording = _C.Recording()
    recording.start()
    try:
        with pytest.raises(InvalidArgument, match="records launches already"):
            _C.Recording().start()
    finally:
        recording.stop()
    with pytest.raises(InvalidArgument, match="not active"):
        recording.stop()


def test_an_error_ends_a_recording_that_nobody_stopped() -> None:
    recording = _C.Recording()
    recording.start()
    del recording
    _C.Recording().start()  # collected at once, like the one before


def test_snapshot() -> None:
    card, host, later = _card([1, 2]), torch.zeros(3), torch.zeros(3)
    inner: dict[str, Any] = {"a": 1}
    items = ["x", inner]
    changes: list[tuple[Callable[[], Any], bool]] = [
        (lambda: card.add_(1), True),
        (lambda: inner.update(a=1), True),
        (lambda: inner.update(a=2), False),
        (lambda: inner.update(b=1), False),
        (lambda: inner.clear(), False),
        (lambda: items.append("y"), False),
        (lambda: items.__setitem__(0, "z"), False),
        (lambda: host.add_(1), False),
        (lambda: setattr(host, "data", later), False),
        (lambda: setattr(card, "data", _card([3, 4])), False),
        (lambda: card.t_() if card.dim() == 2 else card.unsqueeze_(0), False),
    ]
    for change, holds in changes:
        inner.clear(), inner.update(a=1)
        snapshot = _C.Snapshot([inner, items], [card, host])
        assert snapshot.holds()
        change()
        assert snapshot.holds() is holds
        assert snapshot.holds() is holds, "and says so again"
    with pytest.raises(InvalidArgument, match="dicts and lists"):
        _C.Snapshot([3], [])
