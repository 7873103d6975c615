# SPDX-License-Identifier: Apache-2.0
"""``spyre serve``: hands over to the serving package, which stands above this one and needs vLLM."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument

_PACKAGE = "spyre_inference"
_NEEDED = (
    f"serving needs the package {_PACKAGE} and vLLM, and {{missing}} is not installed in {{prefix}}; "
    "make serve sets up an environment that has both (docs/serving.md)"
)


def make_parser() -> argparse.ArgumentParser:
    text = "Serve a model over HTTP with vLLM on the card. All words go to `vllm serve`."
    parser = command_line.parser("serve", text, "HuggingFaceTB/SmolLM2-135M-Instruct --max-model-len 512")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="a model and options of `vllm serve`")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-h"], ["--help"], ["--version"]):
        make_parser().parse_args(words)
    return command_line.guarded("serve", lambda: _serve(words))


def _serve(words: Sequence[str]) -> int:
    for package in (_PACKAGE, "vllm"):
        if importlib.util.find_spec(package) is None:
            raise InvalidArgument(_NEEDED.format(missing=package, prefix=sys.prefix))
    return subprocess.run([sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *words]).returncode


if __name__ == "__main__":
    sys.exit(main())
