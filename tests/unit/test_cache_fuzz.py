# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_cache_fuzz.py: cache files with changed bytes never change a result, and crash nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from test_cache_files import forget


def mutate(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(5):
        case 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        case 1:
            del data[at:]
        case 2:
            del data[at : at + rng.randint(1, 40)]
        case 3:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
        case 4:  # a number in text becomes another
            digits = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
            if digits:
                data[rng.choice(digits)] = ord(rng.choice("0123456789"))


def fuzz_cache(seed: int, count: int, folder: Path) -> int:
    """Changes one file of a filled cache at a time and makes the same calls again. How many files were made again."""
    rng, noticed = random.Random(seed), 0
    x = torch.arange(210.0).reshape(3, 70).half().to("spyre")
    forget()
    want = [torch.neg(x).cpu(), torch.softmax(x, -1).cpu()]
    kept = folder.with_name(folder.name + "-kept")
    shutil.copytree(folder, kept)
    files = sorted(path.relative_to(kept) for path in kept.rglob("*") if path.is_file())
    for _ in range(count):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        target = folder / rng.choice(files)
        data = bytearray(target.read_bytes())
        mutate(data, rng)
        target.write_bytes(data)
        forget()
        assert torch.equal(torch.neg(x).cpu(), want[0]), f"seed {seed}: {target}"
        assert torch.equal(torch.softmax(x, -1).cpu(), want[1]), f"seed {seed}: {target}"
        noticed += not target.exists() or target.read_bytes() != data
    shutil.rmtree(kept)
    return noticed


def test_changed_cache_files(fresh_caches: Path) -> None:
    assert fuzz_cache(1, 25, fresh_caches) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_changed_cache_files(seed: int, fresh_caches: Path) -> None:
    fuzz_cache(100 + seed, 500, fresh_caches)
