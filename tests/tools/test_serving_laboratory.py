# SPDX-License-Identifier: Apache-2.0
"""The serving laboratory without vLLM: workloads, prices of steps, virtual time. tests/serving has vLLM's scheduler."""

import json
import math

import pytest

from torch_spyre.errors import InvalidArgument
from torch_spyre.predict import configs
from torch_spyre.predict.model import predict
from torch_spyre.predict.passes import Request
from torch_spyre.predict.serving import command, figures, simulate, workload
from torch_spyre.predict.serving.prices import StepPrices
from torch_spyre.predict.serving.scheduler import Limits, Work
from torch_spyre.predict.serving.workload import Arrival

MODEL = configs.find("smollm2-135m").with_layers(2)


@pytest.mark.parametrize("cards", [1, 3])
def test_a_step_of_one_kind_costs_what_predict_says(cards):
    """A whole prompt, and next tokens of caches of one length: `predict` compiles these passes as they are."""
    prices = StepPrices(MODEL, cards)
    for request, works in (
        (Request(1, 128, 1), [Work(0, 128, 128, True)]),
        (Request(4, 255, 1), [Work(i, 1, 256, True) for i in range(4)]),
    ):
        found = predict(MODEL, request, cards=cards)
        phase = found.phases[0] if request.batch == 1 else found.phases[1]
        assert math.isclose(prices.step(works), found.pass_ns(phase), rel_tol=0.1)


def test_prices_grow_with_what_is_computed():
    prices = StepPrices(MODEL)
    steps = [
        [Work(0, 1, 100, True)],
        [Work(0, 1, 1000, True)],
        [Work(i, 1, 1000, True) for i in range(8)],
        [*(Work(i, 1, 1000, True) for i in range(8)), Work(8, 100, 100, False)],
        [*(Work(i, 1, 1000, True) for i in range(8)), Work(8, 500, 900, False)],
    ]
    found = [prices.step(works) for works in steps]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert found == [prices.step(works) for works in steps]


def test_models_that_a_step_cannot_describe_are_refused():
    with pytest.raises(InvalidArgument, match="granite-4-h-tiny: Mamba layers"):
        StepPrices(configs.find("granite-4-h-tiny"))


class OneByOne:
    """A scheduler that serves whole requests in the order of their arrival."""

    def __init__(self, *_):
        self.requests = []

    def add(self, request, prompt, output):
        self.requests.append([request, prompt, output, 0])

    def busy(self):
        return bool(self.requests)

    def counts(self):
        return 1, len(self.requests)

    def cache_use(self):
        return 0.5

    def step(self):
        name, prompt, _, done = self.requests[0]
        return [Work(name, prompt if not done else 1, prompt + done, True)]

    def done(self, works):
        self.requests[0][3] += 1
        if self.requests[0][3] == self.requests[0][2]:
            del self.requests[0]
        return []


class OneSecond:
    def step(self, works):
        return 1e9


def test_virtual_time(monkeypatch):
    monkeypatch.setattr(simulate, "Scheduler", OneByOne)
    arrivals = [Arrival(0.0, 10, 3), Arrival(1.5, 10, 2), Arrival(100.0, 5, 1)]
    run = simulate.simulate(MODEL, arrivals, Limits(), OneSecond())
    assert [r.tokens for r in run.requests] == [[1, 2, 3], [4, 5], [101]]
    assert [r.started for r in run.requests] == [0, 3, 100]
    assert run.card_seconds == 6
    found = figures.data(run)
    assert found["requests"] == 3 and found["seconds"] == 101
    assert found["first_token"]["p50"] == 1 and found["queued"]["p99"] == pytest.approx(1.47)
    assert found["between_tokens"]["mean"] == 1
    assert "waiting" in figures.timeline_page("a run", {"value": run})


def test_percentiles_are_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    for share in (0, 10, 50, 90, 99, 100):
        assert figures.percentile(values, share) == pytest.approx(numpy.percentile(values, share))


def test_drawn_arrivals():
    found = workload.drawn(500, 4.0, [(10, 5), (20, 6)], seed=1)
    assert found == workload.drawn(500, 4.0, [(10, 5), (20, 6)], seed=1)
    assert found != workload.drawn(500, 4.0, [(10, 5), (20, 6)], seed=2)
    assert {(a.prompt, a.output) for a in found} == {(10, 5), (20, 6)}
    assert 80 < found[-1].at < 180 and found == sorted(found, key=lambda a: a.at)
    assert {a.at for a in workload.drawn(5, math.inf, [(1, 1)], 0)} == {0.0}


def test_files(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 2, "input": 5, "output": 6}\n\n{"at": 0.5, "input": 7, "output": 8}\n')
    assert workload.from_trace(trace) == [Arrival(0.5, 7, 8), Arrival(2.0, 5, 6)]
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("id,input,output\na,5,6\nb,7,8\n")
    assert workload.lengths_of(lengths) == [(5, 6), (7, 8)]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--rate", "0"], "--rate 0"),
        (["--requests", "0"], "--requests 0"),
        (["--input", "0"], "both are positive"),
        (["--chunk", "x"], "--chunk x: write a number"),
        (["--chunk", "8", "--sequences", "16"], "--chunk 8"),
        (["--cards", "2"], "smollm2-135m"),
        (["--trace", "BAD"], "BAD:1"),
        (["--lengths", "BAD"], "it needs input and output"),
        (["--trace", "BAD", "--lengths", "BAD"], "give one of them"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_bad_input_is_named(words, message, tmp_path, capsys):
    bad = tmp_path / "bad"
    bad.write_text(json.dumps({"at": -1, "input": 3, "output": 4}) + "\n")
    words = [str(bad) if w == "BAD" else w for w in words]
    assert command.main(["smollm2-135m", "--quiet", *words]) == 2
    assert message.replace("BAD", str(bad)) in capsys.readouterr().err


def test_a_request_longer_than_the_limit_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(simulate, "Scheduler", OneByOne)
    assert command.main(["smollm2-135m", "-q", "--input", "5000"]) == 2
    assert "longer than --length 4096" in capsys.readouterr().err
