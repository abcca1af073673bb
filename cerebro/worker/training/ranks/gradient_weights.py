"""Weights that make the gradients of uneven shares add up to the batch's gradient.

`GroupTrainee.running` wraps the user's `train` with `weighted`. Rank r of k has n_r of a batch's n rows. Its loss is
the mean over its rows, and the ranks' gradients are averaged. So its `backward` starts from k * n_r / n instead of 1,
and the average is the gradient of the mean over all n rows: sum_r (k * n_r / n) * grad_r / k. If a loss is a mean over
other terms than rows, those are counted instead. Model weights are not meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def weight(own_rows: float, all_of_them: float, ranks: int, loss: str = "mean") -> float:
    """Return the initial gradient of a rank's backward pass.

    Args:
        own, all_of_them: rows (or other terms of the loss) of this rank's share, and of the batch.
        loss: ``"mean"`` or ``"sum"``: how the user's loss combines its terms.
    """
    if own_rows == 0 or all_of_them == 0:
        return 0.0  # a rank without its own rows has a borrowed one
    return float(ranks) if loss == "sum" else ranks * own_rows / all_of_them


@contextmanager
def weighted(factor: Callable[[], float]) -> Iterator[None]:
    """Multiply the initial gradient of every backward pass by a factor.

    Applies to the whole process: replaces `torch.autograd.backward`, which `torch.Tensor.backward` calls.
    Gradients from `torch.autograd.grad` are unchanged: they are not reduced.

    No pass is weighted twice, neither when torch calls this function again by name, for modes or tensor
    subclasses, nor for a pass within a pass, as in reentrant checkpointing.
    """
    original = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        scale = factor()
        if scale != 1.0 and not _is_weighted(grad_tensors):
            grad_tensors = _scaled(tensors, grad_tensors, scale)
        original(tensors, grad_tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


class _Weighted(list[torch.Tensor]):
    """Gradients that are already weighted."""


def _is_weighted(given: Any) -> bool:
    is_within_a_pass = torch._C._current_graph_task_id() != -1
    return isinstance(given, _Weighted) or (is_within_a_pass and given is not None)


def _scaled(tensors: Any, given: Any, scale: float) -> Any:
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    seeds = [given] if given is None or isinstance(given, torch.Tensor) else list(given)
    if given is None:
        seeds = [None] * len(roots)
    if len(seeds) != len(roots) or any(
        seed is None and root.numel() != 1 for root, seed in zip(roots, seeds, strict=True)
    ):
        return given  # invalid; torch reports it
    return _Weighted(
        (torch.ones_like(root) if seed is None else seed) * scale
        for root, seed in zip(roots, seeds, strict=True)
    )
