"""Simulated workers, and the controller's core driven against them in virtual time.

Deterministic: the same arguments give the same log. Workers take the time of a unit from a function, may fail, go away
and come back as the scenario says. The controller may crash between any two of its steps: it is then rebuilt
from the log.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from cerebro.contract import api
from cerebro.contract.events import Event, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlPlan, EtlRequest, FitRequest, PartitionPlan
from cerebro.state import ExperimentState, Run, RunState
from controller.advisor.advisor import Advisor, Helper
from controller.cluster_snapshot import ClusterSnapshot, worker_view
from controller.core import Core
from controller.decide import Step
from controller.simulation.scenario import DATASET, EXPERIMENT, Scenario
from controller.simulation.store import VirtualStore
from controller.simulation.virtual_workers import VirtualWorkers


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
        self._workers = VirtualWorkers(scenario, self.store, plan, now=lambda: self.now, at=self._at)
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

    def run(self, *, limit: int = 1_000_000, is_begun: bool = False) -> ExperimentState:
        """Simulate until the run has ended.

        Args:
            is_begun: the run had ended before, and was opened again.

        Raises:
            RuntimeError: nothing can happen any more, or more than `limit` things did.
        """
        if not is_begun:
            self._workers.begin()
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
            self._fold(self.store.events(EXPERIMENT, self.core.state.seq), is_news=self.core.state.seq > 0)
            planned = self.advisor.advise(self.core) if self.advisor else None
            steps = self.core.decide(self.snapshot())
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
        self._workers.deliver()
        return any(outcome.outcome == "done" for outcome in answer.outcomes)

    def _fold(self, events: Sequence[Event], *, is_news: bool = True) -> None:
        for event in events:
            self.core.apply(event, is_news=is_news)

    def snapshot(self) -> ClusterSnapshot:
        """The workers as the controller sees them now."""
        fleet = self._workers.fleet() if self._scenario.has_pods else None
        return ClusterSnapshot(
            now=self.now,
            workers={
                status.record.worker: worker_view(
                    status, fleet, silent_s=status.silent_s, lease_s=self._scenario.lease_s
                )
                for status in self.store.workers()
            },
        )

    def _etl_started(self) -> RunStarted:
        parts = (
            PartitionPlan(partition=partition, worker=f"{name}-etl", rows=1)
            for name, held in self._scenario.holdings.items()
            for partition in held
        )
        return RunStarted(run="etl-1", plan=EtlPlan(dataset=DATASET, splits={"train": tuple(parts)}))

    def _tick(self) -> None:
        """Heartbeats, and a look at the snapshot, five times a lease."""
        self._workers.beat()
        self._at(self.now + self._scenario.lease_s / 5, self._tick)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, action))
