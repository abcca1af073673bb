"""Estimates of sub-epoch times by model and worker, learned from completed sub-epochs, trials and earlier runs.

`controller.projections.sub_epoch_times` keeps one for each run; dispatch, planner and forecasts use its times.

A sub-epoch's time is modeled as the product of its model's cost per row, its worker's slowness and its rows,
as in the simulations of the seed paper (section 5.4). Each model must run on a few workers to fit it.
Alternating least squares of logarithms fits both factors to all pairs (model, worker). The observations of a
pair itself also count, so a model that suits one kind of GPU is learned too.

The *fixed part* of a sub-epoch does not grow with its rows: loading and saving the model, starting processes.
It is measured separately and assumed equal on all workers.

Results of earlier runs may be *expected* in advance: those of the same model count as one observation, those
of similar models as little as the typical value. Without them every model costs the same and only rows
matter. Pure; a fold over observations, so a log can rebuild it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

_SLOWEST_STEP = 0.2
"""Minimum weight of the newest observation of a pair, because machines change speed."""

_TRUSTED = 1.0
"""Number of a pair's observations that weigh as much as the fitted product."""

_COST_PRIOR, _SLOWNESS_PRIOR = 0.02, 0.2
"""Observations that the typical cost and the average slowness count as.

Few for models, which differ far more than sub-epochs of one model do; more for workers, which differ less.
"""

_SEED_WEIGHT = 2
"""Observations that a trial counts as: it has few batches, but of the same model."""

_EXPECTED_WEIGHT = 1.0
"""Observations that earlier runs of the same model count as."""

_SWEEPS = 4
"""Sweeps of alternating least squares for each fit, continuing from the previous one."""

_SIGMA, _SIGMA_PRIOR = 0.2, 4
"""Prior error, and the observations it counts as: one accurate prediction may be chance."""

_SIGMA_EXPECTED = 16
"""Observations that the error of earlier runs counts as in `shown`."""

_SURPRISING = 2.0
"""Errors above this many standard deviations are surprises."""

_SIGMA_STEP = 0.05
"""Minimum weight of the newest error, because predictions improve."""


@dataclass
class _Mean:
    """Arithmetic mean of the first values, then an exponential moving average."""

    value: float = 0.0
    count: int = 0

    def learn(self, target: float) -> None:
        self.count += 1
        self.value += max(1.0 / self.count, _SLOWEST_STEP) * (target - self.value)


_Subject = tuple[str, str]
"""(model, technique)."""


@dataclass
class Estimates:
    """Sub-epoch times by model, worker and technique. One owner, not thread-safe.

    Attributes:
        observations: number of observed sub-epochs.
    """

    observations: int = 0
    surprises: int = 0
    """Sub-epochs with an error above two standard deviations."""
    _pairs: dict[_Subject, dict[str, _Mean]] = field(default_factory=dict)
    _subjects: defaultdict[str, list[_Subject]] = field(default_factory=lambda: defaultdict(list))
    """Worker -> the (model, technique) pairs that ran there."""
    _costs: dict[_Subject, float] = field(default_factory=dict)
    _sub_epochs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Worker -> number of sub-epochs."""
    _seeds: dict[_Subject, tuple[str, float]] = field(default_factory=dict)
    """Worker of a trial, and the logarithm of its seconds per row."""
    _fixed: dict[_Subject, _Mean] = field(default_factory=dict)
    _fixed_seeds: dict[_Subject, float] = field(default_factory=dict)
    _fixed_expected: dict[_Subject, float] = field(default_factory=dict)
    _typical_fixed: float = 0.0
    _slowness: dict[str, float] = field(default_factory=dict)
    _expected: dict[_Subject, tuple[float, float]] = field(default_factory=dict)
    """Logarithm of seconds per row, and its weight in observations."""
    _expected_slowness: dict[str, float] = field(default_factory=dict)
    _expected_sub_epochs: dict[str, float] = field(default_factory=dict)
    _typical: float = 0.0
    _variance: float = _SIGMA**2
    _predicted: int = 0
    _sigma_expected: int = 0
    """Extra observations that the expected error counts as."""

    @property
    def sigma(self) -> float:
        """Recent standard deviation of the logarithm of measured over predicted time.

        This is the noise a plan must tolerate; both variation and missing knowledge contribute.
        """
        return math.sqrt(self._variance)

    @property
    def is_blind(self) -> bool:
        """True without any observation or expectation."""
        return not self.observations and not self._expected

    def knows(self, model: str, technique: str = "") -> bool:
        """True if the model ran here, in a trial or in earlier runs."""
        subject = (model, technique)
        return subject in self._pairs or subject in self._seeds or self._is_expected(subject)

    def _is_expected(self, subject: _Subject) -> bool:
        return self._expected.get(subject, (0.0, 0.0))[1] >= _EXPECTED_WEIGHT

    def expect(self, model: str, *, log_rate: float, fixed_s: float, sub_epochs: float) -> None:
        """Set a model's expected cost from earlier runs, on a worker of average speed.

        Args:
            log_rate: natural logarithm of seconds per row.
            sub_epochs: number of earlier sub-epochs of this same model; 0 if the values are from similar
            models.
        """
        subject = (model, "")
        self._expected[subject] = log_rate, _EXPECTED_WEIGHT if sub_epochs else _COST_PRIOR
        self._expected_sub_epochs[model] = sub_epochs
        self._fixed_expected[subject] = fixed_s
        self._fit_cost(subject)

    def expect_slowness(self, worker: str, slowness: float) -> None:
        """Set a worker's expected slowness from workers of its kind in earlier runs. Unit as in `slowness`."""
        self._expected_slowness[worker] = slowness
        if worker not in self._subjects:
            self._slowness[worker] = slowness

    def expect_sigma(self, sigma: float) -> None:
        """Set the expected error from earlier runs."""
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
        """Add the result of a trial on the worker.

        The trial measured the seconds for `rows`, and the fixed part. It weighs `_SEED_WEIGHT` observations;
        sub-epochs correct it. A later trial replaces it.
        """
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
        """Add an observed sub-epoch: `seconds` for its rows, `fixed_s` for everything else.

        Ignores sub-epochs without rows or time.
        """
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
        """Fit all factors. Makes several passes over all pairs, so call it rarely."""
        for _ in range(_SWEEPS):
            for worker, subjects in self._subjects.items():
                excess = sum(
                    self._pairs[subject][worker].value - self._costs[subject] for subject in subjects
                )
                excess += _SLOWNESS_PRIOR * self._expected_slowness.get(worker, 0.0)
                self._slowness[worker] = excess / (len(subjects) + _SLOWNESS_PRIOR)
            for subject in self._pairs | self._seeds | self._expected:
                self._fit_cost(subject)
            self._typical = sum(self._costs.values()) / max(1, len(self._costs))
        known = [self.fixed_s(model, technique) for model, technique in self._costs]
        self._typical_fixed = sum(known) / max(1, len(known))

    def _fit_cost(self, subject: _Subject) -> None:
        pairs = self._pairs.get(subject, {})
        cost_sum, slowness = 0.0, self._slowness
        for worker, mean in pairs.items():
            cost_sum += mean.value - slowness.get(worker, 0.0)
        typical, prior = self._expected.get(subject, (self._typical, _COST_PRIOR if self._costs else 0.0))
        count = len(pairs) + prior
        if subject in self._seeds:
            worker, log_rate = self._seeds[subject]
            # All sub-epochs on one worker count as one here; divide the trial's weight accordingly.
            weight = _SEED_WEIGHT * len(pairs) / sum(mean.count for mean in pairs.values()) if pairs else 1.0
            cost_sum += weight * (log_rate - slowness.get(worker, 0.0))
            count += weight
        self._costs[subject] = (cost_sum + prior * typical) / count

    def seconds(self, model: str, worker: str, *, rows: float, technique: str = "") -> float:
        """Estimate the seconds for `rows` in a sub-epoch, above 0. A new model has the typical cost."""
        cost, slowness = self._costs.get((model, technique), self._typical), self._slowness.get(worker, 0.0)
        seconds = math.exp(cost) * (max(rows, 1.0) * math.exp(slowness))
        mean = self._pairs.get((model, technique), {}).get(worker)
        return seconds if mean is None else seconds * _own_share(mean, cost, slowness)

    def shown(self, model: str, technique: str = "") -> tuple[float, float]:
        """Return a model's estimated log cost and its standard error, the input of `beliefs`."""
        subject = (model, technique)
        cost = self._costs.get(subject, self._typical)
        sub_epochs = sum(mean.count for mean in self._pairs.get(subject, {}).values())
        expected_sub_epochs = self._expected_sub_epochs.get(model, 0.0) if self._is_expected(subject) else 0.0
        if not sub_epochs and not expected_sub_epochs:
            return cost, math.inf
        weight = _EXPECTED_WEIGHT if expected_sub_epochs else 0.0
        squared_weights = sub_epochs + (weight**2 / expected_sub_epochs if expected_sub_epochs else 0.0)
        # The error itself is estimated from few samples: use the variance of Student's distribution.
        known = _SIGMA_PRIOR + self._predicted + self._sigma_expected
        sigma = self.sigma * math.sqrt(known / (known - 2))
        return cost, sigma * math.sqrt(squared_weights) / (sub_epochs + weight)

    def slowness(self, worker: str) -> tuple[float, int]:
        """Return the logarithm of a worker's slowness factor, and its number of sub-epochs."""
        return self._slowness.get(worker, 0.0), self._sub_epochs.get(worker, 0)

    def fixed_s(self, model: str, technique: str = "") -> float:
        """Estimate the fixed part of a sub-epoch in seconds. A new model has the typical one."""
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
        """Return `seconds` for each model (rows) on each worker (columns)."""
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
    """Return the factor by which a pair's own observations correct the product."""
    deviation = mean.value - cost - slowness
    return math.exp(deviation * mean.count / (mean.count + _TRUSTED))
