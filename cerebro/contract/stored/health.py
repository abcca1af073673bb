"""Health of workers' machines: checks, quarantine, slow labels and incidents, with their requests. Types only.

The rules are in `cerebro.state.worker_quarantine`, the store's methods in `kvs_api.store.health`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cerebro.contract.base import Contract, Name
from cerebro.contract.tasks.failures import text_of

CONTROLLER = "controller"
"""Author of the controller's own actions; every other author is a person."""

MAX_REASON = 500
Reason = Annotated[str, text_of(MAX_REASON), Field(min_length=1)]
"""Reason for people, of 1 to 500 characters."""

By = Annotated[str, text_of(100)]


class Probe(Contract):
    """One part of a node check.

    Attributes:
        name: name of the test, such as ``arithmetic``.
        problem: the fault found. A sound machine has no problem.
        seconds: duration; `None` if skipped because the machine lacks the hardware.
        note: further information.
        rate: arithmetic only: matrix multiplications per second, to compare workers.
    """

    name: str
    problem: str = ""
    seconds: float | None = None
    note: str = ""
    rate: float | None = None


class CheckResult(Contract):
    """Result of a worker's node check, which runs in a separate process.

    Attributes:
        problem: why the check itself failed, such as a timeout.
        device: device that computed, such as the name of a GPU.
    """

    incarnation: str
    probes: tuple[Probe, ...] = Field((), max_length=32)
    problem: Annotated[str, text_of(MAX_REASON)] = ""
    device: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """Faults in one line, or an empty text."""
        faults = [f"{probe.name}: {probe.problem}" for probe in self.probes if probe.problem]
        return "; ".join(filter(None, [self.problem, *faults]))

    @property
    def rate(self) -> float | None:
        """Smallest rate of its devices; `None` if not measured."""
        return min((probe.rate for probe in self.probes if probe.rate is not None), default=None)


class WorkerCheck(Contract):
    """The newest node check of a worker; times are seconds since the epoch.

    Attributes:
        reason, by: reason and author of the request.
        ended, result: `None` until it is reported.
    """

    requested: float
    reason: str
    by: str
    ended: float | None = None
    result: CheckResult | None = None


class Quarantine(Contract):
    """Quarantine of a worker, or its release. A release discards earlier evidence.

    Attributes:
        is_on: False after a release.
        by: `CONTROLLER`, or a person.
        time: seconds since the epoch.
        host: machine of the worker at that time.
    """

    is_on: bool = True
    reason: str
    by: str
    time: float
    host: str = ""


class Pace(Contract):
    """A worker whose sub-epochs take much longer than on other workers.

    Attributes:
        factor: duration relative to the median of the other workers.
        sub_epochs: number of the worker's sub-epochs compared.
        time: time of detection, in seconds since the epoch.
        host: machine of the worker at that time.
    """

    factor: float = Field(gt=0)
    sub_epochs: int = Field(ge=0)
    time: float
    host: str = ""


class WorkerHealth(Contract):
    """Health of a worker's machine.

    Attributes:
        pace: absent unless its sub-epochs are slow.
    """

    quarantine: Quarantine | None = None
    check: WorkerCheck | None = None
    pace: Pace | None = Field(None, exclude_if=lambda pace: pace is None)

    @property
    def is_quarantined(self) -> bool:
        """True if it is quarantined."""
        return self.quarantine is not None and self.quarantine.is_on

    @property
    def since(self) -> float:
        """Time of its last release; earlier evidence does not count. 0 without a release."""
        return self.quarantine.time if self.quarantine and not self.quarantine.is_on else 0.0


class Incident(Contract):
    """Something that happened to a worker's machine, for people; `time` in seconds since the epoch."""

    time: float
    worker: Name
    what: str
    evidence: str = ""
    action: str = ""
    by: str = ""


class HealthAnswer(Contract):
    """Workers with health records, and the newest incidents, oldest first."""

    workers: dict[Name, WorkerHealth] = Field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()

    def of(self, worker: str) -> WorkerHealth:
        """Return a worker's health."""
        return self.workers.get(worker) or WorkerHealth()

    def quarantined(self) -> set[str]:
        """Return the quarantined workers."""
        return {name for name, each in self.workers.items() if each.is_quarantined}


class QuarantineWorkerRequest(Contract):
    """Quarantine a worker. `term`: term of the controller's leadership; absent for a person."""

    reason: Reason
    by: By = ""
    term: int | None = None


class ReleaseRequest(Contract):
    """Release a worker from quarantine. `term`: as in `QuarantineWorkerRequest`."""

    by: By = ""
    term: int | None = None


class CheckRequest(Contract):
    """Request a check of a worker's machine. `term`: as in `QuarantineWorkerRequest`."""

    reason: Reason
    by: By = ""
    term: int | None = None


class PaceRequest(Contract):
    """Speed of a worker's sub-epochs, reported by the controller; see `Pace`.

    Attributes:
        is_slow: True if they take much longer than on other workers; False removes the label.
        factor: `None` if no other workers remain.
    """

    is_slow: bool
    factor: float | None = Field(None, gt=0)
    sub_epochs: int = Field(ge=0)
    term: int


class IncidentRequest(Contract):
    """The controller reports an incident for people, without a consequence.

    The store ignores a repetition of the newest incident of the same worker.
    """

    worker: Name
    what: Reason
    evidence: Annotated[str, text_of(MAX_REASON)] = ""
    action: Annotated[str, text_of(MAX_REASON)] = ""
    term: int
