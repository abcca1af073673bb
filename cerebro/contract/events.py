"""Events of the logs. All state is a fold over them (`cerebro.state`); this module only defines their fields.

An experiment's log records its runs and tasks; the cluster log records workers and their replicas. A reader
of an experiment's log receives both, in the order of writing (`kvs_api.logs.cluster_log`).

Clients append requests, commands and stops, each with its author (`ClientEvent`). The controller appends plans,
decisions and ends of runs (`ControllerEvent`), assignments and revocations (`cerebro.contract.steps`), and workers
(`ClusterEvent`). Workers append starts, savepoints, commits and failures under a lease.

The store assigns `seq`, dense from 1 for each reader, in the atomic step that changes the state. `time` is
the time of that step by the clock of the store's machine, for people; it never decreases within a log. Leases
don't use it: they have a clock that cannot be set (`kvs_api.store.clock`).
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
from cerebro.contract.tags import MAX_TAGS, TagKey, TagValue
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import DeviceKind, TrialOutcome


class _Event(Contract):
    seq: int = 0
    time: float = 0.0


class RunRequested(_Event):
    """A client requested a run; `run` is its id."""

    type: Literal["RunRequested"] = "RunRequested"
    run: Name
    request: Request
    author: str = ""
    priority: Priority = NORMAL
    project: Project = ""
    """Project of the run. Fair share divides the cluster between projects first."""


class RunStarted(_Event):
    """The controller planned the run."""

    type: Literal["RunStarted"] = "RunStarted"
    run: Name
    plan: Plan


class RunPaused(_Event):
    """The controller assigns nothing until `RunResumed`.

    With `needs_bytes` > 0 the controller resumes the run when the checkpoint volume has this much free space;
    with `volume`, after increasing delays.
    """

    type: Literal["RunPaused"] = "RunPaused"
    run: Name
    reason: str
    needs_bytes: int = 0
    volume: str = Field("", exclude_if=lambda path: not path)
    """Path on the volume that is full or cannot be used, if that is the reason."""


class RunResumed(_Event):
    """A paused run continues, or a stopped run is open again."""

    type: Literal["RunResumed"] = "RunResumed"
    run: Name
    by: str = "controller"
    can_reopen: bool = False
    """True to reopen an ended run while other runs are open, if no obstacle exists."""
    procedure: OwnProcedure | None = Field(None, exclude_if=lambda value: value is None)
    """New code of the search's own procedure. `None` keeps the code."""


class RunStopRequested(_Event):
    """A user stops the run. Committed work remains."""

    type: Literal["RunStopRequested"] = "RunStopRequested"
    run: Name
    by: str = ""


class ModelStopRequested(_Event):
    """A user stops a model. Its committed work remains; its running sub-epoch is revoked."""

    type: Literal["ModelStopRequested"] = "ModelStopRequested"
    run: Name
    model: str
    by: str = ""


class ModelResumed(_Event):
    """A user resumes a stopped model from its last checkpoint. Reopens an ended run for this model."""

    type: Literal["ModelResumed"] = "ModelResumed"
    run: Name
    model: str
    by: str = ""
    can_reopen: bool = False
    """As in `RunResumed`."""


class ModelRetried(_Event):
    """A user retries a failed model from its last checkpoint, with new attempts. Reopens an ended run for
    this model."""

    type: Literal["ModelRetried"] = "ModelRetried"
    run: Name
    model: str
    by: str = ""
    can_reopen: bool = False
    """As in `RunResumed`."""


class SchedulerChanged(_Event):
    """A user changes the policy for the remaining sub-epochs."""

    type: Literal["SchedulerChanged"] = "SchedulerChanged"
    run: Name
    scheduler: str
    planner: bool = True
    """True if a planner may find a better order, as in `FitRequest`."""
    by: str = ""


class PriorityChanged(_Event):
    """A user changes the priority of a run in the cluster, or of a model in its run."""

    type: Literal["PriorityChanged"] = "PriorityChanged"
    run: Name
    model: str = Field("", exclude_if=lambda model: not model)
    """The model; empty for the priority of the run."""
    priority: Priority
    by: str = ""


class ModelsAdded(_Event):
    """A user adds models to a run. Reopens an ended run for these models."""

    type: Literal["ModelsAdded"] = "ModelsAdded"
    run: Name
    models: tuple[NewModel, ...] = Field(min_length=1)
    by: str = ""
    can_reopen: bool = False
    """As in `RunResumed`."""


class ModelExtended(_Event):
    """A user changes a model's total number of epochs, at least those begun. Reopens an ended run for this
    model."""

    type: Literal["ModelExtended"] = "ModelExtended"
    run: Name
    model: str
    epochs: int = Field(ge=1)
    by: str = ""
    can_reopen: bool = False
    """As in `RunResumed`."""


class ModelChanged(_Event):
    """A user changes hyperparameters of a model, from its next unstarted sub-epoch."""

    type: Literal["ModelChanged"] = "ModelChanged"
    run: Name
    model: str
    hyperparams: Hyperparameters
    """Changed hyperparameters with their new values."""
    by: str = ""


class SearchStopRequested(_Event):
    """A user stops a search from adding or extending models. Models use up their resource."""

    type: Literal["SearchStopRequested"] = "SearchStopRequested"
    run: Name
    by: str = ""


class ExperimentArchived(_Event):
    """A user hides the experiment from the default list, or shows it again. Nothing else changes."""

    type: Literal["ExperimentArchived"] = "ExperimentArchived"
    is_archived: bool
    by: str = ""


class TagsChanged(_Event):
    """A user sets or deletes tags of the experiment, or of one of its models. Nothing else changes.

    The tag ``note`` is free text, which pages show above the other tags.
    """

    type: Literal["TagsChanged"] = "TagsChanged"
    tags: dict[TagKey, TagValue | None] = Field(min_length=1, max_length=MAX_TAGS)
    """Key -> value; `None` deletes the tag."""
    run: Name | Literal[""] = Field("", exclude_if=lambda run: not run)
    model: str = Field("", max_length=100, exclude_if=lambda model: not model)
    """Model of `run`; without one, the tags belong to the experiment."""
    by: str = ""


class LocatorsChanged(_Event):
    """A user replaced the experiment's dataset locators, before any data set exists.

    The store replaces the experiment's record in the same step.
    """

    type: Literal["LocatorsChanged"] = "LocatorsChanged"
    locators: Locators
    after: int = Field(ge=0)
    """Number of the newest event that the client had read. The store refuses the event if the log has a newer one."""
    by: str = ""


class DeletionRequested(_Event):
    """A user deletes the experiment and its files on the volumes.

    No run may be open, and the store refuses later events. The log itself is removed last.
    """

    type: Literal["DeletionRequested"] = "DeletionRequested"
    by: str = ""


class RunFinished(_Event):
    """A run has ended. Only a user's command on it or one of its models opens it again."""

    type: Literal["RunFinished"] = "RunFinished"
    run: Name
    outcome: Literal["finished", "failed", "stopped"]
    error: str = ""


class EpochCompleted(_Event):
    """Every model that has not failed has trained `epoch`. Reports how well sub-epochs were scheduled so far.

    Epochs of different models overlap without a barrier. So makespan and bound cover all sub-epochs since the start of
    the run, and can be compared: the gap is ``makespan_s / lower_bound_s - 1``.
    """

    type: Literal["EpochCompleted"] = "EpochCompleted"
    run: Name
    epoch: int = Field(ge=1)
    makespan_s: float
    """Seconds from the start of the first sub-epoch's work to the last commit of an epoch up to this one."""
    lower_bound_s: float
    """The larger of the longest model's and the busiest worker's measured training time, in seconds.

    A worker's training time is divided by its number of devices.
    """
    idle_s: dict[Name, float]
    """Worker -> device-seconds without a task since the end of the previous epoch."""
    start_s: float = 0.0
    """Device-seconds in which tasks waited for process start and imports, since the previous report.

    The other numbers exclude them, except when a process started while other workers trained.
    """


class SchedulePlanned(_Event):
    """A planner found a better order of sub-epochs than dispatch, and the controller follows it.

    Workers and models take their sub-epochs in this order while it applies; other sub-epochs are dispatched.
    An empty `order` ends the previous plan: the controller dispatches everything, by the parallel plans given
    here.
    """

    type: Literal["SchedulePlanned"] = "SchedulePlanned"
    run: Name
    source: str
    """Source of the order, such as ``planner/cyclic`` or ``cp-sat``."""
    order: tuple[PlannedSubEpoch, ...]
    """Sub-epochs by planned start, which is also the order of each worker and of each model."""
    makespan_s: float
    """Makespan of the remaining sub-epochs, simulated with the measured noise of their times."""
    dispatch_s: float
    """Simulated makespan of dispatch, which this order replaces."""
    lower_bound_s: float
    seconds: float
    """Seconds that the planner searched."""
    parallel_plans: dict[Name, dict[Name, ParallelPlan]] = Field(
        default_factory=dict, exclude_if=lambda parallel_plans: not parallel_plans
    )
    """Model -> worker -> parallel plan of its sub-epochs there, which determines the number of devices.

    Other parallel plans are chosen as without a planner. A parallel plan that is ruled out later is not used.
    """


class ForecastMade(_Event):
    """Simulated end of a fit, for the present and other numbers of workers."""

    type: Literal["ForecastMade"] = "ForecastMade"
    run: Name
    workers: int = Field(ge=1)
    """Number of workers that train."""
    ends: tuple[ForecastEnd, ...]
    """Forecasts by the number of workers, ascending; includes `workers`."""
    recommended_workers: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Number of workers that suits the run's goal better. Absent: the present number."""
    allowed_workers: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Maximum number of workers of the run; set if its goal cannot be met with them."""
    requested_workers: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Workers that the controller requested from the cluster manager. Absent: it only advises."""

    @model_validator(mode="after")
    def _has_an_end(self) -> ForecastMade:
        if self.workers not in {each.workers for each in self.ends}:
            raise ValueError("a forecast says when the run ends with the workers that are there")
        return self

    @property
    def end(self) -> ForecastEnd:
        """Forecast for the present number of workers."""
        return next(each for each in self.ends if each.workers == self.workers)


class DevicesTaken(_Event):
    """Device time that other runs used, although this run could have trained there.

    Spans of one device overlap neither each other nor the run's own attempts.
    """

    type: Literal["DevicesTaken"] = "DevicesTaken"
    run: Name
    until: float
    """All spans before this time have been reported."""
    spans: tuple[TakenSpan, ...]


class ParallelPlansRuledOut(_Event):
    """These parallel plans cannot train a model: no worker with its data has enough devices."""

    type: Literal["ParallelPlansRuledOut"] = "ParallelPlansRuledOut"
    run: Name
    model: str
    parallel_plans: tuple[ParallelPlan, ...] = Field(min_length=1)
    reason: str


class TrialsRecalled(_Event):
    """Outcomes of earlier runs' trials that hold for this run too, so that they are not repeated.

    Written once, after the run's models were inspected; may be empty.
    """

    type: Literal["TrialsRecalled"] = "TrialsRecalled"
    run: Name
    outcomes: dict[str, TrialOutcome] = Field(default_factory=dict)
    """``GROUP/PARALLEL_PLAN``, as in the key of the trial's task -> outcome."""


class Extension(NamedTuple):
    """A larger resource of a model."""

    model: str
    epochs: int
    priority: Priority


class SearchDecided(_Event):
    """The search answered a report. A replay of the log must give the same actions; otherwise its code has changed."""

    type: Literal["SearchDecided"] = "SearchDecided"
    run: Name
    number: int = Field(ge=0)
    """Number of the decision, from 0."""
    report: int = Field(ge=-1)
    """Number of the report that it answers; -1: the beginning."""
    suggest: int = Field(0, exclude_if=lambda value: not value)
    """Number of suggestions to request."""
    add: tuple[NewModel, ...] = Field((), exclude_if=lambda value: not value)
    extend: tuple[Extension, ...] = Field((), exclude_if=lambda value: not value)
    stop: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Model -> why it is trained no further."""
    finish: str | None = Field(None, exclude_if=lambda value: value is None)
    """Reason why the search takes no further action."""


class ValuesSuggested(_Event):
    """Suggestions of the sampler. They are never recomputed: floating point differs between machines and library
    versions."""

    type: Literal["ValuesSuggested"] = "ValuesSuggested"
    run: Name
    first: int = Field(ge=0)
    """Number of the first suggestion, counted from 0."""
    values: tuple[Hyperparameters, ...] = Field(min_length=1)


class ModelsRepeated(_Event):
    """The controller repeats these models with new seeds. The fold assigns the ids of the new models."""

    type: Literal["ModelsRepeated"] = "ModelsRepeated"
    run: Name
    models: tuple[str, ...] = Field(min_length=1)
    """Models to repeat, best first. The request has the number of seeds."""


class CheckpointsPruned(_Event):
    """The controller removes checkpoints that no model continues from; better models keep theirs.

    It writes the event before it removes the first file. From this event no request may use these
    checkpoints, except requests made before it.
    """

    type: Literal["CheckpointsPruned"] = "CheckpointsPruned"
    run: Name
    files: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Model -> names of checkpoints.

    For an untrained clone it is the checkpoint it started from; the file remains while other models need it.
    """


class WorkerJoined(_Event):
    """A worker or its next incarnation can receive tasks. `replicas` replaces its earlier replicas."""

    type: Literal["WorkerJoined"] = "WorkerJoined"
    worker: Name
    incarnation: str
    weight: float
    kinds: tuple[str, ...]
    replicas: tuple[Replica, ...] = ()
    volume: Name | None = None
    """Shared shard volume, as in `WorkerRecord`; `None` if the worker has its own."""
    devices: int = Field(default=1, ge=1)
    """Number of devices, numbered from 0."""
    device: DeviceKind | None = Field(None, exclude_if=lambda value: value is None)
    """Kind of the devices; `None` if they differ."""


class WorkerLost(_Event):
    """A worker is gone, is leaving, or was replaced by a new incarnation. It receives no more tasks.

    Each experiment revokes its tasks, except a task that still runs on a leaving worker.
    """

    type: Literal["WorkerLost"] = "WorkerLost"
    worker: Name
    incarnation: str
    reason: str


class WorkerRemoved(_Event):
    """A worker and its volume were removed permanently. It may join again as a new worker."""

    type: Literal["WorkerRemoved"] = "WorkerRemoved"
    worker: Name
    reason: str


class ReplicasChanged(_Event):
    """The partitions on a shard volume have changed."""

    type: Literal["ReplicasChanged"] = "ReplicasChanged"
    volume: Name
    """Name of the shard volume; the worker's name if it is not shared."""
    gained: tuple[Replica, ...] = ()
    lost: tuple[Replica, ...] = ()


class TaskAssigned(_Event):
    """`attempt` of `task` is in the inbox of `worker`; nothing runs yet."""

    type: Literal["TaskAssigned"] = "TaskAssigned"
    task: str
    attempt: int
    worker: Name
    devices: Devices = (0,)
    """Devices of the attempt; ETL takes no device."""
    parallel_plan: ParallelPlan | None = Field(None, exclude_if=lambda parallel_plan: parallel_plan is None)
    """Parallel plan of the attempt. Absent: one device, as user code is written."""
    other_members: tuple[Member, ...] = Field((), exclude_if=lambda members: not members)
    """Other workers of the gang, by ascending partition; `worker` leads and reads the first partition."""
    config_version: int = Field(0, ge=0, exclude_if=lambda value: not value)
    """Number of the model's training config at assignment, from 0. The order of the log does not determine
    it, because a user may change the config during assignment."""
    group: FusedGroup | None = Field(None, exclude_if=lambda group: group is None)
    """Fused group of the attempt. Absent: the attempt has its devices to itself."""


class TaskStarted(_Event):
    """`worker` holds the lease and runs the attempt."""

    type: Literal["TaskStarted"] = "TaskStarted"
    task: str
    attempt: int
    worker: Name


class TaskCommitted(_Event):
    """The attempt's result is durable and accepted. The store accepts exactly one commit of a task."""

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
    """The controller revoked the attempt. The store refuses a late commit."""

    type: Literal["TaskRevoked"] = "TaskRevoked"
    task: str
    attempt: int
    worker: Name
    reason: str
    loss: FailureKind | None = None
    """How the worker was lost, as in `Revoke`; `None` if it was not lost."""
    limit_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """The worker's own memory after `OUT_OF_MEMORY`, in bytes. 0 (absent): unknown."""


class TaskGivenUp(_Event):
    """The controller abandons a task between attempts, because no worker has enough memory.

    It has no effect if the task has a newer attempt than `attempt`.
    """

    type: Literal["TaskGivenUp"] = "TaskGivenUp"
    task: str
    attempt: int
    """The newest attempt, which has ended."""
    reason: str
    """Message for people: the memory needed, the largest memory available, and the setting to raise."""


class PreemptionRequested(_Event):
    """The controller preempts a running attempt at its next batch.

    The worker may still commit it. The controller revokes it if the worker does not release it in time.
    """

    type: Literal["PreemptionRequested"] = "PreemptionRequested"
    task: str
    attempt: int
    worker: Name
    reason: str


class SubEpochSaved(_Event):
    """The running attempt has a savepoint. If it fails, the next attempt continues there."""

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
    | TagsChanged
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
    | ValuesSuggested
    | ModelsRepeated
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
    | PreemptionRequested
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
    | ValuesSuggested
    | ModelsRepeated
    | CheckpointsPruned
    | ModelRetried
    | TaskGivenUp,
    Field(discriminator="type"),
]
"""Events that the controller writes into an experiment's log and that change no attempt.

Users can also write `RunResumed` and `ModelRetried`.
"""

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
    RunRequested | RunCommand | ExperimentArchived | TagsChanged | LocatorsChanged | DeletionRequested,
    Field(discriminator="type"),
]
"""Events that a client may append."""


# --- live values: not events, because losing one changes no decision ----------------------------


class LivePoint(Contract):
    """Progress of a running attempt, with values that user code reported.

    Ignore points of an uncommitted attempt once the task has another attempt.
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
