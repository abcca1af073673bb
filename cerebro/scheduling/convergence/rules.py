"""Rules that compute one priority score for each model, larger first: `promising`, `hermes`, `slaq`.

`controller.projections.priority_scores` calls them after each committed sub-epoch. They have no effect except that
`promising` caches a value in `Progress.worth_against`.

Hermes: Son et al., "A GPU Scheduling Framework to Accelerate Hyper-Parameter Optimization in Deep Learning
Clusters", Electronics 2021, 10(3), 350. SLAQ: Zhang et al., "SLAQ: Quality-Driven Scheduling for Distributed
Machine Learning", SoCC 2017. `docs/hermes.md` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from statistics import fmean, median

from cerebro.scheduling.convergence.progress import Progress

Rule = Callable[[Sequence[Progress]], list[float]]
"""Maps models to priority scores. Infinity goes before all others, minus infinity after them."""

_FIRST = 4
"""Number of models to train before any comparison."""
_ALL = 64
"""Up to this number of models, the typical opening is the median of all."""
_HOPE = 2.0
"""Score of a never trained model, relative to the mean of the others."""


def _diverged_last(rule: Rule) -> Rule:
    """Rank diverged models last, and compare the others without them."""

    @wraps(rule)
    def worths(models: Sequence[Progress]) -> list[float]:
        if not any(model.has_diverged for model in models):
            return rule(models)
        found = iter(rule([model for model in models if not model.has_diverged]))
        return [-math.inf if model.has_diverged else next(found) for model in models]

    return worths


@_diverged_last
def promising(models: Sequence[Progress]) -> list[float]:
    """Return the expected gain per second, optimistically.

    The gain of a prediction is the position of its final loss between the typical opening (0) and the best
    final loss expected of any model (1). A model's score is the mean plus the standard deviation, over its
    predictions, of gain / seconds to the goal. Uncertainty and short remaining time raise the score.
    """
    trained_models = [model for model in models if model.quanta]
    if not trained_models or len(trained_models) < min(_FIRST, len(models)):
        return [0.0 if model.quanta else math.inf for model in models]
    typical = _typical(trained_models)
    best = min(model.forecast.final for model in trained_models)
    worth = [_worth(model, typical, best) if model.quanta else math.nan for model in models]
    hope = _HOPE * fmean(each for each in worth if not math.isnan(each))
    return [hope if math.isnan(each) else each for each in worth]


def _typical(models: Sequence[Progress]) -> float:
    """Return the typical opening loss.

    The median of the first models seen, or of all if few. A new model hardly changes the median of many but
    would force a comparison of all; the sample therefore grows in steps of an eighth.
    """
    count = len(models)
    if count >= _ALL:
        count = _ALL
        while count + count // 8 <= len(models):
            count += count // 8
        models = sorted(models, key=lambda model: model.since)[:count]
    return median(model.opening for model in models)


def _worth(model: Progress, typical: float, best: float) -> float:
    found = model.worth_against.get((typical, best))
    if found is None:
        found = _optimistic(model, typical, best)
        model.worth_against.clear()
        model.worth_against[typical, best] = found
    return found


def _optimistic(model: Progress, typical: float, best: float) -> float:
    scale, mean, square = typical - best, 0.0, 0.0
    if scale <= 0:
        return 0.0
    # With many models, this loop dominates the cost of a decision.
    for weight, final, per_second in model.paces:
        gain = typical - final
        if gain > 0:
            worth = per_second if gain >= scale else per_second * gain / scale
            mean += weight * worth
            square += weight * worth * worth
    return mean + math.sqrt(max(0.0, square - mean * mean))


@_diverged_last
def hermes(models: Sequence[Progress]) -> list[float]:
    """Return the convergence ``C_j(i)`` of each model in its newest quantum (Hermes, section 3.3).

    From the second quantum on ``(loss_j(i - 1) - loss_j(i)) / |L_j(i)|``, in the first ``(max - min) /
    |L_j(i)|``, as printed. Some copies of the paper lack the minus signs. The paper defines no value for a
    job that never ran; here it goes first.
    """
    return [_convergence(model) for model in models]


def _convergence(model: Progress) -> float:
    if not model.quanta:
        return math.inf
    newest = model.quanta[-1]
    if len(model.quanta) == 1:
        return (newest.high - newest.low) / newest.number
    return (model.quanta[-2].midrange - newest.midrange) / newest.number


@_diverged_last
def slaq(models: Sequence[Progress]) -> list[float]:
    """Return the expected decrease of the loss, over the model's largest change; infinite before the second quantum.

    SLAQ divides by the largest decrease to compare models with different scales of loss (section 3). It
    predicts the next decrease by a curve through the newest losses (section 4); here the newest decrease is
    the prediction.
    """
    return [_normalised(model) for model in models]


def _normalised(model: Progress) -> float:
    drops = [previous.mean - current.mean for previous, current in pairwise(model.quanta)]
    return drops[-1] / (max(map(abs, drops)) or 1.0) if drops else math.inf
