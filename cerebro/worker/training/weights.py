"""What makes the gradients of uneven shares add up to the gradient of the batch.

Rank r of k has n_r of a batch's n rows. The loss it computes is the mean of these; ranks' gradients are averaged. So
its `backward` starts from k * n_r / n instead of 1, and the average is the gradient of the mean over all n rows:
sum_r (k * n_r / n) * grad_r / k. Where a loss is a mean over something else than rows, its terms are counted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def weight(own: float, all_of_them: float, ranks: int, loss: str = "mean") -> float:
    """What a rank's backward pass starts from.

    Args:
        own, all_of_them: rows (or other terms of the loss) of this rank's share, and of the batch.
        loss: whether the user's loss is the ``"mean"`` or the ``"sum"`` of its terms.
    """
    if own == 0 or all_of_them == 0:
        return 0.0  # a rank without a row of its own was lent one
    return float(ranks) if loss == "sum" else ranks * own / all_of_them


@contextmanager
def weighted(factor: Callable[[], float]) -> Iterator[None]:
    """Have every backward pass start from so much, instead of 1 or of what it is given.

    For the whole process: `torch.Tensor.backward` calls `torch.autograd.backward`, which is replaced. Gradients that
    user code takes by `torch.autograd.grad` stay as they are: they are no part of a reduction.

    Nothing is weighted twice: neither what torch hands on to this function by its name, as it does where a mode or a
    subclass of tensors takes part, nor what a pass within a pass is given, as reentrant checkpointing does.
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
    """Gradients that were weighted, to know them again."""


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
        return given  # a mistake, which torch tells of
    return _Weighted(
        (torch.ones_like(root) if seed is None else seed) * scale
        for root, seed in zip(roots, seeds, strict=True)
    )
