# SPDX-License-Identifier: Apache-2.0
"""CPU references on one thread: on a busy machine PyTorch's threads spin for each other at the end of every op, which
makes a reference ten times slower; on an idle one, models of this size lose little. The card has its own threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
