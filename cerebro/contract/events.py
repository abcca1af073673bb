"""Events: what happened, in order. The logs of them are the single truth; all state is a fold over them.

There are two kinds of log. An experiment's tells what happened to its runs and tasks, the cluster's which workers came
and went and what they hold. Who reads an experiment's log is given both, in the order in which they were written
(`kvs_api.cluster_log`).

Names are past tense. Who writes: clients request, steer and ask to stop, each with the name of who did it; the
controller plans, assigns, revokes and ends, and tells of workers; workers start, commit and fail, each under a lease.
`seq` is dense from 1 in what a reader is given. It is given by the store in the same atomic step as the change of state
that the event tells of; `time` is when that was, by the clock of the store's machine, for people. In what a reader is
given it never goes back. Nothing that ends by time ends by it: leases count by a clock that nobody can set
(`kvs_api.clock`).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from cerebro.contract.base import Contract, Devices, Name
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.priority import NORMAL, Priority
from cerebro.contract.records import Hyperparameters, Locators, Replica
from cerebro.contract.runs import ForecastEnd, NewModel, Plan, PlannedSubEpoch, Project, Request, TakenSpan
from cerebro.contract.search import OwnProcedure
from cerebro.contract.tasks import Failure, FailureKind, Member, Savepoint, TaskResult
from cerebro.contract.trials import DeviceKind, TrialOutcome


class _Event(Contract):
    seq: int = 0
    time: float = 0.0


class RunRequested(_Event):
    """A client asked for a run; `run` is its id."""

    type: Literal["RunRequested"] = "RunRequested"
    run: Name
    request: Request
    author: str = ""
    priority: Priority = NORMAL
    project: Project = ""
    """Runs of one project share the cluster as one."""


class RunStarted(_Event):
    """The controller planned the run."""

    type: Literal["RunStarted"] = "RunStarted"
    run: Name
    plan: Plan


class RunPaused(_Event):
    """Nothing new is assigned until `RunResumed`. With `needs_bytes` > 0 the controller resumes the run once the
    checkpoint volume has so much free space; with `volume`, after a pause that grows."""

    type: Literal["RunPaused"] = "RunPaused"
    run: Name
    reason: str
    needs_bytes: int = 0
    volume: str = Field("", exclude_if=lambda path: not path)
    """Path on the volume that is full or cannot be used, if that is the reason."""


class RunResumed(_Event):
    """Assigning goes on: of a run that was paused, or of one that a user had stopped, which is open again then."""

    type: Literal["RunResumed"] = "RunResumed"
    run: Name
    by: str = "controller"
    beside: bool = False
    """True to reopen an ended run while other runs are open, if no obstacle exists."""
    procedure: OwnProcedure | None = Field(None, exclude_if=lambda value: value is None)
    """New code of the search's own procedure. `None`: it keeps its code."""


class RunStopRequested(_Event):
    """A user wants the run to end; committed work stays."""

    type: Literal["RunStopRequested"] = "RunStopRequested"
    run: Name
    by: str = ""


class ModelStopRequested(_Event):
    """A user wants a model to train no further; what it has committed stays. Its sub-epoch that runs is taken back."""

    type: Literal["ModelStopRequested"] = "ModelStopRequested"
    run: Name
    model: str
    by: str = ""


class ModelResumed(_Event):
    """A user wants a stopped model to go on where it was. A run that has ended is open again, for this model."""

    type: Literal["ModelResumed"] = "ModelResumed"
    run: Name
    model: str
    by: str = ""
    beside: bool = False
    """As in `RunResumed`."""


class ModelRetried(_Event):
    """A user wants a model that failed to go on from its last checkpoint, its attempts counted anew. A run that has
    ended is open again, for this model."""

    type: Literal["ModelRetried"] = "ModelRetried"
    run: Name
    model: str
    by: str = ""
    beside: bool = False
    """As in `RunResumed`."""


class SchedulerChanged(_Event):
    """A user wants the sub-epochs that are left dispatched by another policy."""

    type: Literal["SchedulerChanged"] = "SchedulerChanged"
    run: Name
    scheduler: str
    planner: bool = True
    """Whether a planner may find a better order, as in `FitRequest`."""
    by: str = ""


class PriorityChanged(_Event):
    """A user wants a run to have more, or less, of the cluster beside other open runs from now on; or sub-epochs of a
    model to go before, or after, those of other models of its run."""

    type: Literal["PriorityChanged"] = "PriorityChanged"
    run: Name
    model: str = Field("", exclude_if=lambda model: not model)
    """Empty: of the run."""
    priority: Priority
    by: str = ""


class ModelsAdded(_Event):
    """A user wants a run to train more models. A run that has ended is open again, for these."""

    type: Literal["ModelsAdded"] = "ModelsAdded"
    run: Name
    models: tuple[NewModel, ...] = Field(min_length=1)
    by: str = ""
    beside: bool = False
    """As in `RunResumed`."""


class ModelExtended(_Event):
    """A user changes for how many epochs a model is trained in all; not fewer than it has begun. A run that has ended
    is open again, for this model."""

    type: Literal["ModelExtended"] = "ModelExtended"
    run: Name
    model: str
    epochs: int = Field(ge=1)
    by: str = ""
    beside: bool = False
    """As in `RunResumed`."""


class ModelChanged(_Event):
    """A user changes hyper-parameters of a model, from its next sub-epoch that has not started."""

    type: Literal["ModelChanged"] = "ModelChanged"
    run: Name
    model: str
    hyperparams: Hyperparameters
    """Those that change, with their new values."""
    by: str = ""


class SearchStopRequested(_Event):
    """A user wants a search to add no more models and extend none; what has a grant goes on."""

    type: Literal["SearchStopRequested"] = "SearchStopRequested"
    run: Name
    by: str = ""


class ExperimentArchived(_Event):
    """A user takes the experiment out of the list that is shown at first, or puts it back. Nothing else changes."""

    type: Literal["ExperimentArchived"] = "ExperimentArchived"
    is_archived: bool
    by: str = ""


class LocatorsChanged(_Event):
    """A user gave the experiment other dataset locators, because no data set could be made with those it had.

    Its record is replaced in the same step.
    """

    type: Literal["LocatorsChanged"] = "LocatorsChanged"
    locators: Locators
    after: int = Field(ge=0)
    """Number of the newest event that the user's client had read: it counts only if nothing has happened since."""
    by: str = ""


class DeletionRequested(_Event):
    """A user wants the experiment gone, with all that only it needs on the volumes. Nothing may be open, nothing may be
    requested after it; the log itself goes last."""

    type: Literal["DeletionRequested"] = "DeletionRequested"
    by: str = ""


class RunFinished(_Event):
    """A run has ended. It stays so unless a user resumes it, or one of its models."""

    type: Literal["RunFinished"] = "RunFinished"
    run: Name
    outcome: Literal["finished", "failed", "stopped"]
    error: str = ""


class EpochCompleted(_Event):
    """Every model that has not failed has trained `epoch`: how well its sub-epochs were scheduled.

    Epochs of different models overlap, there is no barrier; so makespan and bound are of all that had run by then,
    counted from the start of the run, and can be compared: the gap is ``makespan_s / lower_bound_s - 1``.
    """

    type: Literal["EpochCompleted"] = "EpochCompleted"
    run: Name
    epoch: int = Field(ge=1)
    makespan_s: float
    """From when the first sub-epoch's own work began to the last commit of a sub-epoch of an epoch up to this one."""
    lower_bound_s: float
    """The larger of the longest model's and the busiest worker's training time until then, as sub-epochs took in truth;
    the worker's shared by its devices."""
    idle_s: dict[Name, float]
    """Worker -> device-seconds without a task since the end of the epoch before."""
    start_s: float = 0.0
    """Seconds of all devices since the report before, in which tasks waited for a process to start and to import: in
    none of the other numbers, but where a process started while other workers trained."""


class SchedulePlanned(_Event):
    """A planner found an order of the sub-epochs that is better than dispatch: it is followed from now on.

    Workers and models take their sub-epochs in this order as far as it still applies; what it does not name is
    dispatched. An empty `order` ends the plan before it: from now on everything is dispatched again, by the ways that
    are named.
    """

    type: Literal["SchedulePlanned"] = "SchedulePlanned"
    run: Name
    source: str
    """What found it, such as ``planner/cyclic`` or ``cp-sat``."""
    order: tuple[PlannedSubEpoch, ...]
    """In the order of their planned starts, which is each worker's order and each model's."""
    makespan_s: float
    """Of what is left to run, simulated at the measured noise of sub-epoch times."""
    dispatch_s: float
    """The same for dispatch, which it replaces."""
    lower_bound_s: float
    seconds: float
    """Time spent looking."""
    parallel_plans: dict[Name, dict[Name, ParallelPlan]] = Field(
        default_factory=dict, exclude_if=lambda parallel_plans: not parallel_plans
    )
    """Model -> worker -> the way by which its sub-epochs run there from now on, and so on how many devices. What is not
    named is chosen as without a plan; a way that is ruled out later is not used."""


class ForecastMade(_Event):
    """What is left of a fit was simulated: when it will end, and when with more or fewer workers."""

    type: Literal["ForecastMade"] = "ForecastMade"
    run: Name
    workers: int = Field(ge=1)
    """That train now."""
    ends: tuple[ForecastEnd, ...]
    """By the number of workers, ascending; that of `workers` is among them."""
    advised: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Workers that would be better, by the run's goal. Absent: as many as there are."""
    allowed: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Most that it may have; set where its goal cannot be kept with them."""
    asked_for: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Workers that the controller has asked the cluster manager for because of it. Absent: it only advises."""

    @model_validator(mode="after")
    def _has_an_end(self) -> ForecastMade:
        if self.workers not in {each.workers for each in self.ends}:
            raise ValueError("a forecast says when the run ends with the workers that are there")
        return self

    @property
    def end(self) -> ForecastEnd:
        """With the workers that are there."""
        return next(each for each in self.ends if each.workers == self.workers)


class DevicesTaken(_Event):
    """Other runs had devices on which this one could have trained: it was as if they were not there.

    Spans of one device do not overlap, neither each other nor the run's own attempts.
    """

    type: Literal["DevicesTaken"] = "DevicesTaken"
    run: Name
    until: float
    """All such time before is told by now."""
    spans: tuple[TakenSpan, ...]


class ParallelPlansRuledOut(_Event):
    """A model cannot be trained by these ways, whatever attempts would show: where its data are, no worker has the
    devices for one of them."""

    type: Literal["ParallelPlansRuledOut"] = "ParallelPlansRuledOut"
    run: Name
    model: str
    parallel_plans: tuple[ParallelPlan, ...] = Field(min_length=1)
    reason: str


class TrialsRecalled(_Event):
    """Outcomes of earlier runs' trials that hold for this run, too: their trials need not be done. Told once, after the
    run's models were inspected; there may be none."""

    type: Literal["TrialsRecalled"] = "TrialsRecalled"
    run: Name
    outcomes: dict[str, TrialOutcome] = Field(default_factory=dict)
    """``GROUP/PARALLEL_PLAN``, as in the key of the trial's task -> outcome."""


class Extension(NamedTuple):
    """A larger grant."""

    model: str
    epochs: int
    priority: Priority


class SearchDecided(_Event):
    """The search answered a report. Made again from the log alone, its orders are the same; if they are not, its code
    has changed."""

    type: Literal["SearchDecided"] = "SearchDecided"
    run: Name
    number: int = Field(ge=0)
    """Of the decision, from 0."""
    report: int = Field(ge=-1)
    """Number of the report that it answers; -1: the beginning."""
    draw: int = Field(0, exclude_if=lambda value: not value)
    """So many values are to be drawn."""
    add: tuple[NewModel, ...] = Field((), exclude_if=lambda value: not value)
    extend: tuple[Extension, ...] = Field((), exclude_if=lambda value: not value)
    stop: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Model -> why it is trained no further."""
    finish: str | None = Field(None, exclude_if=lambda value: value is None)
    """Nothing more will be ordered, and why."""


class ValuesDrawn(_Event):
    """The sampler's answer to draws that the search asked for. It is not made again: floating point differs between
    machines and versions of libraries."""

    type: Literal["ValuesDrawn"] = "ValuesDrawn"
    run: Name
    first: int = Field(ge=0)
    """Number of the first of them; they ascend from 0."""
    values: tuple[Hyperparameters, ...] = Field(min_length=1)


class CheckpointsPruned(_Event):
    """The controller removes these: nothing goes on from them, and better models keep theirs. It is told before the
    first file goes; from then on nobody may count on one of them, but for what was asked for before it."""

    type: Literal["CheckpointsPruned"] = "CheckpointsPruned"
    run: Name
    files: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Model -> names of checkpoints. Of one with another one's weights that never was trained itself, the one that it
    began with, which stays while others need it."""


class WorkerJoined(_Event):
    """A worker (or its next incarnation) can be given tasks; `replicas` replaces what was known of it."""

    type: Literal["WorkerJoined"] = "WorkerJoined"
    worker: Name
    incarnation: str
    weight: float
    kinds: tuple[str, ...]
    replicas: tuple[Replica, ...] = ()
    volume: Name | None = None
    """The shard volume, where workers share one, as in `WorkerRecord`."""
    devices: int = Field(default=1, ge=1)
    """So many devices, numbered from 0."""
    device: DeviceKind | None = Field(None, exclude_if=lambda value: value is None)
    """Kind of the devices. `None`: they are not alike."""


class WorkerLost(_Event):
    """A worker is gone, is about to go, or a new incarnation replaced it: it is given nothing more. Each experiment
    takes its tasks back, but for one that a worker which is about to go still runs."""

    type: Literal["WorkerLost"] = "WorkerLost"
    worker: Name
    incarnation: str
    reason: str


class WorkerRemoved(_Event):
    """A worker is gone for good: what only its volume held is held by nobody. It may join again, as a new one."""

    type: Literal["WorkerRemoved"] = "WorkerRemoved"
    worker: Name
    reason: str


class ReplicasChanged(_Event):
    """A shard volume holds other partitions than was known."""

    type: Literal["ReplicasChanged"] = "ReplicasChanged"
    volume: Name
    """Where workers do not share one, it has the worker's name."""
    gained: tuple[Replica, ...] = ()
    lost: tuple[Replica, ...] = ()


class TaskAssigned(_Event):
    """`attempt` of `task` is in the inbox of `worker`; nothing runs yet."""

    type: Literal["TaskAssigned"] = "TaskAssigned"
    task: str
    attempt: int
    worker: Name
    devices: Devices = (0,)
    """Of the worker, that it takes; none for a task of ETL. (Older versions had it take the worker's only one.)"""
    parallel_plan: ParallelPlan | None = Field(None, exclude_if=lambda parallel_plan: parallel_plan is None)
    """How it uses them. Absent where it runs on one as user code is written."""
    others: tuple[Member, ...] = Field((), exclude_if=lambda others: not others)
    """Of a sub-epoch on a set of partitions: the other workers of its gang, by ascending partition; `worker` leads, and
    reads the first."""
    terms: int = Field(0, ge=0, exclude_if=lambda value: not value)
    """Of a sub-epoch: which of its model's hyper-parameters and epochs it was given, of all that there were, from 0. A
    user may change them while the sub-epoch is on its way, so the order of the log does not tell."""


class TaskStarted(_Event):
    """`worker` holds the lease and runs the attempt."""

    type: Literal["TaskStarted"] = "TaskStarted"
    task: str
    attempt: int
    worker: Name


class TaskCommitted(_Event):
    """The attempt's result is durable and accepted: exactly one commit counts for a task."""

    type: Literal["TaskCommitted"] = "TaskCommitted"
    task: str
    attempt: int
    worker: Name
    result: TaskResult


class TaskFailed(_Event):
    """The attempt ended without a result."""

    type: Literal["TaskFailed"] = "TaskFailed"
    task: str
    attempt: int
    worker: Name
    failure: Failure


class TaskRevoked(_Event):
    """The controller took the attempt back; a late commit of it is refused."""

    type: Literal["TaskRevoked"] = "TaskRevoked"
    task: str
    attempt: int
    worker: Name
    reason: str
    loss: FailureKind | None = None
    """How the worker was lost, if it was, as in `Revoke`."""
    limit_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Of `OUT_OF_MEMORY`: how much memory the worker had for itself. 0: not known; absent then, as of all else."""


class TaskGivenUp(_Event):
    """The controller gives a task up between two attempts: no worker has the memory that it needs. It has no effect if
    the task is not the one that was looked at: another attempt, or none, was the newest by then."""

    type: Literal["TaskGivenUp"] = "TaskGivenUp"
    task: str
    attempt: int
    """The newest, which has ended."""
    reason: str
    """For people: what it needs, the most that there is, and what to raise."""


class TaskAsked(_Event):
    """The controller has asked the worker to give the running attempt back at its next batch. It may still be
    committed; if it is not given back in time, it is revoked."""

    type: Literal["TaskAsked"] = "TaskAsked"
    task: str
    attempt: int
    worker: Name
    reason: str


class SubEpochSaved(_Event):
    """The running attempt has a savepoint: should it come to nothing, another one goes on from there."""

    type: Literal["SubEpochSaved"] = "SubEpochSaved"
    task: str
    attempt: int
    worker: Name
    savepoint: Savepoint


Event = Annotated[
    RunRequested
    | RunStarted
    | RunPaused
    | RunResumed
    | RunStopRequested
    | ModelStopRequested
    | ModelResumed
    | ModelRetried
    | SchedulerChanged
    | PriorityChanged
    | ModelsAdded
    | ModelExtended
    | ModelChanged
    | SearchStopRequested
    | ExperimentArchived
    | LocatorsChanged
    | DeletionRequested
    | RunFinished
    | EpochCompleted
    | SchedulePlanned
    | ForecastMade
    | DevicesTaken
    | ParallelPlansRuledOut
    | TrialsRecalled
    | SearchDecided
    | ValuesDrawn
    | CheckpointsPruned
    | WorkerJoined
    | WorkerLost
    | WorkerRemoved
    | ReplicasChanged
    | TaskAssigned
    | TaskStarted
    | TaskCommitted
    | TaskFailed
    | TaskRevoked
    | TaskGivenUp
    | TaskAsked
    | SubEpochSaved,
    Field(discriminator="type"),
]

ControllerEvent = Annotated[
    RunStarted
    | RunPaused
    | RunResumed
    | RunFinished
    | EpochCompleted
    | SchedulePlanned
    | ForecastMade
    | DevicesTaken
    | ParallelPlansRuledOut
    | TrialsRecalled
    | SearchDecided
    | ValuesDrawn
    | CheckpointsPruned
    | ModelRetried
    | TaskGivenUp,
    Field(discriminator="type"),
]
"""Events that the controller writes into an experiment's log and that change no attempt. Of workers: those that the
cluster's log has never named, as versions before it wrote them. A retry is else a user's."""

ClusterEvent = Annotated[
    WorkerJoined | WorkerLost | WorkerRemoved | ReplicasChanged, Field(discriminator="type")
]
"""Events of the cluster's log, which only the controller writes."""

RunCommand = (
    RunStopRequested
    | RunResumed
    | ModelStopRequested
    | ModelResumed
    | ModelRetried
    | SchedulerChanged
    | PriorityChanged
    | ModelsAdded
    | ModelExtended
    | ModelChanged
    | SearchStopRequested
)
"""Commands of users on a run."""

ClientEvent = Annotated[
    RunRequested | RunCommand | ExperimentArchived | LocatorsChanged | DeletionRequested,
    Field(discriminator="type"),
]
"""Events that a client may append."""


# --- live values: not events, because losing one changes no decision ----------------------------


class LivePoint(Contract):
    """Progress of a running attempt, and values the user's code reported within it.

    Points of an attempt that was not committed are to be ignored once the task has another attempt.
    """

    seq: int = 0
    time: float = 0.0
    task: str
    attempt: int
    worker: Name = "unknown"
    rows: int = Field(ge=0)
    rows_failed: int = 0
    total_rows: int = 0
    batch: int = 0
    start_s: float = 0.0
    """Seconds of the attempt before its own work began, as in `Timings`."""
    values: dict[str, float] = Field(default_factory=dict)

    @field_validator("values")
    @classmethod
    def _few(cls, values: dict[str, float]) -> dict[str, float]:
        if len(values) > 100:
            raise ValueError("a live point carries at most 100 values")
        return values
