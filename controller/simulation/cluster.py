"""Simulated workers, and the controller's core driven against them in virtual time.

Deterministic: the same arguments give the same log. Workers take the time of a unit from a function, may fail, go away
and come back as the scenario says. The controller may crash between any two of its steps: it is then rebuilt
from the log.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cerebro.contract import api
from cerebro.contract.events import Event, FitRequest, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Holding, Locator, Locators, WorkerRecord
from cerebro.contract.tasks import CheckpointRef, Failure, InboxItem, TaskBody, TaskResult, TrainTask
from cerebro.state import ExperimentState, Run, RunState
from controller.advisor.advisor import Advisor, Helper
from controller.core import Core
from controller.decide import Seen, Step, World
from controller.simulation.store import VirtualStore

EXPERIMENT = "simulated"
DATASET = "simulated"

UnitTime = Callable[[TaskBody, str], float]
"""(task, worker) -> seconds."""
Outcome = Callable[[TaskBody, int, str], Failure | None]
"""(task, attempt, worker) -> why the attempt fails, or `None`."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A worker's process is gone from `start` for `length` seconds; it comes back with the partitions it had."""

    worker: str
    start: float
    length: float


@dataclass(kw_only=True)
class _Worker:
    name: str
    holdings: tuple[Holding, ...]
    incarnation: int = 0
    is_up: bool = True
    cursor: int = 0
    queue: list[InboxItem] = field(default_factory=list)
    running: InboxItem | None = None

    @property
    def identity(self) -> str:
        return f"{self.name}#{self.incarnation}"


@dataclass(kw_only=True)
class Scenario:
    """What is simulated.

    Attributes:
        holdings: worker -> partitions it holds.
        unit_time: how long a task takes.
        outcome: which attempts fail.
        outages: workers that go away for a while.
        joins: worker -> when it is there for the first time, if not from the beginning.
        lease_s: silence after which a worker is lost.
        crash_before: numbers of the controller's writes before which it dies and is rebuilt from the log.
    """

    holdings: Mapping[str, Sequence[int]]
    unit_time: UnitTime = lambda body, worker: 1.0
    outcome: Outcome = lambda body, attempt, worker: None
    outages: Sequence[Outage] = ()
    joins: Mapping[str, float] = field(default_factory=dict)
    lease_s: float = 10.0
    crash_before: frozenset[int] = frozenset()


class Simulation:
    """One fit run under a scenario; `run` returns the final state.

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
        self._workers = {
            name: _Worker(name=name, holdings=tuple(Holding(dataset=DATASET, partition=p) for p in held))
            for name, held in scenario.holdings.items()
        }
        self._record = self.store.create_experiment(
            ExperimentRecord(name=EXPERIMENT, locators=Locators(train=Locator(metadata="simulated.csv")))
        )
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
        for name, worker in self._workers.items():
            if name in self._scenario.joins:
                worker.is_up = False
                self._at(self._scenario.joins[name], partial(self._come_back, worker))
            else:
                self._register(worker)
        for outage in self._scenario.outages:
            self._at(outage.start, partial(self._go_away, outage))
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
            if not steps and self._fit().state is RunState.QUEUED and self.core.state.workers:
                steps = [api.Note(event=self._plan)]
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
        return World(
            now=self.now,
            workers={
                status.record.worker: Seen(
                    incarnation=status.record.incarnation,
                    weight=status.record.weight,
                    kinds=status.record.kinds,
                    holdings=status.record.holdings,
                    is_silent=status.silent_s > self._scenario.lease_s,
                    free_bytes=status.checkpoint_free_bytes,
                )
                for status in self.store.workers()
            },
        )

    def _tick(self) -> None:
        """Heartbeats, and a look at the world, five times a lease."""
        for worker in self._workers.values():
            if worker.is_up:
                steps = [_renew(worker.running)] if worker.running else []
                self._report(worker, steps)
        self._deliver()
        self._at(self.now + self._scenario.lease_s / 5, self._tick)

    # --- the workers -----------------------------------------------------------------------------

    def _register(self, worker: _Worker) -> None:
        worker.cursor, worker.queue, worker.running = 0, [], None
        self.store.register(
            WorkerRecord(
                worker=worker.name,
                incarnation=worker.identity,
                weight=1.0,
                cores=1,
                kinds=("train", "valid"),
                holdings=worker.holdings,
            )
        )

    def _go_away(self, outage: Outage) -> None:
        worker = self._workers[outage.worker]
        if worker.is_up:
            worker.is_up = False
            worker.running = None
            self._at(outage.start + outage.length, lambda: self._come_back(worker))

    def _come_back(self, worker: _Worker) -> None:
        worker.is_up = True
        worker.incarnation += 1
        self._register(worker)

    def _deliver(self) -> None:
        for worker in self._workers.values():
            if not worker.is_up:
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
        if not worker.is_up or worker.identity != identity or worker.running is not item or item.body is None:
            return
        worker.running = None
        failure = self._scenario.outcome(item.body, item.attempt, worker.name)
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
