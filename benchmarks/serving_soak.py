# SPDX-License-Identifier: Apache-2.0
"""A server under mixed traffic with aborts: no error, no leak, nothing compiled.

    .venv-serving/bin/python benchmarks/serving_soak.py --minutes 10

Clients ask for completions and chats, streamed or not, greedy or sampled, with schemas or several answers; a third
of them leaves in the middle of an answer. After a warm-up of the same traffic the memory of the server's processes is
taken, and again at the end; pages in use and steps compiled while requests waited are read from `/metrics`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from spyre_inference.demo import NAME, command
from torch_spyre.models.smollm2 import checkpoint

WORDS = (
    "the a of sea city red story tells about when tree light river number seven open small because old house".split()
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}
_LEAK = 64 << 20  # bytes that all processes together may grow by: pools of allocators, logs


def body(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """One request: its path and what it asks for."""
    text = " ".join(draw.choices(WORDS, k=draw.choice((1, 5, 20, 60, 120))))
    ask: dict[str, Any] = {"model": NAME, "max_tokens": draw.randint(1, 48), "stream": draw.random() < 0.6}
    if draw.random() < 0.5:
        ask |= {"temperature": 0.9, "top_p": 0.9, "seed": draw.randint(0, 9)}
    else:
        ask["temperature"] = 0
    kind = draw.random()
    if kind < 0.1:
        ask["structured_outputs"] = {"json": SCHEMA}
    elif kind < 0.2 and ask["temperature"]:
        ask["n"] = 2
    elif kind < 0.3:
        ask["logprobs"] = 2
    if draw.random() < 0.3:
        if ask.pop("logprobs", None):
            ask |= {"logprobs": True, "top_logprobs": 2}
        return "/v1/chat/completions", {**ask, "messages": [{"role": "user", "content": text}]}
    return "/v1/completions", {**ask, "prompt": text}


async def client(
    session: aiohttp.ClientSession, url: str, draw: random.Random, until: float, counts: Counter[str]
) -> None:
    while time.monotonic() < until:
        path, ask = body(draw)
        leaves = draw.uniform(0.01, 1.5) if draw.random() < 0.33 else None
        try:
            async with asyncio.timeout(leaves):
                async with session.post(url + path, json=ask) as answer:
                    text = await answer.text()
                    counts["answered" if answer.status == 200 else f"status {answer.status}: {text[:200]}"] += 1
        except TimeoutError:
            counts["aborted"] += 1
        except aiohttp.ClientError as error:
            counts[f"{type(error).__name__}: {error}"] += 1


async def traffic(url: str, clients: int, seconds: float, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    unlimited = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=unlimited, timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(client(session, url, random.Random(seed + n), until, counts) for n in range(clients)))
    return counts


async def metrics(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    found: dict[str, float] = {}
    for name, _, value in pairs:
        found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0.0) + float(value)
    return found


async def idle(url: str) -> dict[str, float]:
    """When nothing runs any more and workers have said so."""
    while True:
        found = await metrics(url)
        if found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0:
            await asyncio.sleep(2.5)
            return await metrics(url)
        await asyncio.sleep(0.5)


def resident(pid: int) -> int:
    """Bytes of a process and what it started."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


async def soak(url: str, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    warm = await traffic(url, options.clients, options.warm_up * 60, seed=1000)
    await idle(url)
    samples = [resident(pid)]
    counts: Counter[str] = Counter()
    parts = max(1, round(options.minutes))
    for part in range(parts):
        counts += await traffic(url, options.clients, options.minutes * 60 / parts, seed=2000 + 100 * part)
        await idle(url)
        samples.append(resident(pid))
        print(f"minute {part + 1}: {dict(counts)}, {samples[-1] >> 20} MiB", file=sys.stderr, flush=True)
    end = await idle(url)
    grown = samples[-1] - samples[0]
    return {
        "minutes": options.minutes,
        "clients": options.clients,
        "warm_up": dict(warm),
        "requests": dict(counts),
        "resident_mib": [s >> 20 for s in samples],
        "grown_mib": round(grown / 2**20, 1),
        "median_mib": round(statistics.median(samples) / 2**20),
        "pages_in_use": end["vllm:kv_cache_usage_perc"],
        "compiles": end["spyre:compiles_in_service_total"],
        "host_fallbacks": end["spyre:host_fallbacks_total"],
        "passed": set(counts) <= {"answered", "aborted"}
        and grown <= _LEAK
        and end["vllm:kv_cache_usage_perc"] == end["spyre:compiles_in_service_total"] == 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=1, help="minutes of the same traffic before memory is taken")
    parser.add_argument("--clients", type=int, default=12, help="more than the sequences of a step")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    limits = ["--max-model-len", "512", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--host", "127.0.0.1"]
    limits += ["--port", str(port), "--kv-cache-memory-bytes", "64M"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", **os.environ}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command(str(checkpoint()), limits), env=environment, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            asyncio.run(ready(url, server))
            result = asyncio.run(soak(url, server.pid, options))
            server.send_signal(signal.SIGTERM)
            result["ended_with"] = server.wait(120)
        except BaseException:
            log.seek(0)
            lines = [line for line in log if line.startswith("(EngineCore") or ("rror" in line and "INFO:" not in line)]
            print("".join(lines[:200]), file=sys.stderr)
            raise
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


async def ready(url: str, server: subprocess.Popen[bytes]) -> None:
    async with aiohttp.ClientSession() as session:
        while server.poll() is None:
            try:
                async with session.get(f"{url}/health"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.5)
    raise RuntimeError("the server did not come up")


if __name__ == "__main__":
    sys.exit(main())
