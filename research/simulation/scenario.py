"""The input of a simulation: workers, their speed and their failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cerebro.contract.events import RunStarted
from cerebro.contract.priority import NORMAL
from cerebro.contract.runs import EvaluateRequest, FitRequest
from cerebro.contract.stored.history import SubEpochHistory
from cerebro.contract.tasks.bodies import TaskBody, TrainTask, TrialTask
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.results import Curve
from cerebro.contract.trials import Inspection, TrialOutcome
from cerebro.search.procedure import Procedure
from controller.scaling.autoscaler.scale_to_zero import ScaleToZeroRules
from controller.sources.search import ALL_SAMPLERS

EXPERIMENT = "simulated"
DATASET = "simulated"

SubEpochTime = Callable[[TaskBody, str], float]
"""(task, worker) -> seconds."""
Outcome = Callable[[TaskBody, int, str], Failure | None]
"""(task, attempt, worker) -> failure of the attempt, or `None`."""


@dataclass(frozen=True, kw_only=True)
class WorkerOutage:
    """A worker's process is absent for `length` seconds from `start`, and returns with its partitions."""

    worker: str
    start: float
    length: float


@dataclass(frozen=True, kw_only=True)
class Preemption(WorkerOutage):
    """An outage with notice: the worker releases its tasks, then ends. For pods only."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A further run, of the same or another experiment, that starts at the time `at`."""

    name: str
    """Name of the experiment."""
    request: FitRequest | EvaluateRequest
    plan: RunStarted
    at: float = 0.0
    priority: int = NORMAL


@dataclass(kw_only=True)
class Scenario:
    """The input of a simulation. Functions answer for each task, attempt or worker.

    Attributes:
        replicas: worker -> partitions on its volume, or to build in an ETL run.
        sub_epoch_time: returns the seconds of a task.
        fixed_s: returns the seconds of a sub-epoch that do not depend on its rows; `None`: workers do not report them.
        outcome: returns the failure of an attempt.
        check: returns the fault that a worker finds in its machine.
        curve: returns the reported curve of a sub-epoch from its seconds.
        outages: temporary losses of workers.
        joins: worker -> time of its first registration; default: the start.
        removals: worker -> time of its permanent loss, with its disk.
        devices: worker -> number of devices; default: 1.
        device_kind: kind of all devices.
        memory, device_memory: worker -> bytes of its memory, or of each of its devices; default: unknown.
        max_memory: maximum of `memory` after an increase; 0 for no increase.
        unresized: workers whose memory stays the same although an increase was granted.
        has_pods: True if each worker is a pod with two containers on one volume: one for training, and ``NAME-etl``. An
            ETL run builds the partitions, and a cluster manager reports the pods. Otherwise a worker is a process: it
            has its partitions, does no ETL, and is lost when it is silent.
        scale_to_zero: settings of scale to zero, for times without an open run.
        join_s: pod -> seconds from the request until the pod is ready.
        lease_s: maximum seconds of silence; then a worker is lost.
        crash_before: numbers of writes. The controller dies just before each, and is rebuilt from the log.
        keeps_every: number of events per snapshot; 0 for no snapshots. A snapshot cuts the log, and is a write too.
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
    """Returns the metrics of a sub-epoch or validation."""
    peak_bytes: Callable[[TaskBody], int] = lambda body: 0
    """Returns the peak memory of a task in bytes; 0 if unknown."""
    outages: Sequence[WorkerOutage] = ()
    joins: Mapping[str, float] = field(default_factory=dict)
    removals: Mapping[str, float] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """Workers that join only when the cluster grows (`Simulation.resize`)."""
    devices: Mapping[str, int] = field(default_factory=dict)
    device_kind: Literal["gpu", "cpu"] = "gpu"
    memory: Mapping[str, int] = field(default_factory=dict)
    device_memory: Mapping[str, int] = field(default_factory=dict)
    max_memory: int = 0
    unresized: frozenset[str] = frozenset()
    has_pods: bool = False
    saves: bool = False
    """True if sub-epochs write savepoints before a preemption and on request. A batch has one row."""
    saves_every_s: float = 0.0
    """Seconds between two regular savepoints of a sub-epoch, if `saves` is True; 0 for no regular ones."""
    deaf: frozenset[str] = frozenset()
    """Workers that ignore release requests, because their sub-epochs never reach the end of a batch."""
    inspection: Inspection | None = None
    """Result of an inspection; `None` if workers do not inspect models. Then they run no trials either."""
    is_apart: bool = False
    """True if workers cannot train in gangs."""
    trial: Callable[[TrialTask], TrialOutcome] = lambda body: TrialOutcome(batch_s=1.0, is_verified=True)
    """Returns the result of a trial."""
    procedure: Callable[[], Procedure] | None = None
    """Creates a user's search procedure on a worker; `None` if no worker runs procedures."""
    search_s: float = 0.5
    """Seconds until a worker answers a search request."""
    installed_samplers: frozenset[str] = ALL_SAMPLERS
    """Kinds of samplers that the controller runs itself; workers run the others."""
    scale_to_zero: ScaleToZeroRules = field(default_factory=ScaleToZeroRules)
    join_s: Callable[[str], float] = lambda pod: 0.0
    history: Mapping[str, SubEpochHistory] | None = None
    """History of earlier runs (`research.simulation.history`), if any."""
    lease_s: float = 10.0
    crash_before: frozenset[int] = frozenset()
    keeps_every: int = 0
