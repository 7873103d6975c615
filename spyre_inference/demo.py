# SPDX-License-Identifier: Apache-2.0
"""`make serve`: the OpenAI-compatible server with SmolLM2, and the line to try it with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

NAME = "smollm2"
_PORT = "8000"
_ASK = """\
When the server says "Application startup complete", ask it from another terminal:

curl http://localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
  "model": "{name}", "max_tokens": 40,
  "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""


def command(model: str, words: Sequence[str]) -> list[str]:
    """`vllm serve` with what suits a demonstration; `words` come last and win."""
    chosen = ["--served-model-name", NAME, "--max-model-len", "1024", "--max-num-seqs", "4", "--port", _PORT]
    chosen += ["--max-num-batched-tokens", "128"]
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, *chosen, *words]


def main(words: Sequence[str]) -> int:
    from torch_spyre.models.smollm2 import checkpoint

    port = words[words.index("--port") + 1] if "--port" in words[:-1] else _PORT
    print(_ASK.format(port=port, name=NAME), flush=True)
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **os.environ}
    try:
        return subprocess.run(command(str(checkpoint()), words), env=environment).returncode
    except KeyboardInterrupt:  # the server got it too
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
