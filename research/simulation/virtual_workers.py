"""Simulated pods and workers, which register, execute tasks from their inboxes, leave and return.

They know the store and the scenario, but not the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from cerebro.contract.events import RunStarted
from cerebro.contract.records import (
    COMPUTES,
    Device,
    PodRef,
    Replica,
    WorkerRecord,
)
from cerebro.contract.rest import api
from cerebro.contract.search_tasks import SearchAnswer
from cerebro.contract.stored.health import CheckResult, Probe
from cerebro.contract.tasks.bodies import (
    EtlTask,
    FusedTask,
    InspectTask,
    SearchTask,
    TaskBody,
    TrainTask,
    TrialTask,
    VerificationTask,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult, Timings, VerificationOutcome
from cerebro.search import user_procedure
from cerebro.search.suggestions import values_for
from cerebro.state.workers import slots_of
from controller.scaling.orchestrator import Exit, Fleet, Memory, Pod
from controller.sources.search import ALL_SAMPLERS
from research.simulation.scenario import DATASET, Preemption, Scenario, WorkerOutage
from research.simulation.store import VirtualStore


@dataclass(kw_only=True)
class _Pod:
    """A pod or, without a cluster manager, a worker's process, with its volume and workers."""

    name: str
    disk: set[int]
    """Partitions on its volume."""
    number: int = 0
    """Number of earlier pods with this name."""
    is_up: bool = True
    leaving: Exit | None = None
    is_removed: bool = False
    memory: int = 0
    """Bytes of its worker; 0 if unknown."""
    is_unwanted: bool = False
    """True if the cluster has shrunk below this pod; its volume stays."""


@dataclass(kw_only=True)
class _Worker:
    name: str
    kinds: tuple[str, ...]
    pod: _Pod
    cursor: int = 0
    queue: list[InboxItem] = field(default_factory=list)
    running: list[InboxItem] = field(default_factory=list)
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Attempt -> number of the inbox item with its fused group."""

    @property
    def identity(self) -> str:
        return f"{self.name}#{self.pod.number}"


_KINDS = ("train", "valid", "test", "predict")
_GRACE_S = 1.0
RESIZED_S = 1.0
CHECK_S = 0.5
"""Seconds of a node check."""
_PREEMPTED = Exit(reason="its node is being drained", kind=FailureKind.PREEMPTED)


class VirtualWorkers:
    """All workers of a simulation.

    Args:
        store: target of registrations and reports.
        plans: (experiment, run) -> plan, which has the rows of each partition of a fit.
        now: clock in seconds.
        at: schedules a call at a time.
    """

    def __init__(
        self,
        scenario: Scenario,
        store: VirtualStore,
        plans: Mapping[tuple[str, str], RunStarted],
        *,
        now: Callable[[], float],
        at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._scenario, self._store, self._plans = scenario, store, plans
        self._now, self._at = now, at
        self._pods = {
            name: _Pod(
                name=name,
                disk=set() if scenario.has_pods else set(held),
                memory=scenario.memory.get(name, 0),
            )
            for name, held in scenario.replicas.items()
        }
        self._workers = {}
        self._paces: dict[tuple[str, str, int], tuple[float, float]] = {}
        """(task, attempt) -> start and total seconds."""
        for name, pod in self._pods.items():
            self._workers[name] = _Worker(name=name, kinds=self._kinds, pod=pod)
            if scenario.has_pods:
                kinds = ("etl", *self._searches)
                self._workers[f"{name}-etl"] = _Worker(name=f"{name}-etl", kinds=kinds, pod=pod)

    @property
    def _kinds(self) -> tuple[str, ...]:
        """Task kinds of workers that train."""
        inspects = ["inspect"] if self._scenario.inspection is not None else []
        searches = () if self._scenario.has_pods else self._searches
        return (*_KINDS, "verify", *inspects, *searches, "trial", f"{COMPUTES}virtual")

    @property
    def _searches(self) -> tuple[str, ...]:
        is_asked = self._scenario.procedure is not None or self._scenario.installed_samplers != ALL_SAMPLERS
        return ("search",) if is_asked else ()

    def begin(self) -> None:
        """Register the workers present at the start, and schedule the scenario's failures."""
        for name, pod in self._pods.items():
            if name in self._scenario.absent:
                pod.is_up, pod.is_unwanted = False, True
            elif name in self._scenario.joins:
                pod.is_up = False
                self._at(self._scenario.joins[name], partial(self._come_back, pod))
            else:
                self._register(pod)
        for outage in self._scenario.outages:
            notify = self._preempt if isinstance(outage, Preemption) else self._go_away
            self._at(outage.start, partial(notify, outage))
        for name, time in self._scenario.removals.items():
            self._at(time, partial(self._remove, self._pods[name]))

    def resize(self, count: int, *, join_s: float | Callable[[str], float]) -> None:
        """Keep the first `count` pods: missing ones join, later ones end at once and keep their volumes.

        Args:
            join_s: seconds until a missing pod joins, or a function of its name.
        """
        for number, pod in enumerate(self._pods.values()):
            if number < count and pod.is_unwanted:
                pod.is_unwanted = False
                seconds = join_s(pod.name) if callable(join_s) else join_s
                self._at(self._now() + seconds, partial(self._come_back, pod))
            elif number >= count and not pod.is_unwanted:
                pod.is_unwanted = True
                self._end_processes(pod)
                self._forget(pod)

    def fleet(self) -> Fleet:
        """Return the pods as a cluster manager reports them."""
        pods = {
            pod.name: Pod(
                uid=f"{pod.name}#{pod.number}",
                leaving=pod.leaving,
                memory={"train": Memory(pod.memory // 2, pod.memory)} if pod.memory else {},
            )
            for pod in self._pods.values()
            if pod.is_up
        }
        return Fleet(pods=pods, size=sum(not pod.is_unwanted for pod in self._pods.values()))

    def resize_memory(self, name: str, memory: Memory) -> None:
        """Raise a pod's memory; it takes effect a moment later, without a restart."""
        if name not in self._scenario.unresized:
            self._at(self._now() + RESIZED_S, partial(self._take_memory, self._pods[name], memory.limit))

    def _take_memory(self, pod: _Pod, limit: int) -> None:
        pod.memory = limit
        for status in self._store.workers():
            if pod.is_up and self._workers[status.record.worker].pod is pod:
                self._store.register(status.record.model_copy(update={"memory_bytes": limit}))

    def memory(self, name: str) -> int:
        """Return the present bytes of a worker."""
        return self._pods[name].memory

    def beat(self) -> None:
        """Send the reports of all present workers, and read their inboxes."""
        for worker in self._workers.values():
            if worker.pod.is_up:
                self._report(worker, [_renew(item) for item in worker.running])
        self.deliver()

    def _register(self, pod: _Pod) -> None:
        held = tuple(Replica(dataset=DATASET, partition=partition) for partition in sorted(pod.disk))
        for worker in self._on(pod):
            worker.cursor, worker.queue, worker.running = 0, [], []
            ref = PodRef(name=pod.name, uid=f"{pod.name}#{pod.number}", container=worker.kinds[0])
            self._store.register(
                WorkerRecord(
                    worker=worker.name,
                    incarnation=worker.identity,
                    weight=1.0,
                    cores=1,
                    kinds=worker.kinds,
                    devices=self._devices(worker),
                    replicas=held,
                    address="" if self._scenario.is_apart else f"{worker.name}:1",
                    volume=pod.name if self._scenario.has_pods else None,
                    pod=ref if self._scenario.has_pods or self._scenario.memory else None,
                    memory_bytes=pod.memory or None,
                )
            )

    def _devices(self, worker: _Worker) -> tuple[Device, ...]:
        if "train" not in worker.kinds:
            return ()
        count = self._scenario.devices.get(worker.name, 1)
        memory = self._scenario.device_memory.get(worker.name)
        kind = self._scenario.device_kind
        return (Device(kind=kind, name="virtual", threads=1, memory_bytes=memory),) * count

    def _on(self, pod: _Pod) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.pod is pod]

    def _preempt(self, outage: WorkerOutage) -> None:
        """Release the tasks of all workers of a pod and report it before they end."""
        pod = self._pods[outage.worker]
        if not pod.is_up:
            return
        pod.leaving = _PREEMPTED
        failure = Failure(kind=FailureKind.PREEMPTED, message=_PREEMPTED.reason)
        for worker in self._on(pod):
            released = [item for item in (*worker.running, *worker.queue) if not item.member]
            worker.running, worker.queue = [], [item for item in worker.queue if item.member]
            saved = [save for item in released for save in self._saved(worker, item)]
            failed = [
                api.Fail(experiment=item.experiment, task=item.task, attempt=item.attempt, failure=failure)
                for item in released
            ]
            self._report(worker, [*saved, *failed])
        self._at(outage.start + _GRACE_S, partial(self._go_away, outage))

    def _go_away(self, outage: WorkerOutage) -> None:
        pod = self._pods[outage.worker]
        if pod.is_up:
            self._end_processes(pod)
            self._at(self._now() + outage.length, partial(self._come_back, pod))

    def _end_processes(self, pod: _Pod) -> None:
        pod.is_up = False
        for worker in self._on(pod):
            parts = [item for item in worker.queue if item.member]
            worker.running, worker.queue = [], []
            for item in parts:
                self._lose_member(item, worker.name)

    def _lose_member(self, part: InboxItem, name: str) -> None:
        """Fail the attempt at the gang's leader at once, because another member is gone."""
        for worker in self._workers.values():
            for item in [each for each in worker.running if _name_of(each) == _name_of(part)]:
                worker.running.remove(item)
                failure = Failure(kind=FailureKind.MEMBER_LOST, message=f"{name} is gone")
                fail = api.Fail(
                    experiment=item.experiment, task=item.task, attempt=item.attempt, failure=failure
                )
                self._report(worker, [fail])
                self._dismiss(item)

    def _dismiss(self, item: InboxItem) -> None:
        """End a gang's attempt on the other members."""
        for worker in self._workers.values():
            worker.queue = [each for each in worker.queue if _name_of(each) != _name_of(item)]

    def _come_back(self, pod: _Pod) -> None:
        if not (pod.is_removed or pod.is_unwanted or pod.is_up):
            pod.is_up, pod.leaving = True, None
            pod.number += 1
            self._register(pod)

    def _remove(self, pod: _Pod) -> None:
        self._end_processes(pod)
        pod.is_removed = True
        self._forget(pod)

    def _forget(self, pod: _Pod) -> None:
        registered = {status.record.worker for status in self._store.workers()}
        for worker in self._on(pod):
            if worker.name in registered:
                self._store.remove_worker(worker.name)

    def deliver(self) -> None:
        """Read the inboxes of all present workers and start their next tasks."""
        for worker in self._workers.values():
            if not worker.pod.is_up or worker.pod.leaving:
                continue
            for item in self._store.inbox(worker.name, worker.identity, worker.cursor, wait_s=0):
                worker.cursor = item.seq
                if item.check:
                    self._check(worker)
                elif item.preempt:
                    self._release(worker, item)
                elif item.cancel:
                    worker.queue = [each for each in worker.queue if _name_of(each) != _name_of(item)]
                    worker.running = [each for each in worker.running if _name_of(each) != _name_of(item)]
                elif isinstance(item.body, FusedTask):
                    members = [
                        item.model_copy(
                            update={"task": each.task, "attempt": each.attempt, "body": each.body}
                        )
                        for each in item.body.members
                    ]
                    worker.groups |= {_name_of(member): item.seq for member in members}
                    worker.queue += members
                else:
                    worker.queue.append(item)
            self._start_next(worker)

    def _check(self, worker: _Worker) -> None:
        """Check the worker's machine and report the result after `CHECK_S`."""
        result = CheckResult(
            incarnation=worker.identity,
            probes=(Probe(name="memory", problem=self._scenario.check(worker.name)),),
            device="virtual",
            seconds=CHECK_S,
        )

        def report_result(identity: str = worker.identity) -> None:
            if worker.pod.is_up and worker.identity == identity:
                self._store.report_check(worker.name, result)

        self._at(self._now() + CHECK_S, report_result)

    def _release(self, worker: _Worker, inbox_item: InboxItem) -> None:
        """Release the task at its next batch, which is now."""
        named = _name_of(inbox_item)
        item = next((r for r in worker.running if _name_of(r) == named), None)
        if item is None or worker.name in self._scenario.deaf:
            return
        worker.running.remove(item)
        failure = Failure(kind=FailureKind.PREEMPTED, message=inbox_item.preempt)
        fail = api.Fail(experiment=item.experiment, task=item.task, attempt=item.attempt, failure=failure)
        self._report(worker, [*self._saved(worker, item), fail])

    def _saved(self, worker: _Worker, item: InboxItem) -> list[api.Report]:
        """Return a running sub-epoch's savepoint if it has advanced."""
        is_running = _name_of(item) in self._paces
        if not self._scenario.saves or not isinstance(item.body, TrainTask) or not is_running:
            return []
        began, seconds = self._paces[_name_of(item)]
        rows, first = self._rows(item), _resumed(item.body)
        share = min(1.0, (self._now() - began) / seconds)
        done = first + int((rows - first) * share)
        if not first < done < rows:
            return []
        reference = CheckpointRef(name=f"{item.task}-a{item.attempt}.s{done}", checksum="-", size=1)
        savepoint = Savepoint(checkpoint=reference, batch=done, rows=done)
        return [
            api.Save(experiment=item.experiment, task=item.task, attempt=item.attempt, savepoint=savepoint)
        ]

    def _start_next(self, worker: _Worker) -> None:
        while items := _startable(worker):
            worker.queue = [item for item in worker.queue if item not in items]
            starts = [
                api.Start(experiment=item.experiment, task=item.task, attempt=item.attempt) for item in items
            ]
            outcomes = self._report(worker, starts)
            started = [
                item
                for item, outcome in zip(items, outcomes, strict=bool(outcomes))
                if outcome.outcome != "refused"
            ]
            for item in started:
                assert item.body is not None
                worker.running.append(item)
                is_search = isinstance(item.body, SearchTask)
                seconds = (
                    self._scenario.search_s
                    if is_search
                    else self._scenario.sub_epoch_time(item.body, worker.name)
                )
                if isinstance(item.body, TrainTask):
                    seconds *= 1 - _resumed(item.body) / self._rows(item)
                self._paces[_name_of(item)] = self._now(), seconds
                self._save_later(worker, worker.identity, item)
            if started:  # a fused group takes as long as its slowest model
                last = max(self._paces[_name_of(item)][1] for item in started)
                self._at(self._now() + last, partial(self._end, worker, worker.identity, started))

    def _save_later(self, worker: _Worker, identity: str, item: InboxItem) -> None:
        def save() -> None:
            if self._is_there(worker, identity, item):
                self._report(worker, self._saved(worker, item))
                self._save_later(worker, identity, item)

        if self._scenario.saves_every_s:
            self._at(self._now() + self._scenario.saves_every_s, save)

    @staticmethod
    def _is_there(worker: _Worker, identity: str, item: InboxItem) -> bool:
        return worker.pod.is_up and worker.identity == identity and item in worker.running

    def _end(self, worker: _Worker, identity: str, started: Sequence[InboxItem]) -> None:
        items = [item for item in started if self._is_there(worker, identity, item)]
        ends = []
        for item in items:
            assert item.body is not None
            worker.running.remove(item)
            failure = self._scenario.outcome(item.body, item.attempt, worker.name)
            if isinstance(item.body, EtlTask) and failure is None:
                worker.pod.disk.add(item.body.partition)
            ends.append(self._ending(item, item.body, worker.name, failure))
        if items:
            self._report(worker, ends)
            for item in items:
                self._dismiss(item)
            self._start_next(worker)

    def _ending(self, item: InboxItem, body: TaskBody, worker: str, failure: Failure | None) -> api.Report:
        named = {"experiment": item.experiment, "task": item.task, "attempt": item.attempt}
        if failure is None and isinstance(body, SearchTask):
            try:
                answer = self._answer(body)
                return api.Commit.model_validate({**named, "result": TaskResult(answer=answer)})
            except Exception as error:  # noqa: BLE001 - a procedure under test may raise anything, as in a worker's child process
                failure = Failure(kind=FailureKind.USER_ERROR, message=str(error))
        if failure is not None:
            return api.Fail.model_validate({**named, "failure": failure})
        return api.Commit.model_validate({**named, "result": self._result(item, body, worker)})

    def _answer(self, body: SearchTask) -> SearchAnswer:
        """Return a search answer after a pass through JSON, as from a worker."""
        body = SearchTask.model_validate_json(body.model_dump_json())
        if body.request.kind == "suggestions":
            answer = SearchAnswer(values=tuple(values_for(body.request)))
        else:
            assert self._scenario.procedure is not None
            answer = SearchAnswer(actions=user_procedure.answer(body.request, self._scenario.procedure))
        return SearchAnswer.model_validate_json(answer.model_dump_json())

    def _result(self, item: InboxItem, body: TaskBody, worker: str) -> TaskResult:
        if isinstance(body, InspectTask):
            return TaskResult(inspection=self._scenario.inspection)
        if isinstance(body, TrialTask):
            return TaskResult(trial=self._scenario.trial(body))
        checkpoint, resumed, timings, curve = None, 0, Timings(), None
        if isinstance(body, TrainTask):
            if body.with_curve:
                curve = self._scenario.curve(body, self._paces[_name_of(item)][1])
            name = f"{body.model}/u{body.sub_epoch}-a{item.attempt}"
            left = self._scenario.state_of(body, item.attempt, worker)
            checkpoint, resumed = CheckpointRef(name=name, checksum=left, size=1), _resumed(body)
            if self._scenario.fixed_s is not None:
                fixed_s = self._scenario.fixed_s(body, worker)
                _, seconds = self._paces[_name_of(item)]
                timings = Timings(load_s=fixed_s, compute_s=seconds - fixed_s)
        return TaskResult(
            rows=self._rows(item),
            metrics=dict(self._scenario.metrics(body)),
            checkpoint=checkpoint,
            resumed_rows=resumed,
            timings=timings,
            curve=curve,
            cores=1 if isinstance(body, TrainTask) else 0,
            peak_bytes=self._scenario.peak_bytes(body),
            verification=self._verified(body, item.attempt, worker)
            if isinstance(body, VerificationTask)
            else None,
        )

    def _verified(self, body: VerificationTask, attempt: int, worker: str) -> VerificationOutcome:
        left = self._scenario.state_of(body, attempt, worker)
        found = () if left == body.expected.checksum else ("state['models'][0]['weight']",)
        if not body.is_exact:
            return VerificationOutcome(is_exact=False, differences=found)
        return VerificationOutcome(
            is_exact=True, differences=found, digest=sha256(left.encode()).hexdigest()[:16]
        )

    def _report(self, worker: _Worker, steps: Sequence[api.Report]) -> tuple[api.StepOutcome, ...]:
        request = api.ReportRequest(
            incarnation=worker.identity,
            lease_s=self._scenario.lease_s,
            steps=tuple(steps),
            checkpoint_free_bytes=1 << 40,
        )
        return self._store.report(worker.name, request).outcomes

    def _rows(self, item: InboxItem) -> int:
        body = item.body
        if not isinstance(body, TrainTask):
            return 1
        plan = self._plans[item.experiment, body.run].plan
        assert plan.kind == "fit"
        return sum(body.gang.rows) if body.gang is not None else plan.partitions[body.partition]


def _startable(worker: _Worker) -> list[InboxItem]:
    """Return the oldest queued task, or fused group, whose devices are idle and not awaited by an older task."""
    taken = {slot for item in worker.running for slot in slots_of(item.devices)}
    for item in worker.queue:
        slots, group = slots_of(item.devices), worker.groups.get(_name_of(item))
        if taken.isdisjoint(slots) and not item.member:
            members = [each for each in worker.queue if worker.groups.get(_name_of(each)) == group]
            return members if group is not None else [item]
        taken.update(slots)
    return []


def _name_of(item: InboxItem) -> tuple[str, str, int]:
    return item.experiment, item.task, item.attempt


def _resumed(body: TrainTask) -> int:
    """Return the rows that an earlier attempt has trained on."""
    return body.savepoint.rows if body.savepoint else 0


def _renew(item: InboxItem) -> api.Report:
    return api.Renew(experiment=item.experiment, task=item.task, attempt=item.attempt)
