"""Statistics of sub-epochs over all runs: rows, keys, and how rows merge.

The controller adds rows and estimates new runs from them (`controller.projections`); `kvs_api.store.history` stores at
most 10,000.

Hyperparameters and other parts of a key are hashed, so a reader of the history learns no values.
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

MAX_ROWS = 10_000
"""Maximum number of rows. The least recently updated rows are removed."""

FADES = 100
"""Maximum weight of a row, in sub-epochs. Newer ones weigh more, because machines and libraries change."""

_HEX = 16
"""Hexadecimal digits of a hash. Two of 10,000 rows collide with a probability of about 10^-11."""

Key = Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{_HEX}}}(-[0-9a-f]{{{_HEX}}}){{3}}$")]

_Logarithm = Annotated[float, Field(ge=-50, le=50)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SubEpochKey(NamedTuple):
    """Key of similar sub-epochs; each part is a hash."""

    code: str
    """Fingerprint of the spec."""
    dataset: str
    hyperparams: str
    device: str
    """Kind of the device, and the parallel plan."""

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
        """Return the key of a model's sub-epochs.

        Args:
            code: fingerprint of the spec, or hash of the code.
            device: kind of the worker's devices; `None` if unknown or mixed.
            parallel_plan: parallel plan; without one, a device used by one sub-epoch, as user code is
                written.
        """
        values = json.dumps(hyperparams, sort_keys=True, default=str)
        return cls(_hash(code), _hash(dataset), _hash(values), device_hash(device, parallel_plan))

    @classmethod
    def parse(cls, text: str) -> SubEpochKey:
        """Parse the text of `str`."""
        return cls(*text.split("-"))

    def __str__(self) -> str:
        return "-".join(self)


def device_hash(device: DeviceKind | None, parallel_plan: str = "") -> str:
    """Return the hash of a kind of devices and their use."""
    return _hash(f"{'' if device is None else f'{device.kind} {device.name}'}\n{parallel_plan}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


class SubEpochHistory(Contract):
    """Statistics of similar sub-epochs.

    Attributes:
        sub_epochs: weight, in sub-epochs; old ones fade.
        log_rate, variance: mean and variance of the natural logarithm of seconds per row.
        fixed_s: mean seconds that do not grow with the rows: loading and saving the model.
        peak_bytes: peak memory of a sub-epoch's process; 0 if unknown.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    sub_epochs: float = Field(gt=0, allow_inf_nan=False)
    log_rate: _Logarithm
    variance: _Seconds = 0.0
    fixed_s: _Seconds = 0.0
    peak_bytes: int = Field(0, ge=0)

    def with_more(self, newer: SubEpochHistory) -> SubEpochHistory:
        """Merge newer statistics into these. Call in order of time, because older ones fade."""
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
        """Return the statistics of one sub-epoch. Rows and seconds are above 0."""
        rate = min(50.0, max(-50.0, math.log(seconds / rows)))
        return cls(sub_epochs=1, log_rate=rate, fixed_s=max(0.0, fixed_s), peak_bytes=peak_bytes)


class History(LateContract):
    """All readable rows."""

    sub_epochs: dict[Key, SubEpochHistory] = Field(default_factory=dict)
    unreadable: int = 0
    """Number of damaged rows, which are skipped."""


class HistoryRequest(LateContract):
    """Statistics of a log's events, sent by the controller and counted once.

    Attributes:
        term: term of its leadership.
        experiment: experiment of the log.
        after, upto: number of the newest event counted before, and of the newest event in this request. The
            store counts the request only if it agrees with `after`.
        sub_epochs: statistics to add.
    """

    term: int
    experiment: Name
    after: int = Field(ge=0)
    upto: int = Field(ge=0)
    sub_epochs: dict[Key, SubEpochHistory] = Field(default_factory=dict, max_length=1000)


class HistoryAnswer(LateContract):
    """Answer to a `HistoryRequest`.

    Attributes:
        upto: number of the newest counted event of the log.
        is_counted: True if the request's rows are counted; False if `after` did not match.
    """

    upto: int
    is_counted: bool
