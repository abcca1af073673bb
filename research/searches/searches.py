"""Comparison of searches on models whose accuracies follow from their hyperparameters.

The curves are synthetic. As with real models, a higher learning rate learns sooner and ends worse, so the action at a
low rung is partly right. This module neither runs searches nor formats results.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from cerebro.scheduling.conditions import Conditions, Join, Outage

VALIDATION = 0.03
"""Cost of a validation relative to an epoch's training: a tenth of the rows at a third of the cost."""
MEASURED = 0.01
"""Standard deviation of a measured accuracy."""
WITHIN = 0.01
"""Distance from the best accuracy within which a model is good enough."""

# --- models -------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A model's curve: after r epochs its accuracy is best - height (r + 0.3)^-power.

    Attributes:
        epoch_s: seconds of an epoch, with the workers in sequence.
    """

    best: float
    height: float
    power: float
    epoch_s: float

    def accuracy(self, epochs: int) -> float:
        """Return the true accuracy."""
        return self.best - self.height * math.pow(epochs + 0.3, -self.power)

    def measured(self, epochs: int, *, seed: object) -> float:
        """Return the validated accuracy; the same for the same seed."""
        return self.accuracy(epochs) + random.Random(f"{seed}/{epochs}").gauss(0, MEASURED)


LEARNING_RATES = (1e-4, 1.0)
DECAYS = (1e-6, 1e-2)
DROPOUTS = (0.0, 0.6)
LAYERS = (1, 8)
WIDTHS = (32, 256)


def curve_of(hyperparams: Mapping[str, Any]) -> Curve:
    """Return the curve of a synthetic network.

    Args:
        hyperparams: ``lr``, ``decay``, ``dropout``, ``layers`` and ``width``, within the limits above. The best final
            values are 0.01, 0.0001, 0.25, 4 and the largest width. A typical epoch takes a second.
    """
    rate, decay = math.log10(hyperparams["lr"]) + 2, math.log10(hyperparams["decay"]) + 4
    dropout, layers, width = hyperparams["dropout"], hyperparams["layers"], hyperparams["width"]
    return Curve(
        best=0.95
        - (0.06 if rate > 0 else 0.02) * rate**2
        - 0.01 * decay**2
        - 0.15 * (dropout - 0.25) ** 2
        - 0.012 * abs(layers - 4)
        - 0.017 * math.log2(WIDTHS[1] / width),
        height=0.25 + 0.4 * dropout - 0.1 * rate,
        power=0.75 + 0.2 * rate - 0.03 * (layers - 4),
        epoch_s=2 ** ((layers - 4.5) / 4) * math.sqrt(width / 128),
    )


# --- scenarios ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Failures during a search.

    Attributes:
        name, about: name and description for the command line.
        conditions: (number of workers, duration in seconds) -> conditions. A typical epoch takes one second.
    """

    name: str
    about: str
    conditions: Callable[[int, float], Conditions]


_SIGMA = 0.05
_LASTING_S = 1000.0


def _away(until: float) -> tuple[Outage, ...]:
    """The first worker is away for a fifth of the time."""
    return tuple(
        Outage(worker=0, start=10.0 * period + 4, seconds=2.0) for period in range(math.ceil(until / 10))
    )


def lasting(scenario: Scenario, workers: int, run: Callable[..., Outcome]) -> Outcome:
    """Call `run` with ``conditions`` that last until it ends; only a run shows its duration."""
    until = _LASTING_S
    while True:
        conditions = scenario.conditions(workers, until)
        outcome = run(conditions=conditions)
        if not conditions.outages or outcome.makespan_s <= until:
            return outcome
        until *= 4


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="search",
            about="search procedures on made-up models, sub-epoch times vary by 5 %",
            conditions=lambda workers, until: Conditions(sigma=_SIGMA),
        ),
        Scenario(
            name="search-noise",
            about="the same, sub-epoch times vary by 30 %",
            conditions=lambda workers, until: Conditions(sigma=0.3),
        ),
        Scenario(
            name="search-outage",
            about="the same, a worker is away for 2 of every 10 typical epochs",
            conditions=lambda workers, until: Conditions(sigma=_SIGMA, outages=_away(until)),
        ),
        Scenario(
            name="search-join",
            about="the same, the last worker joins after 10 typical epochs",
            conditions=lambda workers, until: Conditions(
                sigma=_SIGMA, joins=(Join(worker=workers - 1, at=10.0),)
            ),
        ),
    )
}
"""Scenarios by name."""

# --- outcomes ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one search.

    Attributes:
        trials, epochs: number of models, and of epochs over all models.
        busy: share of the present workers' time spent on committed tasks.
        busy_drawing: the same until the last model was added; `None` if all were added at the start.
        makespan_s: seconds until the last task ended.
        best: (second, best true accuracy of a model after a validated epoch), ascending.
    """

    trials: int
    epochs: int
    busy: float
    busy_drawing: float | None
    makespan_s: float
    best: Sequence[tuple[float, float]]

    def reaches(self, accuracy: float) -> float:
        """Return the second when a model first reached the accuracy; infinite if never."""
        return next((second for second, best in self.best if best >= accuracy), math.inf)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One procedure, as means over the seeds except `to_best_s`.

    Attributes:
        best: accuracy of the best model.
        to_best_s: for each seed, the second when a model came within `WITHIN` of the best model of any procedure;
            infinite if never.
    """

    procedure: str
    trials: float
    epochs: float
    busy: float
    busy_drawing: float | None
    makespan_s: float
    best: float
    to_best_s: tuple[float, ...]

    @property
    def median_to_best_s(self) -> float:
        """Median over the seeds; infinite if half never reach it."""
        return median(self.to_best_s)

    @property
    def reached(self) -> int:
        """Number of seeds that reach it."""
        return sum(math.isfinite(each) for each in self.to_best_s)


def compare(found: Mapping[str, Sequence[Outcome]]) -> tuple[Row, ...]:
    """Return a row for each procedure.

    Args:
        found: procedure -> outcomes of the same seeds in the same action.
    """
    targets = [
        max(each.best[-1][1] for each in of_seed) - WITHIN for of_seed in zip(*found.values(), strict=True)
    ]
    return tuple(
        Row(
            procedure=procedure,
            trials=fmean(each.trials for each in outcomes),
            epochs=fmean(each.epochs for each in outcomes),
            busy=fmean(each.busy for each in outcomes),
            busy_drawing=_mean([each.busy_drawing for each in outcomes]),
            makespan_s=fmean(each.makespan_s for each in outcomes),
            best=fmean(each.best[-1][1] for each in outcomes),
            to_best_s=tuple(each.reaches(target) for each, target in zip(outcomes, targets, strict=True)),
        )
        for procedure, outcomes in found.items()
    )


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None
