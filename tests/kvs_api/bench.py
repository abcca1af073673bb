"""A store with an experiment, a leader and shortcuts for frequent calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cerebro.contract.events import (
    ClientEvent,
    ClusterEvent,
    ControllerEvent,
    Event,
    LivePoint,
    RunFinished,
    RunPaused,
    RunRequested,
    RunStarted,
    WorkerJoined,
)
from cerebro.contract.records import (
    AuditEntry,
    Device,
    ExperimentRecord,
    ExperimentSummary,
    Locator,
    Locators,
    Reclaim,
    SizeRequest,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.contract.stored.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.contract.stored.history import History, HistoryAnswer, HistoryRequest
from cerebro.contract.stored.segments import Segment, SegmentAnswer, SegmentRequest, SegmentsAnswer, Snapshot
from cerebro.contract.tasks.bodies import EtlTask, TaskBody
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult

LOCATORS = Locators(train=Locator(metadata="train.csv"))
TASK = "etl-1/etl/train/p0"
OTHER = "etl-1/etl/train/p1"
LONG_S = 3600.0
"""A lease that does not expire during a test."""
SHORT_S = 0.0004
"""A lease that has expired by the next call; the store counts milliseconds."""
RESULT = TaskResult(rows=7, metrics={"loss": 0.5})
FAILURE = Failure(kind=FailureKind.CRASH, message="killed")


class AnyStore(Protocol):
    """The `KvsClient` methods that the simulated store has too."""

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord: ...
    def experiment(self, name: str) -> ExperimentRecord: ...
    def append(self, experiment: str, event: ClientEvent) -> int: ...
    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]: ...
    def live(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[LivePoint, ...]: ...
    def lead(
        self,
        holder: str,
        ttl_s: float,
        *,
        process: str = "",
        is_start: bool = False,
        open_runs: int = 1,
        attended: api.Attended | None = None,
    ) -> api.LeaderAnswer: ...
    def queued(self) -> api.QueueAnswer: ...
    def history(self) -> History: ...
    def count_history(self, request: HistoryRequest) -> HistoryAnswer: ...
    def forget_history(self) -> int: ...
    def queue(self) -> tuple[api.QueueEntry, ...]: ...
    def experiments(self) -> tuple[ExperimentSummary, ...]: ...
    def deleting(self) -> tuple[str, ...]: ...
    def delete_experiment(self, name: str, term: int) -> None: ...
    def reclaim(self) -> Reclaim: ...
    def audit(self) -> tuple[AuditEntry, ...]: ...
    def usage(self, worker: str) -> tuple[UsageSample, ...]: ...
    def workers_health(self) -> HealthAnswer: ...
    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth: ...
    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth: ...
    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth: ...
    def report_check(self, worker: str, result: CheckResult) -> None: ...
    def report_pace(self, worker: str, request: PaceRequest) -> None: ...
    def report_incident(self, request: IncidentRequest) -> None: ...
    def watch(self, cursors: dict[str, int], cluster: int, wait_s: float) -> api.WatchAnswer: ...
    def cluster_log(self, after: int = 0, *, wait_s: float = 0.0) -> tuple[ClusterEvent, ...]: ...
    def write_cluster_log(self, request: api.ClusterLogRequest) -> api.ClusterLogAnswer: ...
    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer: ...
    def register(self, record: WorkerRecord) -> WorkerRecord: ...
    def workers(self) -> tuple[WorkerStatus, ...]: ...
    def remove_worker(self, worker: str, incarnation: str | None = None) -> None: ...
    def size_request(self) -> SizeRequest | None: ...
    def request_size(self, request: SizeRequest) -> None: ...
    def withdraw_size_request(self, workers: int) -> None: ...
    def worker_set_status(self) -> WorkerSetStatus: ...
    def set_worker_set_status(self, pod_problems: WorkerSetStatus) -> None: ...
    def inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[InboxItem, ...]: ...
    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer: ...
    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer: ...
    def segments(self, experiment: str) -> SegmentsAnswer: ...
    def keep_snapshot(
        self, experiment: str, seq: int, of_format: str, term: int, content: bytes, *, created: float = 0.0
    ) -> Snapshot: ...
    def snapshot(self, experiment: str, of_format: str) -> bytes | None: ...


def requested(run: str, *, seed: int = 0) -> RunRequested:
    """Return a client's request for an ETL run."""
    return RunRequested(run=run, request=EtlRequest(code="0" * 64, code_fingerprint="1" * 64, seed=seed))


def worker(incarnation: str, name: str = "worker-0", *, devices: int = 0) -> WorkerRecord:
    """Return a worker record, by default without devices."""
    named = tuple(Device(kind="cpu", name="cpu", threads=1) for _ in range(devices))
    return WorkerRecord(
        worker=name, incarnation=incarnation, weight=1.0, cores=1, kinds=("etl",), devices=named
    )


def body(task: str = TASK) -> EtlTask:
    """Return the task body of an assignment."""
    return EtlTask(
        key=task,
        experiment="one",
        dataset="d",
        split="train",
        partition=0,
        code="0" * 64,
        locators=LOCATORS,
        max_failed=0.0,
    )


def live_point(attempt: int = 1, *, rows: int = 1, task: str = TASK) -> LivePoint:
    """Return a live point as a worker sends it."""
    return LivePoint(task=task, attempt=attempt, rows=rows, values={"loss": 0.25})


@dataclass(kw_only=True)
class Bench:
    """A store with an experiment, a leader and shortcuts for frequent calls."""

    store: AnyStore
    pass_a_moment: Callable[[], None]
    """Waits longer than `SHORT_S`."""
    experiment: str = "one"
    term: int = 0

    def __post_init__(self) -> None:
        self.store.create_experiment(ExperimentRecord(name=self.experiment, locators=LOCATORS))
        self.term = self.store.lead("controller-0", LONG_S).term

    def decide(self, *steps: api.Decision, after: int | None = None, term: int | None = None) -> list[str]:
        """Send the controller's steps and return their outcomes."""
        cursor = len(self.log()) if after is None else after
        request = api.DecideRequest(term=self.term if term is None else term, after=cursor, steps=steps)
        return [outcome.outcome for outcome in self.store.decide(self.experiment, request).outcomes]

    def assign(
        self,
        attempt: int = 1,
        *,
        task: str = TASK,
        incarnation: str = "a",
        name: str = "worker-0",
        devices: tuple[int, ...] = (0,),
        given: TaskBody | None = None,
    ) -> str:
        """Assign a task and return the outcome."""
        step = api.Assign(
            task=task,
            attempt=attempt,
            worker=name,
            incarnation=incarnation,
            devices=devices,
            body=given or body(task),
        )
        return self.decide(step)[0]

    def revoke(
        self, attempt: int = 1, *, task: str = TASK, name: str = "worker-0", force: bool = False
    ) -> str:
        """Revoke an attempt and return the outcome."""
        return self.decide(api.Revoke(task=task, attempt=attempt, worker=name, reason="idle", force=force))[0]

    def ask(self, attempt: int = 1, *, task: str = TASK, name: str = "worker-0") -> str:
        """Request an attempt's release and return the outcome."""
        return self.decide(
            api.Preempt(task=task, attempt=attempt, worker=name, reason="its model was stopped")
        )[0]

    def report(
        self,
        *steps: api.Report,
        incarnation: str = "a",
        name: str = "worker-0",
        lease_s: float = LONG_S,
        live: Sequence[LivePoint] = (),
    ) -> api.ReportAnswer:
        """Send a worker's report."""
        points = {self.experiment: tuple(live)} if live else {}
        request = api.ReportRequest(incarnation=incarnation, lease_s=lease_s, steps=steps, live=points)
        return self.store.report(name, request)

    def step(
        self, op: str, attempt: int = 1, *, task: str = TASK, incarnation: str = "a", lease_s: float = LONG_S
    ) -> str:
        """Send one step of a worker and return the outcome."""
        step = worker_step(op, attempt, task=task, experiment=self.experiment)
        return self.report(step, incarnation=incarnation, lease_s=lease_s).outcomes[0].outcome

    def run_until(self, state: str) -> None:
        """Bring attempt 1 of `TASK` on worker-0 to a state."""
        self.store.register(worker("a"))
        assert self.assign() == "done"
        if state != "assigned":
            assert self.step("start") == "done"
        if state in ("commit", "fail"):
            assert self.step(state) == "done"
        if state == "revoke":
            assert self.revoke(force=True) == "done"

    def log(self) -> tuple[Event, ...]:
        """Read the experiment's log page by page."""
        found: list[Event] = []
        while events := self.store.events(self.experiment, len(found)):
            found += events
        return tuple(found)

    def cluster_log(self) -> tuple[ClusterEvent, ...]:
        """Read the cluster log page by page."""
        found: list[ClusterEvent] = []
        while events := self.store.cluster_log(len(found)):
            found += events
        return tuple(found)

    def cut(
        self, name: str = "one", *, keep: int = 1, least: int = 1, until: int = api.MAX_SEQ
    ) -> Segment | None:
        """Move a log's oldest entries to a file; an empty name means the cluster log."""
        request = SegmentRequest(
            term=self.term, created=self.created(name), until=until, keep=keep, least=least
        )
        return self.store.cut(name, request).moved

    def created(self, name: str = "one") -> float:
        """Return an experiment's creation time; 0 for the cluster."""
        return self.store.experiment(name).created if name else 0.0

    def types(self) -> list[str]:
        """Return the types of the experiment's events."""
        return [event.type for event in self.log()]

    def inbox(self, incarnation: str = "a", name: str = "worker-0") -> list[tuple[str, int, bool]]:
        """Return a worker's inbox as (task, attempt, cancel)."""
        items = self.store.inbox(name, incarnation, 0, wait_s=0)
        return [(item.task, item.attempt, item.cancel) for item in items]


def worker_step(op: str, attempt: int, *, task: str = TASK, experiment: str = "one") -> api.Report:
    """Return a report with one worker step."""
    named: Any = {"experiment": experiment, "task": task, "attempt": attempt}
    if op == "commit":
        return api.Commit(**named, result=RESULT)
    if op == "fail":
        return api.Fail(**named, failure=FAILURE)
    if op.startswith("save"):
        return api.Save(**named, savepoint=savepoint(int(op.removeprefix("save") or "2"), attempt))
    return api.Start(**named) if op == "start" else api.Renew(**named)


def savepoint(batch: int, attempt: int = 1) -> Savepoint:
    """Return a savepoint taken before this batch."""
    reference = CheckpointRef(name=f"one/u00000-e001-p0000-a{attempt}.s{batch:06d}.pt", checksum="-", size=1)
    return Savepoint(checkpoint=reference, batch=batch, rows=4 * batch)


def note(event: ControllerEvent) -> api.Note:
    """Return a step that writes a controller event."""
    return api.Note(event=event)


JOINED = WorkerJoined(worker="worker-0", incarnation="a", weight=1.0, kinds=("etl",))
PAUSED = RunPaused(run="etl-1", reason="no space")
FINISHED = RunFinished(run="etl-1", outcome="finished")


def started(run: str = "etl-1", *, dataset: str = "d") -> RunStarted:
    """Return the start of an ETL run without tasks."""
    return RunStarted(run=run, plan=EtlPlan(dataset=dataset, splits={}))
