"""Simulated workers, and the controller's core driven against them in virtual time.

Deterministic: the same arguments give the same log. Workers take the time of a unit from a function, may fail, go away
and come back as the scenario says. The controller may crash between any two of its steps: it is then rebuilt
from the log.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from cerebro.contract import api
from cerebro.contract.events import Event, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Holding, Locator, Locators, PodRef, WorkerRecord
from cerebro.contract.runs import EtlPlan, EtlRequest, FitRequest, PartitionPlan
from cerebro.contract.tasks import (
    CheckpointRef,
    EtlTask,
    Failure,
    FailureKind,
    InboxItem,
    TaskBody,
    TaskResult,
    TrainTask,
)
from cerebro.state import ExperimentState, Run, RunState
from controller.advisor.advisor import Advisor, Helper
from controller.core import Core
from controller.crew import World, seen
from controller.decide import Step
from controller.orchestrator import Exit, Fleet, Pod
from controller.simulation.scenario import Outage, Preemption, Scenario
from controller.simulation.store import VirtualStore

EXPERIMENT = "simulated"
DATASET = "simulated"


@dataclass(kw_only=True)
class _Pod:
    """A pod or, without a cluster manager, a worker's process: a volume and the workers on it."""

    name: str
    disk: set[int]
    """Partitions on its volume."""
    number: int = 0
    """So many pods of this name were there before."""
    is_up: bool = True
    leaving: Exit | None = None
    is_removed: bool = False


@dataclass(kw_only=True)
class _Worker:
    name: str
    kinds: tuple[str, ...]
    pod: _Pod
    cursor: int = 0
    queue: list[InboxItem] = field(default_factory=list)
    running: InboxItem | None = None

    @property
    def identity(self) -> str:
        return f"{self.name}#{self.pod.number}"


_GRACE_S = 1.0
_PREEMPTED = Exit(reason="its node is being drained", kind=FailureKind.PREEMPTED)


class Simulation:
    """One fit run under a scenario, and the ETL run before it where there is one; `run` returns the final state.

    Args:
        helper: plans beside dispatch, if the request wants a planner; dispatch alone without it.
    """

    def __init__(
        self, scenario: Scenario, request: FitRequest, plan: RunStarted, helper: Helper | None = None
    ) -> None:
        self._scenario, self._plan = scenario, plan
        self.now = 0.0
        self.writes = 0
        self.store = VirtualStore(lambda: self.now)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._wake = 0.0
        self._pods = {
            name: _Pod(name=name, disk=set() if scenario.has_pods else set(held))
            for name, held in scenario.holdings.items()
        }
        self._workers = {}
        for name, pod in self._pods.items():
            self._workers[name] = _Worker(name=name, kinds=("train", "valid"), pod=pod)
            if scenario.has_pods:
                self._workers[f"{name}-etl"] = _Worker(name=f"{name}-etl", kinds=("etl",), pod=pod)
        self._record = self.store.create_experiment(
            ExperimentRecord(name=EXPERIMENT, locators=Locators(train=Locator(metadata="simulated.csv")))
        )
        if scenario.has_pods:
            etl = EtlRequest(code="0" * 64, code_fingerprint="0" * 64)
            self.store.append(EXPERIMENT, RunRequested(run="etl-1", request=etl))
        self.store.append(EXPERIMENT, RunRequested(run="fit-1", request=request))
        self._helper = helper
        self._start_controller()
        self._term = self.store.lead("controller#0", 1e9).term

    @property
    def log(self) -> tuple[Event, ...]:
        """The event log so far."""
        return self.store.events(EXPERIMENT)

    def run(self, *, limit: int = 1_000_000) -> ExperimentState:
        """Simulate until the run has ended.

        Raises:
            RuntimeError: nothing can happen any more, or more than `limit` things did.
        """
        for name, pod in self._pods.items():
            if name in self._scenario.joins:
                pod.is_up = False
                self._at(self._scenario.joins[name], partial(self._come_back, pod))
            else:
                self._register(pod)
        for outage in self._scenario.outages:
            notify = self._preempt if isinstance(outage, Preemption) else self._go_away
            self._at(outage.start, partial(notify, outage))
        for name, time in self._scenario.removals.items():
            self._at(time, partial(self._remove, self._pods[name]))
        self._tick()
        for _ in range(limit):
            self._control()
            if not self._fit().is_open:
                return self.core.state
            wake = self.now + self.core.wake_s(self.now)
            if wake < math.inf and not self.now < self._wake <= wake:
                self._wake = wake
                self._at(wake, lambda: None)
            if not self._agenda:
                raise RuntimeError(f"the simulation is stuck at {self.now:g} s: {self._fit().state}")
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        raise RuntimeError(f"no end after {limit} steps")

    def _fit(self) -> Run:
        return self.core.state.runs["fit-1"]

    # --- the controller --------------------------------------------------------------------------

    def _start_controller(self) -> None:
        """A controller that knows nothing: it will read the log."""
        self.core = Core(self._record)
        self.advisor = Advisor(self._helper) if self._helper else None

    def _control(self) -> None:
        while True:
            self._fold(self.store.events(EXPERIMENT, self.core.state.seq))
            planned = self.advisor.advise(self.core) if self.advisor else None
            steps = self.core.decide(self.world())
            if planned is not None:
                steps.insert(0, api.Note(event=planned))
            run = self.core.state.active_run()
            if not steps and run and run.state is RunState.QUEUED and self.core.state.workers:
                steps = [api.Note(event=self._plan if run.kind == "fit" else self._etl_started())]
            if not steps:
                return
            if self.writes in self._scenario.crash_before:
                # Dead before the write: the next controller knows the log only.
                self.writes += 1
                self._start_controller()
                continue
            if not self._perform(steps):
                return

    def _perform(self, steps: Sequence[Step]) -> bool:
        self.writes += 1
        request = api.DecideRequest(term=self._term, after=self.core.state.seq, steps=tuple(steps))
        answer = self.store.decide(EXPERIMENT, request)
        if self.writes in self._scenario.crash_before:
            # Dead after the write, before its answer: the same.
            self.writes += 1
            self._start_controller()
            return True
        self._fold(answer.events)
        self._deliver()
        return any(outcome.outcome == "done" for outcome in answer.outcomes)

    def _fold(self, events: Sequence[Event]) -> None:
        for event in events:
            self.core.apply(event)

    def world(self) -> World:
        """The workers as the controller sees them now."""
        fleet = self._fleet() if self._scenario.has_pods else None
        return World(
            now=self.now,
            workers={
                status.record.worker: seen(
                    status, fleet, silent_s=status.silent_s, lease_s=self._scenario.lease_s
                )
                for status in self.store.workers()
            },
        )

    def _fleet(self) -> Fleet:
        pods = {
            pod.name: Pod(uid=f"{pod.name}#{pod.number}", leaving=pod.leaving)
            for pod in self._pods.values()
            if pod.is_up
        }
        return Fleet(pods=pods, size=len(self._pods))

    def _etl_started(self) -> RunStarted:
        parts = (
            PartitionPlan(partition=partition, worker=f"{name}-etl", rows=1)
            for name, held in self._scenario.holdings.items()
            for partition in held
        )
        return RunStarted(run="etl-1", plan=EtlPlan(dataset=DATASET, splits={"train": tuple(parts)}))

    def _tick(self) -> None:
        """Heartbeats, and a look at the world, five times a lease."""
        for worker in self._workers.values():
            if worker.pod.is_up:
                steps = [_renew(worker.running)] if worker.running else []
                self._report(worker, steps)
        self._deliver()
        self._at(self.now + self._scenario.lease_s / 5, self._tick)

    # --- the workers -----------------------------------------------------------------------------

    def _register(self, pod: _Pod) -> None:
        held = tuple(Holding(dataset=DATASET, partition=partition) for partition in sorted(pod.disk))
        for worker in self._on(pod):
            worker.cursor, worker.queue, worker.running = 0, [], None
            ref = PodRef(name=pod.name, uid=f"{pod.name}#{pod.number}", container=worker.kinds[0])
            self.store.register(
                WorkerRecord(
                    worker=worker.name,
                    incarnation=worker.identity,
                    weight=1.0,
                    cores=1,
                    kinds=worker.kinds,
                    holdings=held,
                    volume=pod.name if self._scenario.has_pods else None,
                    pod=ref if self._scenario.has_pods else None,
                )
            )

    def _on(self, pod: _Pod) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.pod is pod]

    def _preempt(self, outage: Outage) -> None:
        """Each worker gives back what it has, and says so before it ends."""
        pod = self._pods[outage.worker]
        if not pod.is_up:
            return
        pod.leaving = _PREEMPTED
        failure = Failure(kind=FailureKind.PREEMPTED, message=_PREEMPTED.reason)
        for worker in self._on(pod):
            given_back = [*([worker.running] if worker.running else []), *worker.queue]
            worker.running, worker.queue = None, []
            self._report(
                worker,
                [
                    api.Fail(experiment=EXPERIMENT, task=item.task, attempt=item.attempt, failure=failure)
                    for item in given_back
                ],
            )
        self._at(outage.start + _GRACE_S, partial(self._go_away, outage))

    def _go_away(self, outage: Outage) -> None:
        pod = self._pods[outage.worker]
        if pod.is_up:
            self._end_processes(pod)
            self._at(self.now + outage.length, partial(self._come_back, pod))

    def _end_processes(self, pod: _Pod) -> None:
        pod.is_up = False
        for worker in self._on(pod):
            worker.running, worker.queue = None, []

    def _come_back(self, pod: _Pod) -> None:
        if not pod.is_removed:
            pod.is_up, pod.leaving = True, None
            pod.number += 1
            self._register(pod)

    def _remove(self, pod: _Pod) -> None:
        self._end_processes(pod)
        pod.is_removed = True
        registered = {status.record.worker for status in self.store.workers()}
        for worker in self._on(pod):
            if worker.name in registered:
                self.store.remove_worker(worker.name)

    def _deliver(self) -> None:
        for worker in self._workers.values():
            if not worker.pod.is_up or worker.pod.leaving:
                continue
            for item in self.store.inbox(worker.name, worker.identity, worker.cursor, wait_s=0):
                worker.cursor = item.seq
                if item.cancel:
                    worker.queue = [
                        q for q in worker.queue if (q.task, q.attempt) != (item.task, item.attempt)
                    ]
                    if worker.running and (worker.running.task, worker.running.attempt) == (
                        item.task,
                        item.attempt,
                    ):
                        worker.running = None
                else:
                    worker.queue.append(item)
            self._start_next(worker)

    def _start_next(self, worker: _Worker) -> None:
        while worker.running is None and worker.queue:
            item = worker.queue.pop(0)
            start = api.Start(experiment=EXPERIMENT, task=item.task, attempt=item.attempt)
            outcomes = self._report(worker, [start])
            if outcomes and outcomes[0].outcome != "refused" and item.body is not None:
                worker.running = item
                seconds = self._scenario.unit_time(item.body, worker.name)
                self._at(self.now + seconds, partial(self._end, worker, worker.identity, item))

    def _end(self, worker: _Worker, identity: str, item: InboxItem) -> None:
        is_there = worker.pod.is_up and worker.identity == identity
        if not is_there or worker.running is not item or item.body is None:
            return
        worker.running = None
        failure = self._scenario.outcome(item.body, item.attempt, worker.name)
        if isinstance(item.body, EtlTask) and failure is None:
            worker.pod.disk.add(item.body.partition)
        self._report(worker, [_ending(item, item.body, failure, self._rows(item.body))])
        self._start_next(worker)

    def _report(self, worker: _Worker, steps: Sequence[api.Report]) -> tuple[api.StepOutcome, ...]:
        request = api.ReportRequest(
            incarnation=worker.identity,
            lease_s=self._scenario.lease_s,
            steps=tuple(steps),
            checkpoint_free_bytes=1 << 40,
        )
        return self.store.report(worker.name, request).outcomes

    def _rows(self, body: TaskBody) -> int:
        plan = self._plan.plan
        return plan.partitions[body.partition] if isinstance(body, TrainTask) and plan.kind == "fit" else 1

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, action))


def _renew(item: InboxItem) -> api.Report:
    return api.Renew(experiment=EXPERIMENT, task=item.task, attempt=item.attempt)


def _ending(item: InboxItem, body: TaskBody, failure: Failure | None, rows: int) -> api.Report:
    if failure is not None:
        return api.Fail(experiment=EXPERIMENT, task=item.task, attempt=item.attempt, failure=failure)
    checkpoint = None
    if isinstance(body, TrainTask):
        checkpoint = CheckpointRef(name=f"{body.model}/u{body.unit}-a{item.attempt}", checksum="-", size=1)
    result = TaskResult(rows=rows, metrics={"loss": 1.0}, checkpoint=checkpoint)
    return api.Commit(experiment=EXPERIMENT, task=item.task, attempt=item.attempt, result=result)
