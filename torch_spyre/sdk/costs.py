# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.sdk.costs``: prints ``sdk/src/comms/costs.def``, the time of the SDK's collectives.

They are built without Python, so what the device description says is written down for them. Imports no torch.
"""

from __future__ import annotations

from torch_spyre.perf.fabric import Fabric, collective_costs

MOST_RANKS = 16  # larger groups take the time of these
_HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// COST(kind, ranks, start_ns, ns_per_byte, wire_bytes_per_byte, algorithm); python -m torch_spyre.sdk.costs prints it.
"""


def text() -> str:
    """The file."""
    rows = []
    for cards in range(2, MOST_RANKS + 1):
        for kind, (start, per_byte, copies, algorithm) in collective_costs(cards, Fabric.of()).items():
            rows.append(f'COST({kind}, {cards}, {start:.9g}, {per_byte:.9g}, {copies:.9g}, "{algorithm}")')
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(text(), end="")
