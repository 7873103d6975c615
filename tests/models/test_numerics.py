# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_numerics.py: the numerics report finds the layer and the op where planted faults begin."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torch_spyre.dl16 import LARGEST
from torch_spyre.numerics import cli, layers, report
from torch_spyre.numerics.format import round_dl16, rounding, ulp
from torch_spyre.numerics.layers import Report


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_rounding_is_the_cards(values: list[float]) -> None:
    x = torch.tensor(values)
    assert torch.equal(round_dl16(x).double().nan_to_num(1.5), torch.from_numpy(oracle.round_dl16(x)).nan_to_num(1.5))


def test_rounding_rounds_every_result() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 8)
    with rounding():
        found = torch.softmax(a @ b, -1).mul_(3.0)
    first = round_dl16(round_dl16(torch.softmax(round_dl16(a @ b), -1)) * 3.0)
    assert torch.equal(found, first)
    assert not torch.equal(first, torch.softmax(a @ b, -1) * 3)


def test_unit() -> None:
    assert ulp(1.0) == 2.0**-9 and ulp(3.9) == 2.0**-8 and ulp(-1024.0) == 2.0
    assert LARGEST == oracle.MAX


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x))


class Overflow(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e5 * 1e6


class Vanishes(Plain):
    """Zero over zero on the card, one on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        small = super().forward(x) * 1e-6 * 1e-6
        return x + small / small


class Loses(Plain):
    """Ten bits do not hold the small part beside the large one."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) + 1000.0) - 1000.0


class Wrong(Plain):
    """Another computation on the card than on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.01 if x.device.type == "spyre" else 1.0)


class Tower(nn.Module):
    def __init__(self, *kinds: type[Plain]) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layers = nn.ModuleList(kind() for kind in kinds)
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def _compare(kind: type[Plain], mode: str = "eager", depth: int = 0) -> Report:
    tower = Tower(Plain, Plain, kind, Plain).eval()
    with torch.no_grad():
        for p in tower.parameters():
            p.copy_(round_dl16(p.half()))
    return layers.compare(tower, {"x": round_dl16(torch.randn(5, 64).half())}, kind.__name__, mode, depth)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_sound_model(mode: str) -> None:
    found = _compare(Plain, mode)
    assert [x.name for x in found.layers] == ["first", *(f"layers.{i}" for i in range(4)), "last"]
    assert found.drift is None and not found.origins and not found.fallbacks
    assert all(x.own.relative < 2e-3 and x.error.cosine > 0.99999 for x in found.layers)
    own = [x.own.relative for x in found.layers]
    assert found.layers[-1].error.relative > own[-1], "inherited errors add up"


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_an_overflow_is_found_where_it_begins(mode: str) -> None:
    found = _compare(Overflow, mode)
    first, (origin, *_) = found.first_saturated, found.origins
    assert first is not None and first.name == "layers.2" and first.saturated > 200
    assert (origin.kind, origin.module, origin.op) == ("overflow", "layers.2", "aten.mul.Tensor")
    assert origin.inputs[0] < LARGEST / 1e3
    assert found.drift is first
    assert any("overflow begins in layers.2, aten.mul.Tensor" in line for line in report.findings(found))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_nan_is_found_where_it_begins(mode: str) -> None:
    found = _compare(Vanishes, mode)
    assert found.first_nan is not None and found.first_nan.name == "layers.2"
    assert [(o.kind, o.module, o.op) for o in found.origins] == [("NaN", "layers.2", "aten.div.Tensor")]
    assert found.origins[0].inputs == (0.0, 0.0), "what was divided"
    assert not found.layers[0].nans and found.layers[-1].nans == 5 * 64, "a NaN fills its row"


def test_drift_that_the_format_explains() -> None:
    found = _compare(Loses)
    assert found.drift is not None and found.drift.name == "layers.2" and found.drift.explained
    assert not any(x.drifts for x in found.layers if x.name != "layers.2"), "later layers inherit, they do not add"
    assert found.layers[-1].error.relative > 0.1


def test_drift_that_the_format_does_not_explain() -> None:
    found = _compare(Wrong)
    assert found.drift is not None and found.drift.name == "layers.2" and not found.drift.explained


def test_inside_a_layer() -> None:
    found = _compare(Wrong, depth=1)
    names = [x.name for x in found.layers]
    assert names.index("layers.2.norm") < names.index("layers.2.linear") < names.index("layers.2")
    assert found.drift is not None and found.drift.name == "layers.2"


def test_the_page_holds_a_plot() -> None:
    text = report.page_of([_compare(Overflow)])
    assert text.count("<polyline") > 3 and "layers.2: " in text and " saturated, 0 NaN" in text
    assert re.search("<h2[^>]*>eager: findings</h2>", text)
    # Well-formed but for the one tag without an end and the script, and nothing is loaded from elsewhere.
    marks = re.sub("<script>.*?</script>|<meta charset='utf-8'>", "", text.removeprefix("<!doctype html>"), flags=re.S)
    whole = ElementTree.fromstring(marks)
    assert whole.find(".//svg") is not None
    attributes = {name for element in whole.iter() for name in element.attrib}
    assert not attributes & {"src", "href"} and not {e.tag for e in whole.iter()} & {"script", "link", "img", "iframe"}
    assert "url(" not in text and "@import" not in text


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["gpt-2", "--plot", str(page)]) == 0
    out = capsys.readouterr().out
    assert "transformer.h.0" in out and "No drift" in out and "No NaN, no saturated value." in out
    assert page.read_text().startswith("<!doctype html>")
    assert cli.main(["--list"]) == 0 and "llama-3.1-8b" in capsys.readouterr().out
    assert cli.main(["no-such-model"]) == 2
    assert "no folder with a config.json" in capsys.readouterr().err
    assert cli.main(["granite-4-h-tiny", "--layers", "99"]) == 2
    assert "--layers 99: granite-4-h-tiny has no such form" in capsys.readouterr().err
    for words in (["--layers", "-1"], ["--layers", "0"], ["--depth", "-1"], ["--depth", "x"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["gpt-2", *words])
