# SPDX-License-Identifier: Apache-2.0
"""`spyre-chat`: SmolLM2-135M-Instruct in a terminal, on the card.

Real weights, unmodified Hugging Face code: one compiled decoder block serves all layers, the answer streams as it is
made. After each answer: tokens per second here, and the time that the device clock says the card would have taken.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument, SpyreError, exit_status


class Stages:
    """Wall and processor seconds of each stage of a start."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []
        self.last = (time.perf_counter(), time.process_time())

    def done(self, name: str) -> None:
        now = (time.perf_counter(), time.process_time())
        self.rows.append((name, now[0] - self.last[0], now[1] - self.last[1]))
        self.last = now

    def __str__(self) -> str:
        rows = [*self.rows, ("total", sum(r[1] for r in self.rows), sum(r[2] for r in self.rows))]
        return "\n".join(f"{name:<28} {wall:6.2f} s  {cpu:6.2f} s of processor" for name, wall, cpu in rows)


class Chat:
    """A conversation with SmolLM2 on `device`."""

    def __init__(self, device: str = "spyre", compile: bool = True, context: int = 1024, weights: str = "fp16") -> None:
        self.stages = Stages()
        self.device = _chosen(device)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched; a look at the hub would wait for the network
        from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, StaticCache  # noqa: F401

        self.stages.done("imports")
        warming = _import_compiler() if compile else None
        if warming is not None:
            warming.start()
        from torch_spyre.models.checkpoint import load  # late: start-up
        from torch_spyre.models.smollm2 import checkpoint  # late: start-up

        folder = checkpoint(_progress)
        self.stages.done("checkpoint folder")
        self.context = context
        self.model = load(folder, self.device, torch.float16 if self.device.type != "cpu" else torch.float32)
        if weights != "fp16":
            from torch_spyre.models.quantised_linear import quantise  # late: start-up

            quantise(self.model, weights)
        self.stages.done("weights")
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self.stages.done("tokenizer")
        if compile:
            from torch_spyre.models.blocks import compile_blocks  # late: start-up

            compile_blocks(self.model)
        if warming is not None:
            warming.join()
        self.stages.done("compiler imports")
        self.messages: list[dict[str, str]] = []
        self._reset_cache()

    def _reset_cache(self) -> None:
        from transformers import StaticCache

        self.cache: Any = StaticCache(config=self.model.config, max_cache_len=self.context)
        self.cached = torch.zeros(0, dtype=torch.int64)  # the tokens whose keys and values it holds

    def answer(self, prompt: str, most: int = 256, streamer: Any = None) -> Answer:
        """Asks, and remembers question and answer."""
        encoded: Any = self.tokenizer.apply_chat_template(
            [*self.messages, {"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        ids: torch.Tensor = encoded["input_ids"]
        if ids.shape[1] + most > self.context:
            raise InvalidArgument(
                f"the conversation has {ids.shape[1]} tokens and {most} more may come; the cache holds {self.context}: "
                "start a new one, or ask for --context"
            )
        self.messages.append({"role": "user", "content": prompt})
        self._keep_prefix(ids[0])
        clock, watch = _device_clock(self.device), Watch(streamer)
        start, used = time.perf_counter(), time.process_time()
        # Ids stay on the host: what grows with each token would be a program per length on the card.
        with torch.no_grad():
            made = self.model.generate(
                ids,
                attention_mask=encoded["attention_mask"],
                past_key_values=self.cache,
                max_new_tokens=most,
                do_sample=False,
                max_length=None,
                streamer=watch,
            )
        seconds = time.perf_counter() - start
        self.cached = made[0, :-1]
        tokens = made[0, ids.shape[1] :]
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": text})
        card = _device_clock(self.device) - clock
        if len(self.messages) == 2:
            self.stages.rows.append(("first token", watch.first - start, watch.first_cpu - used))
        return Answer(text, ids.shape[1], len(tokens), seconds, watch.first - start, card)

    def _keep_prefix(self, ids: torch.Tensor) -> None:
        """The cache may go on where the new conversation begins like the old one."""
        from torch_spyre.models.lengths import BufferLayer  # late: start-up

        common = min(len(ids) - 1, len(self.cached))
        differs = (ids[:common] != self.cached[:common]).nonzero()
        common = int(differs[0]) if len(differs) else common
        layers = self.cache.layers
        if common and all(isinstance(layer, BufferLayer) for layer in layers):
            for layer in layers:
                layer.crop(common - layer.get_seq_length())
        elif len(self.cached):
            self._reset_cache()


class Watch:
    """Passes tokens on to a streamer and notes when the first one came."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.puts, self.first, self.first_cpu = inner, 0, 0.0, 0.0

    def put(self, value: torch.Tensor) -> None:
        self.puts += 1
        if self.puts == 2:  # the prompt comes before
            self.first, self.first_cpu = time.perf_counter(), time.process_time()
        if self.inner is not None:
            self.inner.put(value)

    def end(self) -> None:
        if self.inner is not None:
            self.inner.end()


class Answer:
    """Text, how many tokens went in and came out, and the seconds they took here and on the device clock."""

    def __init__(
        self, text: str, prompt: int, tokens: int, seconds: float, first_seconds: float, card_seconds: float
    ) -> None:
        self.text, self.prompt, self.tokens = text, prompt, tokens
        self.seconds, self.first_seconds, self.card_seconds = seconds, first_seconds, card_seconds

    def summary(self) -> str:
        line = f"{self.prompt} tokens in, {self.tokens} out, first after {self.first_seconds:.2f} s"
        if self.tokens > 1:
            line += f", then {(self.tokens - 1) / (self.seconds - self.first_seconds):.1f} tokens/s"
        if self.card_seconds > 0:
            line += f"; the card would need {self.card_seconds * 1e3:.1f} ms ({self.tokens / self.card_seconds:.0f}/s)"
        return line


def _chosen(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("spyre", "cpu"):
        raise InvalidArgument(f"--device {name}: the choices are spyre, spyre:N and cpu")
    if device.type == "spyre" and (device.index or 0) >= torch.spyre.device_count():
        raise InvalidArgument(
            f"--device {name}: there are {torch.spyre.device_count()} cards; AIU_WORLD_SIZE sets their number"
        )
    return device


def _import_compiler() -> threading.Thread:
    """Inductor is a second of imports that the weights, copied by the other processor, need not wait for."""
    # Dynamo first and here: two threads that import its modules in different orders would wait for each other.
    importlib.import_module("torch._dynamo")
    names = ("torch._inductor.compile_fx", "torch_spyre._inductor.registration", "torch_spyre.ops.fallbacks")
    return threading.Thread(target=lambda: [importlib.import_module(name) for name in names], daemon=True)


def _device_clock(device: torch.device) -> float:
    """Seconds of the card's virtual clock; 0 for any other device."""
    if device.type != "spyre":
        return 0.0
    torch.spyre.synchronize()
    from torch_spyre import _C  # late: start-up

    return float(_C._card_counters(device.index or 0)["compute_ns"]) * 1e-9


def _progress(done: int, total: int) -> None:
    if not sys.stderr.isatty():
        return
    width = 30
    filled = width * done // total
    end = "\n" if done == total else ""
    print(f"\rreading weights [{'#' * filled}{'.' * (width - filled)}] {done}/{total}", end=end, file=sys.stderr)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("chat", __doc__.splitlines()[0], '"Why is the sky blue?" --tokens 64')
    parser.add_argument("prompt", nargs="*", help="ask this and stop; without it, a conversation")
    parser.add_argument("--device", default="spyre", help="spyre (default) or cpu")
    parser.add_argument("--tokens", type=command_line.count, default=256, help="longest answer")
    parser.add_argument("--context", type=command_line.count, default=1024, help="longest conversation, in tokens")
    parser.add_argument(
        "--weights", choices=("fp16", "fp8", "int8"), default="fp16", help="8-bit weights are made while they load"
    )
    parser.add_argument("--eager", action="store_true", help="do not compile the decoder block")
    parser.add_argument("--timings", action="store_true", help="say where the time until the first token went")
    command_line.add_json(parser, "print question, answer and times as one JSON document; needs a prompt")
    command_line.add_quiet(parser, "the answer alone, without its times")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """``spyre chat`` with these arguments; returns its exit status."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.json and not args.prompt:
        parser.error("--json needs a prompt")
    os.environ.setdefault("TORCH_SPYRE_DOWNCAST_WARN", "0")  # ids never come near the limits of int32
    gc.disable()  # until the first answer: nothing that is imported dies, and each look at all of it takes long
    try:
        chat = Chat(args.device, not args.eager, args.context, args.weights)
        if args.json:
            command_line.print_json(_record(chat, " ".join(args.prompt), args.tokens))
            return 0
        if args.prompt:
            ask(chat, " ".join(args.prompt), args.tokens, args.quiet)
            if args.timings:
                print(chat.stages)
            return 0
        print("Ask something; an empty line ends the conversation.")
        while prompt := input("> ").strip():
            ask(chat, prompt, args.tokens, args.quiet)
            gc.freeze()
            gc.enable()
    except (EOFError, KeyboardInterrupt):
        print()
    except (SpyreError, ImportError) as error:
        print(f"{command_line.full_name('chat')}: {error}", file=sys.stderr)
        return exit_status(error)
    finally:
        gc.enable()
    return 0


def _record(chat: Chat, prompt: str, most: int) -> dict[str, Any]:
    answer = chat.answer(prompt, most)
    stages = [{"stage": name, "seconds": wall, "processor_seconds": cpu} for name, wall, cpu in chat.stages.rows]
    return {**vars(answer), "prompt_tokens": answer.prompt, "prompt": prompt, "stages": stages}


def ask(chat: Chat, prompt: str, most: int, quiet: bool = False) -> Answer:
    """Streams the answer to standard output, and what it took."""
    from transformers import TextStreamer

    streamer = TextStreamer(chat.tokenizer, skip_prompt=True, skip_special_tokens=True)
    answer = chat.answer(prompt, most, streamer)
    if not quiet:
        print(f"[{answer.summary()}]")
    return answer


if __name__ == "__main__":
    sys.exit(main())
