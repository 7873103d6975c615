# SPDX-License-Identifier: Apache-2.0
# python tests/docs/paste_readme.py [--keep FOLDER]
"""Does what a person does who only pastes from README: from a fresh checkout, in an empty environment and one shell,
to a chat answer, an explain page, a predicted 8B model and a KTIR kernel.

Takes the files of the last commit, and the network for `make setup` and `make models`. Takes minutes; part of the
nightly run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import doc_blocks  # noqa: E402

# What a person has at the end.
LEFT = ("layer.html", "softmax.mlir", "story.py")
SAID = ("everything works", "Paris", "first token", "largest error", "Once upon a time")
# Of the environment, what a shell needs and where pip and the C++ compiler look; nothing of an active environment.
KEPT = ("PATH", "HOME", "LANG", "TORCH_INDEX", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "CXX")


def pasted(page: str) -> str:
    """One bash session with the page's blocks."""
    parts = ["set -eo pipefail"]
    for block in doc_blocks.blocks(page):
        if block.file:
            parts.append(f"cat > {shlex.quote(block.file)} <<'END OF FILE'\n{block.code}END OF FILE")
        elif block.kind == "sh" and block.run != "no":
            parts.append(f"echo '== README.md:{block.line}' >&2\n{block.code}")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
        session = pasted((folder / "README.md").read_text())
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment["SPYRE_CACHE_DIR"] = str(folder / ".cache")
        done = subprocess.run(["bash", "-c", session], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        print(done.stdout)
        missing = [name for name in LEFT if not (folder / name).is_file()]
        missing += [text for text in SAID if text not in done.stdout]
    if done.returncode or missing:
        print(f"exit status {done.returncode}; missing: {', '.join(missing) or 'nothing'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
