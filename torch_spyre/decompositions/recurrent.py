# SPDX-License-Identifier: Apache-2.0
"""One step of LSTM and GRU: PyTorch hands these to the device as fused cells, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _sum(*terms: Any) -> Any:
    present = [t for t in terms if t is not None]
    total = present[0]
    for term in present[1:]:
        total = total + term
    return total


def _lstm(input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    i, f, g, o = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    i, f, g, o = workspace.chunk(4, 1)
    hidden = torch.zeros_like(cx) if grad_hy is None else grad_hy
    tanh = cy.tanh()
    cell = _sum(hidden * o * (1 - tanh * tanh), grad_cy)
    gates = torch.cat(
        [cell * g * i * (1 - i), cell * cx * f * (1 - f), cell * i * (1 - g * g), hidden * tanh * o * (1 - o)], 1
    )
    return gates, cell * f, gates.sum(0) if has_bias else gates.new_empty(0)


def _gru(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    ir, iz, inew = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hnew = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (inew + reset * hnew).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, hnew], 1)


def _gru_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    reset, update, new, hx, hnew = workspace.chunk(5, 1)
    at_update = grad * (hx - new) * (1 - update) * update
    at_new = grad * (1 - update) * (1 - new * new)
    at_reset = at_new * hnew * (1 - reset) * reset
    at_input = torch.cat([at_reset, at_update, at_new], 1)
    at_hidden = torch.cat([at_reset, at_update, at_new * reset], 1)
    biases = [g.sum(0) if has_bias else g.new_empty(0) for g in (at_input, at_hidden)]
    return at_input, at_hidden, grad * update, *biases


TABLE: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    aten._thnn_fused_gru_cell.default: _gru,
    aten._thnn_fused_gru_cell_backward.default: _gru_backward,
}
