"""Weighted backward passes over shares add up to the gradient of the batch, and nothing else of torch changes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import BaseTorchFunctionMode
from torch.utils.checkpoint import checkpoint

from cerebro.errors import RanksDifferError
from cerebro.worker.training.metrics import RankMetrics, of_ranks
from cerebro.worker.training.weights import weight, weighted


@given(st.lists(st.lists(st.floats(-10, 10), max_size=7), min_size=1, max_size=5).filter(any))
def test_weighted_means_average_to_the_mean_of_all(shares: list[list[float]]) -> None:
    """Whatever the shares; one without a row has one that is lent, and counts nothing. So do sums."""
    rows, ranks = sum(map(len, shares)), len(shares)
    every = [value for share in shares for value in share]
    means = [sum(share) / len(share) if share else 1e6 for share in shares]
    found = sum(weight(len(share), rows, ranks) * mean for share, mean in zip(shares, means, strict=True))
    assert found / ranks == pytest.approx(sum(every) / rows, abs=1e-9)
    sums = [sum(share) if share else 1e6 for share in shares]
    added = sum(weight(len(s), rows, ranks, "sum") * total for s, total in zip(shares, sums, strict=True))
    assert added / ranks == pytest.approx(sum(every), abs=1e-8)


@given(cuts=st.lists(st.integers(0, 12), max_size=3), seed=st.integers(0, 99))
def test_gradients_of_shares_average_to_that_of_the_batch(cuts: list[int], seed: int) -> None:
    """By `Tensor.backward` and by `autograd.backward`, where gradients are added up, too."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(12, 3, generator=random, dtype=torch.float64)
    parameter = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad((rows @ parameter).square().mean(), parameter)
    shares = [rows[begin:end] for begin, end in pairwise([0, *sorted(cuts), 12])]
    for share in shares:
        lent = share if len(share) else rows[:1]
        loss = (lent @ parameter).square().mean()
        factor = weight(len(share), 12, len(shares))
        with weighted(partial(float, factor)):
            torch.autograd.backward([loss / 2, loss / 4], retain_graph=True)
            (loss / 4).backward()  # type: ignore[no-untyped-call]
            (torch.autograd.grad((lent @ parameter).sum(), parameter))  # stays as it is
    assert parameter.grad is not None
    assert torch.allclose(parameter.grad / len(shares), expected, rtol=1e-12)


def test_a_given_gradient_is_weighted() -> None:
    """A backward pass of what is no number starts from what user code gives, times the weight."""
    parameter = torch.ones(2, requires_grad=True)
    with weighted(lambda: 3.0):
        (parameter * 2).backward(torch.tensor([1.0, 5.0]))  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [6.0, 30.0]


class _Subclass(torch.Tensor):
    """A subclass of tensors, which torch asks to take part."""


@pytest.mark.parametrize("kind", [torch.Tensor, _Subclass])
@pytest.mark.parametrize("mode", [nullcontext, BaseTorchFunctionMode])
def test_what_torch_hands_on_is_weighted_once(mode: Any, kind: type[torch.Tensor]) -> None:
    """A mode of the user's, and a subclass of tensors, have torch call the replaced function by its name again."""
    parameter = torch.ones(2, requires_grad=True)
    with weighted(lambda: 3.0), mode():
        torch.autograd.backward(parameter.as_subclass(kind).sum())
        parameter.as_subclass(kind).sum().backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [6.0, 6.0]


def test_a_pass_within_a_pass_is_weighted_once() -> None:
    """Reentrant checkpointing starts one from gradients that have the weight already."""
    parameter = torch.ones(2, requires_grad=True)
    inputs = torch.ones(2, requires_grad=True)
    with weighted(lambda: 3.0):
        checkpoint(torch.mul, inputs, parameter, use_reentrant=True).sum().backward()
        checkpoint(lambda given: given * parameter, inputs, use_reentrant=True).sum().backward()
    for leaf in (parameter, inputs):
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [6.0, 6.0]


def test_a_loss_within_a_pass_is_weighted() -> None:
    """Of a hook of the user's: it starts from 1, as any other."""
    parameter = torch.ones(2, requires_grad=True)

    def hook(gradient: torch.Tensor) -> None:
        with torch.enable_grad():
            torch.autograd.backward(parameter.sum())

    loss = parameter.sum()
    loss.register_hook(hook)  # type: ignore[no-untyped-call]
    with weighted(lambda: 3.0):
        torch.autograd.backward(loss)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [6.0, 6.0]


def test_a_mistake_is_told_by_torch() -> None:
    """As without weights."""
    parameter = torch.ones(2, requires_grad=True)
    with weighted(lambda: 3.0), pytest.raises(RuntimeError, match="only for scalar outputs"):
        (parameter * 2).backward()  # type: ignore[no-untyped-call]


def test_torch_is_as_before_afterwards() -> None:
    """Also where user code raises."""
    before = torch.autograd.backward
    with pytest.raises(ZeroDivisionError), weighted(lambda: 2.0):
        raise ZeroDivisionError
    assert torch.autograd.backward is before


def test_tensor_backward_asks_for_the_function_that_is_replaced() -> None:
    """Weights rest on it: a version of torch in which it is otherwise must not pass."""
    parameter = torch.ones(1, requires_grad=True)
    with weighted(lambda: 0.5):
        parameter.sum().backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    assert parameter.grad.item() == 0.5


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=4))
def test_metrics_are_averaged_by_rows(found: list[tuple[float, int]]) -> None:
    """As over the sub-epochs of an epoch."""
    expected = sum(value * rows for value, rows in found) / sum(rows for _, rows in found)
    ranks = [RankMetrics({"loss": value}, rows, number) for number, (value, rows) in enumerate(found)]
    assert of_ranks(ranks)["loss"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ([{"a": 1.0}, {"b": 2.0}], r"'a' on some ranks only \(rank 0 1.0, nothing on rank 1\)"),
        ([{}, {"b": 2.0}], r"'b' on some ranks only \(rank 1 2.0, nothing on rank 0\)"),
    ],
)
def test_metrics_that_only_some_ranks_return_are_refused(metrics: list[Any], told: str) -> None:
    """With the name, the ranks and their values."""
    with pytest.raises(RanksDifferError, match=told):
        of_ranks([RankMetrics(one, 5, number) for number, one in enumerate(metrics)])
