"""Searches side by side: models whose accuracies follow from their hyperparameters, and what is told of a search.

The curves are made up, and say so; but as with real models a higher learning rate learns sooner and ends worse, so the
order at a low rung tells part of the truth. It must not know how a search is carried out or how it is shown.
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
"""Of an epoch's training: a tenth of the rows at a third of the cost."""
MEASURED = 0.01
"""Standard deviation of a measured accuracy."""
WITHIN = 0.01
"""Of the best accuracy: a model that is as good will do."""

# --- models -------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A model's course: after r epochs its accuracy is best - height (r + 0.3)^-power.

    Attributes:
        epoch_s: seconds of an epoch, on one worker after the other.
    """

    best: float
    height: float
    power: float
    epoch_s: float

    def accuracy(self, epochs: int) -> float:
        """The true one."""
        return self.best - self.height * math.pow(epochs + 0.3, -self.power)

    def measured(self, epochs: int, *, seed: object) -> float:
        """As validation shows it; the same for the same seed."""
        return self.accuracy(epochs) + random.Random(f"{seed}/{epochs}").gauss(0, MEASURED)


LEARNING_RATES = (1e-4, 1.0)
DECAYS = (1e-6, 1e-2)
DROPOUTS = (0.0, 0.6)
LAYERS = (1, 8)
WIDTHS = (32, 256)


def curve_of(hyperparams: Mapping[str, Any]) -> Curve:
    """Of a made-up network.

    Args:
        hyperparams: ``lr``, ``decay``, ``dropout``, ``layers`` and ``width``, within the limits above. 0.01, 0.0001,
            0.25, 4 and the largest width are best in the end. A typical epoch takes a second.
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
    """What befalls a search.

    Attributes:
        name, about: for the command line.
        conditions: number of workers, seconds for which they are to last -> conditions. Seconds are those of a typical
            epoch.
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
    """Call `run` with ``conditions`` that last until it ends; how long that is, only a run tells."""
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
"""By name."""

# --- what comes of it ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one search.

    Attributes:
        trials, epochs: models, and epochs that were trained of all of them.
        busy: share of the time of workers that were there that went into tasks that were committed.
        busy_drawing: the same until the last model was added; `None`: all were at the beginning.
        makespan_s: seconds until the last task ended.
        best: (second, best true accuracy so far of a model after a validated epoch), ascending.
    """

    trials: int
    epochs: int
    busy: float
    busy_drawing: float | None
    makespan_s: float
    best: Sequence[tuple[float, float]]

    def reaches(self, accuracy: float) -> float:
        """The second at which a model was as good; infinite: never."""
        return next((second for second, best in self.best if best >= accuracy), math.inf)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One procedure over the seeds: means, but for `to_best_s`.

    Attributes:
        best: accuracy of the best model.
        to_best_s: of each seed, the second at which a model was within `WITHIN` of the best that any of the procedures
            found; infinite: never.
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
        """Over the seeds; infinite: in half of them never."""
        return median(self.to_best_s)

    @property
    def reached(self) -> int:
        """In so many seeds."""
        return sum(math.isfinite(each) for each in self.to_best_s)


def compare(found: Mapping[str, Sequence[Outcome]]) -> tuple[Row, ...]:
    """A row for each procedure.

    Args:
        found: by procedure, outcomes of the same seeds in the same order.
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
