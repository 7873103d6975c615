# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/llamacpp.py [--threads N] [--rounds N]: SmolLM2-135M in llama.cpp, weights in F16 and Q8_0.

The contenders of benchmarks/llm.py that are no PyTorch: the same prompt, the same context, the same greedy choice, one
llama_decode per step. Needs `llama-cpp-python` (pip install --no-deps llama-cpp-python diskcache; builds from source).
The files are the dequantised Q4_1 one in those formats, written once beside the checkpoint.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import CONTEXT, PROMPT, STEPS

from torch_spyre import knobs
from torch_spyre.models.smollm2 import NAME, gguf_file

FILE_TYPES = {"F16": 1, "Q8_0": 7}  # general.file_type


def installed() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


def model_file(kind: str) -> Path:
    """The model as GGUF with matrices in that format and norms in F32, as llama.cpp's own converter writes it."""
    import gguf

    path = Path(knobs.get("cache_dir")).expanduser() / "models" / f"{NAME}-{kind}.gguf"
    if path.exists():
        return path
    source = gguf.GGUFReader(gguf_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")  # renamed when whole
    writer = gguf.GGUFWriter(partial, source.fields["general.architecture"].contents())
    for key, entry in source.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.quantization_version"):
            continue
        value = FILE_TYPES[kind] if key == "general.file_type" else entry.contents()
        writer.add_key_value(key, value, entry.types[0], entry.types[-1] if len(entry.types) > 1 else None)
    format = gguf.GGMLQuantizationType[kind]
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor in source.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, format), raw_dtype=format)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)
    return path


@dataclass
class LlamaCpp:
    """Has the face of a Contender of benchmarks/llm.py; `device` keeps it out of the ratios to PyTorch on the CPU."""

    clock: Callable[[], float] = time.perf_counter
    threads: int = 2
    kind: str = "F16"
    device: str = "llama.cpp"
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"prefill": [], "decode": []})

    def __post_init__(self) -> None:
        import llama_cpp

        self.name = f"llama.cpp {self.kind}"
        self._api = api = llama_cpp
        quiet = api.llama_log_callback(lambda level, text, data: None)
        self._quiet = quiet  # llama.cpp keeps the pointer
        api.llama_log_set(quiet, ctypes.c_void_p(0))
        api.llama_backend_init()
        path = model_file(self.kind)
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}; delete it, it will be written again")
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 2 * PROMPT, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = self.threads
        self._context: Any = api.llama_init_from_model(self._model, options)
        self._memory = api.llama_get_memory(self._context)
        self._words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._held = 0  # tokens in the cache

    def logits(self, ids: list[int]) -> np.ndarray[Any, np.dtype[Any]]:
        """Of the token that follows `ids`, which follow those in the cache. A view that the next call overwrites."""
        tokens = (self._api.llama_token * len(ids))(*ids)
        code = self._api.llama_decode(self._context, self._api.llama_batch_get_one(tokens, len(ids)))
        if code != 0:
            raise RuntimeError(f"llama_decode of {len(ids)} tokens after {self._held}: code {code}")
        self._held += len(ids)
        return np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, -1), (self._words,))

    def keep(self, tokens: int) -> None:
        """Drops what the cache holds beyond so many tokens."""
        self._api.llama_memory_seq_rm(self._memory, 0, tokens, -1)
        self._held = tokens

    def prefill(self, ids: torch.Tensor) -> float:
        """Seconds of PROMPT tokens."""
        self.keep(0)
        tokens = ids[0].tolist()
        start = self.clock()
        int(self.logits(tokens).argmax())
        seconds = self.clock() - start
        self.keep(0)
        return seconds

    def decode(self, ids: torch.Tensor) -> float:
        """Seconds per token of STEPS tokens that follow CONTEXT others."""
        tokens = ids[0].tolist()
        if self._held != CONTEXT:
            self.keep(0)
            self.logits(tokens[:CONTEXT])
        token = tokens[CONTEXT]
        start = self.clock()
        for _ in range(STEPS):
            token = int(self.logits([token]).argmax())
        seconds = (self.clock() - start) / STEPS
        self.keep(CONTEXT)
        return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if not installed():
        print("left out, llama_cpp is not installed: pip install --no-deps llama-cpp-python diskcache")
        return 0
    ids = torch.randint(100, 40_000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    for kind in FILE_TYPES:
        entrant = LlamaCpp(threads=args.threads, kind=kind)
        for _ in range(1 + args.rounds):
            entrant.seconds["prefill"].append(entrant.prefill(ids))
            entrant.seconds["decode"].append(entrant.decode(ids))
        for part, tokens in (("prefill", PROMPT), ("decode", 1)):
            median = statistics.median(entrant.seconds[part][1:])  # the first warms up
            print(f"{entrant.name} {part}: {tokens / median:.1f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
