"""What sub-epochs have shown over all runs: rows that the store keeps, as many as it may have.

Hyper-parameters are known by a hash alone, so is all else that a key is made of: who reads the history learns no value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.base import Contract, LateContract, Name
from cerebro.contract.trials import DeviceKind

MOST_ROWS = 10_000
"""Beyond that the ones go whose newest observation is the oldest."""

FADES = 100
"""Sub-epochs that a row counts for at the most: what is newer weighs more, because machines and libraries change."""

_HEX = 16
"""Digits that are kept of a hash: of 10,000 rows two are alike once in 10^11 times."""

Key = Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{_HEX}}}(-[0-9a-f]{{{_HEX}}}){{3}}$")]

_Logarithm = Annotated[float, Field(ge=-50, le=50)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SubEpochKey(NamedTuple):
    """What sub-epochs are alike by; each part is a hash."""

    code: str
    """Fingerprint of the spec."""
    dataset: str
    hyperparams: str
    device: str
    """Kind of the device that they run on, and how they use it."""

    @classmethod
    def of(
        cls,
        *,
        code: str,
        dataset: str,
        hyperparams: Mapping[str, Any],
        device: DeviceKind | None,
        parallel_plan: str = "",
    ) -> SubEpochKey:
        """The key of a model's sub-epochs.

        Args:
            code: fingerprint of the spec, or hash of the code.
            device: of the worker; `None`: not known, or not alike.
            way: how it was used; empty: one, by nobody else, with user code as it is written.
        """
        values = json.dumps(hyperparams, sort_keys=True, default=str)
        return cls(_hash(code), _hash(dataset), _hash(values), device_hash(device, parallel_plan))

    @classmethod
    def parse(cls, text: str) -> SubEpochKey:
        """The reverse of `str`."""
        return cls(*text.split("-"))

    def __str__(self) -> str:
        return "-".join(self)


def device_hash(device: DeviceKind | None, parallel_plan: str = "") -> str:
    """What is kept of a kind of devices, and of how they are used."""
    return _hash(f"{'' if device is None else f'{device.kind} {device.name}'}\n{parallel_plan}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


class SubEpochHistory(Contract):
    """What sub-epochs of one kind have shown.

    Attributes:
        sub-epochs: that it counts for; old ones fade.
        log_rate, variance: mean and variance of the natural logarithm of seconds per row.
        fixed_s: mean seconds of what does not grow with the rows: loading and saving the model.
        peak_bytes: most memory that the process of one had at once; 0: not known.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    sub_epochs: float = Field(gt=0, allow_inf_nan=False)
    log_rate: _Logarithm
    variance: _Seconds = 0.0
    fixed_s: _Seconds = 0.0
    peak_bytes: int = Field(0, ge=0)

    def with_more(self, newer: SubEpochHistory) -> SubEpochHistory:
        """Both together. In the order in which they came: the older ones fade."""
        sub_epochs = min(self.sub_epochs, FADES)
        total, difference = sub_epochs + newer.sub_epochs, newer.log_rate - self.log_rate
        share = newer.sub_epochs / total
        spread = sub_epochs * self.variance + newer.sub_epochs * newer.variance
        return SubEpochHistory(
            sub_epochs=total,
            log_rate=self.log_rate + share * difference,
            variance=spread / total + share * (1 - share) * difference * difference,
            fixed_s=self.fixed_s + share * (newer.fixed_s - self.fixed_s),
            peak_bytes=max(self.peak_bytes, newer.peak_bytes),
        )

    @classmethod
    def of(cls, *, rows: float, seconds: float, fixed_s: float, peak_bytes: int) -> SubEpochHistory:
        """What one sub-epoch has shown; rows and seconds above 0."""
        rate = min(50.0, max(-50.0, math.log(seconds / rows)))
        return cls(sub_epochs=1, log_rate=rate, fixed_s=max(0.0, fixed_s), peak_bytes=peak_bytes)


class History(LateContract):
    """All rows that can be read."""

    sub_epochs: dict[Key, SubEpochHistory] = Field(default_factory=dict)
    unreadable: int = 0
    """Number of damaged rows, which are left out."""


class HistoryRequest(LateContract):
    """The controller's: what events of a log have shown, to be counted once.

    Attributes:
        term: of its leadership.
        experiment: whose log.
        after, upto: numbers of the newest event that was counted before, and of the newest that is in it. Counted only
            if the store agrees with `after`.
        sub-epochs: to be put to what is there.
    """

    term: int
    experiment: Name
    after: int = Field(ge=0)
    upto: int = Field(ge=0)
    sub_epochs: dict[Key, SubEpochHistory] = Field(default_factory=dict, max_length=1000)


class HistoryAnswer(LateContract):
    """What came of it.

    Attributes:
        upto: number of the newest event of that log that is counted.
        is_counted: whether the request's rows are in it; else they were made after another event than `upto`.
    """

    upto: int
    is_counted: bool
