"""Rules of who is trained next: a number for each model, the largest first.

Hermes: Son et al., "A GPU Scheduling Framework to Accelerate Hyper-Parameter Optimization in Deep Learning Clusters",
Electronics 2021, 10(3), 350. SLAQ: Zhang et al., "SLAQ: Quality-Driven Scheduling for Distributed Machine Learning",
SoCC 2017. `docs/hermes.md` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from statistics import fmean, median

from cerebro.scheduling.convergence.progress import Progress

Rule = Callable[[Sequence[Progress]], list[float]]
"""Models -> of each, how much it is worth to train it next. Infinite: before all others; minus that: after them."""

_FIRST = 4
"""So many models are trained before any is compared."""
_ALL = 64
"""Up to so many models, what is typical is the median of all of them."""
_HOPE = 2.0
"""A model that was never trained is worth so many times the mean of the others."""


def _diverged_last(rule: Rule) -> Rule:
    """Models that have diverged come after all others, which are compared without them."""

    @wraps(rule)
    def worths(models: Sequence[Progress]) -> list[float]:
        if not any(model.has_diverged for model in models):
            return rule(models)
        found = iter(rule([model for model in models if not model.has_diverged]))
        return [-math.inf if model.has_diverged else next(found) for model in models]

    return worths


@_diverged_last
def promising(models: Sequence[Progress]) -> list[float]:
    """Expected priority score per second, optimistically.

    Priority score of a prediction: where its final loss lies between that with which models typically begin (0) and the
    best that is expected of any model (1). A model's worth is the mean and the standard deviation, over its
    predictions, of priority score / seconds to its goal, added up: what is not known of a model speaks for it, and so
    does what takes little time.
    """
    seen = [model for model in models if model.quanta]
    if not seen or len(seen) < min(_FIRST, len(models)):
        return [0.0 if model.quanta else math.inf for model in models]
    typical = _typical(seen)
    best = min(model.forecast.final for model in seen)
    worth = [_worth(model, typical, best) if model.quanta else math.nan for model in models]
    hope = _HOPE * fmean(each for each in worth if not math.isnan(each))
    return [hope if math.isnan(each) else each for each in worth]


def _typical(seen: Sequence[Progress]) -> float:
    """The loss with which models begin: the median of those that were seen first, of all where they are few.

    Of many, another one hardly changes it, but would have all of them compared anew: it counts with an eighth more.
    """
    count = len(seen)
    if count >= _ALL:
        count = _ALL
        while count + count // 8 <= len(seen):
            count += count // 8
        seen = sorted(seen, key=lambda model: model.since)[:count]
    return median(model.opening for model in seen)


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
    # This loop is what a decision costs where models are many.
    for weight, final, per_second in model.paces:
        gain = typical - final
        if gain > 0:
            worth = per_second if gain >= scale else per_second * gain / scale
            mean += weight * worth
            square += weight * worth * worth
    return mean + math.sqrt(max(0.0, square - mean * mean))


@_diverged_last
def hermes(models: Sequence[Progress]) -> list[float]:
    """The convergence ``C_j(i)`` of each model in its newest quantum, as printed (Hermes, section 3.3).

    From the second quantum on ``(loss_j(i - 1) - loss_j(i)) / |L_j(i)|``, in the first ``(max - min) / |L_j(i)|``. The
    minus signs are not in all copies of the paper. It defines nothing for a job that never ran: that one goes first.
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
    """The decrease of the loss expected of the next quantum, over the model's largest one so far.

    By the second, SLAQ makes models comparable whose losses have different scales (its section 3). It predicts the
    next decrease by a curve through the newest losses (section 4); here it is taken to be the newest one.
    """
    return [_normalised(model) for model in models]


def _normalised(model: Progress) -> float:
    drops = [before.mean - after.mean for before, after in pairwise(model.quanta)]
    return drops[-1] / (max(map(abs, drops)) or 1.0) if drops else math.inf
