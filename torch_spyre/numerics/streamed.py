# SPDX-License-Identifier: Apache-2.0
"""A model that is larger than memory, walked layer by layer: only the weights of the layer that runs are there.

The model's own forward drives the walk. Its parameters have no memory; before one of its parts runs (`layers.parts`),
the part gets its weights from a source that can make or read any of them at any time, and loses them afterwards. One
walk runs on the CPU in fp32 and leaves what each part was called with; a second one runs on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from torch_spyre import _C, reporting
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.modules import matmul_weights
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.checkpoint import architecture, moved
from torch_spyre.models.random_weights import RandomWeights, described
from torch_spyre.models.tensor_files import TensorFiles
from torch_spyre.models.tensor_names import Tensors, parts
from torch_spyre.numerics import layers
from torch_spyre.numerics.format import round_dl16, rounding
from torch_spyre.numerics.layers import Call, Errors, Layer, Report
from torch_spyre.numerics.priority import SEED, Priority
from torch_spyre.ops import fallbacks

Seen = Callable[[str, nn.Module, Call], None]
Progress = Callable[[str, int, int], None]  # what runs, parts that are done, all parts
_FREE_BYTES = 1 << 30  # card memory that may wait for the next layer
_ROUNDED_AT_ONCE = 1 << 24  # values


class Walk:
    """Runs of a model whose weights come and go."""

    def __init__(self, model: nn.Module, weights: Tensors) -> None:
        self.model: Any = model
        self.weights = weights
        self.exact = isinstance(weights, RandomWeights)  # the card's format has their values
        self.chosen = layers.parts(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        orders = {id(parameter): order for parameter, order in matmul_weights(model)}
        self.places = {  # owner and attribute -> name of the tensor, its size, the order in which matmul reads it
            (id(owner), attribute): (names[id(parameter)], parameter.shape, orders.get(id(parameter)))
            for owner in model.modules()
            for attribute, parameter in owner._parameters.items()
            if parameter is not None
        }
        self.sources = {part.target: part for part in parts(weights, model)}
        self._leave(model, torch.float32)

    def run(self, inputs: Mapping[str, Any], seen: Seen, device: str, dtype: torch.dtype) -> Any:
        """`seen` is called after each part has run for the first time, while its weights are there."""
        done: set[str] = set()
        target = torch.device(device)
        self._leave(self.model, dtype)  # models ask their parameters for a dtype before these are there

        def before(module: nn.Module, args: Any) -> None:
            for owner in module.modules():
                self._fill(owner, target, dtype)

        def after(name: str) -> Any:
            def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                if name not in done:
                    done.add(name)
                    seen(name, module, Call(args, kwargs, output))
                self._leave(module, dtype)
                _give_back(target)

            return hook

        handles = []
        for name, part in self.chosen.items():
            handles.append(part.register_forward_pre_hook(before))
            handles.append(part.register_forward_hook(after(name), with_kwargs=True))
        inside = {id(module) for part in self.chosen.values() for module in part.modules()}
        try:
            with torch.no_grad():
                for module in self.model.modules():
                    if id(module) not in inside:  # tables of positions, for instance
                        self._fill(module, target, dtype)
                    for name, buffer in module._buffers.items():
                        module._buffers[name] = None if buffer is None else buffer.to(target)
                return self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
            self._leave(self.model, dtype)
            _give_back(target)

    def _fill(self, owner: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        for attribute in owner._parameters:
            place = self.places.get((id(owner), attribute))
            if place is not None:
                tensor = self._tensor(place[0])
                if device.type != DEVICE_NAME and not self.exact:
                    tensor = _rounded(tensor)
                value = moved(tensor, device, dtype, place[2])
                owner._parameters[attribute] = nn.Parameter(value, requires_grad=False)

    def _tensor(self, name: str) -> Tensor:
        prefix = f"{getattr(self.model, 'base_model_prefix', '')}."
        part = self.sources.get(name) or self.sources.get(name.removeprefix(prefix))
        if part is None:
            raise InvalidArgument(f"no tensor for {name!r} of {type(self.model).__name__}: is a file missing?")
        return next(iter(part.read(self.weights, self.model)))[1]

    def _leave(self, module: nn.Module, dtype: torch.dtype) -> None:
        for owner in module.modules():
            for attribute in owner._parameters:
                place = self.places.get((id(owner), attribute))
                if place is not None:
                    owner._parameters[attribute] = nn.Parameter(
                        torch.empty(place[1], dtype=dtype, device="meta"), requires_grad=False
                    )


def _give_back(device: torch.device) -> None:
    if device.type == DEVICE_NAME:
        free = torch.spyre.memory_reserved() - torch.spyre.memory_allocated()
        if free > _FREE_BYTES:
            torch.spyre.empty_cache()


def _rounded(tensor: Tensor) -> Tensor:
    """In numbers of the card's format, as fp32; piece by piece, because the steps in between are as large."""
    flat, made = tensor.reshape(-1), torch.empty(tensor.shape, dtype=torch.float32)
    into = made.view(-1)
    for first in range(0, len(flat), _ROUNDED_AT_ONCE):
        piece = slice(first, first + _ROUNDED_AT_ONCE)
        into[piece] = round_dl16(flat[piece].half())
    return made


def whole(model: Priority, count: int | None = None) -> Any:
    """The model with its published figures, without memory for its matrices; with `count`, so many layers."""
    import transformers

    figures = model.figures("whole", count)
    config = getattr(transformers, model.config)(**figures)
    return described(getattr(transformers, model.model), config)


def compare_random(
    model: Priority, mode: str = "eager", count: int | None = None, progress: Progress | None = None
) -> Report:
    module = whole(model, count)
    inputs: dict[str, Any] = dict(model.inputs(module.config))
    inputs |= {"use_cache": False} if model.cached else {}
    return compare(module, RandomWeights(module, SEED), inputs, model.name, mode, progress)


def compare_folder(
    folder: Path,
    name: str,
    mode: str,
    count: int | None,
    inputs_of: Callable[[Any], dict[str, Any]],
    progress: Progress | None = None,
) -> Report:
    """A checkpoint folder; its weights are rounded to the card's format first."""
    kind, config = architecture(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidArgument(f"{folder} holds quantised weights: a walk compares 16-bit weights")
    if count is not None:
        config.num_hidden_layers = count
    module = described(kind, config)
    cached = {"use_cache": False} if module.can_generate() else {}
    return compare(module, TensorFiles(folder), {**inputs_of(config), **cached}, name, mode, progress)


def compare(
    module: Any,
    weights: Tensors,
    inputs: Mapping[str, Any],
    name: str,
    mode: str = "eager",
    progress: Progress | None = None,
) -> Report:
    """As `layers.compare`, without the search for origins; `card_us` of each layer is the device clock."""
    count = sum(parameter.numel() for parameter in module.parameters())
    walk = Walk(module, weights)
    calls: dict[str, Call] = {}
    alone: dict[str, tuple[Tensor, float]] = {}
    rows: list[Layer] = []
    clock = _Clock()

    def note(what: str, number: int) -> None:
        if progress is not None:
            progress(what, number, len(walk.chosen))

    def on_host(part: str, owner: nn.Module, call: Call) -> None:
        calls[part] = Call(*(layers.copied(x) for x in (call.args, call.kwargs, call.output)))
        result = layers.joined(owner.forward(*_in(calls[part].args), **_in(calls[part].kwargs)))
        with rounding():
            owed = layers.joined(owner.forward(*_in(calls[part].args), **_in(calls[part].kwargs)))
        alone[part] = result, Errors.of(owed, result).relative if len(result) else 0.0
        note(f"CPU, {part}", len(calls))

    def on_card(part: str, owner: nn.Module, call: Call) -> None:
        spent, expected = clock.spent_us(), calls.pop(part)
        result, owed = alone.pop(part)
        want = layers.joined(expected.output)
        if len(want):
            args, kwargs = (tree_map(layers.to_card_value, _in(x)) for x in (expected.args, expected.kwargs))
            own = layers.joined(owner.forward(*args, **kwargs))
            got = layers.joined(call.output)
            rows.append(layers.measured(part, type(owner).__name__, (got, want), (own, result), owed, spent))
        note(f"card, {part}", len(walk.chosen) - len(calls))
        clock.spent_us()

    walk.run(inputs, on_host, "cpu", torch.float32)
    if mode == "compiled":
        torch._dynamo.reset()
        layers.compile_parts(walk.chosen.values())
    fallbacks.reset()
    clock.spent_us()
    walk.run({k: layers.to_card_value(v) for k, v in inputs.items()}, on_card, DEVICE_NAME, torch.float16)
    return Report(name, mode, rows, fallbacks=tuple(reporting.report()), parameters=count)


def _in(values: Any) -> Any:
    """A part's inputs, rounded as the card gets them; copies, as a part may write into them."""
    return tree_map(layers.rounded_input, layers.copied(values))


class _Clock:
    """Microseconds of the card's programs since the last question."""

    def __init__(self) -> None:
        self.last = 0.0

    def spent_us(self) -> float:
        torch.spyre.synchronize()
        now = 1e-3 * float(_C._card_counters(torch.spyre.current_device()).get("compute_ns", 0))
        spent, self.last = now - self.last, now
        return spent
