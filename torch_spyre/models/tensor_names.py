# SPDX-License-Identifier: Apache-2.0
"""Names of a checkpoint's tensors -> those of the model, as transformers converts them.

transformers keeps the experts of a layer in one parameter, checkpoints mostly keep each expert's matrices; other models
changed names only. Its own table of such conversions is read here; the tensors of one parameter are read together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Tensors(Protocol):
    """Files (`tensor_files.py`) or random weights (`random_weights.py`)."""

    def names(self) -> Sequence[str]: ...

    def bytes_of(self, name: str) -> int: ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass
class Part:
    """What becomes one tensor of the model, or a few."""

    target: str
    converter: Any  # of transformers; None: the tensor as it is
    sources: list[tuple[str, str]]  # name in the file, and the pattern of the converter that found it

    def read(self, tensors: Tensors, model: Any) -> Iterator[tuple[str, Tensor]]:
        if self.converter is None:
            yield self.target, tensors.tensor(self.sources[0][0])
            return
        converter = self.converter
        for name, pattern in self.sources:
            converter.add_tensor(self.target, name, pattern, lambda name=name: tensors.tensor(name))
        found = converter.convert(self.target, model=model, config=model.config)
        for target, made in found.items():
            yield target, made[0] if isinstance(made, list) else made


def parts(tensors: Tensors, model: Any) -> list[Part]:
    """In the order in which the first tensor of each lies in the files."""
    held = {name for name, _ in model.named_parameters(remove_duplicate=False)} | dict(model.named_buffers()).keys()
    if held.issuperset(tensors.names()):  # the model's own names
        return [Part(name, None, [(name, "")]) for name in tensors.names()]
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    table = get_model_conversion_mapping(model)
    renamings = [t for t in table if isinstance(t, WeightRenaming)]
    converters = [t for t in table if isinstance(t, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    found: dict[str, Part] = {}
    order: dict[str, int] = {}
    names = {name: place for place, name in enumerate(tensors.names())}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = (name, None) if name in held else rename_source_key(name, renamings, converters)
        part = found.get(target)
        if part is None:
            converter = copy.deepcopy(by_pattern[pattern]) if pattern is not None else None
            part = found[target] = Part(target, converter, [])
        part.sources.append((name, pattern or ""))
        order[target] = min(order.get(target, names[name]), names[name])
    return sorted(found.values(), key=lambda part: order[part.target])
