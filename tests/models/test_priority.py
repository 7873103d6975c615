# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_priority.py: the priority models, eager and compiled, stay within what the format owes.

Logits against CPU fp32 with the same weights: the worst row's cosine is at least 0.999, the errors are at most a few
times those of a CPU run that rounds every result to the card's format, no op runs on the host, and a token that chooses
other experts stood between them. `-m slow` runs real widths.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_spyre import knobs
from torch_spyre.numerics import models, priority, table
from torch_spyre.numerics.models import Comparison, Flip, Run, compare
from torch_spyre.numerics.priority import PRIORITY
from torch_spyre.ops.fallbacks import Fallback
from torch_spyre.predict.configs import PUBLISHED

# Close relatives of others that stay: the same blocks with other figures.
_LATER = {"mistral-7b", "granite-3.3-8b", "olmo-2-7b", "roberta-base", "vit-base"}


def _sample(mode: str) -> list[object]:
    return [pytest.param(n, marks=pytest.mark.slow) if mode == "compiled" and n in _LATER else n for n in PRIORITY]


@functools.cache
def comparison(name: str) -> Comparison:
    """Both modes share the model and its runs on the host."""
    return Comparison(PRIORITY[name])


@pytest.mark.parametrize("name", _sample("compiled"))
def test_compiled(name: str) -> None:
    outcome = comparison(name).run("compiled")
    assert not outcome.problems()
    assert outcome.graphs == (2 if PRIORITY[name].cached else 1), "one for the prompt, one for a token"


@pytest.mark.parametrize("name", _sample("eager"))
def test_eager(name: str) -> None:
    assert not comparison(name).run("eager").problems()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", PRIORITY)
def test_real_widths(name: str) -> None:
    assert not compare(PRIORITY[name], "compiled", "real").problems()


def _run(values: Tensor, logits: Tensor) -> Run:
    return Run(values, [logits])


def test_a_flip_is_found_and_must_be_a_near_tie() -> None:
    want = torch.tensor([[3.0, 1.0, 0.999, 0.0], [3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    near = want + 1e-3
    got = want.clone()
    got[0, 2], got[1, 2] = 1.001, 2.5
    values = torch.zeros(3, 8)
    same, flips = models._routing(_run(values, want), _run(values, near), _run(values, got), 2)
    assert same.tolist() == [False, False, True]
    assert [(f.row, f.near_tie) for f in flips] == [(0, True), (1, False)]


def test_problems_are_named() -> None:
    bad = dataclasses.replace(
        comparison("vit-base").run("eager"),
        cosine=0.99,
        rms_error=1.0,
        max_error=float("nan"),
        flips=[Flip(0, 1, 1.0, 1e-3)],
        fallbacks=(Fallback("aten.mode", "why", 3),),
    )
    text = " ".join(bad.problems())
    for part in ("cosine 0.99", "rms error", "largest error", "token 1", "aten.mode"):
        assert part in text


def test_figures_come_from_the_published_table() -> None:
    llama = priority.find("llama-3.1-8b").published
    assert (llama["hidden_size"], llama["vocab_size"]) == (PUBLISHED["llama-3.1-8b"].hidden, 128256)
    shared = [name for name in PRIORITY if name in PUBLISHED]
    assert len(shared) == 13 and len(PRIORITY) == 19


def test_weights_are_numbers_of_both_formats() -> None:
    import oracle

    model = priority.build(PRIORITY["gpt-2"])
    for p in model.parameters():
        assert torch.equal(p, p.half().float())
        assert torch.equal(p.double(), torch.from_numpy(oracle.round_dl16(p)))


def test_the_table_has_a_line_per_model_and_mode(tmp_path: Path) -> None:
    chosen, kept = [PRIORITY["vit-base"]], tmp_path / "rows.json"
    found = table.measure(chosen, [("eager", "tiny")], kept)
    text = table.page(found, chosen)
    assert "## Eager, tiny widths" in text
    assert "| vit-base | 1 of 12 |" in text and "| none |" in text
    assert "| vit-base | 12 layers, width 768," in text
    assert "Measured with torch 2." in text and found.good
    assert table.measure(chosen, [("eager", "tiny")], kept, missing=False) == found, "a stopped run goes on"
    changed = dataclasses.replace(chosen[0], tiny={**chosen[0].tiny, "num_hidden_layers": 2})
    stale = table.measure([changed], [("eager", "tiny")], kept, missing=False)
    assert not stale.rows, "a row of other figures is stale"
    with knobs.patch(sencores=8):
        assert not table.measure(chosen, [("eager", "tiny")], kept, missing=False).rows, "so is one of other knobs"


def test_modes_share_what_runs_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    original = priority.build
    monkeypatch.setattr(priority, "build", lambda m, size: built.append(m.name) or original(m, size))
    found = table.measure([PRIORITY["vit-base"]], [("compiled", "tiny"), ("eager", "tiny")])
    assert built == ["vit-base"] and [r["mode"] for r in found.rows] == ["compiled", "eager"] and found.good


def test_a_model_that_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def build(model: priority.Priority, size: str) -> object:
        if model.name == "bert-base":
            raise RuntimeError("no such thing")
        return original(model, size)

    original, kept = priority.build, tmp_path / "rows.json"
    monkeypatch.setattr(priority, "build", build)
    command = ["bert-base", "vit-base", "--runs", "eager/tiny", "--rows", str(kept)]
    assert table.main(command) == 1
    out, err = capsys.readouterr()
    assert "* bert-base, eager, tiny: RuntimeError: no such thing" in out and "| vit-base | 1 of 12 |" in out
    assert "Not measured: bert-base." in out
    assert "1 of 2: bert-base, eager, tiny: failed" in err and "2 of 2: vit-base, eager, tiny: good" in err
    assert [r["name"] for r in json.loads(kept.read_text())] == ["vit-base"], "the next run tries again"
    monkeypatch.setattr(priority, "build", None)  # would fail if it were called
    assert table.main([*command[1:]]) == 0


def test_a_row_out_of_bounds_is_told_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "rows.json"
    command = ["vit-base", "--runs", "eager/tiny", "--rows", str(kept)]
    assert table.main(command) == 0
    rows = json.loads(kept.read_text())
    rows[0]["problems"] = ["cosine 0.5 is below 0.999"]
    kept.write_text(json.dumps(rows))
    assert table.main([*command, "--print"]) == 1
    assert "* vit-base, eager, tiny: cosine 0.5 is below 0.999" in capsys.readouterr().out
