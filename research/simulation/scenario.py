"""What a simulation is of: workers, their speed, and everything that befalls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cerebro.contract.events import RunStarted
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
"""(task, attempt, worker) -> why the attempt fails, or `None`."""


@dataclass(frozen=True, kw_only=True)
class WorkerOutage:
    """A worker's process is gone from `start` for `length` seconds; it comes back with the partitions it had."""

    worker: str
    start: float
    length: float


@dataclass(frozen=True, kw_only=True)
class Preemption(WorkerOutage):
    """The same with notice: asked to end, it gives back what it has, and ends. In pods only."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A run that is requested at some time: of another experiment, or a further one of the same."""

    name: str
    """Of the experiment."""
    request: FitRequest | EvaluateRequest
    plan: RunStarted
    at: float = 0.0


@dataclass(kw_only=True)
class Scenario:
    """What is simulated.

    Attributes:
        replicas: worker -> partitions it holds, or is to make if there is ETL.
        sub_epoch_time: how long a task takes.
        fixed_s: of that, what a sub-epoch takes whatever its rows, as its worker tells; without, a worker tells no
            parts.
        outcome: which attempts fail.
        check: what a worker finds wrong with its machine.
        curve: what a sub-epoch that is to tell its curve has reported, given its seconds.
        outages: workers that go away for a while.
        joins: worker -> when it is there for the first time, if not from the beginning.
        removals: worker -> when it goes for good, with its disk.
        devices: worker -> how many it has; one if it is left out.
        device_kind: of all of them.
        memory, device_memory: worker -> bytes that it, or each of its devices, has for itself; not known if left out.
        most_memory: bytes that the former may be raised to; 0: it stays as it is.
        unresized: workers that get no more although that was granted.
        has_pods: each worker is a pod with two containers, one that trains and ``NAME-etl``, which share the pod's
            volume; the partitions are made by an ETL run before; a cluster manager tells of the pods. Otherwise a
            worker is a process that finds its partitions, does no ETL, and is lost by its silence.
        rest: whether pods are given back while no run is open.
        join_s: pod -> until it is there again, once it is wanted.
        lease_s: silence after which a worker is lost.
        crash_before: numbers of the controller's writes before which it dies and is rebuilt from the log.
        keeps_every: after so many events a snapshot is made, and what is in it is cut off the log: writes, too.
            0: never.
    """

    replicas: Mapping[str, Sequence[int]]
    sub_epoch_time: SubEpochTime = lambda body, worker: 1.0
    fixed_s: SubEpochTime | None = None
    outcome: Outcome = lambda body, attempt, worker: None
    check: Callable[[str], str] = lambda worker: ""
    """What a worker's check of its machine finds wrong; empty: nothing."""
    curve: Callable[[TrainTask, float], Curve | None] = lambda body, seconds: None
    state_of: Callable[[TaskBody, int, str], str] = lambda body, attempt, worker: "-"
    """(task, attempt, worker) -> what training leaves: texts that are equal where the states are, to the bit."""
    metrics: Callable[[TaskBody], Mapping[str, float]] = lambda body: {"loss": 1.0}
    """What the function of a sub-epoch or a validation returns."""
    peak_bytes: Callable[[TaskBody], int] = lambda body: 0
    """The most memory that a task was seen to take; 0: not known."""
    outages: Sequence[WorkerOutage] = ()
    joins: Mapping[str, float] = field(default_factory=dict)
    removals: Mapping[str, float] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """Workers that are not there until the cluster is made larger (`Simulation.resize`)."""
    devices: Mapping[str, int] = field(default_factory=dict)
    device_kind: Literal["gpu", "cpu"] = "gpu"
    memory: Mapping[str, int] = field(default_factory=dict)
    device_memory: Mapping[str, int] = field(default_factory=dict)
    most_memory: int = 0
    unresized: frozenset[str] = frozenset()
    has_pods: bool = False
    saves: bool = False
    """Whether sub-epochs have savepoints, in batches of one row: at notice, and when they are asked for."""
    saves_every_s: float = 0.0
    """Seconds between two savepoints of a running sub-epoch, where `saves` is set; 0: none by the clock."""
    deaf: frozenset[str] = frozenset()
    """Workers whose sub-epochs come to no batch: they give nothing back that they are asked for."""
    inspection: Inspection | None = None
    """What an inspection finds; `None`: no worker inspects, so none tries."""
    is_apart: bool = False
    """Whether workers train with no others."""
    trial: Callable[[TrialTask], TrialOutcome] = lambda body: TrialOutcome(batch_s=1.0, is_verified=True)
    """What a trial shows."""
    procedure: Callable[[], Procedure] | None = None
    """Makes a search's own procedure at the worker that is asked; `None`: no worker runs one."""
    search_s: float = 0.5
    """How long an answer takes."""
    drawable: frozenset[str] = EVERYWHERE
    """Kinds of samplers by which the controller has values drawn. Workers draw by others."""
    rest: RestRules = field(default_factory=RestRules)
    join_s: Callable[[str], float] = lambda pod: 0.0
    history: Mapping[str, SubEpochHistory] | None = None
    """What earlier runs have shown (`research.simulation.history`); `None`: runs ask nothing of it."""
    lease_s: float = 10.0
    crash_before: frozenset[int] = frozenset()
    keeps_every: int = 0
