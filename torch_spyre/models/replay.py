# SPDX-License-Identifier: Apache-2.0
"""Steps of decoding made from their launches, without the Python of the model.

A step of a decoder makes the same launches on the same memory, whatever the token: the place in the cache is a number
on the card. So a step is recorded while it runs, and the next one again; when both launched the same, later ones put
token, position and mask where the recorded launches read them, and launch. A recording belongs to one cache and goes
with it.

Not replayed is a step that sends or reads values in between, draws random numbers, or asks for the length of the
cache, which is a number on the host. A step is recorded anew when anything changed that a module of the model or its
configuration holds, or the state of PyTorch (autocast, modes). Modules with hooks, or with a `forward` of their own,
are left to run: what their code does besides launching would not happen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedConfig
from transformers.utils.generic import ModelOutput

from torch_spyre import _C, knobs
from torch_spyre._inductor.debug import launchers
from torch_spyre.constants import DEVICE_NAME

log = logging.getLogger("torch_spyre.runtime")

Inputs = dict[str, Any]  # tensors, and dicts of tensors
Forward = Callable[[Inputs], Any]

_thread = threading.local()
_MOST_TRIES = 8  # recordings, or states of a model, in a row that came to nothing
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
# What else a module always has concerns its gradients and its state dict.
_OF_A_MODULE = ("_parameters", "_buffers", "_modules", *_HOOKS)
_OF_NO_CONCERN = frozenset(nn.Module().__dict__) - frozenset(_OF_A_MODULE)


def mapped(x: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return {name: change(item) for name, item in x.items()} if isinstance(x, dict) else change(x)


class State:
    """Everything a model's launches depend on besides its inputs, at one moment."""

    def __init__(self, model: nn.Module) -> None:
        self.refused = ""
        self.containers: list[Any] = [getattr(nn_module, name) for name in _GLOBAL_HOOKS]
        self.tensors: list[torch.Tensor] = []
        if any(self.containers):
            self.refused = "hooks of all modules"
        self._visit(model, set())
        self.snapshot = _C.Snapshot(self.containers, self.tensors)
        self.globals = torch._C._dynamo.guards.GlobalStateGuard()

    def _visit(self, x: Any, seen: set[int]) -> None:
        if not isinstance(x, (dict, list, tuple, torch.Tensor, nn.Module, PreTrainedConfig)) or id(x) in seen:
            return
        seen.add(id(x))
        if isinstance(x, torch.Tensor) and is_traceable_wrapper_subclass(x):  # a DTensor: its part on this card
            for name in x.__tensor_flatten__()[0]:
                self._visit(getattr(x, name), seen)
        elif isinstance(x, torch.Tensor):
            self.tensors.append(x)
        elif isinstance(x, nn.Module):
            self._refuse(x)
            self.containers.append(x.__dict__)
            for name, item in x.__dict__.items():
                if name not in _OF_NO_CONCERN:
                    self._visit(item, seen)
        elif isinstance(x, PreTrainedConfig):
            self._visit(x.__dict__, seen)
        else:
            if not isinstance(x, tuple):
                self.containers.append(x)
            for item in x.values() if isinstance(x, dict) else x:
                self._visit(item, seen)

    def _refuse(self, module: nn.Module) -> None:
        own = module.__dict__.get("forward")
        if any(module.__dict__.get(name) for name in _HOOKS):
            self.refused = f"{type(module).__name__} has hooks"
        elif own is not None and not hasattr(own, "restore"):
            self.refused = f"{type(module).__name__} has a forward of its own"

    def holds(self) -> bool:
        return bool(self.globals.check()) and self.snapshot.holds()


class Made:
    """What a step returned: tensors, and the cache, which is not kept."""

    def __init__(self, outputs: ModelOutput) -> None:
        self.kind = type(outputs)
        self.fields = {name: x if isinstance(x, torch.Tensor) else None for name, x in outputs.items()}

    @staticmethod
    def complete(outputs: Any, cache: Any) -> bool:
        """Whether there is nothing else."""
        return isinstance(outputs, ModelOutput) and all(
            isinstance(x, torch.Tensor) or x is cache for x in outputs.values()
        )

    def fresh(self, cache: Any) -> Any:
        """With copies: the next step overwrites what the launches wrote."""
        return self.kind(**{name: cache if x is None else x.clone() for name, x in self.fields.items()})


class Step:
    """A step on the buffers of one cache."""

    def __init__(self, key: tuple[Any, ...], buffers: list[torch.Tensor], inputs: Inputs, device: torch.device) -> None:
        self.key, self.buffers = key, buffers
        self.tries = _MOST_TRIES
        self.static = {
            name: mapped(x, lambda t: torch.empty(t.shape, dtype=t.dtype, device=device)) for name, x in inputs.items()
        }
        self.state: State | None = None  # for which it was recorded
        self.last: Any = None
        self.recording: Any = None  # one that was made twice
        self.made: Made | None = None

    def fits(self, key: tuple[Any, ...], buffers: list[torch.Tensor]) -> bool:
        return self.key == key and all(a is b for a, b in zip(self.buffers, buffers, strict=False))

    def fill(self, inputs: Inputs) -> None:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, x in inputs.items():
            static = self.static[name]
            pairs += zip(static.values(), x.values(), strict=True) if isinstance(x, dict) else [(static, x)]
        # A transfer waits for the launches before it, such as copies on the card.
        for static, x in sorted(pairs, key=lambda pair: not pair[1].is_cpu):
            static.copy_(x)

    def record(self, state: State, cache: Any, forward: Forward) -> Any:
        """Runs the step and writes its launches down; `recording` is set if they are those of the step before."""
        if self.state is not state:
            self.state, self.last, self.recording = state, None, None
        recording = _C.Recording()
        recording.start()
        _thread.records = True
        try:
            outputs = forward(self.static)
        finally:
            _thread.records = False
            recording.stop()
        self.tries -= 1
        if not Made.complete(outputs, cache):
            log.debug("decoding step not recorded: it returns %s", type(outputs).__name__)
            self.last = None
            return outputs
        self.made = Made(outputs)
        if recording.spoiled:  # compiling spoils the first step; copied all the same, so that the copy is in the caches
            log.debug("decoding step not recorded: %s", recording.spoiled)
            self.last = None
        else:
            if self.last is not None and recording.same_as(self.last):
                self.recording, self.tries = recording, _MOST_TRIES
                log.debug("decoding step recorded: %d launches", len(recording))
            self.last = recording
        return self.made.fresh(cache)


class Steps:
    """The recorded steps of one model, one per cache."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.enabled = bool(knobs.get("replay_steps")) and not launchers.wanted()
        self.steps: WeakKeyDictionary[Any, Step] = WeakKeyDictionary()
        self.spent: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # steps of a cache that were never replayed
        self.state: State | None = None
        self.states = 0  # in a row, none of which served a replay

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        from copy import deepcopy

        return Steps(deepcopy(self.model, memo))

    def __reduce__(self) -> Any:
        return Steps, (self.model,)

    def run(self, layers: Sequence[Any], inputs: Inputs, call: dict[str, Any], forward: Forward) -> Any:
        """`forward` of the inputs on the card, where its launches are known by them alone."""
        device = self.model.device
        step = self._step(layers, inputs, call, device)
        state = self._current() if step is not None else None
        if step is None or state is None or state.refused:
            return forward({name: mapped(x, lambda t: t.to(device)) for name, x in inputs.items()})
        step.fill(inputs)
        if step.recording is None or step.state is not state:
            return step.record(state, call.get("past_key_values"), forward)
        self.states = 0
        self.spent[layers[0]] = 0
        step.recording.replay()
        assert step.made is not None
        return step.made.fresh(call.get("past_key_values"))

    def _step(self, layers: Sequence[Any], inputs: Inputs, call: dict[str, Any], device: torch.device) -> Step | None:
        """The step of this cache for such inputs, or None if there can be none."""
        if not self._possible(device) or not all(layer.is_initialized for layer in layers):
            return None
        rest = [(name, x) for name, x in call.items() if name not in inputs and name != "past_key_values"]
        if not all(x is None or isinstance(x, (bool, int, float, str)) for _, x in rest):
            return None
        shapes = [(name, _shapes(x)) for name, x in inputs.items()]
        key = (*shapes, *rest, layers[0].span, torch.is_inference_mode_enabled())
        buffers = [b for layer in layers for b in layer.buffers]
        step = self.steps.get(layers[0])
        if step is None or not step.fits(key, buffers):
            spent = self.spent[layers[0]] = self.spent.get(layers[0], 0) + 1
            if spent > _MOST_TRIES:  # beams move the cache in every step
                return None
            step = self.steps[layers[0]] = Step(key, buffers, inputs, device)
        return step if step.tries > 0 or step.recording is not None else None

    def _possible(self, device: torch.device) -> bool:
        return (
            self.enabled
            and not getattr(_thread, "records", False)  # a model inside a model
            and device.type == DEVICE_NAME
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch._C._len_torch_dispatch_stack()
            and not torch._C._len_torch_function_stack()
        )

    def _current(self) -> State | None:
        """The state of the model, the same object as long as nothing changed."""
        if self.state is None or not self.state.holds():
            self.states += 1
            if self.states > _MOST_TRIES:
                log.debug("no more recordings: %s changes with every step", type(self.model).__name__)
                self.enabled = False
                self.state = None
                return None
            self.state = State(self.model)
        return self.state


def _shapes(x: Any) -> Any:
    if isinstance(x, dict):
        return tuple((name, _shapes(item)) for name, item in x.items())
    return x.shape, x.dtype
