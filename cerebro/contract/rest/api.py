"""Requests, answers and headers of kvs_api's REST API: shared by its server, its client and its OpenAPI document.

`cerebro.contract.rest.routes` lists the routes. Types only. The steps that requests carry are defined in
`cerebro.contract.steps` and exported here as well.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cerebro.contract.accounts.identity import TokenRecord
from cerebro.contract.accounts.quotas import Usage
from cerebro.contract.base import Contract, LateContract, Name, Sha256
from cerebro.contract.events import ClusterEvent, Event, LivePoint
from cerebro.contract.priority import NORMAL, Priority
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Replica,
    SizeRequest,
    Unreadable,
    UsageSample,
    WorkerRecord,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.runs import Project
from cerebro.contract.steps import (
    Assign,
    Commit,
    Decision,
    Dequeue,
    Fail,
    Note,
    Preempt,
    Renew,
    Report,
    Revoke,
    Save,
    Start,
    StepOutcome,
)
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.texts import cleaned
from cerebro.contract.trials import TrialRecord

MAX_LEASE_S = 86_400.0
"""Maximum duration of a lease or of the leadership."""
YIELD_S = 30.0
"""Seconds for a worker to release a preempted attempt; afterwards the controller revokes it."""
MAX_WAIT_S = 30.0
"""Maximum seconds that a request may wait for news."""

MAX_SEQ = 2**53
"""Numbers of events beyond this are refused: the store's script counts in floating point."""

TERM = "Cerebro-Term"
"""Header of a controller's write: its leadership term. The store refuses the write if another term leads."""

ONCE = "Idempotency-Key"
"""Header of a client's append: calls with the same key append one event, also long after the first call."""

Cursor = Annotated[int, Field(ge=0, le=MAX_SEQ)]


class Health(Contract):
    """Answer of the one route that needs no token."""

    status: Literal["ok", "store-unavailable"]
    schema_version: int
    version: str


class Problem(Contract):
    """Body of every answer with an error status."""

    error: str
    """Name of the class in `cerebro.errors`."""
    message: str


class DecideRequest(LateContract):
    """The controller's steps for one experiment; `term`: its leadership term (a fencing token), `after`: its cursor."""

    term: int
    after: Cursor
    steps: tuple[Decision, ...]


class DecideAnswer(LateContract):
    """Outcomes in order, and the log after the cursor with the events just written."""

    outcomes: tuple[StepOutcome, ...]
    events: tuple[Event, ...]


class ClusterLogRequest(LateContract):
    """Events for the cluster log: written if `term` leads and no event follows `after`."""

    term: int
    after: Cursor
    events: tuple[ClusterEvent, ...]


class ClusterLogAnswer(LateContract):
    """The cluster's log after a cursor, oldest first."""

    is_written: bool = False
    """True if the request's events were written. False if another request wrote first."""
    events: tuple[ClusterEvent, ...]


class ReportRequest(Contract):
    """A worker's steps, over any experiments, with live points; each report also counts as a heartbeat."""

    incarnation: str
    lease_s: float = Field(gt=0, le=MAX_LEASE_S)
    steps: tuple[Report, ...] = ()
    live: dict[str, tuple[LivePoint, ...]] = Field(default_factory=dict)
    """Experiment -> points."""
    checkpoint_free_bytes: int | None = None
    running: str | None = None
    replicas: tuple[Replica, ...] | None = None
    """Partitions on its volume, if changed since the last report."""
    leaving: str = ""
    """Reason why its process is ending; empty otherwise. It finishes or releases its tasks and receives no more."""
    usage: WorkerUsage | None = None
    """Usage, if measured since the last report."""


class ReportAnswer(Contract):
    """`current` is false once a newer incarnation of this worker registered: the process must end."""

    current: bool
    outcomes: tuple[StepOutcome, ...] = ()
    reclaim: int = 0
    """`Reclaim.seq`. If it differs from the last one handled, the worker requests the list."""


OF_CLUSTER = "of_cluster"
"""Field that marks events of the cluster log when reading with ``check=1``; their type may be unknown."""


class EventsAnswer(Contract):
    """Events after a cursor, oldest first; without events if the wait timed out.

    Events of the experiment and of the cluster, in the order of writing.
    """

    events: tuple[Event, ...]


class LiveAnswer(Contract):
    """Live points after a cursor, oldest first."""

    points: tuple[LivePoint, ...]


class InboxAnswer(LateContract):
    """Inbox entries after a cursor, oldest first."""

    items: tuple[InboxItem, ...]


MAX_STACKS = 20_000
"""Maximum characters of a stack trace."""

Question = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""Random id of a stack trace request, drawn by the client. It detects repeated calls and finds the answer."""


class StacksRequest(Contract):
    """Request for the stack trace of a task's process, to the worker that runs it."""

    task: str = Field(max_length=200)
    question: Question


class StacksRequested(Contract):
    """The running attempt that received the request."""

    worker: str
    attempt: int


class StacksReport(Contract):
    """A worker's answer; empty text if the process gave no stack trace."""

    experiment: Name
    question: Question
    text: Annotated[str, AfterValidator(lambda value: cleaned(value, MAX_STACKS))]


class StacksAnswer(Contract):
    """The worker's answer; `None` while it is pending."""

    text: str | None = None


class QuarantineRequest(Contract):
    """The controller quarantines an unreadable experiment; `term` is its leadership term."""

    term: int
    problem: Unreadable


class WatchRequest(Contract):
    """Wait until a log has an event after its cursor, or the cluster a notification. `cursors`: experiment -> seq."""

    cursors: dict[str, Cursor]
    cluster: Cursor
    """Number of the last notification read. Workers that come or go, and clients' requests, cause notifications."""
    wait_s: float = Field(ge=0, le=MAX_WAIT_S)


class WatchAnswer(LateContract):
    """Events of each experiment with news, and the number of the newest notification."""

    events: dict[str, tuple[Event, ...]]
    cluster: int


class QueueEntry(Contract):
    """A run that was requested and has not ended."""

    experiment: str
    run: str


class AttendedRun(Contract):
    """An attended run and its resources."""

    experiment: Name
    run: Name
    priority: Priority = NORMAL
    project: Project = ""
    devices: int = Field(default=0, ge=0)
    """Number of devices with its tasks."""
    without_device: int = Field(default=0, ge=0)
    """Number of workers with a task of the run that takes no device."""
    could_use_more: bool = False
    """True if it could use more devices. Always false for a run that is alone."""
    kept_s: float = Field(default=0.0, ge=0, exclude_if=lambda seconds: not seconds)
    """Remaining seconds of minimum hold time, if it holds all devices that the run could use."""


class Attended(Contract):
    """Attended runs in order of their turn, and the number of training devices."""

    runs: tuple[AttendedRun, ...] = ()
    devices: int = Field(default=0, ge=0)
    most_workers: int = Field(default=0, ge=0, exclude_if=lambda number: not number)
    """Maximum number of workers that the controller may request by itself. Absent: unknown."""
    waiting: tuple[QueueEntry, ...] = ()
    """Runs that wait for another run of their experiment, in the logs read so far. They have no queue
    position."""


class QueueAnswer(Contract):
    """Open runs of all experiments, oldest first, and experiments to delete."""

    runs: tuple[QueueEntry, ...]
    deleting: tuple[str, ...] = ()
    open_runs: int = 1
    """Maximum number of attended runs, from the leading controller."""
    attended: Attended = Attended()
    """Attended runs as the leading controller, or the last one, reported; up to two seconds old."""


class LeaderRequest(Contract):
    """Take or renew the controller's leadership."""

    holder: str = Field(min_length=1)
    """Name of the controller, for people."""
    process: str = Field("", max_length=64)
    """Id of the calling process. Each term has exactly one process."""
    is_start: bool = False
    """True if the process has not led yet. It takes over at once from an earlier process of the same holder."""
    ttl_s: float = Field(gt=0, le=MAX_LEASE_S)
    open_runs: int = Field(default=1, ge=1)
    """Maximum number of attended runs, from the head of the queue."""
    attended: Attended | None = None
    """Attended runs. Absent: unchanged."""


class LeaderAnswer(Contract):
    """`term` is 0 if another controller (`holder`) leads."""

    term: int
    holder: str


class WorkersAnswer(Contract):
    """All workers that ever registered and were not removed."""

    workers: tuple[WorkerStatus, ...]


class UsageAnswer(Contract):
    """A worker's usage over the last day, one sample each half minute, oldest first."""

    samples: tuple[UsageSample, ...]


class AuditAnswer(Contract):
    """The newest entries, oldest first."""

    entries: tuple[AuditEntry, ...]


class AuditRequest(Contract):
    """An action that no experiment's log records. The store adds its author."""

    what: Annotated[str, AfterValidator(lambda value: cleaned(value, 300))] = Field(min_length=1)


class SignInCodeRequest(Contract):
    """Request for a one-time code that signs a browser in.

    Attributes:
        name: name for commands on the page; ignored on clusters with users.
    """

    name: str = Field("", max_length=100)


class SignInCode(Contract):
    """A one-time code. Only this answer contains it; the store keeps its hash."""

    code: str = Field(repr=False)
    lasts_s: float


class RedeemRequest(Contract):
    """Request to exchange a one-time code for a session.

    Attributes:
        is_preview: True to return the owner and keep the code.
    """

    code: str = Field(max_length=200, repr=False)
    is_preview: bool = False


class SignedIn(Contract):
    """Owner of a one-time code.

    Attributes:
        acts_for: value of `ACTS_FOR` for the session; empty on clusters without users.
        name: name for commands on the page.
        owner: name of the maker, for the audit list; empty on clusters without users.
    """

    acts_for: str = ""
    name: str = ""
    owner: str = ""


class SessionAnswer(Contract):
    """True if a sign-in session was ended."""

    has_ended: bool


class QuotasAnswer(Contract):
    """Quotas and their usage, by name."""

    usages: tuple[Usage, ...]


class ExperimentBytes(Contract):
    """Bytes of an experiment on volumes."""

    name: Name
    bytes: int = Field(ge=0, le=2**60)


class BytesRequest(Contract):
    """Bytes of some experiments on volumes."""

    measured: tuple[ExperimentBytes, ...] = Field(max_length=10_000)


class BytesAnswer(Contract):
    """Whether bytes are counted, and the experiments with reported bytes."""

    is_counted: bool
    known: tuple[str, ...] = ()


class TokensAnswer(Contract):
    """Tokens, newest first; expired tokens remain for a month."""

    tokens: tuple[TokenRecord, ...]


class SizeAnswer(Contract):
    """The pending size request, if any."""

    request: SizeRequest | None


class TrialsRequest(Contract):
    """Look up trial outcomes by cache key."""

    keys: tuple[Sha256, ...] = Field(max_length=10_000)


class TrialsAnswer(LateContract):
    """Readable trial outcomes."""

    records: tuple[TrialRecord, ...]


class ForgottenAnswer(Contract):
    """Number of removed records."""

    forgotten: int


class ExperimentsAnswer(Contract):
    """All experiments, newest event first."""

    experiments: tuple[ExperimentSummary, ...]


class AppendAnswer(Contract):
    """Number of the appended event; for a repeated call the number of the first one."""

    seq: int


__all__ = [
    "AppendAnswer",
    "Assign",
    "Attended",
    "AttendedRun",
    "AuditAnswer",
    "ClusterLogAnswer",
    "ClusterLogRequest",
    "CodeRecord",
    "Commit",
    "DecideAnswer",
    "DecideRequest",
    "Decision",
    "Dequeue",
    "EventsAnswer",
    "ExperimentRecord",
    "ExperimentsAnswer",
    "Fail",
    "Health",
    "InboxAnswer",
    "LeaderAnswer",
    "LeaderRequest",
    "LiveAnswer",
    "Note",
    "Preempt",
    "Problem",
    "QuarantineRequest",
    "QueueAnswer",
    "QueueEntry",
    "Renew",
    "Report",
    "ReportAnswer",
    "ReportRequest",
    "Revoke",
    "Save",
    "SizeAnswer",
    "Start",
    "StepOutcome",
    "UsageAnswer",
    "WatchAnswer",
    "WatchRequest",
    "WorkerRecord",
    "WorkersAnswer",
]
