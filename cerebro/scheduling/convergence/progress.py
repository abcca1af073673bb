"""A model's losses by training period (`Quantum`) and the values that rules compare (`Progress`). Pure.

`controller.projections.priority_scores` creates them from logged losses; `rules` turns them into scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from cerebro.scheduling.convergence.curves import Forecast, Sample, condensed, forecast

_OF_A_QUANTUM, _OF_ALL = 6, 64
"""Maximum number of samples for fits, of a quantum and in all.

More samples cost time and add no information.
"""

_SOONEST = 0.01
"""Minimum remaining share of training to a goal that is not reached."""


@dataclass(frozen=True)
class Quantum:
    """Losses of a model in one period on a device, here a sub-epoch.

    ``L_j(i)`` of Hermes, section 3.3.

    Attributes:
        samples: at least one, in order.
    """

    samples: tuple[Sample, ...]

    @cached_property
    def number(self) -> int:
        """Number of losses."""
        return sum(sample.number for sample in self.samples)

    @cached_property
    def mean(self) -> float:
        """Mean of all losses."""
        return sum(sample.number * sample.value for sample in self.samples) / self.number

    @cached_property
    def high(self) -> float:
        """Largest loss."""
        return max(sample.value for sample in self.samples)

    @cached_property
    def low(self) -> float:
        """Smallest loss."""
        return min(sample.value for sample in self.samples)

    @cached_property
    def fitted(self) -> tuple[Sample, ...]:
        """Samples for fitting curves."""
        return condensed(self.samples, _OF_A_QUANTUM)

    @property
    def midrange(self) -> float:
        """``loss_j(i)`` of Hermes, section 3.3."""
        return (self.high + self.low) / 2

    @cached_property
    def opening(self) -> float:
        """Mean of the first quarter of the samples."""
        (first,) = condensed(self.samples[: max(1, len(self.samples) // 4)], 1)
        return first.value


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one model.

    Attributes:
        quanta: quanta in order; () for a model that was never trained or never had finite losses.
        done: completed share of its training.
        total_s: seconds of its whole training on one device.
        has_diverged: True if its newest losses are NaN or infinite; no quantum contains them.
        since: end of its first quantum, by a clock common to all models.
    """

    quanta: tuple[Quantum, ...] = ()
    done: float = 0.0
    total_s: float = 0.0
    has_diverged: bool = False
    since: float = 0.0

    @cached_property
    def forecast(self) -> Forecast:
        """Forecast from its losses; needs at least one."""
        fitted = chain.from_iterable(quantum.fitted for quantum in self.quanta)
        return forecast(condensed([*fitted], _OF_ALL), self.done)

    @cached_property
    def opening(self) -> float:
        """Loss at the start of training."""
        return self.quanta[0].opening

    @cached_property
    def paces(self) -> list[tuple[float, float, float]]:
        """(weight, final loss, 1 / seconds to the goal) of predictions short of their goal."""
        found = self.forecast.predictions
        return [
            (w, final, 1 / (max(remaining_share, _SOONEST) * self.total_s))
            for w, final, remaining_share in found
            if remaining_share > 0
        ]

    @cached_property
    def worth_against(self) -> dict[tuple[float, float], float]:
        """Cache: (typical opening, best final loss) -> score, newest only.

        Few models and references change between decisions.
        """
        return {}


UNSEEN = Progress()
"""Progress of a model that was never trained."""
