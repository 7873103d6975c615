# SPDX-License-Identifier: Apache-2.0
"""Compiles the fixed corpus with the torch_spyre of this interpreter and writes what it became as JSON.

python tests/replay/corpus.py RESULT.json --scratch DIR [--bundles DIR] [--part NAME ...]

What enters: PyTorch functions, random graphs, a Llama block, KTIR files, SuperDSC bundles. What leaves, by item: each
program that was made, as (kernel name, checksum), and the time on the card's clock. Programs are read from the program
cache and from the commands `spyre-ktir` and `spyre-sdsc`; nothing else of the package is used, so that commits with
different insides can be compared. The card runs in timing-only mode: it keeps the time and computes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
SEEDS = (*range(0, 60), *range(100_000, 100_040))
INTEGERS = {"n": 4096, "N": 4096}  # of KTIR functions with sizes as arguments


@dataclass
class Outcome:
    """One item: its programs by kernel name, its card time, or why it was refused."""

    programs: list[tuple[str, str]] = field(default_factory=list)
    card_us: float | None = None
    error: str = ""


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# -- PyTorch, in this process


def run_calls(items: Iterator[tuple[str, Callable[[], Any]]], scratch: Path) -> dict[str, Outcome]:
    """Each item fills a program cache of its own. A program that an earlier item made is not made again."""
    import torch

    found = {}
    for number, (name, call) in enumerate(items):
        folder = scratch / f"{number:04d}"
        os.environ["SPYRE_CACHE_DIR"] = str(folder)
        outcome = found[name] = Outcome()
        torch._dynamo.reset()
        torch.manual_seed(0)
        start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        try:
            start.record()
            call()
            end.record()
            torch.spyre.synchronize()
            outcome.card_us = round(1e3 * start.elapsed_time(end), 3)
        except Exception as error:
            outcome.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        outcome.programs = stored_programs(folder)
    return found


def stored_programs(folder: Path) -> list[tuple[str, str]]:
    programs = []
    for binary in sorted(folder.rglob("program.bin")):
        name = json.loads((binary.parent / "kernel.json").read_text())["name"]
        programs.append((name, checksum(binary.read_bytes())))
    return sorted(programs)


def functions() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The functions of `functions.py`, eager and compiled, in float16 and float32."""
    import functions as listed
    import torch

    for dtype in (torch.float16, torch.float32):
        for name, (function, shapes) in listed.FUNCTIONS.items():
            inputs = [listed.make(shape, dtype) for shape in shapes]
            label = f"{name} {str(dtype)[6:]}"
            yield f"{label} eager", lambda f=function, x=inputs: f(*x)
            yield f"{label} compiled", lambda f=function, x=inputs: torch.compile(f)(*x)


def random_graphs() -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch
    from graph_fuzz_build import draw_program

    for seed in SEEDS:
        program = draw_program(seed)
        if program.lengths:
            continue
        for mode in ("eager", "compiled"):

            def call(program: Any = program, mode: str = mode) -> None:
                bases = program.bases(torch.Generator().manual_seed(program.data_seed), "spyre")
                function = program.function()
                if mode == "compiled":
                    function = torch.compile(function, dynamic=False)
                results = function(*program.live(bases))
                ends = [r for r in results if r.requires_grad]
                if program.backward and ends:
                    torch.autograd.backward(ends, [torch.ones_like(r) for r in ends])

            yield f"seed {seed} {mode}", call


def llama_block() -> Iterator[tuple[str, Callable[[], Any]]]:
    """One decoder block with the widths of Llama 3.1 8B."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=128
    )
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        block = LlamaDecoderLayer(config, 0).half().eval()
    block = block.to_empty(device="spyre")
    rotary = LlamaRotaryEmbedding(config)
    for rows in (1, 512):
        hidden = torch.zeros(1, rows, 4096, dtype=torch.float16)
        angles = tuple(x.to("spyre") for x in rotary(hidden, torch.arange(rows)[None]))
        for mode in ("eager", "compiled"):

            def call(x: Any = hidden, angles: Any = angles, mode: str = mode) -> None:
                run = torch.compile(block, dynamic=False) if mode == "compiled" else block
                with torch.no_grad():
                    run(x.to("spyre"), position_embeddings=angles)

            yield f"llama block {rows} {mode}", call


# -- files, through the commands


def command(*words: str) -> str:
    tool = Path(sys.executable).parent / words[0]
    done = subprocess.run([str(tool), *words[1:]], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout


def run_file(program: tuple[str, ...], timed: tuple[str, ...], time_pattern: str) -> Outcome:
    outcome = Outcome()
    try:
        outcome.programs = [("program", checksum(command(*program).encode()))]
        time = re.search(time_pattern, command(*timed))
        outcome.card_us = float(time.group(1).replace(",", "")) if time else None
    except RuntimeError as error:
        outcome.error = str(error)
    return outcome


def ktir_files() -> dict[str, Outcome]:
    sizes = [word for name, value in INTEGERS.items() for word in ("--set", f"{name}={value}")]
    found = {}
    for path in sorted((TESTS / "support" / "ktir").glob("*.mlir")):
        words = [str(path), *(sizes[:2] if re.search(r"%n\b.*index", path.read_text()) else [])]
        found[path.name] = run_file(
            ("spyre-ktir", "dump", "program", *words), ("spyre-ktir", "time", "-n", "1", *words), r"card: ([\d.,]+) us"
        )
    return found


def bundles(folder: Path) -> dict[str, Outcome]:
    """Bundles that were written beforehand, the same for all commits."""
    found = {}
    for bundle in sorted(p.parent for p in folder.rglob("bundle.mlir")):
        found[str(bundle.relative_to(folder))] = run_file(
            ("spyre-sdsc", "dump", "--form", "program", str(bundle)),
            ("spyre-sdsc", "explain", str(bundle)),
            r"estimated time ([\d.,]+) us",
        )
    return found


PARTS = ("functions", "random", "llama", "ktir", "bundles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--bundles", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    options = parser.parse_args()
    parts = options.part or PARTS
    os.environ["SPYRE_TIMING_ONLY"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.scratch / "inductor")
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    sys.path[:0] = [str(TESTS), str(TESTS / "support"), str(Path(__file__).parent)]
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, Outcome]] = {}
    for part, items in (("functions", functions), ("random", random_graphs), ("llama", llama_block)):
        if part in parts:
            found[part] = run_calls(items(), options.scratch / part)
            print(f"{part}: {len(found[part])} items", file=sys.stderr)
    if "ktir" in parts:
        found["ktir"] = ktir_files()
    if "bundles" in parts and options.bundles:
        found["bundles"] = bundles(options.bundles)
    text = {part: {name: asdict(outcome) for name, outcome in items.items()} for part, items in found.items()}
    options.result.write_text(json.dumps(text, indent=1))


if __name__ == "__main__":
    main()
