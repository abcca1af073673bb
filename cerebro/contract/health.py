"""Health of workers: what their machines were found to be, and which of them are given nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cerebro.contract.base import Contract, Name
from cerebro.contract.tasks import text_of

CONTROLLER = "controller"
"""Who acts by the rule; anybody else is a person."""

MAX_REASON = 500
Reason = Annotated[str, text_of(MAX_REASON), Field(min_length=1)]
"""For people."""

By = Annotated[str, text_of(100)]


class Probe(Contract):
    """One part of a node check.

    Attributes:
        name: what was looked at, such as ``arithmetic``.
        problem: what is wrong; empty: nothing.
        seconds: that it took; `None`: it was not made, because there is nothing to look at.
        told: what else there is to say.
        rate: of arithmetic: matrices that were multiplied in a second, by which workers are compared.
    """

    name: str
    problem: str = ""
    seconds: float | None = None
    told: str = ""
    rate: float | None = None


class CheckResult(Contract):
    """What a worker found of its machine, in a process of its own.

    Attributes:
        problem: why the check as a whole came to nothing, such as that it did not end; empty otherwise.
        device: what was computed with, such as the name of a GPU.
    """

    incarnation: str
    probes: tuple[Probe, ...] = Field((), max_length=32)
    problem: Annotated[str, text_of(MAX_REASON)] = ""
    device: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """What is wrong, in one line; empty: nothing."""
        told = [f"{probe.name}: {probe.problem}" for probe in self.probes if probe.problem]
        return "; ".join(filter(None, [self.problem, *told]))

    @property
    def rate(self) -> float | None:
        """The least of its devices'; `None`: it was not measured."""
        return min((probe.rate for probe in self.probes if probe.rate is not None), default=None)


class WorkerCheck(Contract):
    """The newest node check of a worker; times are seconds since the epoch.

    Attributes:
        reason, by: why and by whom it was asked for.
        ended, result: `None` while nothing was told.
    """

    asked: float
    reason: str
    by: str
    ended: float | None = None
    result: CheckResult | None = None


class Quarantine(Contract):
    """That a worker is given nothing; or that it was released, from when on what was seen of it counts anew.

    Attributes:
        is_on: false once it was released.
        by: `CONTROLLER`, or a person.
        time: seconds since the epoch.
        host: the machine that the worker ran on then.
    """

    is_on: bool = True
    reason: str
    by: str
    time: float
    host: str = ""


class Pace(Contract):
    """That a worker's sub-epochs take much longer than those of the others.

    Attributes:
        factor: times as long as on the median of the others.
        sub-epochs: of the worker, that have shown it.
        time: when it was found; seconds since the epoch.
        host: the machine that the worker ran on then.
    """

    factor: float = Field(gt=0)
    sub_epochs: int = Field(ge=0)
    time: float
    host: str = ""


class WorkerHealth(Contract):
    """What is known of a worker's machine.

    Attributes:
        pace: absent unless its sub-epochs are slow.
    """

    quarantine: Quarantine | None = None
    check: WorkerCheck | None = None
    pace: Pace | None = Field(None, exclude_if=lambda pace: pace is None)

    @property
    def is_quarantined(self) -> bool:
        """Whether it is given nothing."""
        return self.quarantine is not None and self.quarantine.is_on

    @property
    def since(self) -> float:
        """What was seen of it before counts no more: it was released then. 0: all of it counts."""
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
    """Workers of which something is known, and the newest incidents, oldest first."""

    workers: dict[Name, WorkerHealth] = Field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()

    def of(self, worker: str) -> WorkerHealth:
        """What is known of one."""
        return self.workers.get(worker) or WorkerHealth()

    def quarantined(self) -> set[str]:
        """Workers that are given nothing."""
        return {name for name, each in self.workers.items() if each.is_quarantined}


class QuarantineWorkerRequest(Contract):
    """Give a worker nothing more. `term`: of the controller's leadership, where it asks; a person has none."""

    reason: Reason
    by: By = ""
    term: int | None = None


class ReleaseRequest(Contract):
    """Give a worker tasks again. `term` as of `QuarantineWorkerRequest`."""

    by: By = ""
    term: int | None = None


class CheckRequest(Contract):
    """Have a worker check its machine. `term` as of `QuarantineWorkerRequest`."""

    reason: Reason
    by: By = ""
    term: int | None = None


class PaceRequest(Contract):
    """The controller's: how long a worker's sub-epochs take, as of `Pace`.

    Attributes:
        is_slow: whether that is much longer than the others' take; false takes the label off again.
        factor: `None`: there are no others any more.
    """

    is_slow: bool
    factor: float | None = Field(None, gt=0)
    sub_epochs: int = Field(ge=0)
    term: int


class IncidentRequest(Contract):
    """The controller's: something that people are to know, although nothing is done about it. Told once until another
    one of the same worker is."""

    worker: Name
    what: Reason
    evidence: Annotated[str, text_of(MAX_REASON)] = ""
    action: Annotated[str, text_of(MAX_REASON)] = ""
    term: int
