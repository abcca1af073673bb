"""Simulated workers, and the controller's core that drives them in virtual time.

Deterministic: the same arguments give the same log. A function gives the time of each sub-epoch; the scenario says when
workers fail, leave and return. The controller may crash between any two writes and is then rebuilt from the log.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cerebro.contract.events import (
    ClusterEvent,
    Event,
    ForecastMade,
    RunRequested,
    RunStarted,
    SchedulePlanned,
)
from cerebro.contract.records import ExperimentRecord, Locator, Locators, WorkerSetStatus
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest, FitRequest, PartitionPlan
from cerebro.contract.stored.segments import SegmentRequest
from cerebro.state import ExperimentState, Run, RunState
from cerebro.state.exclusions import excluded_workers
from cerebro.state.experiment import fold
from cerebro.state.snapshots import packed, restored, snapshot_format
from cerebro.state.worker_quarantine import machine_exclusions
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.exclusions.health import evidence
from controller.exclusions.machines import Machines
from controller.exclusions.memory_limits import MemoryLimits
from controller.loop.open_runs import Experiments, Opened, ended
from controller.planning.planner_process import BackgroundProcess, PlannerProcess, without_plan
from controller.projections.history import priors
from controller.scaling import cluster_decision
from controller.scaling.arrivals import Arrivals
from controller.scaling.autoscaler.autoscaler import Autoscaler, SizeHistory
from controller.scaling.autoscaler.scale_to_zero import ScaleToZero
from controller.scaling.autoscaler.use import use_of
from controller.scaling.cluster_log import ClusterLog
from controller.scaling.cluster_snapshot import ClusterSnapshot, worker_view
from controller.scaling.orchestrator import Memory
from controller.sharing.arbiter import RunRef
from controller.sharing.rounds import RunOffer, Sharing
from controller.sharing.taken import TakenTime
from controller.sources.suggestions.requests import SuggestionRequests
from research.simulation.inline import InlineSampler
from research.simulation.scenario import DATASET, EXPERIMENT, Neighbour, Scenario
from research.simulation.store import VirtualStore
from research.simulation.virtual_workers import VirtualWorkers

_HOLDER, _LEASE_S = "controller#0", 1e9

_MAX_ROUNDS = 500
"""Maximum decisions at one moment; more would mean an endless loop."""


class Simulation:
    """A simulated fit run under a scenario, with its ETL run if any, and optional other runs.

    `run` returns the final state.

    Args:
        process: planner used in addition to dispatch, if the request wants one; otherwise dispatch alone.
        autoscaler: forecasts the run; its size requests go to `requested_workers`.
        neighbours: runs of other experiments on the same workers, and further runs of the first experiment.
        max_open: maximum number of attended runs; others wait in the queue.
    """

    def __init__(
        self,
        scenario: Scenario,
        request: FitRequest,
        plan: RunStarted,
        process: BackgroundProcess | None = None,
        *,
        autoscaler: Autoscaler | None = None,
        neighbours: Sequence[Neighbour] = (),
        max_open: int = 8,
    ) -> None:
        self._scenario, self._plan, self._autoscaler = scenario, plan, autoscaler
        self.size_history = SizeHistory()
        self.requested_workers: Callable[[int], None] = lambda _: None
        """Callback that gets the number of workers the autoscaler requests."""
        all_runs = (Neighbour(name=EXPERIMENT, request=request, plan=plan), *neighbours)
        self._plans = {(each.name, each.plan.run): each.plan for each in all_runs}
        self._max_open = max_open
        self.sizes: list[tuple[float, int]] = []
        """(time, number of workers) of each change of size by the controller."""
        self.now = 0.0
        self.writes = 0
        self.store = VirtualStore(lambda: self.now)
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._wake = 0.0
        self._workers = VirtualWorkers(scenario, self.store, self._plans, now=lambda: self.now, at=self._at)
        locators = Locators(train=Locator(metadata="simulated.csv"))
        self._records = {
            name: self.store.create_experiment(ExperimentRecord(name=name, locators=locators))
            for name in dict.fromkeys(each.name for each in all_runs)
        }
        if scenario.has_pods:
            etl = EtlRequest(code="0" * 64, code_fingerprint="0" * 64)
            self.store.append(EXPERIMENT, RunRequested(run="etl-1", request=etl))
        self._to_come = 0
        for each in all_runs:
            self._request(each)
        self._process = process
        self._start_controller()
        self._term = self.store.lead(_HOLDER, _LEASE_S).term

    @property
    def log(self) -> tuple[Event, ...]:
        """The event log of the first experiment."""
        return self.store.events(EXPERIMENT)

    def run_whole(self) -> ExperimentState:
        """Run the simulation and return a state with all sub-epochs, including compacted ones."""
        state = self.run()
        if any(run.compaction.until for run in state.runs.values()):
            return fold(state.name, self.log, keeps_compacted=True)
        return state

    def run(self, *, limit: int = 1_000_000, is_begun: bool = False) -> ExperimentState:
        """Simulate until the run has ended.

        Args:
            is_begun: True if the run had ended before and was reopened.

        Raises:
            RuntimeError: no further event can happen, or more than `limit` events did.
        """
        if not is_begun:
            self._workers.begin()
            self._tick()
        for _ in range(limit):
            self._control()
            if not self._to_come and not self.store.queue():
                return self.core.state
            wake = self.now + min((core.wake_s(self.now) for core in self._open().values()), default=math.inf)
            if wake < math.inf and not self.now < self._wake <= wake:
                self._wake = wake
                self._at(wake, lambda: None)
            if not self._agenda:
                raise RuntimeError(f"the simulation is stuck at {self.now:g} s: {self._fit().state}")
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        raise RuntimeError(f"no end after {limit} steps")

    def resize(self, count: int, *, join_s: float | Callable[[str], float]) -> None:
        """Resize the cluster to this many pods.

        Args:
            join_s: seconds until a new pod is ready, or a function of its name.
        """
        self._workers.resize(count, join_s=join_s)

    def _request(self, neighbour: Neighbour) -> None:
        self._to_come += 1

        def now() -> None:
            self._to_come -= 1
            self.store.append(
                neighbour.name,
                RunRequested(run=neighbour.plan.run, request=neighbour.request, priority=neighbour.priority),
            )

        if neighbour.at:
            self._at(neighbour.at, now)
        else:
            now()

    def _fit(self) -> Run:
        return self.core.state.runs["fit-1"]

    # --- the controller --------------------------------------------------------------------------

    @property
    def core(self) -> Core:
        """The core of the first experiment."""
        return self.cores[EXPERIMENT]

    @core.setter
    def core(self, core: Core) -> None:
        self.cores[EXPERIMENT] = core

    def _start_controller(self) -> None:
        """Start a controller without state: it reads the logs."""
        installed_samplers = self._scenario.installed_samplers
        self.cores = {
            name: Core(record, installed_samplers=installed_samplers, state=restored(self.store, name))
            for name, record in self._records.items()
        }
        self.experiments = Experiments(self._max_open)
        self.cluster_log = ClusterLog(_Mortal(self))
        if self._autoscaler is not None:
            self._autoscaler.observe_workers(lambda: self.cluster_log.state.absences)
        self.machines = Machines(self.store)
        self.sharing, self.taken = Sharing(), TakenTime()
        self.arrivals = Arrivals()
        self.scale_to_zero = ScaleToZero(
            self._scenario.scale_to_zero, previous_size=self.store.worker_set_status().size_before_zero
        )
        most = self._scenario.max_memory
        self.limits = MemoryLimits(_Resizes(self._workers), most, clock=lambda: self.now)
        self.planner_process = PlannerProcess(self._process) if self._process else None
        self._suggestions = SuggestionRequests(InlineSampler())

    def _open(self) -> dict[str, Core]:
        """Return the cores of attended runs."""
        previous, before = self.experiments, self.experiments.attended()
        waiting = {RunRef(name, run) for name, each in previous.opened.items() for run in each.core.waiting()}
        admitted = previous.admitted(self.store.queued(), self.now, waiting)
        previous.opened = {name: Opened(core=self.cores[name], runs=runs) for name, runs in admitted.items()}
        for name, runs in admitted.items():
            self.cores[name].attended = runs
        if admitted != before:
            attended_runs = (
                api.AttendedRun(experiment=n, run=run) for n, runs in admitted.items() for run in runs
            )
            self.store.lead(_HOLDER, _LEASE_S, attended=api.Attended(runs=tuple(attended_runs)))
        return {name: self.cores[name] for name in admitted}

    def _control(self) -> None:
        for _ in range(_MAX_ROUNDS):
            if not self._decide_all():
                if self._keep():
                    return
                self._start_controller()
        newest = {name: self.store.events(name)[-6:] for name in self._open()}
        raise RuntimeError(f"the controller writes and writes at {self.now:g} s: {newest}")

    def _decide_all(self) -> bool:
        """Decide once for each run; return True if any state has changed."""
        cores, has_changed = self._open(), False
        for core in cores.values():
            name = core.state.name
            self._fold(core, self.store.events(name, core.state.seq), is_news=core.state.seq > 0)
        snapshot = self.snapshot()
        if self._tend_machines(cores):
            return True
        try:
            if self._reconcile(cores, snapshot):
                return True
        except _DiedError:
            self._start_controller()
            return True
        if self._scale_to_zero_or_up(cores, snapshot):
            return True
        for offer in self.sharing.round(cores, snapshot):
            steps = self._steps(offer, snapshot)
            open_runs = ((core, run) for core in cores.values() for run in core.open_runs())
            for core, written in self.taken.noted(offer.core, offer.run, steps, open_runs, self.now):
                if not written:
                    continue
                if self.dies():
                    # Before the write: the next controller knows the log only.
                    self._start_controller()
                    return True
                has_changed |= self._perform(core, written)
                if self.cores.get(core.state.name) is not core:
                    return True
        return has_changed

    def _scale_to_zero_or_up(self, cores: Mapping[str, Core], snapshot: ClusterSnapshot) -> bool:
        """Scale to zero or up like the controller's loop; return True if the number of workers has changed."""
        open_runs = [run for core in cores.values() for run in core.open_runs()]
        use = use_of((core.state for core in cores.values()), open_runs, len(self.store.queue()))
        size = self._workers.fleet().size
        desired = self.scale_to_zero.update(self.now, size=size, use=use, is_awaited=snapshot.is_awaited)
        self.store.set_worker_set_status(WorkerSetStatus(size_before_zero=self.scale_to_zero.previous_size))
        if desired is None:
            return False
        self.sizes.append((self.now, desired.workers))
        self.resize(desired.workers, join_s=self._scenario.join_s)
        return True

    def _tend_machines(self, cores: Mapping[str, Core]) -> bool:
        statuses, health = self.store.workers(), self.store.workers_health()
        shown = (core.slowness() for core in cores.values())
        self.machines.label(self._term, statuses, health, lambda: shown, self.now)
        has_acted = self.machines.reconcile(
            self._term,
            statuses,
            health,
            evidence=evidence(ended(core.state) for core in cores.values()),
            open_runs=[(core.state, run) for core in cores.values() for run in core.open_runs()],
            now=self.now,
        )
        if has_acted:
            self._workers.deliver()
        return has_acted

    def _reconcile(self, cores: Mapping[str, Core], snapshot: ClusterSnapshot) -> bool:
        states = [core.state for core in cores.values()]
        ending = {life for state in states for life in cluster_decision.ending(state)}
        busy = {name for state in states for name in cluster_decision.busy(state)}
        return self.cluster_log.reconcile(self._term, snapshot, ending=ending, busy=busy)

    def _keep(self) -> bool:
        """Make snapshots of grown logs and cut the logs; return False if the controller died."""
        for name, core in self.cores.items() if self._scenario.keeps_every else ():
            snapshots = self.store.segments(name).snapshots
            known = snapshots[0].seq if snapshots else 0
            if core.state.seq - known >= self._scenario.keeps_every:
                if self.dies():
                    return False
                self.writes += 1
                content, known = packed(core.state), core.state.seq
                created = core.record.created
                self.store.keep_snapshot(name, known, snapshot_format(), self._term, content, created=created)
                if self.dies():
                    return False
            if not self._cut(name, known):
                return False
        return True

    def _cut(self, name: str, known: int) -> bool:
        request = SegmentRequest(
            term=self._term,
            created=self.cores[name].record.created,
            until=known,
            keep=1,
            least=self._scenario.keeps_every // 2,
        )
        floor = self.store.segments(name).segments
        if known - (floor[-1].last if floor else 0) < request.least:
            return True
        if self.dies():
            return False
        self.writes += 1
        self.store.cut(name, request)
        return not self.dies()

    def dies(self) -> bool:
        """True if the controller dies now, between two writes."""
        if self.writes not in self._scenario.crash_before:
            return False
        self.writes += 1
        return True

    def _steps(self, offer: RunOffer, snapshot: ClusterSnapshot) -> list[Step]:
        core, run = offer.core, offer.run
        if self._scenario.history is not None and run.models and not core.expects(run):
            core.expect(run, priors(self._scenario.history, core.state, run))
        planned, ahead = self._planned(offer), self._forecast(offer)
        if self._autoscaler is not None:
            released = self._autoscaler.released(core.state)
            snapshot = replace(snapshot, exclusions=(*snapshot.exclusions, *released))
        steps = core.decide(offer.on(snapshot), run)
        self.limits.grow(core.to_grow(snapshot, run))
        steps = [*(api.Note(event=event) for event in (planned, ahead) if event is not None), *steps]
        if not steps and run.state is RunState.QUEUED and core.state.workers:
            started = self._plans.get((core.state.name, run.id))
            steps = [api.Note(event=started or self._etl_started())]
        if not any(isinstance(step, api.Note) for step in steps):
            # The first call sends the request, the second one finds the values.
            steps += self._suggestions.steps(core, run) or self._suggestions.steps(core, run)
        return steps

    def _forecast(self, offer: RunOffer) -> ForecastMade | None:
        if self._autoscaler is None or offer.core is not self.core:
            return None
        ahead = self._autoscaler.update(offer.core, self.now, lambda: self.size_history)
        if ahead is not None and ahead.requested_workers is not None:
            self.requested_workers(ahead.requested_workers)
        return ahead

    def _planned(self, offer: RunOffer) -> SchedulePlanned | None:
        if not offer.is_alone:
            if self.planner_process:
                self.planner_process.forget()
            return without_plan(offer.run)
        return (
            self.planner_process.advise(offer.core)
            if self.planner_process and offer.core is self.core
            else None
        )

    def _perform(self, core: Core, steps: Sequence[Step]) -> bool:
        self.writes += 1
        request = api.DecideRequest(term=self._term, after=core.state.seq, steps=tuple(steps))
        answer = self.store.decide(core.state.name, request)
        self._workers.deliver()  # workers read the store, whichever controller leads
        if self.dies():
            # Dying after the write, before its answer, has the same effect.
            self._start_controller()
            return True
        self._fold(core, answer.events)
        return any(outcome.outcome == "done" for outcome in answer.outcomes)

    def _fold(self, core: Core, events: Sequence[Event], *, is_news: bool = True) -> None:
        for event in events:
            core.apply(event, is_news=is_news)

    def snapshot(self) -> ClusterSnapshot:
        """Return the controller's present view of the workers."""
        fleet = self._workers.fleet() if self._scenario.has_pods else None
        statuses, health = self.store.workers(), self.store.workers_health()
        is_scaling_up = fleet is not None and self.scale_to_zero.is_scaling_up(fleet.size)
        self.arrivals.observe(statuses, fleet, self.now, is_scaling_up=is_scaling_up)
        exclusions = machine_exclusions(statuses, health, self.now)
        excluded = excluded_workers(exclusions)
        views = {
            status.record.worker: worker_view(
                status, fleet, silent_s=status.silent_s, lease_s=self._scenario.lease_s
            )
            for status in statuses
        }
        return ClusterSnapshot(
            now=self.now,
            workers={name: view for name, view in views.items() if name not in excluded},
            excluded_views={name: view for name, view in views.items() if name in excluded},
            exclusions=exclusions,
            is_filling=self.arrivals.is_filling,
            is_awaited=self.arrivals.is_awaited,
            growth=self.limits.update(statuses, self._workers.fleet()),
        )

    def _etl_started(self) -> RunStarted:
        parts = (
            PartitionPlan(partition=partition, worker=f"{name}-etl", rows=1)
            for name, held in self._scenario.replicas.items()
            for partition in held
        )
        return RunStarted(run="etl-1", plan=EtlPlan(dataset=DATASET, splits={"train": tuple(parts)}))

    def _tick(self) -> None:
        """Send heartbeats and read the snapshot five times per lease."""
        self._workers.beat()
        self._at(self.now + self._scenario.lease_s / 5, self._tick)

    def _at(self, time: float, action: Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, action))


class _DiedError(Exception):
    """The controller died at a write."""


class _Resizes:
    """The cluster manager's interface for `MemoryLimits`."""

    def __init__(self, workers: VirtualWorkers) -> None:
        self._workers = workers

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Raise a pod's memory."""
        self._workers.resize_memory(pod, memory)


class _Mortal:
    """The store's interface for the controller's `ClusterLog`, which may crash the controller at a write."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def cluster_log(self, after: int = 0, *, wait_s: float = 0.0) -> tuple[ClusterEvent, ...]:
        """Return the store's answer."""
        return self._simulation.store.cluster_log(after, wait_s=wait_s)

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return the store's answer."""
        return self._simulation.store.snapshot(experiment, of_format)

    def write_cluster_log(self, request: api.ClusterLogRequest) -> api.ClusterLogAnswer:
        """Write to the store; the controller may die before the write or before its answer."""
        simulation = self._simulation
        if simulation.dies():
            raise _DiedError
        simulation.writes += 1
        answer = simulation.store.write_cluster_log(request)
        if simulation.dies():
            raise _DiedError
        return answer
