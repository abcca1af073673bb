"""Input of samplers: past models (`Past`) and the scores that can be compared. Pure; `Search.history` creates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Past:
    """A model with new weights, added or requested.

    Attributes:
        scores: epoch -> score; larger is better.
        is_failed: True if training failed, for example because the metric became infinite.
        is_running: True if more scores may arrive.
    """

    hyperparams: Hyperparameters
    scores: Mapping[int, float] = field(default_factory=dict)
    is_failed: bool = False
    is_running: bool = True


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Models compared after the same epoch.

    Attributes:
        scored: hyperparameters and score, in the order the models were added.
        running: hyperparameters of models without a score.
    """

    scored: Sequence[tuple[Hyperparameters, float]]
    running: Sequence[Hyperparameters]


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
