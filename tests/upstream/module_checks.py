# SPDX-License-Identifier: Apache-2.0
"""One ModuleInfo sample on the card: results, gradients and buffers against the CPU in a wider dtype.

Parameters and inputs hold what the card holds. Dropout is off: each device draws its own numbers. The CPU takes every
step of a layer; the card may take PyTorch's fused ones, which it does in the mode "inference".
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from op_checks import _WIDER, ULPS, Refused, _widened
from rounded import _RoundedSteps
from samples import as_on_card, seeded, tensors
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.utils._pytree import tree_map

_DROPS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
STEPS = 4.0  # how much further a 16-bit result may be from the CPU's rounded steps, which round in another order


def module_samples(info: ModuleInfo, dtype: torch.dtype, training: bool, limit: int) -> list[ModuleInput]:
    """Evenly spread ones; the same list each time."""
    seeded()
    found = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    found = list(found)
    return found[:: max(1, -(-len(found) // limit))]


class Run:
    """What one side makes of a sample; in the mode "inference" without gradients."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, mode: str) -> None:
        self.module = module
        call: Any = module
        if mode == "compiled":
            torch._dynamo.reset()
            call = torch.compile(module, backend="spyre", dynamic=False)
        self.inputs = [x for x in tensors((args, kwargs)) if x.requires_grad]
        seeded()
        with torch.set_grad_enabled(mode != "inference"):
            self.results = tensors(call(*args, **kwargs))
        self.gradients = self._gradients()
        self.buffers = [b.detach() for b in module.buffers()]

    def _gradients(self) -> list[torch.Tensor | None]:
        learned = [*self.inputs, *(p for p in self.module.parameters() if p.requires_grad)]
        results = [r for r in self.results if r.is_floating_point() and r.requires_grad]
        if not results or not learned:
            return []
        weights = [(torch.arange(r.numel()) % 3 + 1).reshape(r.shape).to(r.dtype).to(r.device) for r in results]
        return list(torch.autograd.grad(results, learned, weights, allow_unused=True))

    def parts(self) -> dict[str, torch.Tensor | None]:
        kinds = ("results", "gradients", "buffers")
        return {f"{kind}[{i}]": x for kind in kinds for i, x in enumerate(getattr(self, kind))}


def made(sample: ModuleInput, info: ModuleInfo, dtype: torch.dtype, training: bool) -> tuple[nn.Module, Any]:
    """The module and its arguments on the CPU, holding values that the card can hold."""
    seeded()
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype)
    module.train(training)
    for part in module.modules():
        if isinstance(part, _DROPS):
            part.p = 0.0
        elif isinstance(part, (nn.MultiheadAttention, nn.RNNBase)):
            part.dropout = 0.0
    given = (sample.forward_input.args, sample.forward_input.kwargs)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        args, kwargs = tree_map(_leaf, given)
        module(*args, **kwargs)
    with torch.no_grad():
        for p in [*module.parameters(), *module.buffers()]:
            p.copy_(as_on_card(p.detach()))
    return module, tree_map(_leaf, given)


def _leaf(x: Any) -> Any:
    return as_on_card(x.detach()).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def _moved(x: Any) -> Any:
    return x.detach().to("spyre").requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


@contextlib.contextmanager
def _every_step() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def check_module(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool, mode: str) -> None:
    host_mode = "inference" if mode == "inference" else "eager"
    with _every_step():
        try:
            module, given = made(sample, info, dtype, training)
            plain = Run(copy.deepcopy(module), *tree_map(_leaf, given), host_mode).parts()
        except Exception as error:
            raise Refused(str(error)) from error
        try:
            wide = Run(copy.deepcopy(module).to(_WIDER[dtype]), *tree_map(_widened, given), host_mode).parts()
        except Exception:
            wide = plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        card = Run(copy.deepcopy(module).to("spyre"), *tree_map(_moved, given), mode).parts()
    assert card.keys() == plain.keys(), f"{list(card)} where {list(plain)} were expected"
    off = [f"{name}: {error}" for name in plain if (error := _difference(card[name], wide[name], plain[name], 1.0))]
    if off and dtype != torch.float32:
        with _every_step(), _RoundedSteps():
            steps = Run(copy.deepcopy(module).float(), *tree_map(_widened, given), host_mode).parts()
        off = [
            f"{name}: {error}" for name in plain if (error := _difference(card[name], steps[name], plain[name], STEPS))
        ]
    assert not off, "; ".join(off)


def _difference(got: Any, want: Any, plain: Any, slack: float) -> str:
    """Empty if there is none."""
    if got is None or plain is None:
        there = [x for x in (got, plain) if x is not None]
        return "a gradient on one side only" if there and there[0].cpu().any() else ""
    if got.device.type != "spyre":
        return f"on {got.device}"
    if got.dtype != plain.dtype or got.shape != plain.shape:
        return f"{got.dtype}{list(got.shape)} where {plain.dtype}{list(plain.shape)} was expected"
    if not plain.numel():
        return ""
    found, exact = got.detach().cpu().double(), want.detach().double()
    tolerance = 0.0
    if plain.is_floating_point():
        finite = exact[exact.isfinite()]
        tolerance = slack * ULPS[plain.dtype] * max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
    same = (found == exact) | (found.isnan() & exact.isnan()) | ((found - exact).abs() <= tolerance)
    bad = (~(same | (found == plain.detach().double()))).nonzero()
    if not len(bad):
        return ""
    first = tuple(bad[0].tolist())
    return (
        f"{len(bad)} of {exact.numel()} values differ by more than {tolerance:.3g}, first at {list(first)}: "
        f"{found[first].item():.7g} where {exact[first].item():.7g} was expected"
    )
