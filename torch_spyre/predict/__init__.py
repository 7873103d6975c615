# SPDX-License-Identifier: Apache-2.0
"""Predictions for models that nobody can run here.

Enters: the dimensions of a model (`configs`) and a request: batch, prompt, tokens. Its layers, written as plain modules
(`blocks`), go through the real compiler on a card that keeps the time and computes nothing (`timing`); one layer of
each kind stands for all (`measure`, `model`). Leaves: time to first token, time per token, memory, traffic, what bounds
it, and how much of it the clock was checked on (`coverage`, `report`). docs/predict.md.
"""

from __future__ import annotations

from torch_spyre.predict.timing import timing_only

__all__ = ["timing_only"]
