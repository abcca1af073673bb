"""Order of models by the rules of Hermes and SLAQ, and by expected priority score per second."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.convergence import UNSEEN, Progress, Quantum, Sample, hermes, promising, slaq

_QUANTUM = 0.05
"""Share of the training."""


def progress(*losses: list[float], total_s: float = 100.0) -> Progress:
    """Return a model with these losses in each quantum."""
    quanta = []
    for number, value in enumerate(losses):
        shares = [_QUANTUM * (number + (place + 0.5) / len(value)) for place in range(len(value))]
        quanta.append(Quantum(tuple(Sample(t, loss, 1) for t, loss in zip(shares, value, strict=True))))
    return Progress(quanta=tuple(quanta), done=_QUANTUM * len(quanta), total_s=total_s)


def falling(half: float, *, floor: float = 2.0, start: float = 7.0, quanta: int = 2) -> Progress:
    """Return a model whose loss has half-life `half`, as a share of its training."""
    shares = [_QUANTUM * (place + 0.5) / 10 for place in range(10 * quanta)]
    losses = [floor + (start - floor) * 2 ** (-t / half) for t in shares]
    return progress(*(losses[10 * number : 10 * number + 10] for number in range(quanta)))


FLAT = progress([7.0, 7.1, 6.9, 7.0], [7.0, 6.95, 7.05, 7.0])

progresses = st.lists(
    st.builds(
        lambda quanta, has_diverged: replace(
            progress(*quanta) if quanta else UNSEEN, has_diverged=has_diverged
        ),
        st.lists(st.lists(st.floats(0.1, 50), min_size=1, max_size=8), max_size=4),
        st.booleans(),
    ),
    max_size=8,
)


def test_hermes_scores_follow_the_paper() -> None:
    """Section 3.3: first the range of the first quantum over its losses; later the fall of the midrange over
    the newest losses."""
    once, twice = progress([7.0, 6.0, 6.5, 5.0]), progress([7.0, 6.0], [4.0, 6.0, 3.5, 4.5])
    rising = progress([5.0, 5.0], [6.0, 8.0])
    assert hermes([once, twice, rising, UNSEEN]) == [0.5, (6.5 - 4.75) / 4, (5.0 - 7.0) / 2, math.inf]


def test_slaq_normalizes_falls_by_the_models_largest_fall() -> None:
    """The scale of a loss does not matter."""
    small = progress([0.8], [0.6], [0.5])
    large = progress([800.0], [600.0], [500.0])
    assert slaq([small, large]) == pytest.approx([0.5, 0.5])
    assert slaq([progress([3.0]), UNSEEN]) == [math.inf, math.inf]


def test_the_fastest_improving_model_goes_first() -> None:
    """It precedes models whose loss falls slowly, is flat, or rises."""
    rising = progress([7.0, 7.5, 8.0, 8.5], [9.0, 10.0, 11.0, 12.0])
    fast, slow, flat, worse = promising([falling(0.1), falling(3.0), FLAT, rising])
    assert fast > slow > flat
    assert fast > worse


@given(progresses)
def test_a_diverged_model_comes_last(models: list[Progress]) -> None:
    """The other models rank as if it did not exist."""
    left = [model for model in models if not model.has_diverged]
    for rule in (promising, hermes, slaq):
        found = dict(enumerate(rule(models)))
        diverged = [found.pop(n) for n, model in enumerate(models) if model.has_diverged]
        assert diverged == [-math.inf] * len(diverged)
        assert [*found.values()] == rule(left)
        assert all(each > -math.inf for each in found.values())


@given(progresses)
def test_rules_return_a_number_for_each_model(models: list[Progress]) -> None:
    """NaN would break the order."""
    for rule in (promising, hermes, slaq):
        found = rule(models)
        assert len(found) == len(models)
        assert not any(math.isnan(each) for each in found)
        assert rule(models) == found


@given(progresses, st.randoms(use_true_random=False))
def test_the_order_of_models_does_not_matter(models: list[Progress], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(models)))
    random.shuffle(order)
    for rule in (promising, hermes, slaq):
        found = rule(models)
        assert rule([models[n] for n in order]) == pytest.approx([found[n] for n in order])


@pytest.mark.slow
@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_score_does_not_depend_on_earlier_comparisons(count: int, rng: random.Random) -> None:
    """Earlier comparisons with other models do not change the score."""
    models = [
        replace(falling(rng.uniform(0.2, 2.0), floor=rng.uniform(2, 5)), since=rng.random())
        for _ in range(80)
    ]
    known = promising([replace(model) for model in models])
    promising(models[:count])
    assert promising(models) == known
