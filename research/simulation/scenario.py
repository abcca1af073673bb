"""The input of a simulation: workers, their speed and their failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cerebro.contract.events import RunStarted
from cerebro.contract.priority import NORMAL
from cerebro.contract.runs import EvaluateRequest, FitRequest
from cerebro.contract.stored.history import SubEpochHistory
from cerebro.contract.tasks import Curve, Failure, TaskBody, TrainTask, TrialTask
from cerebro.contract.trials import Inspection, TrialOutcome
from cerebro.search.procedure import Procedure
from controller.scaling.autoscaler.rest import RestRules
from controller.sources.search import EVERYWHERE

EXPERIMENT = "simulated"
DATASET = "simulated"

SubEpochTime = Callable[[TaskBody, str], float]
"""(task, worker) -> seconds."""
Outcome = Callable[[TaskBody, int, str], Failure | None]
"""(task, attempt, worker) -> failure of the attempt, or `None`."""


@dataclass(frozen=True, kw_only=True)
class WorkerOutage:
    """A worker's process is away from `start` for `length` seconds and returns with its partitions."""

    worker: str
    start: float
    length: float


@dataclass(frozen=True, kw_only=True)
class Preemption(WorkerOutage):
    """An outage with notice: the worker releases its tasks, then ends. For pods only."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A run that starts at some time, of another experiment or of the same one."""

    name: str
    """Name of the experiment."""
    request: FitRequest | EvaluateRequest
    plan: RunStarted
    at: float = 0.0
    priority: int = NORMAL


@dataclass(kw_only=True)
class Scenario:
    """The input of a simulation.

    Attributes:
        replicas: worker -> partitions it holds, or has to build in an ETL run.
        sub_epoch_time: function that gives a task's seconds.
        fixed_s: seconds of a sub-epoch that do not depend on its rows, as its worker reports; `None` for no report.
        outcome: function that gives an attempt's failure.
        check: function that gives the fault a worker finds in its machine.
        curve: function that gives the reported curve of a sub-epoch from its seconds.
        outages: temporary losses of workers.
        joins: worker -> time of its first registration, if later than the start.
        removals: worker -> time of its permanent loss, with its disk.
        devices: worker -> number of devices; 1 by default.
        device_kind: kind of all devices.
        memory, device_memory: worker -> bytes of the worker, or of each of its devices; unknown by default.
        most_memory: bytes that `memory` may be raised to; 0 for no increase.
        unresized: workers that get no more memory although the request was granted.
        has_pods: True if each worker is a pod with two containers, one for training and ``NAME-etl``, on one volume. An
            ETL run builds the partitions, and a cluster manager reports the pods. Otherwise a worker is a process that
            has its partitions, does no ETL, and is lost by silence.
        rest: settings of scale to zero, for times without an open run.
        join_s: function of a pod's name that gives the seconds until a requested pod is ready.
        lease_s: seconds of silence after which a worker is lost.
        crash_before: numbers of the controller's writes before which it dies and is rebuilt from the log.
        keeps_every: number of events between two snapshots, each of which cuts the log; these are writes too. 0 for no
            snapshots.
    """

    replicas: Mapping[str, Sequence[int]]
    sub_epoch_time: SubEpochTime = lambda body, worker: 1.0
    fixed_s: SubEpochTime | None = None
    outcome: Outcome = lambda body, attempt, worker: None
    check: Callable[[str], str] = lambda worker: ""
    curve: Callable[[TrainTask, float], Curve | None] = lambda body, seconds: None
    state_of: Callable[[TaskBody, int, str], str] = lambda body, attempt, worker: "-"
    """(task, attempt, worker) -> text of the trained state; equal texts mean equal bits."""
    metrics: Callable[[TaskBody], Mapping[str, float]] = lambda body: {"loss": 1.0}
    """Metrics that a sub-epoch or a validation returns."""
    peak_bytes: Callable[[TaskBody], int] = lambda body: 0
    """Peak memory of a task in bytes; 0 if unknown."""
    outages: Sequence[WorkerOutage] = ()
    joins: Mapping[str, float] = field(default_factory=dict)
    removals: Mapping[str, float] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """Workers that join only when the cluster grows (`Simulation.resize`)."""
    devices: Mapping[str, int] = field(default_factory=dict)
    device_kind: Literal["gpu", "cpu"] = "gpu"
    memory: Mapping[str, int] = field(default_factory=dict)
    device_memory: Mapping[str, int] = field(default_factory=dict)
    most_memory: int = 0
    unresized: frozenset[str] = frozenset()
    has_pods: bool = False
    saves: bool = False
    """True if sub-epochs have savepoints, in batches of one row, at notice and on request."""
    saves_every_s: float = 0.0
    """Seconds between two savepoints of a running sub-epoch, if `saves` is set; 0 for none by time."""
    deaf: frozenset[str] = frozenset()
    """Workers whose sub-epochs reach no batch, so they release nothing on request."""
    inspection: Inspection | None = None
    """Result of an inspection; `None` if no worker inspects, and so none runs trials."""
    is_apart: bool = False
    """True if workers cannot train in gangs."""
    trial: Callable[[TrialTask], TrialOutcome] = lambda body: TrialOutcome(batch_s=1.0, is_verified=True)
    """Result of a trial."""
    procedure: Callable[[], Procedure] | None = None
    """Factory of a search's own procedure on the requested worker; `None` if no worker runs one."""
    search_s: float = 0.5
    """Seconds until a worker answers a search request."""
    drawable: frozenset[str] = EVERYWHERE
    """Kinds of samplers that the controller can run; workers run the others."""
    rest: RestRules = field(default_factory=RestRules)
    join_s: Callable[[str], float] = lambda pod: 0.0
    history: Mapping[str, SubEpochHistory] | None = None
    """History of earlier runs (`research.simulation.history`); `None` for runs without a history."""
    lease_s: float = 10.0
    crash_before: frozenset[int] = frozenset()
    keeps_every: int = 0
