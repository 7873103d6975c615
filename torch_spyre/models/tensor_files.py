# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint folder, one after the other: one .safetensors file, or several with an index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from torch_spyre.errors import InvalidArgument

INDEX = "model.safetensors.index.json"
_WIDTHS = {1: ("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 2: ("F16", "BF16", "I16"), 8: ("F64", "I64")}
_BYTES = {kind: width for width, kinds in _WIDTHS.items() for kind in kinds}


class TensorFiles:
    """Names and sizes come from the headers of the files; a tensor is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of: dict[str, Path] = {}
        self.sizes: dict[str, int] = {}
        for file in _files(folder):
            with _opened(file) as tensors:
                for name in tensors.keys():
                    lying = tensors.get_slice(name)
                    self.file_of[name] = file
                    self.sizes[name] = math.prod(lying.get_shape()) * _BYTES.get(lying.get_dtype(), 4)

    def names(self) -> Sequence[str]:
        return list(self.file_of)

    def bytes_of(self, name: str) -> int:
        return self.sizes[name]

    def tensor(self, name: str) -> Tensor:
        file = self.file_of[name]
        with _opened(file) as tensors:
            found: Tensor = tensors.get_tensor(name)
            return found


def _files(folder: Path) -> list[Path]:
    """Those that the index names, or whatever is there without one."""
    index = folder / INDEX
    if not index.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise InvalidArgument(
                f"{folder}: no .safetensors file; from_pretrained reads other formats, and save_pretrained writes this "
                "one"
            )
        return files
    try:
        files = [folder / name for name in dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidArgument(f"{index} holds no weight_map; download or save it again") from None
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise InvalidArgument(
            f"{folder}: {len(missing)} of {len(files)} files that {INDEX} names are not there, {missing[0]} among "
            "them; download them"
        )
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise InvalidArgument(f"{file} cannot be read ({error}); download or save it again") from None
