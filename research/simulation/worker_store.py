"""The part of the in-memory store on workers: registrations, reports, inboxes and the size request."""

from __future__ import annotations

from cerebro.contract.events import Event, LivePoint, SubEpochSaved, TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.records import (
    AUTOSCALER,
    SizeRequest,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
    no_workers_for,
)
from cerebro.contract.rest import api
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import ConflictError, NotFoundError
from research.simulation.tables import ALREADY, DONE, Tables, TaskRow, VirtualWorkerRow, refused

_SAMPLE_S = 29.5

_WORKER_STEPS: dict[str, tuple[frozenset[str], str]] = {
    "start": (frozenset({"assigned"}), "running"),
    "renew": (frozenset({"running"}), "running"),
    "save": (frozenset({"running"}), "running"),
    "commit": (frozenset({"running"}), "committed"),
    "fail": (frozenset({"assigned", "running"}), "failed"),
}
"""Step -> (states that allow it, next state)."""


_STAYING = ("renew", "save")
"""Steps that do not change the attempt's state."""


class VirtualWorkerStore(Tables):
    """The methods of `cerebro.runtime.kvs.client.KvsClient` about workers, with the same meaning."""

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """Register a worker's new incarnation."""
        known = self._workers.get(record.worker)
        if known is not None and known.record.incarnation == record.incarnation:
            known.record, known.reported = record, self._now()
        else:
            before = known.usage if known else []
            newest = known.newest if known else None
            self._workers[record.worker] = VirtualWorkerRow(record, self._now(), usage=before, newest=newest)
        self._notifications += 1
        return record

    def remove_worker(self, worker: str, incarnation: str | None = None) -> None:
        """Remove a worker for good."""
        known = self._workers.get(worker)
        if known is None:
            raise NotFoundError(f"no worker {worker!r} is registered")
        if incarnation and incarnation != known.record.incarnation:
            raise ConflictError(f"worker {worker!r} has registered again in the meantime")
        del self._workers[worker]
        self._notifications += 1

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return all registered workers."""
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

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """Return a worker's machine usage over the last day, oldest first."""
        if worker not in self._workers:
            raise NotFoundError(f"no worker {worker!r} is registered")
        return tuple(self._workers[worker].usage)

    def inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[InboxItem, ...]:
        """Return inbox entries of this incarnation with seq > `after`; never blocks."""
        known = self._workers.get(worker)
        if known is None or known.record.incarnation != incarnation:
            return ()
        return tuple(known.inbox[after:])

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        """Apply steps, store live points and renew the heartbeat."""
        known = self._workers.get(worker)
        if known is None or known.record.incarnation != request.incarnation:
            return api.ReportAnswer(current=False)
        known.reported, known.free = self._now(), request.checkpoint_free_bytes
        known.running = request.running
        known.leaving = known.leaving or request.leaving
        if request.replicas is not None:
            known.record = known.record.model_copy(update={"replicas": request.replicas})
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
            return refused(str(task))
        if task.state not in wanted:
            return ALREADY if task.state == becomes and step.op not in _STAYING else refused(str(task))
        if isinstance(step, api.Save):
            if task.saved_batch >= step.savepoint.batch:
                return ALREADY
            task.saved_batch = step.savepoint.batch
        if isinstance(step, api.Start):
            there = (
                (self._workers[name], devices) for name, _, devices in task.places if name in self._workers
            )
            places = [place for each, devices in there for place in each.places(devices)]
            firsts = (place[0] for place in places if place and place[0] != (step.experiment, step.task))
            if any(not task.group or self._tasks[first].group != task.group for first in firsts):
                return refused(f"it is not the turn of {step.task}")
        elif step.op not in _STAYING:
            self._vacate(step.experiment, step.task, task)
        task.state = becomes
        task.lease_until = self._now() + request.lease_s
        event = _event(worker, step)
        if event is not None:
            self._append(step.experiment, event)
        return DONE

    def _vacate(self, experiment: str, key: str, task: TaskRow) -> None:
        """Remove the ended attempt from its devices' queues, so the next one may start."""
        for name, incarnation, devices in task.places:
            worker = self._workers.get(name)
            if worker is not None and worker.record.incarnation == incarnation:
                for place in worker.places(devices):
                    if (experiment, key) in place:
                        place.remove((experiment, key))

    def _post(
        self,
        worker: VirtualWorkerRow,
        experiment: str,
        step: api.Assign | api.Revoke | api.Preempt,
        member: int = 0,
    ) -> None:
        assign = step if isinstance(step, api.Assign) else None
        worker.inbox.append(
            InboxItem(
                seq=len(worker.inbox) + 1,
                experiment=experiment,
                task=step.task,
                attempt=step.attempt,
                cancel=isinstance(step, api.Revoke),
                member=member,
                preempt=step.reason if isinstance(step, api.Preempt) else "",
                devices=assign.devices if assign else (0,),
                body=assign.inbox_body if assign else None,
            )
        )

    # --- the size of the cluster -----------------------------------------------------------------

    def size_request(self) -> SizeRequest | None:
        """Return the pending or refused size request, if any."""
        return self._size_request

    def request_size(self, request: SizeRequest) -> None:
        """Replace the size request."""
        if request.problem:
            self._require_request(request.workers)
        elif not request.workers and not request.pause and request.by != AUTOSCALER and self._queue:
            raise ConflictError(no_workers_for([f"{each.experiment}/{each.run}" for each in self._queue]))
        else:
            self._notifications += 1
        self._size_request = request

    def withdraw_size_request(self, workers: int) -> None:
        """Remove the request for this number of workers."""
        self._require_request(workers)
        self._size_request = None

    def _require_request(self, workers: int) -> None:
        if self._size_request is None or self._size_request.workers != workers:
            raise ConflictError(f"there is no request for {workers} workers any more")

    def worker_set_status(self) -> WorkerSetStatus:
        """Return the reasons that requested workers do not start."""
        return self._worker_set_status

    def set_worker_set_status(self, status: WorkerSetStatus) -> None:
        """Replace these reasons."""
        self._worker_set_status = status


def _event(worker: str, step: api.Report) -> Event | None:
    if isinstance(step, api.Start):
        return TaskStarted(task=step.task, attempt=step.attempt, worker=worker)
    if isinstance(step, api.Save):
        return SubEpochSaved(task=step.task, attempt=step.attempt, worker=worker, savepoint=step.savepoint)
    if isinstance(step, api.Commit):
        return TaskCommitted(task=step.task, attempt=step.attempt, worker=worker, result=step.result)
    if isinstance(step, api.Fail):
        return TaskFailed(task=step.task, attempt=step.attempt, worker=worker, failure=step.failure)
    return None
