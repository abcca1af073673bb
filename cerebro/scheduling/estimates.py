"""How long sub-epochs will take, learned from those that ran.

A sub-epoch's time is taken to be the product of its model's cost per row, its worker's slowness and its rows: what the
seed paper's simulations assume (section 5.4), and little enough to be known after each model ran on a few workers. Both
factors are fitted to all pairs (model, worker) by alternating least squares of logarithms. What a pair showed itself
counts beside the product, so a model that suits one kind of GPU is learned too.

Beside that a sub-epoch has a *fixed part*, which does not grow with its rows: the model is loaded and saved, processes
are started. It is measured by itself, and taken to be the same on all workers.

What earlier runs have shown may be *expected* before: of a model itself it counts as one observation, of others like
it as little as what is typical. Without either every model costs the same, and decisions are made by rows alone. Pure;
a fold over observations, so it can be rebuilt from a log.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

_SLOWEST_STEP = 0.2
"""Newest observations of a pair keep at least this weight: machines become slower and faster."""

_TRUSTED = 1.0
"""Observations of a pair that count as much as the product of its factors."""

_COST_PRIOR, _SLOWNESS_PRIOR = 0.02, 0.2
"""Observations that say a model costs what is typical, and a worker is as fast as the others: few, because models
differ by far more than sub-epochs of one model do; more for workers, whose differences are smaller."""

_SEED_WEIGHT = 2
"""Observations that a trial counts as: its batches are few, and are not a sub-epoch's, but it is of the very model."""

_EXPECTED_WEIGHT = 1.0
"""Observations that what earlier runs have shown of the very model counts as."""

_SWEEPS = 4
"""Of alternating least squares at a time. They go on from where the last ones ended."""

_SIGMA, _SIGMA_PRIOR = 0.2, 4
"""The error expected before it is measured, and the observations this counts as. A prediction that came true once by
chance is no reason to trust a plan."""

_SIGMA_EXPECTED = 16
"""Observations that the error counts as that earlier runs have shown, where it is asked how well it is known."""

_SURPRISING = 2.0
"""Standard deviations."""

_SIGMA_STEP = 0.05
"""Newest errors keep at least this weight: predictions become better."""


@dataclass
class _Mean:
    """The mean at first, then a moving one."""

    value: float = 0.0
    count: int = 0

    def learn(self, target: float) -> None:
        self.count += 1
        self.value += max(1.0 / self.count, _SLOWEST_STEP) * (target - self.value)


_Subject = tuple[str, str]
"""(model, technique)."""


@dataclass
class Estimates:
    """Sub-epoch times per model, worker and technique, by name. One owner, not thread-safe.

    Attributes:
        observations: how many sub-epochs were observed.
    """

    observations: int = 0
    surprises: int = 0
    """Sub-epochs whose time was off by more than two standard deviations: what was known of their way was wrong."""
    _pairs: dict[_Subject, dict[str, _Mean]] = field(default_factory=dict)
    _subjects: defaultdict[str, list[_Subject]] = field(default_factory=lambda: defaultdict(list))
    """Worker -> what ran there."""
    _costs: dict[_Subject, float] = field(default_factory=dict)
    _sub_epochs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Worker -> how many ran there."""
    _seeds: dict[_Subject, tuple[str, float]] = field(default_factory=dict)
    """Where a trial ran, and the logarithm of its seconds per row."""
    _fixed: dict[_Subject, _Mean] = field(default_factory=dict)
    _fixed_seeds: dict[_Subject, float] = field(default_factory=dict)
    _fixed_expected: dict[_Subject, float] = field(default_factory=dict)
    _typical_fixed: float = 0.0
    _slowness: dict[str, float] = field(default_factory=dict)
    _expected: dict[_Subject, tuple[float, float]] = field(default_factory=dict)
    """The logarithm of seconds per row, and as how many observations it counts."""
    _expected_slowness: dict[str, float] = field(default_factory=dict)
    _expected_sub_epochs: dict[str, float] = field(default_factory=dict)
    _typical: float = 0.0
    _variance: float = _SIGMA**2
    _predicted: int = 0
    _sigma_expected: int = 0
    """As how many observations the error that was expected counts, beyond the usual ones."""

    @property
    def sigma(self) -> float:
        """Standard deviation, lately, of the logarithm of measured over predicted time: the noise a plan has to bear,
        be it that sub-epochs vary or that too little is known of them."""
        return math.sqrt(self._variance)

    @property
    def is_blind(self) -> bool:
        """Whether nothing is known of how long anything takes."""
        return not self.observations and not self._expected

    def knows(self, model: str, technique: str = "") -> bool:
        """Whether a sub-epoch of the model was observed, a trial of it, or sub-epochs of it in earlier runs."""
        subject = (model, technique)
        return subject in self._pairs or subject in self._seeds or self._is_expected(subject)

    def _is_expected(self, subject: _Subject) -> bool:
        return self._expected.get(subject, (0.0, 0.0))[1] >= _EXPECTED_WEIGHT

    def expect(self, model: str, *, log_rate: float, fixed_s: float, sub_epochs: float) -> None:
        """What earlier runs have shown, on a worker that is as fast as others.

        Args:
            log_rate: natural logarithm of seconds per row.
            sub-epochs: of this very model, that have shown it; 0: those of others like it have.
        """
        subject = (model, "")
        self._expected[subject] = log_rate, _EXPECTED_WEIGHT if sub_epochs else _COST_PRIOR
        self._expected_sub_epochs[model] = sub_epochs
        self._fixed_expected[subject] = fixed_s
        self._fit_cost(subject)

    def expect_slowness(self, worker: str, slowness: float) -> None:
        """What earlier runs have shown of workers of its kind; as `slowness` answers."""
        self._expected_slowness[worker] = slowness
        if worker not in self._subjects:
            self._slowness[worker] = slowness

    def expect_sigma(self, sigma: float) -> None:
        """How much sub-epoch times strayed in earlier runs."""
        if not self._predicted:
            self._variance, self._sigma_expected = sigma * sigma, _SIGMA_EXPECTED

    def seed(
        self,
        model: str,
        worker: str,
        *,
        rows: float,
        seconds: float,
        fixed_s: float = 0.0,
        technique: str = "",
    ) -> None:
        """A trial on the worker has shown what so many rows would take there, and how long a sub-epoch's fixed part:
        believed as `_SEED_WEIGHT` observations of sub-epochs are, which correct it. A second one takes the place of the
        first."""
        if rows > 0 and seconds > 0:
            subject = (model, technique)
            self._seeds[subject] = worker, math.log(seconds / rows)
            self._fixed_seeds[subject] = fixed_s
            self._fit_cost(subject)

    def observe(
        self,
        model: str,
        worker: str,
        *,
        rows: int,
        seconds: float,
        fixed_s: float = 0.0,
        technique: str = "",
    ) -> None:
        """A sub-epoch ran: its rows took `seconds`, all else `fixed_s`. Sub-epochs without rows or of no time tell
        nothing and are passed over."""
        if rows <= 0 or seconds <= 0:
            return
        log_rate, subject = math.log(seconds / rows), (model, technique)
        if subject in self._pairs or self._is_expected(subject):
            expected = self.seconds(model, worker, rows=rows, technique=technique) / rows
            self.surprises += abs(log_rate - math.log(expected)) > _SURPRISING * self.sigma
            self._predicted += 1
            step = max(1 / (self._predicted + _SIGMA_PRIOR), _SIGMA_STEP)
            self._variance += step * ((log_rate - math.log(expected)) ** 2 - self._variance)
        pairs = self._pairs.setdefault(subject, {})
        if worker not in pairs:
            pairs[worker] = _Mean()
            self._subjects[worker].append(subject)
        pairs[worker].learn(log_rate)
        self._sub_epochs[worker] += 1
        self._fixed.setdefault(subject, _Mean()).learn(fixed_s)
        self._fit_cost(subject)
        self.observations += 1

    def settle(self) -> None:
        """Fit all factors anew. Costs some passes over all pairs: to be done now and then."""
        for _ in range(_SWEEPS):
            for worker, subjects in self._subjects.items():
                told = sum(self._pairs[subject][worker].value - self._costs[subject] for subject in subjects)
                told += _SLOWNESS_PRIOR * self._expected_slowness.get(worker, 0.0)
                self._slowness[worker] = told / (len(subjects) + _SLOWNESS_PRIOR)
            for subject in self._pairs | self._seeds | self._expected:
                self._fit_cost(subject)
            self._typical = sum(self._costs.values()) / max(1, len(self._costs))
        known = [self.fixed_s(model, technique) for model, technique in self._costs]
        self._typical_fixed = sum(known) / max(1, len(known))

    def _fit_cost(self, subject: _Subject) -> None:
        pairs = self._pairs.get(subject, {})
        told, slowness = 0.0, self._slowness
        for worker, mean in pairs.items():
            told += mean.value - slowness.get(worker, 0.0)
        typical, prior = self._expected.get(subject, (self._typical, _COST_PRIOR if self._costs else 0.0))
        count = len(pairs) + prior
        if subject in self._seeds:
            worker, log_rate = self._seeds[subject]
            # A worker counts as one here, however many sub-epochs it has run; so the trial counts for less with each.
            weight = _SEED_WEIGHT * len(pairs) / sum(mean.count for mean in pairs.values()) if pairs else 1.0
            told += weight * (log_rate - slowness.get(worker, 0.0))
            count += weight
        self._costs[subject] = (told + prior * typical) / count

    def seconds(self, model: str, worker: str, *, rows: float, technique: str = "") -> float:
        """What so many rows will take in a sub-epoch; always above 0. A model that never ran costs what is typical."""
        cost, slowness = self._costs.get((model, technique), self._typical), self._slowness.get(worker, 0.0)
        seconds = math.exp(cost) * (max(rows, 1.0) * math.exp(slowness))
        mean = self._pairs.get((model, technique), {}).get(worker)
        return seconds if mean is None else seconds * _own_share(mean, cost, slowness)

    def shown(self, model: str, technique: str = "") -> tuple[float, float]:
        """What is estimated of a model, and how far it may be off, as `cerebro.scheduling.beliefs` has it."""
        subject = (model, technique)
        cost = self._costs.get(subject, self._typical)
        sub_epochs = sum(mean.count for mean in self._pairs.get(subject, {}).values())
        before = self._expected_sub_epochs.get(model, 0.0) if self._is_expected(subject) else 0.0
        if not sub_epochs and not before:
            return cost, math.inf
        weight = _EXPECTED_WEIGHT if before else 0.0
        told = sub_epochs + (weight**2 / before if before else 0.0)
        # How much sub-epochs stray is known of few, too: Student's distribution has that much more variance.
        known = _SIGMA_PRIOR + self._predicted + self._sigma_expected
        sigma = self.sigma * math.sqrt(known / (known - 2))
        return cost, sigma * math.sqrt(told) / (sub_epochs + weight)

    def slowness(self, worker: str) -> tuple[float, int]:
        """Logarithm of the factor by which the worker takes longer than others, as it was fitted last, and of how many
        sub-epochs there: 0 of none."""
        return self._slowness.get(worker, 0.0), self._sub_epochs.get(worker, 0)

    def fixed_s(self, model: str, technique: str = "") -> float:
        """The fixed part of a sub-epoch. Of a model that never ran it is what is typical."""
        subject = (model, technique)
        mean, seed, weight = self._fixed.get(subject), self._fixed_seeds.get(subject), float(_SEED_WEIGHT)
        if seed is None and subject in self._expected:
            seed, weight = self._fixed_expected[subject], self._expected[subject][1]
        if mean is None:
            return self._typical_fixed if seed is None else seed
        if seed is None:
            return mean.value
        return (mean.count * mean.value + weight * seed) / (mean.count + weight)

    def table(
        self, models: Sequence[str], workers: Sequence[str], *, rows: float, technique: str = ""
    ) -> list[list[float]]:
        """`seconds` of each model (rows of the table) on each worker (columns)."""
        slowness = [self._slowness.get(worker, 0.0) for worker in workers]
        factors = [max(rows, 1.0) * math.exp(value) for value in slowness]
        columns = {worker: column for column, worker in enumerate(workers)}
        found = []
        for model in models:
            cost = self._costs.get((model, technique), self._typical)
            scale = math.exp(cost)
            row = [scale * factor for factor in factors]
            for worker, mean in self._pairs.get((model, technique), {}).items():
                if worker in columns:
                    column = columns[worker]
                    row[column] *= _own_share(mean, cost, slowness[column])
            found.append(row)
        return found


def _own_share(mean: _Mean, cost: float, slowness: float) -> float:
    """By which factor the pair's own observations change the product."""
    deviation = mean.value - cost - slowness
    return math.exp(deviation * mean.count / (mean.count + _TRUSTED))
