# SPDX-License-Identifier: Apache-2.0
"""Predictions for models that nobody can run here.

Enters: the dimensions of a model (`configs`, `config_json`) and a request: batch, prompt, tokens, cards. Its layers,
written as plain modules (`decoder_parts`, `mamba_parts`; on several cards `segments` of the share that `sharding` gives
to each), go through the real compiler on a card that keeps the time and computes nothing (`timing`); one layer of each
kind stands for all (`passes`, `measure`, `model`). Leaves: time to first token, time per token, memory, traffic,
communication, what bounds it, and how much of it the clock was checked on (`coverage`, `report`). docs/predict.md.
"""

from __future__ import annotations

from torch_spyre.predict.timing import timing_only

__all__ = ["timing_only"]
