"""A store in memory with the rules of kvs_api, for simulation. It passes the same contract suite as the real one.

Time is given by the simulation. Not thread-safe; nothing blocks: a read returns what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cerebro.contract import api
from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    Event,
    ExperimentArchived,
    LivePoint,
    ModelResumed,
    ModelRetried,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import (
    AuditEntry,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    Troubles,
    UsageSample,
    WorkerRecord,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.tasks import InboxItem
from cerebro.errors import ConflictError, NotFoundError

_OPENS = (RunRequested, RunResumed, ModelResumed, ModelRetried)
"""Events after which a run may be open."""

_SAMPLE_S = 29.5

_DONE = api.StepOutcome(outcome="done")
_ALREADY = api.StepOutcome(outcome="already")


def _refused(reason: str) -> api.StepOutcome:
    return api.StepOutcome(outcome="refused", reason=reason)


@dataclass
class _Task:
    state: str = "new"
    attempt: int = 0
    worker: str = ""
    incarnation: str = ""
    lease_until: float = 0.0

    def __str__(self) -> str:
        return f"attempt {self.attempt} is {self.state}" + (f" at {self.worker}" if self.worker else "")


@dataclass
class _Worker:
    record: WorkerRecord
    reported: float
    free: int | None = None
    running: str | None = None
    leaving: str = ""
    usage: list[UsageSample] = field(default_factory=list)
    newest: WorkerUsage | None = None
    inbox: list[InboxItem] = field(default_factory=list)
    recent: list[dict[str, tuple[LivePoint, ...]]] = field(default_factory=list)
    """Live points of the latest reports."""


class VirtualStore:
    """The methods of `cerebro.kvs.KvsClient` that a simulation needs, with the same meaning.

    Args:
        now: the clock, seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._records: dict[str, ExperimentRecord] = {}
        self._logs: defaultdict[str, list[Event]] = defaultdict(list)
        self._live: defaultdict[str, list[LivePoint]] = defaultdict(list)
        self._tasks: defaultdict[tuple[str, str], _Task] = defaultdict(_Task)
        self._runs: dict[tuple[str, str], tuple[int, RunRequested]] = {}
        self._queue: list[api.QueueEntry] = []
        self._notes: dict[tuple[str, str], int] = {}
        self._workers: dict[str, _Worker] = {}
        self._leader = api.LeaderAnswer(term=0, holder="")
        self._leads_until = 0.0
        self._deleting: dict[str, DeletionRequested] = {}
        self._archived: set[str] = set()
        self._datasets: defaultdict[str, set[str]] = defaultdict(set)
        """Data set -> experiments whose runs use it."""
        self._reclaim = Reclaim()
        self._audit: list[AuditEntry] = []
        self._bells = 0
        self._wish: SizeRequest | None = None
        self._troubles = Troubles()

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """See `KvsClient`."""
        if record.name in self._deleting:
            raise ConflictError(f"experiment {record.name!r} is being deleted")
        known = self._records.setdefault(record.name, record)
        if (known.locators, known.archive) != (record.locators, record.archive):
            raise ConflictError(f"experiment {record.name!r} exists already")
        return known

    def experiment(self, name: str) -> ExperimentRecord:
        """See `KvsClient`."""
        if name not in self._records:
            raise NotFoundError(f"no experiment {name!r}")
        return self._records[name]

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """See `KvsClient`."""
        found = []
        for name, record in self._records.items():
            log = self._logs[name]
            found.append(
                ExperimentSummary(
                    experiment=record,
                    last_seq=len(log),
                    last_event=log[-1].time if log else record.created,
                    open_runs=tuple(entry.run for entry in self._queue if entry.experiment == name),
                    is_archived=name in self._archived,
                    is_deleting=name in self._deleting,
                )
            )
        return tuple(sorted(found, key=lambda summary: -summary.last_event))

    def append(self, experiment: str, event: ClientEvent) -> int:
        """See `KvsClient`."""
        self.experiment(experiment)
        run = getattr(event, "run", "")
        if run and not isinstance(event, RunRequested) and (experiment, run) not in self._runs:
            raise NotFoundError(f"no run {run!r} in experiment {experiment!r}")
        known = self._known(experiment, event)
        if known:
            return known
        if isinstance(event, _OPENS) and experiment in self._deleting:
            raise ConflictError(f"experiment {experiment!r} is being deleted")
        seq = self._append(experiment, event)
        if isinstance(event, RunRequested):
            self._runs[experiment, run] = (seq, event.model_copy(update={"seq": 0, "time": 0.0}))
        entry = api.QueueEntry(experiment=experiment, run=run) if isinstance(event, _OPENS) else None
        if entry and entry not in self._queue:
            self._queue.append(entry)
        if isinstance(event, ExperimentArchived):
            (self._archived.add if event.is_archived else self._archived.discard)(experiment)
        if isinstance(event, DeletionRequested):
            self._deleting[experiment] = event.model_copy(update={"seq": seq})
        self._bells += 1
        return seq

    def _known(self, experiment: str, event: ClientEvent) -> int:
        """Seq of the event if it was appended before, else 0."""
        if isinstance(event, DeletionRequested):
            if experiment in self._deleting:
                return self._deleting[experiment].seq
            if any(entry.experiment == experiment for entry in self._queue):
                raise ConflictError(f"a run of experiment {experiment!r} has not ended")
        if not isinstance(event, RunRequested) or (experiment, event.run) not in self._runs:
            return 0
        seq, known = self._runs[experiment, event.run]
        if known != event.model_copy(update={"seq": 0, "time": 0.0}):
            raise ConflictError(f"run {event.run!r} was requested already")
        return seq

    def delete_experiment(self, name: str, term: int) -> None:
        """See `KvsClient`."""
        self.experiment(name)
        if name not in self._deleting:
            raise ConflictError(f"nobody wishes that experiment {name!r} is deleted")
        if term != self._leader.term:
            raise ConflictError(f"leadership term {term} has ended")
        by = self._deleting.pop(name).by
        for dataset, users in list(self._datasets.items()):
            if name in users:
                users.remove(name)
                if not users:
                    self._set_reclaim({*self._reclaim.datasets, dataset})
        self._archived.discard(name)
        del self._records[name]
        for known in (self._logs, self._live):
            known.pop(name, None)
        for table in (self._tasks, self._runs, self._notes):
            for key in [key for key in table if key[0] == name]:
                del table[key]
        self._audit.append(AuditEntry(time=self._now(), by=by, what=f"deleted experiment {name}"))
        self._bells += 1

    def _set_reclaim(self, datasets: set[str]) -> None:
        self._reclaim = Reclaim(seq=self._reclaim.seq + 1, datasets=tuple(sorted(datasets)))

    def audit(self) -> tuple[AuditEntry, ...]:
        """See `KvsClient`."""
        return tuple(self._audit)

    def reclaim(self) -> Reclaim:
        """See `KvsClient`."""
        return self._reclaim

    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        """See `KvsClient`; never blocks."""
        self.experiment(experiment)
        return tuple(self._logs[experiment][after:])

    def live(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[LivePoint, ...]:
        """See `KvsClient`; never blocks."""
        self.experiment(experiment)
        return tuple(self._live[experiment][after:])

    def _append(self, experiment: str, event: Event) -> int:
        log = self._logs[experiment]
        log.append(event.model_copy(update={"seq": len(log) + 1, "time": self._now()}))
        return len(log)

    # --- controller ------------------------------------------------------------------------------

    def lead(self, holder: str, ttl_s: float) -> api.LeaderAnswer:
        """See `KvsClient`."""
        if holder != self._leader.holder:
            if self._leader.holder and self._leads_until > self._now():
                return api.LeaderAnswer(term=0, holder=self._leader.holder)
            self._leader = api.LeaderAnswer(term=self._leader.term + 1, holder=holder)
        self._leads_until = self._now() + ttl_s
        return self._leader

    def queue(self) -> tuple[api.QueueEntry, ...]:
        """See `KvsClient`."""
        return tuple(self._queue)

    def deleting(self) -> tuple[str, ...]:
        """See `KvsClient`."""
        return tuple(sorted(self._deleting))

    def watch(self, cursors: Mapping[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """See `KvsClient`; never blocks."""
        news = {name: events for name, after in cursors.items() if (events := self.events(name, after))}
        return api.WatchAnswer(events=news, cluster=self._bells)

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """See `KvsClient`."""
        self.experiment(experiment)
        if request.steps and request.term != self._leader.term:
            raise ConflictError(f"leadership term {request.term} has ended")
        is_behind = len(self._logs[experiment]) > request.after
        outcomes = tuple(
            self._decision(experiment, request.after, step, is_behind=is_behind) for step in request.steps
        )
        return api.DecideAnswer(outcomes=outcomes, events=self.events(experiment, request.after))

    def _decision(
        self, experiment: str, after: int, step: api.Decision, *, is_behind: bool
    ) -> api.StepOutcome:
        if isinstance(step, api.Note):
            return self._note(experiment, after, step, is_behind=is_behind)
        if isinstance(step, api.Dequeue):
            return self._dequeue(experiment, step, is_behind=is_behind)
        task = self._tasks[experiment, step.task]
        if isinstance(step, api.Assign):
            return self._assign(experiment, step, task)
        return self._revoke(experiment, step, task)

    def _dequeue(self, experiment: str, step: api.Dequeue, *, is_behind: bool) -> api.StepOutcome:
        entry = api.QueueEntry(experiment=experiment, run=step.run)
        if is_behind:
            return _refused("there is news")
        if entry not in self._queue:
            return _ALREADY
        self._queue.remove(entry)
        return _DONE

    def _note(self, experiment: str, after: int, step: api.Note, *, is_behind: bool) -> api.StepOutcome:
        content = step.event.model_copy(update={"seq": 0, "time": 0.0}).model_dump_json()
        if self._notes.get((experiment, content), 0) > after:
            return _ALREADY
        if isinstance(step.event, RunFinished) and is_behind:
            return _refused("there is news")
        self._notes[experiment, content] = self._append(experiment, step.event)
        if isinstance(step.event, RunStarted):
            dataset = step.event.plan.dataset
            self._datasets[dataset].add(experiment)
            if dataset in self._reclaim.datasets:
                self._set_reclaim({*self._reclaim.datasets} - {dataset})
        if isinstance(step.event, RunFinished):
            ended = api.QueueEntry(experiment=experiment, run=step.event.run)
            self._queue = [entry for entry in self._queue if entry != ended]
        return _DONE

    def _assign(self, experiment: str, step: api.Assign, task: _Task) -> api.StepOutcome:
        if (task.state, task.attempt, task.incarnation) == ("assigned", step.attempt, step.incarnation):
            return _ALREADY
        if task.state in ("assigned", "running") or step.attempt != task.attempt + 1:
            return _refused(str(task))
        worker = self._workers.get(step.worker)
        if worker is None or worker.record.incarnation != step.incarnation:
            return _refused(f"{step.worker} registered anew")
        self._tasks[experiment, step.task] = _Task("assigned", step.attempt, step.worker, step.incarnation)
        self._post(worker, experiment, step.task, step.attempt, step)
        self._append(experiment, TaskAssigned(task=step.task, attempt=step.attempt, worker=step.worker))
        return _DONE

    def _revoke(self, experiment: str, step: api.Revoke, task: _Task) -> api.StepOutcome:
        if (task.state, task.attempt) == ("revoked", step.attempt):
            return _ALREADY
        if task.attempt != step.attempt or task.state not in ("assigned", "running"):
            return _refused(str(task))
        if task.state == "running" and not step.force and task.lease_until > self._now():
            return _refused(f"the lease of {task.worker} still runs")
        task.state = "revoked"
        worker = self._workers.get(step.worker)
        if worker is not None:
            self._post(worker, experiment, step.task, step.attempt, None)
        self._append(
            experiment,
            TaskRevoked(
                task=step.task,
                attempt=step.attempt,
                worker=step.worker,
                reason=step.reason,
                loss=step.loss,
            ),
        )
        return _DONE

    def _post(
        self, worker: _Worker, experiment: str, task: str, attempt: int, assign: api.Assign | None
    ) -> None:
        worker.inbox.append(
            InboxItem(
                seq=len(worker.inbox) + 1,
                experiment=experiment,
                task=task,
                attempt=attempt,
                cancel=assign is None,
                body=assign.body if assign else None,
            )
        )

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """See `KvsClient`."""
        known = self._workers.get(record.worker)
        if known is not None and known.record.incarnation == record.incarnation:
            known.record, known.reported = record, self._now()
        else:
            before = known.usage if known else []
            newest = known.newest if known else None
            self._workers[record.worker] = _Worker(record, self._now(), usage=before, newest=newest)
        self._bells += 1
        return record

    def remove_worker(self, worker: str, incarnation: str | None = None) -> None:
        """See `KvsClient`."""
        known = self._workers.get(worker)
        if known is None:
            raise NotFoundError(f"no worker {worker!r} is registered")
        if incarnation and incarnation != known.record.incarnation:
            raise ConflictError(f"worker {worker!r} has registered anew meanwhile")
        del self._workers[worker]
        self._bells += 1

    def workers(self) -> tuple[WorkerStatus, ...]:
        """See `KvsClient`."""
        return tuple(
            WorkerStatus(
                record=worker.record,
                silent_s=self._now() - worker.reported,
                checkpoint_free_bytes=worker.free,
                running=worker.running,
                leaving=worker.leaving,
                usage=worker.newest,
            )
            for _, worker in sorted(self._workers.items())
        )

    def size(self) -> SizeRequest | None:
        """See `KvsClient`."""
        return self._wish

    def ask_size(self, wish: SizeRequest) -> None:
        """See `KvsClient`."""
        if wish.problem:
            self._require_wish(wish.workers)
        else:
            self._bells += 1
        self._wish = wish

    def drop_size(self, workers: int) -> None:
        """See `KvsClient`."""
        self._require_wish(workers)
        self._wish = None

    def _require_wish(self, workers: int) -> None:
        if self._wish is None or self._wish.workers != workers:
            raise ConflictError(f"nobody wishes {workers} workers any more")

    def troubles(self) -> Troubles:
        """See `KvsClient`."""
        return self._troubles

    def tell_troubles(self, troubles: Troubles) -> None:
        """See `KvsClient`."""
        self._troubles = troubles

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """See `KvsClient`."""
        if worker not in self._workers:
            raise NotFoundError(f"no worker {worker!r} is registered")
        return tuple(self._workers[worker].usage)

    def inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[InboxItem, ...]:
        """See `KvsClient`; never blocks."""
        known = self._workers.get(worker)
        if known is None or known.record.incarnation != incarnation:
            return ()
        return tuple(known.inbox[after:])

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        """See `KvsClient`."""
        known = self._workers.get(worker)
        if known is None or known.record.incarnation != request.incarnation:
            return api.ReportAnswer(current=False)
        known.reported, known.free = self._now(), request.checkpoint_free_bytes
        known.running = request.running
        known.leaving = known.leaving or request.leaving
        if request.holdings is not None:
            known.record = known.record.model_copy(update={"holdings": request.holdings})
        if request.live and request.live not in known.recent:
            known.recent = [request.live, *known.recent[:7]]
            for experiment, points in request.live.items():
                for point in points:
                    self._keep(experiment, worker, request.incarnation, point)
        if request.usage is not None:
            known.newest = request.usage
            if not known.usage or self._now() - known.usage[-1].time >= _SAMPLE_S:
                known.usage.append(UsageSample(time=self._now(), usage=request.usage))
        outcomes = tuple(self._step(worker, request, step) for step in request.steps)
        return api.ReportAnswer(current=True, outcomes=outcomes, reclaim=self._reclaim.seq)

    def _keep(self, experiment: str, worker: str, incarnation: str, point: LivePoint) -> None:
        task = self._tasks[experiment, point.task]
        if (task.state, task.attempt, task.incarnation) == ("running", point.attempt, incarnation):
            numbered = {"seq": len(self._live[experiment]) + 1, "time": self._now(), "worker": worker}
            self._live[experiment].append(point.model_copy(update=numbered))

    def _step(self, worker: str, request: api.ReportRequest, step: api.Report) -> api.StepOutcome:
        task = self._tasks[step.experiment, step.task]
        wanted, becomes = _WORKER_STEPS[step.op]
        if (task.attempt, task.incarnation) != (step.attempt, request.incarnation):
            return _refused(str(task))
        if task.state not in wanted:
            return _ALREADY if task.state == becomes and step.op != "renew" else _refused(str(task))
        task.state = becomes
        task.lease_until = self._now() + request.lease_s
        event = _event(worker, step)
        if event is not None:
            self._append(step.experiment, event)
        return _DONE


_WORKER_STEPS: dict[str, tuple[frozenset[str], str]] = {
    "start": (frozenset({"assigned"}), "running"),
    "renew": (frozenset({"running"}), "running"),
    "commit": (frozenset({"running"}), "committed"),
    "fail": (frozenset({"assigned", "running"}), "failed"),
}
"""Step -> (states it may be taken in, state it leads to)."""


def _event(worker: str, step: api.Report) -> Event | None:
    if isinstance(step, api.Start):
        return TaskStarted(task=step.task, attempt=step.attempt, worker=worker)
    if isinstance(step, api.Commit):
        return TaskCommitted(task=step.task, attempt=step.attempt, worker=worker, result=step.result)
    if isinstance(step, api.Fail):
        return TaskFailed(task=step.task, attempt=step.attempt, worker=worker, failure=step.failure)
    return None
