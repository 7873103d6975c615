# SPDX-License-Identifier: Apache-2.0
"""Launches of a step, written down once and then made again without the Python of the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from torch_spyre import _C

_MOST_RUNS = 4  # the first compiles, the second fills what is made lazily


class RecordedStep:
    """A function of tensors on the card that are always at the same place."""

    def __init__(self, inputs: dict[str, Tensor], function: Callable[[], Tensor]) -> None:
        self.inputs = inputs
        self.function = function
        self.recording: _C.Recording | None = None
        self.result: Tensor | None = None
        self.refused = ""  # why its launches cannot be made again

    def warm_up(self) -> None:
        """Runs until a run can be recorded; the inputs hold what pads a table."""
        for _ in range(_MOST_RUNS):
            recording = _C.Recording()
            recording.start()
            try:
                result = self.function()
            finally:
                recording.stop()
            self.refused = recording.spoiled
            if not self.refused:
                self.recording, self.result = recording, result
                return

    def run(self, values: dict[str, np.ndarray]) -> Tensor:
        for name, value in values.items():
            self.inputs[name].copy_(torch.from_numpy(value))
        if self.recording is None:
            return self.function()
        self.recording.replay()
        assert self.result is not None
        return self.result
