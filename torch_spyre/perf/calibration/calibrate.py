# SPDX-License-Identifier: Apache-2.0
"""Refits the fitted constants of a device description by least squares on the logarithm of the error.

Fitted are the constants whose source begins with "fit on". Every constant moves in log space, rows are weighted so
that large classes do not drown small ones, and a weak prior holds constants that the data does not determine. The
model is priced from stored surveys, so that a fit takes seconds. Rows whose core split is assumed take no part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from torch_spyre.perf.calibration.measured_kernels import Row, surveyed
from torch_spyre.perf.calibration.validate import Prediction
from torch_spyre.perf.device import Device
from torch_spyre.perf.timeline import price

_STEP = 0.02
_PRIOR = 0.02  # weight of staying at the description's value, relative to one row
_SECONDARY = 0.3  # weight of classes whose plans are partly guessed; they must not bend the constants of the others
_GUESSED = (
    "column sums",
    "concat",
    "chains without LX",
    "softmax",
    "batched, shared weight",
)
_CAP = 0.35  # log errors beyond this weigh no more (Huber): misses must not bend the rest


def fitted_names(device: Device) -> list[str]:
    return [name for name, constant in device.constants.items() if "fit on" in constant.source]


def with_values(device: Device, names: Sequence[str], logs: np.ndarray) -> Device:
    constants = dict(device.constants)
    for name, log in zip(names, logs, strict=True):
        constants[name] = replace(constants[name], value=float(np.exp(log)))
    return Device(device.name, device.description, constants)


class Fit:
    """Gauss-Newton with a Huber weight, and the one-step solution without given rows."""

    def __init__(self, rows: Sequence[Row], device: Device) -> None:
        pairs = [(row, surveyed(row)) for row in rows if not row.assumed]
        self.work = [work for _, work in pairs if work is not None]
        self.rows = [row for row, work in pairs if work is not None]
        self.device = device
        self.names = fitted_names(device)
        self.measured = np.log([r.micros for r in self.rows])
        sizes = Counter(r.group for r in self.rows)
        self.weights = np.array(
            [sizes[r.group] ** -0.25 * (_SECONDARY if r.group in _GUESSED else 1.0) for r in self.rows]
        )
        self.start = np.log([device[n] for n in self.names])
        self.logs = self.start.copy()

    def errors(self, logs: np.ndarray) -> np.ndarray:
        device = with_values(self.device, self.names, logs)
        pairs = zip(self.rows, self.work, strict=True)
        return np.log([price(work, row.on(device)).duration_ns / 1e3 for row, work in pairs]) - self.measured

    def jacobian(self, errors: np.ndarray) -> np.ndarray:
        columns = []
        for i in range(len(self.names)):
            moved = self.logs.copy()
            moved[i] += _STEP
            columns.append((self.errors(moved) - errors) / _STEP)
        return np.stack(columns, axis=1)

    def step(self, errors: np.ndarray, jacobian: np.ndarray, keep: np.ndarray | None = None) -> np.ndarray:
        weights = self.weights * np.minimum(1.0, _CAP / np.maximum(np.abs(errors), 1e-9)) ** 0.5
        if keep is not None:
            weights = weights * keep
        prior = _PRIOR * np.eye(len(self.names))
        matrix = np.concatenate([jacobian * weights[:, None], prior])
        target = np.concatenate([-errors * weights, prior @ (self.start - self.logs)])
        return np.asarray(np.linalg.lstsq(matrix, target, rcond=None)[0])

    def cost(self, errors: np.ndarray) -> float:
        size = np.abs(errors)
        huber = np.where(size < _CAP, size**2, 2 * _CAP * size - _CAP**2)
        return float((huber * self.weights**2).sum())

    def run(self, iterations: int = 6) -> Device:
        errors = self.errors(self.logs)
        for _ in range(iterations):
            change = np.clip(self.step(errors, self.jacobian(errors)), -0.5, 0.5)
            for _ in range(6):
                trial = self.errors(self.logs + change)
                if self.cost(trial) < self.cost(errors):
                    self.logs, errors = self.logs + change, trial
                    break
                change = change / 2
            else:
                break
        return with_values(self.device, self.names, self.logs)


def leave_one_shape_out(rows: Sequence[Row], device: Device) -> list[Prediction]:
    """Predictions of every row with constants refitted without the rows of its shape (one Gauss-Newton step)."""
    fit = Fit(rows, device)
    errors = fit.errors(fit.logs)
    jacobian = fit.jacobian(errors)
    base = fit.step(errors, jacobian)
    shapes = np.array([r.shape for r in fit.rows])
    held: list[Prediction] = []
    for shape in sorted(set(shapes)):
        out = shapes == shape
        change = fit.step(errors, jacobian, (~out).astype(float)) - base
        moved = with_values(device, fit.names, fit.logs + np.clip(change, -0.7, 0.7))
        held += [
            Prediction(row, price(work, row.on(moved)).duration_ns / 1e3)
            for row, work, chosen in zip(fit.rows, fit.work, out, strict=True)
            if chosen
        ]
    return held


def write_values(path: Path, device: Device, names: Sequence[str]) -> None:
    """Replaces the values of the named constants in a description, leaving everything else as it is."""
    lines = path.read_text().splitlines()
    section = ""
    for i, line in enumerate(lines):
        if found := re.match(r"\[(\w+)\]", line):
            section = found[1]
        elif found := re.match(r"(\w+) = \{ value = [^,]+,", line):
            name = f"{section}.{found[1]}"
            if name in names:
                lines[i] = re.sub(r"value = [^,]+,", f"value = {device[name]:.4g},", line, count=1)
    path.write_text("\n".join(lines) + "\n")
