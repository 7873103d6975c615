# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: how far the card is from the CPU, and how much of that each layer adds.

The error of a layer's output is inherited or its own. Its own is measured by running the layer alone on the card and on
the CPU, on the inputs of the reference rounded to the card's format. A third run, on the CPU with every op's result
rounded, tells what the format alone does in that layer with those inputs.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from torch_spyre import reporting
from torch_spyre.numerics import origins
from torch_spyre.numerics.format import round_dl16, rounding, ulp
from torch_spyre.numerics.origins import Origin
from torch_spyre.numerics.priority import to_card
from torch_spyre.ops import fallbacks

LOSS = 8 * 2.0**-10  # relative; an ordinary layer adds one or two times 2^-10
UNEXPLAINED = 3.0  # times the error that the format owes: something else is at work
_FP16_LARGEST = 65504.0


@dataclass(frozen=True)
class Errors:
    """Of one tensor against another. `relative`: root mean square of the error over that of the reference."""

    relative: float
    units: float  # largest error, in steps of the format at the largest value
    cosine: float

    @classmethod
    def of(cls, found: Tensor, expected: Tensor) -> Errors:
        a, b = found.double().flatten(), expected.double().flatten()
        error = a - b
        size = float(b.square().mean().sqrt())
        relative = float(error.square().mean().sqrt()) / size if size else float(error.abs().max() > 0)
        units = float(error.abs().max()) / ulp(float(b.abs().max()))
        return cls(relative, units, float(F.cosine_similarity(a, b, dim=0)))


@dataclass
class Layer:
    """One row of the report."""

    name: str
    kind: str
    error: Errors  # in the model's run: inherited and own
    own: Errors
    owed: float  # relative error that the format alone causes, given the same inputs
    largest: float  # magnitude, infinities left out
    saturated: int  # values at the format's largest code that are finite in the reference
    beyond_fp16: int  # finite on the card, infinite in IEEE fp16
    nans: int
    reference_nans: int
    card_us: float = 0.0  # the device clock, where the walk measures it

    @property
    def explained(self) -> bool:
        """The format alone does as much, or nearly. An error of one step needs no explanation: where a single large
        value carries the norm, it is the rounding of that value, which may be small or large."""
        return self.own.relative <= max(UNEXPLAINED * self.owed, 2.0**-9)

    @property
    def drifts(self) -> bool:
        return not (self.own.relative <= LOSS and self.explained)


@dataclass
class Report:
    model: str
    mode: str
    layers: list[Layer]
    origins: list[Origin] = field(default_factory=list)
    fallbacks: tuple[fallbacks.Fallback, ...] = ()
    parameters: int = 0  # of the walked model

    @property
    def card_us(self) -> float:
        return sum(layer.card_us for layer in self.layers)

    @property
    def drift(self) -> Layer | None:
        """Where drift starts: the first layer whose own error is large, or more than the format explains."""
        return next((layer for layer in self.layers if layer.drifts), None)

    @property
    def first_saturated(self) -> Layer | None:
        return next((layer for layer in self.layers if layer.saturated), None)

    @property
    def first_nan(self) -> Layer | None:
        return next((layer for layer in self.layers if layer.nans), None)


def parts(model: nn.Module, depth: int = 0) -> dict[str, nn.Module]:
    """The items of the outermost lists of modules, and what stands beside and before those lists; with `depth`, the
    modules inside down to that level."""
    lists = [n for n, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m)]
    outer = [n for n in lists if not any(n.startswith(f"{o}.") for o in lists)]
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        holds_list = name == "" or any(o == name or o.startswith(f"{name}.") for o in outer)
        inside = next((f for f in found if name.startswith(f"{f}.")), None)
        if holds_list or isinstance(module, nn.ModuleList):
            continue
        if inside is None or name[len(inside) :].count(".") <= depth:
            found[name] = module
    return found or {"": model}


@dataclass
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


def record(model: nn.Module, chosen: Mapping[str, nn.Module], inputs: Mapping[str, Any]) -> dict[str, Call]:
    """The first call of each part, in the order in which the parts ran."""
    calls: dict[str, Call] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            # In place ops must not change what is kept; a host copy is one already.
            calls.setdefault(name, Call(copied(args), copied(kwargs), copied(output)))

        return hook

    handles = [m.register_forward_hook(keep(n), with_kwargs=True) for n, m in chosen.items()]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def copied(x: Any) -> Any:
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x)


def _tensors(x: Any) -> list[Tensor]:
    """The floating-point results, on the host in fp32. An output object of transformers is a mapping."""
    values = list(x.values()) if isinstance(x, Mapping) else x
    return [v.detach().float().cpu() for v in tree_leaves(values) if isinstance(v, Tensor) and v.is_floating_point()]


def joined(x: Any) -> Tensor:
    found = _tensors(x)
    return torch.cat([t.flatten() for t in found]) if found else torch.zeros(0)


def compare(
    model: nn.Module, inputs: Mapping[str, Tensor], name: str = "model", mode: str = "eager", depth: int = 0
) -> Report:
    """`model` is in fp32 on the CPU, with weights that the card has exactly."""
    card = to_card(copy.deepcopy(model))
    if mode == "compiled":
        depth = 0  # what is inside a compiled layer is one graph with it
    chosen, on_card = parts(model, depth), parts(card, depth)
    if mode == "compiled":
        compile_parts(on_card.values())
    expected = record(model, chosen, inputs)
    fallbacks.reset()
    found = record(card, on_card, {k: to_card_value(v) for k, v in inputs.items()})
    host = tuple(reporting.report())
    with torch.no_grad():
        layers = [
            _layer(part, chosen[part], on_card[part], expected[part], found[part])
            for part in expected
            if part in found and len(joined(expected[part].output))
        ]
    report = Report(name, mode, layers, fallbacks=host)
    report.origins = list(_origins(report, card, found))
    return report


def compile_parts(modules: Iterable[nn.Module]) -> None:
    """Each kind of part once; hooks stay outside of its graph."""
    forms: dict[type[nn.Module], Any] = {}
    for module in modules:
        kind = type(module)
        if kind not in forms:
            forms[kind] = torch.compile(inspect.unwrap(kind.forward), dynamic=False)
        module.forward = functools.partial(forms[kind], module)


def to_card_value(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return (x.half() if x.dtype == torch.float32 else x).to("spyre")


def _layer(name: str, reference: nn.Module, card: nn.Module, expected: Call, found: Call) -> Layer:
    rounded = [tree_map(rounded_input, x) for x in (expected.args, expected.kwargs)]
    alone = joined(reference(*copied(rounded[0]), **copied(rounded[1])))
    with rounding():
        owed = joined(reference(*copied(rounded[0]), **copied(rounded[1])))
    own = joined(card(*tree_map(to_card_value, rounded[0]), **tree_map(to_card_value, rounded[1])))
    got, want = joined(found.output), joined(expected.output)
    return measured(name, type(reference).__name__, (got, want), (own, alone), Errors.of(owed, alone).relative)


def measured(
    name: str,
    kind: str,
    run: tuple[Tensor, Tensor],
    by_itself: tuple[Tensor, Tensor],
    owed: float,
    card_us: float = 0.0,
) -> Layer:
    """From results of the card and of the reference: those of the model's run, and of the layer alone."""
    got, want = run
    finite = got[torch.isfinite(got)].abs()
    return Layer(
        name,
        kind,
        Errors.of(got, want),
        Errors.of(*by_itself),
        owed,
        float(finite.max()) if len(finite) else math.nan,
        int((torch.isinf(got) & torch.isfinite(want)).sum()),
        int((finite > _FP16_LARGEST).sum()),
        int(torch.isnan(got).sum()),
        int(torch.isnan(want).sum()),
        card_us,
    )


def rounded_input(x: Any) -> Any:
    """As the card gets it: through fp16."""
    return round_dl16(x.half()) if isinstance(x, Tensor) and x.dtype == torch.float32 else x


def _origins(report: Report, card: nn.Module, found: Mapping[str, Call]) -> Iterator[Origin]:
    """The ops in which NaN and overflow begin: the first layers that show them are run again, op by op."""
    modules = dict(card.named_modules())
    for module in modules.values():
        module.__dict__.pop("forward", None)  # compiled or not, the search runs op by op
    bad = next((layer for layer in report.layers if layer.nans or layer.saturated), None)
    for kind, layer in (("overflow", bad), ("NaN", report.first_nan)):
        if layer is not None:
            call = found[layer.name]
            origin = origins.find(modules[layer.name], call.args, call.kwargs, kind, layer.name)
            if origin is not None:
                yield origin
