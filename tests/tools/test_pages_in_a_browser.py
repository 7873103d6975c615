# SPDX-License-Identifier: Apache-2.0
# pytest -m slow tests/tools/test_pages_in_a_browser.py
"""Pages do in headless Chromium what they promise: numbers on hover, zoom, linked marks, choices, export, no error."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_explain import SCRIPT

from torch_spyre import charts
from torch_spyre.explain import cli

BROWSER = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium in PATH (Debian: apt install chromium)"),
]

# Runs behind page.js: does what a reader would do, and leaves what happened in the page.
PROBE = """
(async () => {
const said = { errors: window.problems };
const svgs = [...document.querySelectorAll("svg[data-zoom]")];
said.pictures = svgs.length;
said.buttons = document.querySelectorAll("figure .bar button").length;
said.zoomed = svgs.map((svg) => {
  const [plus, minus, whole] = svg.closest("figure").querySelectorAll("button");
  plus.click(); plus.click(); minus.click();
  const state = [Number(svg.dataset.zoomed)];
  whole.click();
  return [...state, Number(svg.dataset.zoomed)];
});
const timeline = svgs.find((svg) => svg.dataset.zoom === "x");
const labels = () => [...timeline.querySelectorAll(".ticks text")].map((t) => t.textContent);
const before = labels();
for (let i = 0; i < 4; i++) timeline.closest("figure").querySelector("button").click();
said.ticks = [before, labels()];
said.names = [...timeline.querySelectorAll(".plot text.in")].map((t) => {
  const [seen, inside] = [t.getBoundingClientRect(), timeline.getBoundingClientRect()];
  return [t.textContent, t.getAttribute("display") !== "none", seen.left >= inside.left, seen.width];
});
const mark = document.querySelector("svg [data-tip]");
mark.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 50, clientY: 50 }));
const tip = document.getElementById("tip");
said.tip = [getComputedStyle(tip).display, tip.textContent, mark.dataset.tip];
const linked = document.querySelector("svg [data-key]");
if (linked) {
  linked.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  said.linked = [...document.querySelectorAll(".on")].map((e) => e.dataset.key);
}
said.choices = [...document.querySelectorAll("[data-choice] > select")].map((select) => {
  select.value = select.options.length - 1;
  select.dispatchEvent(new Event("change"));
  return [select.options.length, [...select.parentElement.children].filter((c) => c.dataset.name && !c.hidden).length];
});
const click = HTMLAnchorElement.prototype.click;
HTMLAnchorElement.prototype.click = function () { said.saved = [this.download, this.href.slice(0, 200000)]; };
document.querySelectorAll("figure .bar")[0].querySelectorAll("button")[3].click();
HTMLAnchorElement.prototype.click = click;
said.width = [document.documentElement.scrollWidth, innerWidth];
const pre = document.createElement("pre");
pre.id = "said";
pre.textContent = JSON.stringify(said);
document.body.append(pre);
})();
"""


def read(page: str, folder: Path) -> dict[str, Any]:
    """What the browser says about a page after the probe ran in it."""
    listen = "<script>window.problems=[];addEventListener('error',e=>problems.push(e.message))</script>"
    return dump(
        page.replace("<head>", f"<head>{listen}").replace("</body>", f"<script>{PROBE}</script></body>"), folder
    )


def dump(probed: str, folder: Path) -> dict[str, Any]:
    """What a page leaves in its element "said"."""
    file = folder / "probed.html"
    file.write_text(probed)
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    options = ["--window-size=1240,900", "--virtual-time-budget=20000", "--dump-dom", file.as_uri()]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=1500)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    return dict(json.loads(html.unescape(found[1])))


def check(said: dict[str, Any]) -> None:
    assert said["errors"] == []
    assert said["buttons"] == 5 * said["pictures"] > 0
    assert all(in_ == pytest.approx(1.6) and out == 1 for in_, out in said["zoomed"])
    before, after = said["ticks"]
    assert before != after and 3 <= len(after) <= 12
    assert said["tip"][0] == "block" and said["tip"][1] == said["tip"][2] != ""
    assert all(options > 1 and shown == 1 for options, shown in said["choices"])
    name, address = said["saved"]
    assert name == "picture-1.svg" and address.startswith("data:image/svg+xml")
    assert said["width"][0] <= said["width"][1], "nothing is wider than the window"


def test_the_page_of_explain(tmp_path: Path) -> None:
    (tmp_path / "layer.py").write_text(SCRIPT)
    assert cli.main(["--html", str(tmp_path / "page.html"), str(tmp_path / "layer.py")]) == 0
    said = read((tmp_path / "page.html").read_text(), tmp_path)
    check(said)
    assert said["pictures"] >= 6 and len(said["linked"]) >= 1 and len(set(said["linked"])) == 1
    assert len(said["choices"]) >= 2, "cores and tensors can be chosen"


def test_charts_alone(tmp_path: Path) -> None:
    """What trace, predict and numerics draw with; and the picture that is saved is well formed."""
    plot = [charts.box(100, 10, 50, 20, "#123456", "one <b> & two")]
    plot += [charts.label(100, 24, 900, "wide"), charts.label(560, 24, 30, "where it fits")]
    sections = [
        ("Bars", charts.bars([("a < b", [("pt", 3.0, "3 us"), ("memory", 1.5, "1.5 us")])], "us")),
        ("Time", charts.timeline_svg(80, plot, [charts.text(5, 20, "row")], (0.0, 17.3), "us")),
        ("Choice", charts.choice([("first", charts.svg(20, [])), ("second", charts.svg(20, []))])),
    ]
    said = read(charts.page("charts", sections), tmp_path)
    check(said)
    (wide, narrow) = said["names"]
    assert wide[:3] == ["wide", True, True], "its box begins left of what is seen"
    assert narrow[:2] == ["where it fits", True] and narrow[3] < 100, "shown once zoomed, and not stretched"
    from urllib.parse import unquote

    picture = ElementTree.fromstring(unquote(said["saved"][1].partition(",")[2]))
    assert picture.tag.endswith("svg") and len(list(picture.iter())) > 4


def test_the_filter_of_the_operator_table(tmp_path: Path) -> None:
    """The field that docs/site/filter.js adds: rows that lack a word disappear, and come back."""
    rows = "".join(f"<tr><td>{op}</td><td>{dtypes}</td></tr>" for op, dtypes in OPERATORS)
    script = (Path(__file__).parents[2] / "docs/site/filter.js").read_text()
    listen = "<script>window.problems=[];addEventListener('error',e=>problems.push(e.message))</script>"
    page = (
        f"<html><head>{listen}</head><body><p>before</p><div class='searchable'></div><div><table><tbody>{rows}</tbody>"
        f"</table></div><script>{script}</script><script>{FILTERED}</script></body></html>"
    )
    said = dump(page, tmp_path)
    assert said == {"errors": [], "": 3, "MATMUL": 2, "matmul int64": 1, "nothing": 0}


OPERATORS = [("matmul", "float16 int64"), ("softmax", "float16"), ("nn.functional.linear (matmul)", "float16")]
FILTERED = """
const field = document.querySelector("input.filter");
const said = { errors: problems };
for (const words of ["MATMUL", "matmul int64", "nothing", ""]) {
  field.value = words;
  field.dispatchEvent(new Event("input"));
  said[words] = [...document.querySelectorAll("tr")].filter((row) => row.offsetHeight > 0).length;
}
const pre = document.createElement("pre");
pre.id = "said";
pre.textContent = JSON.stringify(said);
document.body.append(pre);
"""
