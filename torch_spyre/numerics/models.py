# SPDX-License-Identifier: Apache-2.0
"""A whole model on the card against the CPU in fp32: logits, argmax, routing, host fallbacks, graphs.

Three runs with the same weights and inputs: CPU fp32 (the reference), CPU fp32 with every result rounded to the card's
format (what the format owes), and the card. A decoder is run as it is in generation: the prompt into a static cache,
then one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre import reporting
from torch_spyre.numerics import priority as zoo
from torch_spyre.numerics.format import rounding, ulp
from torch_spyre.numerics.priority import Inputs, Priority
from torch_spyre.ops import fallbacks

MODES = ("eager", "compiled")
# How much worse than rounding every result the card may be. It rounds at other places (inside a norm or a softmax, the
# inputs of a head), not at more of them by an order of magnitude.
RMS_FACTOR, MAX_FACTOR = 2.0, 4.0


@dataclass
class Run:
    """What one run left: rows of results (logits or hidden states), and router logits by layer."""

    values: Tensor
    routers: list[Tensor] = field(default_factory=list)


@dataclass
class Outcome:
    """One row of docs/model-table.md."""

    name: str
    mode: str
    layers: int
    parameters: int
    cosine: float  # the worst row
    rms_error: float  # of all values, relative to their root mean square
    format_rms: float  # the same of the rounded CPU run
    max_error: float
    format_max: float
    unit: float  # the format's step at the largest value
    argmax: tuple[int, int]  # rows that agree, rows
    flips: list[Flip]
    fallbacks: tuple[fallbacks.Fallback, ...]
    graphs: int
    card_us: float  # the device clock, one pass

    @property
    def units(self) -> float:
        return self.max_error / self.unit

    def problems(self) -> list[str]:
        """What a test must not find."""
        found = []
        if not self.cosine >= 0.999:
            found.append(f"cosine {self.cosine:.6f} is below 0.999")
        if not self.rms_error <= RMS_FACTOR * self.format_rms:
            found.append(
                f"rms error {self.rms_error:.2e} is more than {RMS_FACTOR} times the format's {self.format_rms:.2e}"
            )
        if not self.max_error <= MAX_FACTOR * self.format_max:
            found.append(
                f"largest error {self.max_error:.2e} is more than {MAX_FACTOR} times the format's {self.format_max:.2e}"
            )
        found += [f"token {f.row} of layer {f.layer}: {f}" for f in self.flips if not f.near_tie]
        found += [f"{row.op} ran on the host {row.calls} times: {row.reason}" for row in self.fallbacks]
        return found


@dataclass(frozen=True)
class Flip:
    """A token that chose other experts than in the reference."""

    layer: int
    row: int
    gap: float  # reference logits: the last chosen expert against the first one left out
    error: float  # largest error of the rounded CPU run's router logits in this layer

    @property
    def near_tie(self) -> bool:
        return self.gap <= 2 * MAX_FACTOR * self.error

    def __str__(self) -> str:
        return f"gap {self.gap:.2e} between the experts, the format's error {self.error:.2e}"


def compare(model: Priority, mode: str = "compiled", size: str = "tiny") -> Outcome:
    return Comparison(model, size).run(mode)


class Comparison:
    """One model with its CPU runs, which serve every mode: built once, run on the host, then moved to the card."""

    def __init__(self, model: Priority, size: str = "tiny") -> None:
        self.module = zoo.build(model, size)
        self.inputs = model.inputs(self.module.config)
        self.runner = Runner(self.module, model)
        with torch.no_grad():
            self.expected = self.runner(self.inputs)
            with rounding():
                self.rounded = self.runner(self.inputs)
            zoo.to_card(self.module)

    def run(self, mode: str) -> Outcome:
        fallbacks.reset()
        with torch.no_grad():
            graphs = self.runner.compile() if mode == "compiled" else self.runner.eager()
            found, card_us = _timed(lambda: self.runner(_on_card(self.inputs)))
        return _outcome(self.runner, mode, (self.expected, self.rounded, found), graphs(), card_us)


def _on_card(inputs: Inputs) -> Inputs:
    return {k: (v.half() if v.is_floating_point() else v).to("spyre") for k, v in inputs.items()}


def _timed(call: Callable[[], Run]) -> tuple[Run, float]:
    """Runs twice: the second run compiles nothing, and its time on the device clock is one pass."""
    call()
    start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    start.record()
    found = call()
    end.record()
    torch.spyre.synchronize()
    return found, 1e3 * float(start.elapsed_time(end))


class Runner:
    """Passes of one model, wherever it is. Rows of the result are tokens or patches; those of padding are left out."""

    def __init__(self, module: nn.Module, model: Priority) -> None:
        self.module, self.model = module, model
        self.forward: Callable[..., Any] = module
        self.seen: list[Tensor] = []  # router logits
        for name, part in module.named_modules():
            if model.router and name.endswith(model.router):
                part.register_forward_hook(self._see)

    def _see(self, module: nn.Module, args: Any, out: Any) -> None:
        self.seen.append(out[0])

    def compile(self) -> Callable[[], int]:
        """From now on the module runs compiled; returns a count of its graphs."""
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        before = counters["stats"]["unique_graphs"]
        self.forward = torch.compile(self.module, dynamic=False)
        return lambda: int(counters["stats"]["unique_graphs"] - before)

    def eager(self) -> Callable[[], int]:
        """From now on the module runs op by op, without graphs."""
        self.forward = self.module
        return int

    def __call__(self, inputs: Inputs) -> Run:
        self.seen.clear()
        if not self.model.cached:
            return Run(self._plain(inputs))
        values = self._cached(inputs)
        batch, half = len(next(iter(inputs.values()))), len(self.seen) // 2
        logits = [x.float().cpu().unflatten(0, (batch, -1)) for x in self.seen]
        pairs = zip(logits[:half], logits[half:], strict=True)
        return Run(values, [torch.cat(pair, 1).flatten(0, 1) for pair in pairs])

    def _plain(self, inputs: Inputs) -> Tensor:
        out = self.forward(**inputs)
        values = out.logits if hasattr(out, "logits") else out.last_hidden_state
        rows = values.float().cpu().flatten(0, -2)
        mask = inputs.get("attention_mask")
        return rows if mask is None else rows[mask.cpu().flatten().bool()]

    def _cached(self, inputs: Inputs) -> Tensor:
        """The prompt, then one token. An encoder runs with the prompt; its keys and values have their own cache."""
        from transformers import EncoderDecoderCache, StaticCache

        name = "input_ids" if "input_ids" in inputs else "decoder_input_ids"
        ids, more = inputs[name], {k: v for k, v in inputs.items() if k != name}
        config = self.module.config
        cache: Any = StaticCache(config=config, max_cache_len=64)
        if more:
            cache = EncoderDecoderCache(cache, StaticCache(config=config, max_cache_len=config.max_source_positions))
        prompt = self.forward(**{name: ids[:, :-1]}, **more, past_key_values=cache, use_cache=True)
        encoded = {"encoder_outputs": (prompt.encoder_last_hidden_state,)} if more else {}
        step = self.forward(**{name: ids[:, -1:]}, **encoded, past_key_values=cache, use_cache=True)
        return torch.cat([prompt.logits.float().cpu(), step.logits.float().cpu()], 1).flatten(0, 1)


def _outcome(runner: Runner, mode: str, runs: tuple[Run, Run, Run], graphs: int, card_us: float) -> Outcome:
    expected, rounded, found = runs
    chosen = getattr(runner.module.config, "num_experts_per_tok", 0)
    same, flips = _routing(expected, rounded, found, chosen)
    kept, _ = _routing(expected, rounded, rounded, chosen)
    want, got = expected.values[same], found.values[same]
    return Outcome(
        runner.model.name,
        mode,
        zoo.layers(runner.module.config),
        sum(p.numel() for p in runner.module.parameters()),
        float(F.cosine_similarity(got, want, dim=-1).min()),
        _rms(got - want) / _rms(want),
        _rms(rounded.values[kept] - expected.values[kept]) / _rms(expected.values[kept]),
        float((got - want).abs().max()),
        float((rounded.values[kept] - expected.values[kept]).abs().max()),
        ulp(float(want.abs().max())),
        (int((got.argmax(-1) == want.argmax(-1)).sum()), len(want)),
        flips,
        tuple(reporting.report()),
        graphs,
        card_us,
    )


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _routing(expected: Run, rounded: Run, found: Run, chosen: int) -> tuple[Tensor, list[Flip]]:
    """Rows whose experts agree in all layers, and those that do not."""
    same = torch.ones(len(expected.values), dtype=torch.bool)
    flips: list[Flip] = []
    for layer, (want, near, got) in enumerate(zip(expected.routers, rounded.routers, found.routers, strict=True)):
        error = float((near - want).abs().max())
        best = want.sort(-1, descending=True).values
        for row in _differ(want, got, chosen).nonzero().flatten().tolist():
            flips.append(Flip(layer, row, float(best[row, chosen - 1] - best[row, chosen]), error))
        same &= ~_differ(want, got, chosen)
    return same, flips


def _differ(a: Tensor, b: Tensor, chosen: int) -> Tensor:
    sets = [x.topk(chosen).indices.sort(-1).values for x in (a, b)]
    return (sets[0] != sets[1]).any(-1)
