# SPDX-License-Identifier: Apache-2.0
"""Few shapes for any length: prompts and caches are rounded up, so that few graphs serve all of them.

Every length of a prompt and of a cache would otherwise be a shape of its own, and every shape a graph. `Lengths`
replaces the `forward` of a decoder: prompts longer than the largest step go in chunks, the last one is padded at its
end up to a step, and what the padding writes into the cache is behind the end, where it is overwritten later. The
cache keeps its keys and values in buffers whose capacity grows in steps too (`BufferLayer`). Tensors that grow with
every token (ids, masks, positions) are shaped on the host.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.masking_utils import create_masks_for_generate

from torch_spyre import _C
from torch_spyre.buckets import CACHE_ROWS, PROMPT_ROWS
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.replay import Steps, mapped

assert PROMPT_ROWS.most is not None
_CHUNK = PROMPT_ROWS.most
_REPLACED = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)


def padded_query(rows: int) -> int:
    """Rows of a chunk after padding; one row, a step of decoding, stays one."""
    return 1 if rows == 1 else PROMPT_ROWS.capacity(rows)


class Window:
    """What a compiled block sees of one layer's cache: its buffers, where the new rows begin, how far to read."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, start: torch.Tensor, span: int) -> None:
        self.keys, self.values, self.start, self.span = keys, values, start, span

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(keys.shape[-2], device=keys.device) + self.start
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        return self.keys[:, :, : self.span], self.values[:, :, : self.span]


class BufferLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of a cache: keys and values in buffers with room, and their length as a number on the host.

    A sliding window is left to the mask, which transformers makes from the positions.
    """

    is_croppable = True

    def __init__(self, replaced: Any, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = bool(replaced.is_sliding)
        self.room = most
        self.length = 0
        self.span = 0  # keys that the running chunk reads
        self.start: torch.Tensor | None = None
        self.buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        if replaced.is_initialized and int(replaced.get_seq_length()):
            self.length = int(replaced.get_seq_length())
            self._resize(self.length, replaced.keys, replaced.values)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        empty = (key_states[:, :, :0], value_states[:, :, :0])
        self._resize(0, *empty)

    def _resize(self, used: int, *states: torch.Tensor) -> None:
        """New buffers of `room` rows that begin with `used` rows of `states`."""
        buffers = []
        for state in states:
            buffer = state.new_zeros((*state.shape[:2], self.room, state.shape[3]))
            if used:
                buffer[:, :, :used] = state[:, :, :used]
            buffers.append(buffer)
        self.buffers = (buffers[0], buffers[1])
        self.is_initialized = True

    def _rows(self, which: int) -> torch.Tensor | None:
        return None if self.buffers is None else self.buffers[which][:, :, : self.get_seq_length()]

    # As transformers and users know them: the rows that are there.
    keys = property(lambda self: self._rows(0), lambda self, given: self._refuse(given))
    values = property(lambda self: self._rows(1), lambda self, given: self._refuse(given))

    @staticmethod
    def _refuse(given: Any) -> None:
        if given is not None:
            raise InvalidArgument("keys and values of this cache lie in buffers: use update(), not assignment")

    def reserve(self, most: int) -> None:
        """Room for `most` rows."""
        if most > self.room:
            self.room = CACHE_ROWS.capacity(most)
            if self.buffers is not None:
                self._resize(self.length, *self.buffers)

    def window(self) -> Window:
        assert self.buffers is not None and self.start is not None
        return Window(*self.buffers, self.start, self.span)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.window().update(key_states, value_states, 0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.span, 0

    def get_seq_length(self) -> int:
        _C.spoil_recording("the length of the cache")
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.length = max(self.length - abs(tokens_to_remove), 0)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.buffers is not None:
            self.buffers = (change(self.buffers[0]), change(self.buffers[1]))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._each(lambda b: b.index_select(0, beam_idx.to(b.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda b: b.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._each(lambda b: b[indices, ...])


@dataclass(frozen=True)
class Chunk:
    """Rows begin … end of a call, padded to `padded`. `first` rows are in the cache before; `span` keys are read."""

    begin: int
    end: int
    first: int
    padded: int
    span: int

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @staticmethod
    def of(begin: int, end: int, first: int, layers: Sequence[BufferLayer]) -> Chunk:
        """Makes room in the cache for the padding too."""
        padded = padded_query(end - begin)
        for layer in layers:
            layer.reserve(first + padded)
        if not layers:
            return Chunk(begin, end, first, padded, 0)
        room = layers[0].room
        return Chunk(begin, end, first, padded, room if padded == 1 else min(CACHE_ROWS.capacity(first + padded), room))

    def fit(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """These rows along `dim`, then zeros; shaped on the host unless nothing changes."""
        if self.begin == 0 and x.shape[dim] == self.padded:
            return x
        part = x.narrow(dim, self.begin, self.rows).cpu()
        size = list(part.shape)
        size[dim] = self.padded - self.rows
        return torch.cat([part, part.new_zeros(size)], dim)


class Lengths:
    """The replacement of a decoder's `forward`."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.plain = type(model).forward
        self.steps = Steps(model)
        whole = inspect.signature(self.plain)
        self.names = [n for n in whole.parameters if n != "self"]
        # generate() looks here for the arguments that the model takes.
        self.__signature__ = whole.replace(parameters=[whole.parameters[n] for n in self.names])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if not self._applies(call):
            return self.plain(self.model, **call)
        cache = self._adopt(call.get("past_key_values"))
        tokens = "input_ids" if call.get("input_ids") is not None else "inputs_embeds"
        rows = call[tokens].shape[1]
        layers = [] if cache is None else cache.layers
        start = layers[0].length if layers else 0
        outputs, logits = None, []
        keep = call.get("logits_to_keep", 0)
        for begin in range(0, rows, _CHUNK):
            end = min(begin + _CHUNK, rows)
            outputs = self._run(dict(call), tokens, layers, Chunk.of(begin, end, start + begin, layers))
            if keep == 0 or end > rows - keep:
                logits.append(outputs.logits)
        assert outputs is not None
        if len(logits) > 1:
            outputs.logits = torch.cat(logits, 1)
        return outputs if call.get("return_dict", True) is not False else outputs.to_tuple()

    def _applies(self, call: dict[str, Any]) -> bool:
        """Whether rows may be appended: not where every row is asked for, nor where a state runs through them all."""
        tokens = call.get("input_ids") if call.get("input_ids") is not None else call.get("inputs_embeds")
        config = self.model.config
        asked = ("output_attentions", "output_hidden_states")
        if any(call.get(a, getattr(config, a, False)) for a in asked) or call.get("labels") is not None:
            return False
        keep = call.get("logits_to_keep", 0)
        if isinstance(call.get("attention_mask"), dict):
            return False
        if tokens is None or not isinstance(keep, int) or (keep > 1 and tokens.shape[1] > _CHUNK):
            return False
        cache = call.get("past_key_values")
        if cache is None and call.get("use_cache", getattr(config, "use_cache", False)):
            cache = call["past_key_values"] = DynamicCache(config=config)
        if cache is None:
            return bool(tokens.shape[1] <= _CHUNK)
        return self._adoptable(cache)

    @staticmethod
    def _adoptable(cache: Any) -> bool:
        if not isinstance(cache, (DynamicCache, StaticCache)) or cache.offloading:
            return False
        return all(type(layer) in (*_REPLACED, BufferLayer) for layer in cache.layers)

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """`prepare_inputs_for_generation`, which makes the mask of some caches: they are replaced before that."""
        if self._adoptable(kwargs.get("past_key_values")):
            self._adopt(kwargs["past_key_values"])
        return type(self.model).prepare_inputs_for_generation(self.model, *args, **kwargs)

    def install(self) -> None:
        self.model.forward = self
        self.model.prepare_inputs_for_generation = self.prepare_inputs

    def restore(self) -> None:
        del self.model.forward, self.model.prepare_inputs_for_generation

    def _adopt(self, cache: Any) -> Any:
        """The same cache, with layers of ours."""
        if cache is None:
            return None
        count = self.model.config.get_text_config(decoder=True).num_hidden_layers
        while cache.layer_class_to_replicate is not None and len(cache.layers) < count:
            cache.layers.append(cache.layer_class_to_replicate())
        for i, layer in enumerate(cache.layers):
            if not isinstance(layer, BufferLayer):
                most = max(int(layer.get_max_length()) if isinstance(layer, StaticLayer) else 0, 1)
                cache.layers[i] = BufferLayer(layer, CACHE_ROWS.capacity(max(most, int(layer.get_seq_length()))))
        return cache

    def _run(self, call: dict[str, Any], tokens: str, layers: Any, chunk: Chunk) -> Any:
        """One chunk of the call."""
        device, keep = self.model.device, call.get("logits_to_keep", 0)
        inputs = self._inputs(call, tokens, layers, chunk)
        if chunk.padded > 1 and keep:
            call["logits_to_keep"] = torch.arange(chunk.rows - min(keep, chunk.rows), chunk.rows).to(device)
        call["return_dict"] = True

        def forward(inputs: dict[str, Any]) -> Any:
            for layer in layers:
                layer.start = inputs["start"]
            return self.plain(self.model, **call, **{name: x for name, x in inputs.items() if name != "start"})

        if chunk.padded == 1 and layers:
            outputs = self.steps.run(layers, inputs, call, forward)
        else:
            outputs = forward({name: mapped(x, lambda t: t.to(device)) for name, x in inputs.items()})
        for layer in layers:
            layer.length += chunk.rows
        if chunk.padded != chunk.rows and not keep:
            outputs.logits = outputs.logits[:, : chunk.rows]
        return outputs

    def _inputs(self, call: dict[str, Any], tokens: str, layers: Any, chunk: Chunk) -> dict[str, Any]:
        """Takes the tensors out of a call; returns those of the chunk, on the host or where they were."""
        given, mask = call.pop(tokens), call.pop("attention_mask", None)
        batch = given.shape[0]
        positions = self._positions(call.pop("position_ids", None), chunk, batch)
        inputs: dict[str, Any] = {tokens: chunk.fit(given, 1), "position_ids": positions}
        for layer in layers:
            layer.span = chunk.span
        if layers:
            inputs["start"] = torch.tensor(chunk.first, dtype=torch.int64)
        if isinstance(mask, torch.Tensor) and mask.dim() == 4:
            inputs["attention_mask"] = _columns(chunk.fit(mask.cpu(), 2), chunk.span or chunk.padded)
        elif layers or mask is not None:
            made = self._mask(mask, call.get("past_key_values"), batch, positions, chunk)
            inputs["attention_mask"] = mapped(made, torch.Tensor.contiguous)
        return inputs

    def _positions(self, given: torch.Tensor | None, chunk: Chunk, batch: int) -> torch.Tensor:
        if given is None:
            return torch.arange(chunk.first, chunk.first + chunk.padded)[None].expand(batch, -1)
        return chunk.fit(given, given.dim() - 1)

    def _mask(self, mask: torch.Tensor | None, cache: Any, batch: int, positions: torch.Tensor, chunk: Chunk) -> Any:
        """A chunk's mask, made on the host: 4D, one per kind of layer where there are several; 2D without a cache."""
        seen, config = chunk.first + chunk.rows, self.model.config
        flat = torch.zeros((batch, chunk.span or chunk.padded), dtype=torch.bool)
        flat[:, :seen] = True if mask is None else mask[:, :seen].cpu().bool()
        if cache is None:
            return flat.long()
        simple = config.get_text_config()._attn_implementation == "sdpa"  # booleans; others add numbers
        if simple and chunk.rows == 1 and not any(cache.is_sliding):
            return flat[:, None, None]
        made = getattr(self.model, "create_masks_for_generate", create_masks_for_generate)(
            config=config,
            inputs_embeds=torch.empty((batch, chunk.padded, 0), dtype=self.model.dtype),
            attention_mask=flat.long(),
            past_key_values=cache,
            position_ids=positions.cpu(),
        )
        causal = torch.ones((chunk.padded, chunk.span), dtype=torch.bool).tril(chunk.first)[None, None]
        return mapped(made, lambda x: causal if x is None else x)  # None stands for a plain causal mask


def _columns(mask: torch.Tensor, width: int) -> torch.Tensor:
    """A mask over exactly `width` keys; those added are masked out."""
    if mask.shape[-1] >= width:
        return mask[..., :width].contiguous()
    size = (*mask.shape[:-1], width - mask.shape[-1])
    closed = mask.new_zeros(size) if mask.dtype == torch.bool else mask.new_full(size, torch.finfo(mask.dtype).min)
    return torch.cat([mask, closed], -1)


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own: Dynamo keeps and limits compiled graphs per code object."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
