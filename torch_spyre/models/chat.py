# SPDX-License-Identifier: Apache-2.0
"""`spyre-chat`: SmolLM2-135M-Instruct in a terminal, on the card.

Real weights, unmodified Hugging Face code: one compiled decoder block serves all layers, the answer streams as it is
made. After each answer: tokens per second here, and the time that the device clock says the card would have taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.models.smollm2 import NAME, checkpoint


class Chat:
    """A conversation with a causal language model on `device`."""

    def __init__(self, device: str = "spyre", compile: bool = True, context: int = 1024) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = checkpoint(_progress)
        self.device = torch.device(device)
        self.context = context
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
        self.model = model.to(self.device).eval()
        if compile:
            compile_blocks(self.model)
        self.messages: list[dict[str, str]] = []

    def answer(self, prompt: str, most: int = 256, streamer: Any = None) -> Answer:
        """Asks, and remembers question and answer."""
        self.messages.append({"role": "user", "content": prompt})
        encoded: Any = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids: torch.Tensor = encoded["input_ids"]
        if ids.shape[1] + most > self.context:
            raise InvalidArgument(
                f"the conversation has {ids.shape[1]} tokens and {most} more may come; the cache holds {self.context}: "
                "start a new one, or ask for --context"
            )
        clock = _device_clock(self.device)
        start = time.perf_counter()
        with torch.no_grad():
            made = self.model.generate(
                ids.to(self.device),
                attention_mask=encoded["attention_mask"].to(self.device),
                max_new_tokens=most,
                do_sample=False,
                cache_implementation="static",
                max_length=None,
                streamer=streamer,
            )
        tokens = made[0, ids.shape[1] :].cpu()
        seconds = time.perf_counter() - start
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": text})
        return Answer(text, ids.shape[1], len(tokens), seconds, _device_clock(self.device) - clock)


class Answer:
    """Text, how many tokens went in and came out, and the seconds they took here and on the device clock."""

    def __init__(self, text: str, prompt: int, tokens: int, seconds: float, card_seconds: float) -> None:
        self.text, self.prompt, self.tokens = text, prompt, tokens
        self.seconds, self.card_seconds = seconds, card_seconds

    def summary(self) -> str:
        rate = self.tokens / self.seconds
        line = f"{self.prompt} tokens in, {self.tokens} out, {self.seconds:.2f} s here ({rate:.1f} tokens/s)"
        if self.card_seconds > 0:
            line += f"; the card would need {self.card_seconds * 1e3:.1f} ms ({self.tokens / self.card_seconds:.0f}/s)"
        return line


def _device_clock(device: torch.device) -> float:
    """Seconds of the card's virtual clock; 0 for any other device."""
    if device.type != "spyre":
        return 0.0
    torch.spyre.synchronize()
    from torch_spyre import _C

    return float(_C._card_counters(device.index or 0)["compute_ns"]) * 1e-9


def _progress(done: int, total: int) -> None:
    if not sys.stderr.isatty():
        return
    width = 30
    filled = width * done // total
    end = "\n" if done == total else ""
    print(f"\rreading {NAME} [{'#' * filled}{'.' * (width - filled)}] {done}/{total}", end=end, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="spyre-chat", description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="*", help="ask this and stop; without it, a conversation")
    parser.add_argument("--device", default="spyre", help="spyre (default) or cpu")
    parser.add_argument("--tokens", type=int, default=256, help="longest answer")
    parser.add_argument("--context", type=int, default=1024, help="longest conversation, in tokens")
    parser.add_argument("--eager", action="store_true", help="do not compile the decoder block")
    args = parser.parse_args(argv)
    try:
        chat = Chat(args.device, not args.eager, args.context)
        if args.prompt:
            _ask(chat, " ".join(args.prompt), args.tokens)
            return 0
        print("Ask something; an empty line ends the conversation.")
        while prompt := input("> ").strip():
            _ask(chat, prompt, args.tokens)
    except (EOFError, KeyboardInterrupt):
        print()
    except (SpyreError, ImportError) as error:
        print(f"spyre-chat: {error}", file=sys.stderr)
        return 1
    return 0


def _ask(chat: Chat, prompt: str, most: int) -> None:
    from transformers import TextStreamer

    streamer = TextStreamer(chat.tokenizer, skip_prompt=True, skip_special_tokens=True)
    answer = chat.answer(prompt, most, streamer)
    print(f"[{answer.summary()}]")


if __name__ == "__main__":
    sys.exit(main())
