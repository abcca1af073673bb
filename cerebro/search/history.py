"""What a sampler knows of the models so far, and which of their values it can compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Past:
    """A model with weights of its own, or one that is about to be added.

    Attributes:
        scores: epoch -> value of the run's metric, its sign such that more is better.
        is_failed: for example because its metric became infinite.
        is_running: more scores of it may come.
    """

    hyperparams: Hyperparameters
    scores: Mapping[int, float] = field(default_factory=dict)
    is_failed: bool = False
    is_running: bool = True


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Models that compare.

    Attributes:
        scored: values and score, in the order in which models were added.
        running: values of models that have no score yet.
    """

    scored: Sequence[tuple[Hyperparameters, float]]
    running: Sequence[Hyperparameters]


def num_measured(history: Sequence[Past]) -> int:
    """Models that something is known of."""
    return sum(bool(past.scores) or past.is_failed for past in history)


def observations(history: Sequence[Past], least: int) -> Observations | None:
    """Scores after the same epoch: the last one that at least `least` models have; `None`: there is none.

    Falkner et al., *BOHB*, ICML 2018, section 3.2: what was trained longest tells most, as soon as it is enough to fit
    a model to. A model that failed counts as the worst of them; one that was stopped before that epoch is left out.
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
