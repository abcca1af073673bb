"""The tables and logs of the in-memory store.

The simulation sets the time. This module contains no rule of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from cerebro.contract.events import (
    ClusterEvent,
    DeletionRequested,
    Event,
    LivePoint,
    RunRequested,
    SubEpochSaved,
    TaskCommitted,
    TaskFailed,
    TaskStarted,
)
from cerebro.contract.records import (
    AuditEntry,
    ExperimentRecord,
    Reclaim,
    SizeRequest,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerUsage,
)
from cerebro.contract.rest import api
from cerebro.contract.steps import AssignedMember
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.stored.segments import Segment, Snapshot
from cerebro.contract.tasks.inbox import InboxItem

DONE = api.StepOutcome(outcome="done")
ALREADY = api.StepOutcome(outcome="already")


def refused(reason: str) -> api.StepOutcome:
    """Return the outcome of a step that does not fit and changes nothing."""
    return api.StepOutcome(outcome="refused", reason=reason)


@dataclass
class TaskRow:
    """A task's newest attempt."""

    state: str = "new"
    attempt: int = 0
    worker: str = ""
    incarnation: str = ""
    lease_until: float = 0.0
    devices: tuple[int, ...] = ()
    other_members: tuple[AssignedMember, ...] = ()
    """The workers of a gang besides the leader."""
    group: str = ""
    """Fused group; empty without one."""
    saved_batch: int = 0
    """Batch of this attempt's newest savepoint."""
    is_asked: bool = False

    @property
    def places(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return (worker, incarnation, devices) of all workers with the attempt."""
        others = ((each.worker, each.incarnation, each.devices) for each in self.other_members)
        return ((self.worker, self.incarnation, self.devices), *others)

    def __str__(self) -> str:
        return f"attempt {self.attempt} is {self.state}" + (f" at {self.worker}" if self.worker else "")


@dataclass
class VirtualWorkerRow:
    """A registered worker and its last report."""

    record: WorkerRecord
    reported: float
    free: int | None = None
    running: str | None = None
    leaving: str = ""
    usage: list[UsageSample] = field(default_factory=list)
    newest: WorkerUsage | None = None
    inbox: list[InboxItem] = field(default_factory=list)
    open: defaultdict[int | None, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """Device -> (experiment, task) of its open attempts, oldest first; `None` for no device."""
    recent: list[dict[str, tuple[LivePoint, ...]]] = field(default_factory=list)
    """Live points of the latest reports."""

    def places(self, devices: tuple[int, ...]) -> list[list[tuple[str, str]]]:
        """Return the queues of `open` that an attempt on these devices waits in."""
        return [self.open[device] for device in devices or (None,)]


class Tables:
    """Data that kvs_api keeps in the database.

    Args:
        now: clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._records: dict[str, ExperimentRecord] = {}
        self._logs: defaultdict[str, list[Event]] = defaultdict(list)
        """Experiment -> its events merged with the cluster's, up to the last read."""
        self._newest: defaultdict[str, int] = defaultdict(int)
        """Number of the experiment's newest own event."""
        self._cluster_log: list[ClusterEvent] = []
        self._numbers: defaultdict[str, set[int]] = defaultdict(set)
        """Numbers of the experiment's own events."""
        self._segments: defaultdict[str, list[Segment]] = defaultdict(list)
        self._snapshots: defaultdict[str, list[tuple[Snapshot, bytes]]] = defaultdict(list)
        self.files_are_lost = False
        """True if segments can no longer be read; snapshots still can."""
        self._merged: defaultdict[str, int] = defaultdict(int)
        """Experiment -> number of cluster events in its log."""
        self._present: dict[str, str] = {}
        """Worker -> incarnation in the cluster log; "" if absent."""
        self._live: defaultdict[str, list[LivePoint]] = defaultdict(list)
        self._tasks: defaultdict[tuple[str, str], TaskRow] = defaultdict(TaskRow)
        self._model_sub_epochs: dict[tuple[str, str], str] = {}
        """(experiment, RUN/MODEL) -> the model's newest assigned sub-epoch."""
        self._decided: defaultdict[str, int] = defaultdict(int)
        """Number of the newest event that no worker reported."""
        self._runs: dict[tuple[str, str], tuple[int, RunRequested]] = {}
        self._queue: list[api.QueueEntry] = []
        self._notes: dict[tuple[str, str], int] = {}
        self._workers: dict[str, VirtualWorkerRow] = {}
        self._leader = api.LeaderAnswer(term=0, holder="")
        self._leader_process, self._leads_until = "", 0.0
        self._open_runs, self._attended = 1, api.Attended()
        self._deleting: dict[str, DeletionRequested] = {}
        self._archived: set[str] = set()
        self._datasets: defaultdict[str, set[str]] = defaultdict(set)
        """Data set -> experiments whose runs use it."""
        self._reclaim = Reclaim()
        self._audit: list[AuditEntry] = []
        self._notifications = 0
        """Number of cluster changes that a controller waits for."""
        self._size_request: SizeRequest | None = None
        self._worker_set_status = WorkerSetStatus()
        self._health = HealthAnswer()

    def _log(self, experiment: str) -> list[Event]:
        """Return the experiment's and the cluster's events in the order of writing."""
        log = self._logs[experiment]
        for event in self._cluster_log[self._merged[experiment] :]:
            log.append(event.model_copy(update={"seq": len(log) + 1}))
        self._merged[experiment] = len(self._cluster_log)
        return log

    def _append(self, experiment: str, event: Event) -> int:
        log = self._log(experiment)
        log.append(event.model_copy(update={"seq": len(log) + 1, "time": self._now()}))
        self._newest[experiment] = len(log)
        self._numbers[experiment].add(len(log))
        if not isinstance(event, TaskStarted | SubEpochSaved | TaskCommitted | TaskFailed):
            self._decided[experiment] = len(log)
        return len(log)
