# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""`vllm serve` as a command: answers, streams, refuses, counts, ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spyre_inference.demo import NAME, command

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = ["--max-model-len", "128", "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--port", str(port)]
    small += ["--kv-cache-memory-bytes", "32M", "--host", "127.0.0.1"]
    small += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command(smollm2, small), env=environment, stdout=file, stderr=file)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, log)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) in (0, -signal.SIGTERM)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/health").read()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not come up:\n{log.read_text()[-4000:]}")


def post(url: str, path: str, **body: Any) -> bytes:
    data = json.dumps({"model": NAME, **body}).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    return bytes(urllib.request.urlopen(request).read())


def test_a_question_is_answered(server: str) -> None:
    made = json.loads(post(server, "/v1/chat/completions", messages=MESSAGES, max_tokens=16, temperature=0))
    assert "Paris" in made["choices"][0]["message"]["content"]


def test_a_stream_says_the_same(server: str) -> None:
    ask = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = json.loads(post(server, "/v1/completions", **ask))["choices"][0]["text"]
    lines = post(server, "/v1/completions", **ask, stream=True).decode().splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]" and len(events) > 4
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == whole


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/v1/completions", {"prompt": "word " * 400}, 400),
        ("/v1/completions", {"prompt": "a", "model": "no-such-adapter"}, 404),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": "{"}}, 400),
        ("/v1/embeddings", {"input": "a"}, 404),
    ],
)
def test_bad_requests_are_refused(server: str, path: str, body: dict[str, Any], status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, path, **body)
    assert refused.value.code == status


def test_metrics(server: str) -> None:
    time.sleep(2.5)  # workers say once a second what their cards do
    text = urllib.request.urlopen(f"{server}/metrics").read().decode()
    assert "vllm:generation_tokens_total" in text and "vllm:kv_cache_usage_perc" in text
    found = {}
    for line in text.splitlines():
        if line.startswith("spyre:"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    assert found['spyre:compiles_in_service_total{card="0"}'] == 0
    assert found['spyre:host_fallbacks_total{card="0"}'] == 0
    assert found['spyre:steps_total{card="0"}'] > 0 and found['spyre:card_busy_seconds_total{card="0"}'] > 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "weather"}}, "required"])
def test_a_tool_is_called(server: str, choice: Any) -> None:
    ask = {"messages": [{"role": "user", "content": "Weather in Rome?"}], "tools": [WEATHER], "tool_choice": choice}
    answer = json.loads(post(server, "/v1/chat/completions", **ask, max_tokens=64, temperature=0))
    called = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert called["name"] == "weather" and set(json.loads(called["arguments"])) == {"city", "days"}


@pytest.mark.slow
def test_twenty_prompts(server: str, smollm2: str) -> None:
    from test_against_generate import PROMPTS, TOKENS, check

    made = []
    for prompt in PROMPTS:
        answer = post(server, "/v1/completions", prompt=prompt, max_tokens=TOKENS, temperature=0, return_token_ids=True)
        made.append(json.loads(answer)["choices"][0]["token_ids"])
    check(PROMPTS, made, smollm2)
