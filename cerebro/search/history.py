"""Input of samplers: past models (`Past`) and the scores that can be compared. Pure; `Search.history` creates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters
from cerebro.search.pareto import Point


@dataclass(frozen=True, kw_only=True)
class Past:
    """A model with new weights, added or requested.

    Attributes:
        scores: epoch -> score of the first objective; larger is better.
        points: epoch -> all objectives and constraints; empty for one objective without constraints.
        is_failed: True if training failed, for example because the metric became infinite.
        is_running: True if more scores may arrive.
        is_earlier: True for a model of an earlier fit.
    """

    hyperparams: Hyperparameters
    scores: Mapping[int, float] = field(default_factory=dict)
    points: Mapping[int, Point] = field(default_factory=dict)
    is_failed: bool = False
    is_running: bool = True
    is_earlier: bool = False


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Models compared after the same epoch.

    Attributes:
        scored: hyperparameters and score, in the order the models were added.
        running: hyperparameters of models without a score.
        points: the point of each in `scored`; empty for one objective without constraints.
    """

    scored: Sequence[tuple[Hyperparameters, float]]
    running: Sequence[Hyperparameters]
    points: Sequence[Point] = ()


def num_measured(history: Sequence[Past]) -> int:
    """Count the models that have a score or failed."""
    return sum(bool(past.scores) or past.is_failed for past in history)


def observations(history: Sequence[Past], least: int) -> Observations | None:
    """Return the scores after the last epoch that at least `least` models have.

    Returns `None` without such an epoch. Falkner et al., *BOHB*, ICML 2018, section 3.2: the largest resource
    with enough models to fit is the most informative. A failed model gets the worst score. A model stopped
    before that epoch is omitted.
    """
    counts = Counter(epoch for past in history if not past.is_failed for epoch in past.scores)
    level = max((epoch for epoch, count in counts.items() if count >= least), default=None)
    if level is None:
        return None
    if any(past.points for past in history):
        return _observed_points(history, level)
    worst = min(past.scores[level] for past in history if level in past.scores and not past.is_failed)
    scored, running = [], []
    for past in history:
        if past.is_failed:
            scored.append((past.hyperparams, worst))
        elif level in past.scores:
            scored.append((past.hyperparams, past.scores[level]))
        elif past.is_running:
            running.append(past.hyperparams)
    return Observations(scored=scored, running=running)


def _observed_points(history: Sequence[Past], level: int) -> Observations | None:
    """Return the points after an epoch. A failed model gets the worst value of each objective and constraint."""
    known = [past.points[level] for past in history if level in past.points and not past.is_failed]
    if not known:
        return None
    worst = Point(
        tuple(map(max, zip(*(point.losses for point in known), strict=True))),
        tuple(map(max, zip(*(point.violations for point in known), strict=True))),
    )
    scored, points, running = [], [], []
    for past in history:
        if past.is_failed or level in past.points:
            points.append(worst if past.is_failed else past.points[level])
            scored.append((past.hyperparams, -points[-1].losses[0]))
        elif past.is_running:
            running.append(past.hyperparams)
    return Observations(scored=scored, running=running, points=points)
