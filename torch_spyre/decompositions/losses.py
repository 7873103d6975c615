# SPDX-License-Identifier: Apache-2.0
"""Losses whose PyTorch formulas do not fit.

Margin losses have no formula of their gradients, and the multilabel one counts what follows a row's -1; those of
likelihoods and of gates round in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_NONE, _MEAN, _SUM = range(3)  # as PyTorch numbers its reductions


def _rows(x: Any) -> Any:
    return x if x.dim() == 2 else x.reshape(1, -1)


def _each_row(grad: Any, x: Any, reduction: int) -> Any:
    """What a row's loss, the mean over its classes, weighs in the result: [N, 1] or one number."""
    share = grad.to(torch.float32).reshape(-1, 1) / max(x.shape[1], 1)
    return share / x.shape[0] if reduction == _MEAN else share


def _multi_margin_backward(
    grad: Any, x: Any, target: Any, p: Any, margin: Any, weight: Any = None, reduction: int = _MEAN
) -> Any:
    rows, chosen = _rows(x).to(torch.float32), target.reshape(-1, 1)
    over = margin - rows.gather(1, chosen) + rows
    part = (over > 0).to(torch.float32) if p == 1 else 2 * over.clamp(min=0)
    part = part * _each_row(grad, rows, reduction)
    if weight is not None:
        part = part * weight.to(torch.float32)[chosen]
    own = torch.arange(rows.shape[1], device=x.device) == chosen
    part = torch.where(own, 0.0, part)
    return torch.where(own, -part.sum(1, keepdim=True), part).reshape(x.shape).to(x.dtype)


def _compared(x: Any, target: Any) -> tuple[Any, Any, Any, Any]:
    """(labels, classes that are labels, how far each class reaches over each label less 1, is it compared).

    The last two are [N, label, class].

    Labels of a row end at its first -1; each is compared with every class that is none of them.
    """
    rows, labels = _rows(x).to(torch.float32), _rows(target)
    given = torch.cumsum((labels < 0).to(torch.int32), 1) == 0
    classes = torch.arange(rows.shape[1], device=x.device)
    named = ((labels.unsqueeze(2) == classes) & given.unsqueeze(2)).any(1)
    labels = torch.where(given, labels, 0)
    over = 1 - rows.gather(1, labels).unsqueeze(2) + rows.unsqueeze(1)
    return labels, named, over, (over > 0) & given.unsqueeze(2) & named.logical_not().unsqueeze(1)


def _multilabel_margin(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """(loss, which classes are labels)."""
    _, named, over, counts = _compared(x, target)
    loss = torch.where(counts, over, 0.0).sum((1, 2)) / max(over.shape[2], 1)
    if reduction == _NONE:
        loss = loss.reshape(target.shape[:-1])
    else:
        loss = loss.mean() if reduction == _MEAN else loss.sum()
    return loss.to(x.dtype), named.to(x.dtype).reshape(target.shape)


def _multilabel_margin_backward(grad: Any, x: Any, target: Any, reduction: int, is_target: Any) -> Any:
    labels, _, over, counts = _compared(x, target)
    part = torch.where(counts, 1.0, 0.0) * _each_row(grad, over[:, 0], reduction).unsqueeze(2)
    total = aten.scatter_add(part.sum(1), 1, labels, -part.sum(2))
    return total.reshape(x.shape).to(x.dtype)


def _nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """(loss, sum of the weights). What is added up is 32 bits wide: the result is rounded once."""
    channel = 1 if x.dim() > 1 else 0
    counts = target != ignore_index
    chosen = torch.where(counts, target, 0)
    picked = -torch.gather(x, channel, chosen.unsqueeze(channel)).squeeze(channel).to(torch.float32)
    if weight is not None:
        of_each = weight.to(torch.float32)[chosen]
        picked = picked * of_each
        total = torch.where(counts, of_each, 0).sum()
    else:
        total = counts.sum().to(torch.float32)
    picked = torch.where(counts, picked, 0)
    if reduction == _NONE and x.dim() > 1:
        return picked.to(x.dtype), x.new_zeros(())
    loss = picked.sum()
    return (loss / total if reduction == _MEAN else loss).to(x.dtype), total.to(x.dtype)


def _glu(x: Any, dim: int = -1) -> Any:
    """Rounded once, not after the sigmoid as well."""
    first, second = (part.to(torch.float32) for part in x.chunk(2, dim))
    return (first * torch.sigmoid(second)).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.glu.default: _glu,
    aten.multi_margin_loss_backward.default: _multi_margin_backward,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.multilabel_margin_loss_backward.default: _multilabel_margin_backward,
}
