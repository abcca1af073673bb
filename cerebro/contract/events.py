"""Events: what happened in an experiment, in order. The log of them is the single truth; all state is a fold over it.

Names are past tense. Who writes: clients request and ask to stop; the controller plans, assigns, revokes and ends;
workers start, commit and fail, each under a lease. `seq` is dense from 1 per experiment and given by the store in the
same atomic step as the change of state that the event tells of; `time` is the store's clock.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from cerebro.contract.base import Contract, Name, Sha256, Split
from cerebro.contract.records import Holding, Hyperparameters
from cerebro.contract.tasks import Failure, TaskResult

# --- requests: what a client asks for ------------------------------------------------------------


class EtlRequest(Contract):
    """`run_etl`: preprocess every located split."""

    kind: Literal["etl"] = "etl"
    code: Sha256
    code_fingerprint: Sha256
    seed: int = 0
    fraction: float = Field(default=1.0, gt=0, le=1)
    max_failed: float = Field(default=0.0, ge=0, le=1)
    """Share of rows that may fail before the run stops."""


class FitRequest(Contract):
    """`run_fit`: train each of `models` for `epochs` epochs over all partitions by hopping."""

    kind: Literal["fit"] = "fit"
    code: Sha256
    models: tuple[Hyperparameters, ...] = Field(min_length=1)
    epochs: int = Field(ge=1)
    metric: str = Field(min_length=1)
    mode: Literal["min", "max"]
    seed: int = 0
    scheduler: str = "lrptw"
    planner: bool = True
    """Whether a planner may replace the dispatch of ``lrptw`` by a better order."""
    hang_timeout_s: float = Field(default=600.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    """Attempts a unit gets when its process crashes; user errors get one."""


class EvaluateRequest(Contract):
    """`run_test` or `run_predict` of models of a fit run, each at its best epoch."""

    kind: Literal["test", "predict"]
    fit: str
    """Run id of the fit."""
    models: tuple[str, ...] = ()
    """Model ids; empty means the best model."""
    split: Split


Request = Annotated[EtlRequest | FitRequest | EvaluateRequest, Field(discriminator="kind")]

# --- plans: what the controller made of a request ------------------------------------------------


class PartitionPlan(Contract):
    """One worker's share of one split."""

    partition: int
    worker: Name
    rows: int


class EtlPlan(Contract):
    """`splits[split]` lists its partitions. `dataset` is a fingerprint of code, locators, metadata, seed and fraction:
    the same call finds the same data set again."""

    kind: Literal["etl"] = "etl"
    dataset: str
    splits: dict[Split, tuple[PartitionPlan, ...]]


class FitPlan(Contract):
    """Models by id, and the rows of each training partition."""

    kind: Literal["fit"] = "fit"
    dataset: str
    models: dict[str, Hyperparameters]
    partitions: dict[int, int]
    """Partition -> rows."""
    valid_partitions: tuple[int, ...] = ()


class EvaluatePlan(Contract):
    """Which (model, epoch) meet which partitions."""

    kind: Literal["test", "predict"]
    dataset: str
    fit: str
    models: dict[str, int]
    """Model id -> epoch whose checkpoint is used."""
    partitions: dict[int, int]


Plan = Annotated[EtlPlan | FitPlan | EvaluatePlan, Field(discriminator="kind")]


class PlannedUnit(NamedTuple):
    """A unit in a plan, and where it is to run."""

    worker: str
    model: str
    epoch: int
    partition: int
    start_s: float
    """Planned, from the time of the event that tells of the plan."""


# --- events --------------------------------------------------------------------------------------


class _Event(Contract):
    seq: int = 0
    time: float = 0.0


class RunRequested(_Event):
    """A client asked for a run; `run` is its id."""

    type: Literal["RunRequested"] = "RunRequested"
    run: Name
    request: Request
    author: str = ""


class RunStarted(_Event):
    """The controller planned the run."""

    type: Literal["RunStarted"] = "RunStarted"
    run: Name
    plan: Plan


class RunPaused(_Event):
    """Nothing new is assigned until `RunResumed`; `needs_bytes` > 0: until the checkpoint volume has that much room."""

    type: Literal["RunPaused"] = "RunPaused"
    run: Name
    reason: str
    needs_bytes: int = 0


class RunResumed(_Event):
    """Assigning goes on."""

    type: Literal["RunResumed"] = "RunResumed"
    run: Name
    by: str = "controller"


class RunStopRequested(_Event):
    """A user wants the run to end; committed work stays."""

    type: Literal["RunStopRequested"] = "RunStopRequested"
    run: Name
    by: str = ""


class RunFinished(_Event):
    """The last event of a run."""

    type: Literal["RunFinished"] = "RunFinished"
    run: Name
    outcome: Literal["finished", "failed", "stopped"]
    error: str = ""


class EpochCompleted(_Event):
    """Every model that has not failed has trained `epoch`: how well its units were scheduled.

    Epochs of different models overlap, there is no barrier; so makespan and bound are of all that had run by then,
    counted from the start of the run, and can be compared: the gap is ``makespan_s / lower_bound_s - 1``.
    """

    type: Literal["EpochCompleted"] = "EpochCompleted"
    run: Name
    epoch: int = Field(ge=1)
    makespan_s: float
    """From the start of the run's first unit to the last commit of a unit of an epoch up to this one."""
    lower_bound_s: float
    """The larger of the longest model's and the busiest worker's training time until then, as units took in truth."""
    idle_s: dict[Name, float]
    """Worker -> seconds without a task since the end of the epoch before."""


class SchedulePlanned(_Event):
    """A planner found an order of the units that is better than dispatch: it is followed from now on.

    Workers and models take their units in this order as far as it still applies; what it does not name is dispatched.
    """

    type: Literal["SchedulePlanned"] = "SchedulePlanned"
    run: Name
    source: str
    """What found it, such as ``planner/cyclic`` or ``cp-sat``."""
    order: tuple[PlannedUnit, ...]
    """In the order of their planned starts, which is each worker's order and each model's."""
    makespan_s: float
    """Of what is left to run, simulated at the measured noise of unit times."""
    dispatch_s: float
    """The same for dispatch, which it replaces."""
    lower_bound_s: float
    seconds: float
    """Time spent looking."""


class WorkerJoined(_Event):
    """A worker (or its next incarnation) can be given tasks; `holdings` replaces what was known of it."""

    type: Literal["WorkerJoined"] = "WorkerJoined"
    worker: Name
    incarnation: str
    weight: float
    kinds: tuple[str, ...]
    holdings: tuple[Holding, ...] = ()


class WorkerLost(_Event):
    """A worker is silent for longer than its lease, or a new incarnation replaced it. Its tasks are revoked beside."""

    type: Literal["WorkerLost"] = "WorkerLost"
    worker: Name
    incarnation: str
    reason: str


class TaskAssigned(_Event):
    """`attempt` of `task` is in the inbox of `worker`; nothing runs yet."""

    type: Literal["TaskAssigned"] = "TaskAssigned"
    task: str
    attempt: int
    worker: Name


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
    is_loss: bool = False
    """See `cerebro.contract.api.Revoke`."""


Event = Annotated[
    RunRequested
    | RunStarted
    | RunPaused
    | RunResumed
    | RunStopRequested
    | RunFinished
    | EpochCompleted
    | SchedulePlanned
    | WorkerJoined
    | WorkerLost
    | TaskAssigned
    | TaskStarted
    | TaskCommitted
    | TaskFailed
    | TaskRevoked,
    Field(discriminator="type"),
]

ControllerEvent = Annotated[
    RunStarted
    | RunPaused
    | RunResumed
    | RunFinished
    | EpochCompleted
    | SchedulePlanned
    | WorkerJoined
    | WorkerLost,
    Field(discriminator="type"),
]
"""Events that only the controller writes and that change no task."""

ClientEvent = Annotated[RunRequested | RunStopRequested | RunResumed, Field(discriminator="type")]
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
    values: dict[str, float] = Field(default_factory=dict)

    @field_validator("values")
    @classmethod
    def _few(cls, values: dict[str, float]) -> dict[str, float]:
        if len(values) > 100:
            raise ValueError("a live point carries at most 100 values")
        return values
