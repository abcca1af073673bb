"""Expected sub-epoch times of a fit run, estimated from earlier runs. Pure.

`RunHistory` builds the priors when a run starts; `SubEpochTimes` uses them until the run has results. This module
neither reads nor writes the history.

A model's prior is the mean of the first of these groups that has sub-epochs in the history:

1. sub-epochs with the same code, data set and hyperparameters, on the present kinds of devices;
2. the same on other devices, corrected for their slowness;
3. sub-epochs with the same code;
4. all sub-epochs on the present kinds of devices.

Models that trained on several kinds of devices give the slowness of one kind relative to another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from cerebro.contract.stored.history import SubEpochHistory, SubEpochKey, device_hash
from cerebro.contract.trials import DeviceKind
from cerebro.scheduling.estimates import Estimates


class Prior(NamedTuple):
    """Expected time of a model's sub-epochs.

    Attributes:
        log_rate: natural logarithm of seconds per row, on an average worker.
        fixed_s: seconds that do not depend on the rows.
        sub_epochs: number of sub-epochs with the model's hyperparameters; 0 if the prior describes other models.
    """

    log_rate: float
    fixed_s: float
    sub_epochs: float


class Priors:
    """Priors of one run; false without any.

    Args:
        rows: the history, by key.
        code: fingerprint of the run's spec.
        dataset: the run's data set.
        devices: the workers' devices.

    Attributes:
        sigma: standard deviation of the log times of one model's sub-epochs; `None` if unknown.
    """

    def __init__(
        self,
        rows: Mapping[str, SubEpochHistory],
        *,
        code: str,
        dataset: str,
        devices: Collection[DeviceKind | None],
    ) -> None:
        known = [(SubEpochKey.parse(text), row) for text, row in rows.items()]
        here = {device_hash(device) for device in devices}
        self._code, self._dataset = code, dataset
        this = SubEpochKey.of(code=code, dataset=dataset, hyperparams={}, device=None)
        self._paces = _paces(known, here)
        on_present: dict[str, list[tuple[SubEpochKey, SubEpochHistory]]] = {}
        on_absent: dict[str, list[tuple[SubEpochKey, SubEpochHistory]]] = {}
        for key, row in known:
            if key[:2] == this[:2]:
                rows_of = on_present if key.device in here else on_absent
                rows_of.setdefault(key.hyperparams, []).append((key, row))
        rows_of = on_absent | on_present
        self._by_hyperparams = {
            name: _mean(each, self._paces, sum(row.sub_epochs for _, row in each))
            for name, each in rows_of.items()
        }
        alike = [each for each in known if each[0].code == this.code]
        alike = alike or [each for each in known if each[0].device in here]
        self._typical = _mean(alike, self._paces, 0.0) if alike else None
        self.sigma = _sigma(row for each in rows_of.values() for _, row in each)

    def __bool__(self) -> bool:
        return self._typical is not None

    def of(self, hyperparams: Mapping[str, Any]) -> Prior | None:
        """Return the prior of a model, or `None` without a similar sub-epoch."""
        key = SubEpochKey.of(code=self._code, dataset=self._dataset, hyperparams=hyperparams, device=None)
        return self._by_hyperparams.get(key.hyperparams, self._typical)

    def slowness(self, device: DeviceKind | None) -> float:
        """Return the log slowness of a kind of device relative to the present ones; 0 if unknown."""
        return self._paces.get(device_hash(device), 0.0)


def _mean(
    rows: Collection[tuple[SubEpochKey, SubEpochHistory]], paces: Mapping[str, float], sub_epochs: float
) -> Prior:
    rates = [row.log_rate - paces.get(key.device, 0.0) for key, row in rows]
    fixed = [row.fixed_s for _, row in rows]
    return Prior(sum(rates) / len(rates), sum(fixed) / len(fixed), sub_epochs)


def _paces(known: Collection[tuple[SubEpochKey, SubEpochHistory]], here: Collection[str]) -> dict[str, float]:
    """Return the slowness of device kinds, relative to the mean of the present ones."""
    found = Estimates()
    for key, row in known:
        found.observe("-".join(key[:3]), key.device, rows=1, seconds=math.exp(row.log_rate))
    found.settle()
    kinds = {key.device for key, _ in known}
    slowness = {kind: found.slowness(kind)[0] for kind in kinds}
    there = [slowness[kind] for kind in kinds & set(here)]
    typical = sum(there) / len(there) if there else 0.0
    return {kind: each - typical for kind, each in slowness.items()}


def _sigma(rows: Iterable[SubEpochHistory]) -> float | None:
    some = [(row.sub_epochs, row.variance) for row in rows if row.sub_epochs >= 2]
    sub_epochs = sum(count for count, _ in some)
    return math.sqrt(sum(count * variance for count, variance in some) / sub_epochs) if some else None
