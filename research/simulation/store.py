"""An in-memory store with the rules of kvs_api; it passes the same contract suite as the real one.

The simulation sets the time. Not thread-safe. No call blocks: a read returns the present data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebro.contract.events import (
    ClientEvent,
    ClusterEvent,
    DeletionRequested,
    Event,
    ExperimentArchived,
    LivePoint,
    LocatorsChanged,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    PreemptionRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    TaskAssigned,
    TaskRevoked,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import AuditEntry, ExperimentRecord, ExperimentSummary, Reclaim
from cerebro.contract.rest import api
from cerebro.contract.tasks.gangs import Member
from cerebro.errors import ConflictError, LostEventsError, NotFoundError
from research.simulation.segment_store import VirtualSegmentStore
from research.simulation.tables import ALREADY, DONE, TaskRow, refused

_OPENS = (RunRequested, RunResumed, ModelResumed, ModelRetried, ModelsAdded, ModelExtended)
"""Events after which a run may be open."""


class VirtualStore(VirtualSegmentStore):
    """The methods of `cerebro.runtime.kvs.client.KvsClient` that a simulation needs, with the same meaning.

    Args:
        now: clock in seconds.
    """

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create an experiment, or return the existing equal one."""
        if record.name in self._deleting:
            raise ConflictError(f"experiment {record.name!r} is being deleted")
        known = self._records.setdefault(record.name, record)
        if (known.locators, known.archive) != (record.locators, record.archive):
            raise ConflictError(f"experiment {record.name!r} exists already")
        return known

    def experiment(self, name: str) -> ExperimentRecord:
        """Return the record of an experiment."""
        if name not in self._records:
            raise NotFoundError(f"no experiment {name!r}")
        return self._records[name]

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments, newest event first."""
        found = []
        for name, record in self._records.items():
            newest = self._newest[name]
            found.append(
                ExperimentSummary(
                    experiment=record,
                    last_seq=newest,
                    last_event=self._logs[name][newest - 1].time if newest else record.created,
                    open_runs=tuple(entry.run for entry in self._queue if entry.experiment == name),
                    is_archived=name in self._archived,
                    is_deleting=name in self._deleting,
                )
            )
        return tuple(sorted(found, key=lambda summary: -summary.last_event))

    def append(self, experiment: str, event: ClientEvent) -> int:
        """Append a client's event once, even if the call is repeated, and return its seq."""
        self.experiment(experiment)
        run = getattr(event, "run", "")
        if run and not isinstance(event, RunRequested) and (experiment, run) not in self._runs:
            raise NotFoundError(f"no run {run!r} in experiment {experiment!r}")
        known = self._known(experiment, event)
        if known:
            return known
        if isinstance(event, (*_OPENS, LocatorsChanged)) and experiment in self._deleting:
            raise ConflictError(f"experiment {experiment!r} is being deleted")
        seq = self._append(experiment, event)
        if isinstance(event, RunRequested):
            self._runs[experiment, run] = (seq, event.model_copy(update={"seq": 0, "time": 0.0}))
        entry = api.QueueEntry(experiment=experiment, run=run) if isinstance(event, _OPENS) else None
        if entry and entry not in self._queue:
            self._queue.append(entry)
        if isinstance(event, LocatorsChanged):
            self._records[experiment] = self.experiment(experiment).model_copy(
                update={"locators": event.locators}
            )
        if isinstance(event, ExperimentArchived):
            (self._archived.add if event.is_archived else self._archived.discard)(experiment)
        if isinstance(event, DeletionRequested):
            self._deleting[experiment] = event.model_copy(update={"seq": seq})
        self._notifications += 1
        return seq

    def _known(self, experiment: str, event: ClientEvent) -> int:
        """Return the seq of an event that was appended before, else 0."""
        if isinstance(event, DeletionRequested):
            if experiment in self._deleting:
                return self._deleting[experiment].seq
            if any(entry.experiment == experiment for entry in self._queue):
                raise ConflictError(f"a run of experiment {experiment!r} has not ended")
        if isinstance(event, LocatorsChanged):
            is_busy = any(entry.experiment == experiment for entry in self._queue)
            if is_busy or event.after < self._newest[experiment]:
                raise ConflictError(f"something has happened in experiment {experiment!r} meanwhile")
        if not isinstance(event, RunRequested) or (experiment, event.run) not in self._runs:
            return 0
        seq, known = self._runs[experiment, event.run]
        if known != event.model_copy(update={"seq": 0, "time": 0.0}):
            raise ConflictError(f"run {event.run!r} was requested already")
        return seq

    def delete_experiment(self, name: str, term: int) -> None:
        """Remove an experiment whose deletion was requested, after its files are gone."""
        self.experiment(name)
        if name not in self._deleting:
            raise ConflictError(f"nobody asked to delete experiment {name!r}")
        if term != self._leader.term:
            raise ConflictError(f"leadership term {term} has ended")
        by = self._deleting.pop(name).by
        self._counted.pop(name, None)
        for dataset, users in list(self._datasets.items()):
            if name in users:
                users.remove(name)
                if not users:
                    self._set_reclaim({*self._reclaim.datasets, dataset})
        self._archived.discard(name)
        del self._records[name]
        for (experiment, task), row in self._tasks.items():
            if experiment == name:
                self._vacate(experiment, task, row)
        for known in (
            *(self._logs, self._live, self._newest, self._merged),
            *(self._numbers, self._segments, self._snapshots, self._decided),
        ):
            known.pop(name, None)
        for table in (self._tasks, self._runs, self._notes, self._model_sub_epochs):
            for key in [key for key in table if key[0] == name]:
                del table[key]
        self._audit.append(AuditEntry(time=self._now(), by=by, what=f"deleted experiment {name}"))
        self._notifications += 1

    def _set_reclaim(self, datasets: set[str]) -> None:
        self._reclaim = Reclaim(seq=self._reclaim.seq + 1, datasets=tuple(sorted(datasets)))

    def audit(self) -> tuple[AuditEntry, ...]:
        """Return the audit entries, oldest first."""
        return tuple(self._audit)

    def reclaim(self) -> Reclaim:
        """Return data sets that no experiment uses."""
        return self._reclaim

    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        """Return events with seq > `after`, oldest first, at most 1,000; never blocks."""
        self.experiment(experiment)
        moved = self._segments[experiment]
        if self.files_are_lost and moved and after < moved[-1].last:
            raise LostEventsError.for_event(experiment, after + 1, "their file is gone")
        return tuple(self._log(experiment)[after:])

    def live(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[LivePoint, ...]:
        """Return live points with seq > `after`, oldest first, at most 1,000; never blocks."""
        self.experiment(experiment)
        return tuple(self._live[experiment][after:])

    # --- controller ------------------------------------------------------------------------------

    def lead(
        self,
        holder: str,
        ttl_s: float,
        *,
        process: str = "",
        is_start: bool = False,
        open_runs: int = 1,
        attended: api.Attended | None = None,
    ) -> api.LeaderAnswer:
        """Take or renew the controller's leadership for `ttl_s` seconds."""
        is_same = (holder, process) == (self._leader.holder, self._leader_process)
        if not is_same:
            replaces = is_start and holder == self._leader.holder
            if self._leader.holder and self._leads_until > self._now() and not replaces:
                return api.LeaderAnswer(term=0, holder=self._leader.holder)
            self._leader = api.LeaderAnswer(term=self._leader.term + 1, holder=holder)
            self._leader_process = process
        self._leads_until = self._now() + ttl_s
        self._open_runs = open_runs
        if attended is not None and is_same:
            self._attended = attended
        return self._leader

    def queue(self) -> tuple[api.QueueEntry, ...]:
        """Return open runs of all experiments, oldest first."""
        return tuple(self._queue)

    def queued(self) -> api.QueueAnswer:
        """Return the queue, the limit of attended runs, and the attended runs."""
        return api.QueueAnswer(
            runs=self.queue(),
            deleting=self.deleting(),
            open_runs=self._open_runs,
            attended=self._attended,
        )

    def deleting(self) -> tuple[str, ...]:
        """Return experiments with a requested deletion."""
        return tuple(sorted(self._deleting))

    def watch(self, cursors: Mapping[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """Return events of the named logs after their cursors, and the number of notifications; never blocks."""
        news = {name: events for name, after in cursors.items() if (events := self.events(name, after))}
        return api.WatchAnswer(events=news, cluster=self._notifications)

    def cluster_log(self, after: int = 0, *, wait_s: float = 0.0) -> tuple[ClusterEvent, ...]:
        """Return events of the cluster log with seq > `after`; never blocks."""
        return tuple(self._cluster_log[after:])

    def write_cluster_log(self, request: api.ClusterLogRequest) -> api.ClusterLogAnswer:
        """Append the controller's events to the cluster log, unless it has newer events than the request's cursor."""
        if request.term != self._leader.term:
            raise ConflictError(f"leadership term {request.term} has ended")
        is_written = request.after == len(self._cluster_log)
        for event in request.events if is_written else ():
            numbered = {"seq": len(self._cluster_log) + 1, "time": self._now()}
            self._cluster_log.append(event.model_copy(update=numbered))
            if isinstance(event, WorkerJoined):
                self._present[event.worker] = event.incarnation
            elif isinstance(event, WorkerLost | WorkerRemoved):
                self._present[event.worker] = ""
        return api.ClusterLogAnswer(is_written=is_written, events=self.cluster_log(request.after))

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """Apply the controller's steps atomically."""
        self.experiment(experiment)
        if request.steps and request.term != self._leader.term:
            raise ConflictError(f"leadership term {request.term} has ended")
        is_behind = self._newest[experiment] > request.after
        is_outdated = self._decided[experiment] > request.after
        outcomes = tuple(
            self._decision(experiment, request.after, step, is_behind=is_behind, is_outdated=is_outdated)
            for step in request.steps
        )
        return api.DecideAnswer(outcomes=outcomes, events=self.events(experiment, request.after))

    def _decision(
        self, experiment: str, after: int, step: api.Decision, *, is_behind: bool, is_outdated: bool
    ) -> api.StepOutcome:
        if isinstance(step, api.Note):
            return self._note(experiment, after, step, is_behind=is_behind, is_outdated=is_outdated)
        if isinstance(step, api.Dequeue):
            return self._dequeue(experiment, step, is_behind=is_behind)
        task = self._tasks[experiment, step.task]
        if isinstance(step, api.Assign):
            return self._assign(experiment, after, step, task, is_outdated=is_outdated)
        if isinstance(step, api.Preempt):
            return self._preempt(experiment, step, task)
        return self._revoke(experiment, step, task)

    def _dequeue(self, experiment: str, step: api.Dequeue, *, is_behind: bool) -> api.StepOutcome:
        entry = api.QueueEntry(experiment=experiment, run=step.run)
        if is_behind:
            return refused("there is news")
        if entry not in self._queue:
            return ALREADY
        self._queue.remove(entry)
        return DONE

    def _note(
        self, experiment: str, after: int, step: api.Note, *, is_behind: bool, is_outdated: bool
    ) -> api.StepOutcome:
        content = step.event.model_copy(update={"seq": 0, "time": 0.0}).model_dump_json()
        if self._notes.get((experiment, content), 0) > after:
            return ALREADY
        if self._floor(experiment) > after:
            return refused(f"events up to {self._floor(experiment)} were not seen")
        if is_outdated:
            return refused("there is news")
        if isinstance(step.event, RunFinished) and is_behind:
            return refused("there is news")
        self._notes[experiment, content] = self._append(experiment, step.event)
        if isinstance(step.event, RunStarted):
            dataset = step.event.plan.dataset
            self._datasets[dataset].add(experiment)
            if dataset in self._reclaim.datasets:
                self._set_reclaim({*self._reclaim.datasets} - {dataset})
        if isinstance(step.event, RunFinished):
            ended = api.QueueEntry(experiment=experiment, run=step.event.run)
            self._queue = [entry for entry in self._queue if entry != ended]
        return DONE

    def _assign(
        self, experiment: str, after: int, step: api.Assign, task: TaskRow, *, is_outdated: bool
    ) -> api.StepOutcome:
        if (task.state, task.attempt, task.incarnation) == ("assigned", step.attempt, step.incarnation):
            return ALREADY
        if is_outdated:
            return refused("there is news")
        attempts = [(step.task, step.attempt, step.config_version)]
        attempts += [(other.task, other.attempt, other.config_version) for other in step.fused]
        row = TaskRow(
            "assigned",
            step.attempt,
            step.worker,
            step.incarnation,
            devices=step.devices,
            other_members=step.other_members,
            group=f"{experiment} {step.group.id}" if step.group else "",
        )
        problems = [
            *(self._not_open(experiment, after, key, attempt) for key, attempt, _ in attempts),
            *(self._unfit(*place, step.depth) for place in row.places),
        ]
        if problem := next(filter(None, problems), ""):
            return refused(problem)
        for key, attempt, _ in attempts:
            self._tasks[experiment, key] = replace(row, attempt=attempt)
            if model := _model(key):
                self._model_sub_epochs[experiment, model] = key
        for number, (name, _, devices) in enumerate(row.places):
            worker = self._workers[name]
            for place in worker.places(devices):
                place += [(experiment, key) for key, _, _ in attempts]
            self._post(worker, experiment, step.model_copy(update={"devices": devices}), number)
        members = tuple(
            Member(worker=each.worker, partition=each.partition, devices=each.devices)
            for each in step.other_members
        )
        for key, attempt, version in attempts:
            event = TaskAssigned(
                task=key,
                attempt=attempt,
                worker=step.worker,
                devices=step.devices,
                config_version=version,
                parallel_plan=step.parallel_plan,
                other_members=members,
                group=step.group,
            )
            self._append(experiment, event)
        return DONE

    def _not_open(self, experiment: str, after: int, key: str, attempt: int) -> str:
        """Return the reason a task cannot get this attempt; "" if it can."""
        task, model = self._tasks[experiment, key], _model(key)
        sub_epoch = self._model_sub_epochs.get((experiment, model), key) if model else key
        if sub_epoch != key and self._tasks[experiment, sub_epoch].state in ("assigned", "running"):
            return f"{sub_epoch} is open"
        # A forgotten task may be assigned only by a controller that has read the log up to its segment.
        floor = self._floor(experiment) if task.state == "new" else 0
        if floor > after:
            return f"events up to {floor} were not seen"
        is_next = floor > 0 or attempt == task.attempt + 1
        return str(task) if task.state in ("assigned", "running") or not is_next else ""

    def _num_open(self, place: Sequence[tuple[str, str]]) -> int:
        """Return the number of attempts in a queue; a fused group counts as one."""
        groups = (self._tasks[each].group or f"{each}" for each in place)
        return len(set(groups))

    def _unfit(self, name: str, incarnation: str, devices: tuple[int, ...], depth: int) -> str:
        """Return the reason an attempt cannot go to a worker; "" if it can."""
        worker = self._workers.get(name)
        if worker is None or worker.record.incarnation != incarnation:
            return f"{name} has restarted"
        if self._present.get(name, incarnation) != incarnation:
            return f"the cluster's log does not say that {name} is there"
        if any(device >= max(1, len(worker.record.devices)) for device in devices):
            return f"{name} has no such device"
        if any(self._num_open(place) >= depth for place in worker.places(devices)):
            return f"{name} has enough there"
        return ""

    def _preempt(self, experiment: str, step: api.Preempt, task: TaskRow) -> api.StepOutcome:
        if (task.attempt, task.worker, task.state) != (step.attempt, step.worker, "running"):
            return refused(str(task))
        if task.is_asked:
            return ALREADY
        worker = self._workers.get(step.worker)
        if worker is None or worker.record.incarnation != task.incarnation:
            return refused(f"{step.worker} has restarted")
        task.is_asked = True
        self._post(worker, experiment, step)
        named = step.model_dump(include={"task", "attempt", "worker", "reason"})
        self._append(experiment, PreemptionRequested(**named))
        return DONE

    def _revoke(self, experiment: str, step: api.Revoke, task: TaskRow) -> api.StepOutcome:
        if (task.state, task.attempt) == ("revoked", step.attempt):
            return ALREADY
        is_open = task.state in ("assigned", "running")
        if (task.attempt, task.worker) != (step.attempt, step.worker) or not is_open:
            return refused(str(task))
        if task.state == "running" and not step.force and task.lease_until > self._now():
            return refused(f"the lease of {task.worker} still runs")
        task.state = "revoked"
        self._vacate(experiment, step.task, task)
        for name, incarnation, _ in task.places:
            worker = self._workers.get(name)
            if worker is not None and worker.record.incarnation == incarnation:
                self._post(worker, experiment, step)
        self._append(
            experiment,
            TaskRevoked(
                task=step.task,
                attempt=step.attempt,
                worker=step.worker,
                reason=step.reason,
                loss=step.loss,
                limit_bytes=step.limit_bytes,
            ),
        )
        return DONE


def _model(task: str) -> str:
    """Return the model that a task trains, as RUN/MODEL; "" for other tasks."""
    run, kind, *rest = task.split("/")
    return f"{run}/{rest[0]}" if kind == "train" else ""
