# SPDX-License-Identifier: Apache-2.0
"""python examples/chat.py ["a question"]: talk with SmolLM2-135M-Instruct on the card, as `spyre-chat` does."""

import sys

from torch_spyre.models.chat import main

if __name__ == "__main__":
    sys.exit(main())
