"""The thin loop around the pure cores: read the logs, let each core decide, write the steps.

Each round first records changes of the workers in the cluster log (`controller.scaling.cluster_log`), which
every experiment reads before it decides. The loop holds only folds of logs, which are rebuilt after a crash.
It works on `Settings.open_runs` runs at a time, the oldest in the queue; the others wait. Each experiment has
its own core, called in the arbiter's order (`controller.sharing.rounds`). An unreadable or faulty experiment
affects no other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cerebro.contract.events import ForecastMade, RunFinished, RunPaused
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, RetryableError, UnreadableClusterLogError, UnreadableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.search.questions import drawable
from cerebro.state import ExperimentState, Run, RunState
from cerebro.state.runs.goals import goal_of
from cerebro.state.snapshots import restored
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.exclusions.health import evidence
from controller.exclusions.machines import Machines
from controller.loop.event_logging import line
from controller.loop.fold_cache import FoldCache
from controller.loop.isolation import Isolation
from controller.loop.leadership import SOON_S
from controller.loop.log_keeper import LogKeeper, Progress
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments, Opened, Overview, is_busy
from controller.metrics import Metrics
from controller.planning import Helper, PlannerProcess, without_plan
from controller.preparation.plan_maker import PlanMaker
from controller.projections.history import RunHistory
from controller.projections.projection import Projection, Projections
from controller.scaling.autoscaler.autoscaler import Autoscaler
from controller.scaling.autoscaler.rest import RestRules
from controller.scaling.autoscaler.use import use_of
from controller.scaling.cluster_log import ClusterLog
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.scaling.membership import Membership
from controller.scaling.orchestrator import Orchestrator
from controller.settings import Settings
from controller.sharing.arbiter import RunRef
from controller.sharing.rounds import CoreFaultError, RunOffer, Sharing
from controller.sharing.taken import TakenTime
from controller.sources.suggestions.draws import Draws
from controller.sources.trial_cache import TrialCache
from controller.storage.deletion import Deletion
from controller.storage.pruned_files import PrunedFiles

log = logging.getLogger(__name__)

_LEADERSHIP_S = 5.0
"""Lease of the leadership in seconds.

A restarted controller has its predecessor's name and takes over at once; another one waits at most this long.
"""

_DECISION_INTERVAL_S = 0.025
"""Seconds between two decisions while every worker has work. Workers have a queued sub-epoch, so none waits."""

_STAND_BY_S = 10.0
"""Seconds for which a controller that cannot read the cluster log leaves the leadership to others."""

_NO_WORKERS = "all workers are given back; have some come, by `cerebro scale`, and resume it"

_TOLD_EVERY = 1_000
"""Events between two progress reports to the log keeper."""

_READING_S = 0.1
"""Seconds of reading before other work continues: a long log takes minutes."""


class Controller:
    """The loop. `stop` may be set from a signal handler or another thread."""

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        tensorboard: Projection,
        helper: Helper,
        orchestrator: Orchestrator | None = None,
        *,
        autoscaler: Autoscaler | None = None,
        metrics: Metrics | None = None,
        keeper: LogKeeper | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._keeper = keeper
        self._kvs, self._settings = kvs, settings
        self._planner_process, self._autoscaler = PlannerProcess(helper), autoscaler
        self._experiments = Experiments(settings.open_runs)
        self._cores = FoldCache(drawable=drawable())
        self._sharing, self._taken = Sharing(), TakenTime()
        self._plans, self._draws = PlanMaker(settings.volumes), Draws()
        self._trials, self._history = TrialCache(kvs), RunHistory(kvs)
        self._cluster = 0
        self._term = 0
        self._published_runs: dict[str, tuple[str, ...]] | None = None
        """Admitted runs as published; `None` before the first admission."""
        self._published_attended = api.Attended()
        self._waiting: tuple[api.QueueEntry, ...] = ()
        """Runs that wait for another one of their experiment."""
        self._led_until = 0.0
        self._decided = 0.0
        self._queue_read = -settings.tick_s
        self._queued: int | None = None
        """Runs in the queue at the last read; `None` before."""
        self._projections = Projections((tensorboard, self._history))
        self._deletion = Deletion(kvs, settings.volumes, self._forget, self._renew)
        self._pruned = PrunedFiles(settings.volumes, self._leads_for_certain)
        self._membership = Membership(
            kvs,
            orchestrator,
            lease_s=settings.lease_s,
            tick_s=settings.tick_s,
            most_memory=settings.most_memory,
            installed=settings.installed_workers,
            rest=RestRules(
                is_on=settings.autoscaler == "act" and orchestrator is not None,
                idle_s=settings.idle_s,
                least=settings.least_workers,
                most=settings.most_workers,
            ),
        )
        self._cluster_log, self._machines = ClusterLog(kvs), Machines(kvs)
        if autoscaler is not None:
            autoscaler.see_workers(lambda: self._cluster_log.state.absences)
        self._reading = LogReading(self._projections, self._metrics)
        self._isolation = Isolation(
            kvs,
            self._experiments,
            self._reading,
            holder=settings.holder,
            term=lambda: self._term if self._lead() else 0,
            skip=self._sharing.skip,
        )
        self.stop = threading.Event()
        self.turned = time.monotonic()
        """Time of the loop's last turn, regardless of leadership and store."""

    def run(self) -> None:
        """Work until `stop` is set. An unavailable store is retried."""
        while not self.stop.is_set():
            try:
                if not self._lead():
                    self.stop.wait(self._settings.tick_s)
                    continue
                self._membership.tend(self._reading.now(), is_running=self._is_running())
                self._deletion.tend(self._term)
                self._admit()
                self._turn()
            except RetryableError as error:
                self._membership.store_was_away()
                self._metrics.leading.set(0)
                log.warning("store away: %s", error)
                self._begin_anew()
                # An error from the store itself comes at once and may persist.
                self.stop.wait(self._settings.tick_s)
            except ConflictError as error:
                self._metrics.leading.set(0)
                log.warning("leadership lost: %s", error)
                self._led_until = 0.0
                self._plans.keep(())
                self._begin_anew()
            except UnreadableClusterLogError as error:
                self._metrics.stood_by()
                log.error("the controller stands by: %s", error)
                self._stand_by()
        self._plans.keep(())
        self._pruned.close()

    def _stand_by(self) -> None:
        """Let a controller of a suitable version lead; the cluster log is read again afterwards."""
        with contextlib.suppress(RetryableError):
            self._kvs.lead(self._settings.holder, SOON_S, process=self._settings.process)
        self._led_until = 0.0
        self._plans.keep(())
        self._begin_anew()
        self.stop.wait(_STAND_BY_S)

    def _begin_anew(self) -> None:
        """Mark all data as outdated: another controller may have led."""
        self._experiments.look_again()
        self._cluster_log.look_again()
        self._look_ahead_no_more()
        self._queue_read = -self._settings.tick_s

    # --- which experiments -----------------------------------------------------------------------

    def _admit(self) -> None:
        """Read the queue if it may have changed."""
        now = time.monotonic()
        if now - self._queue_read < self._settings.tick_s:
            return
        self._queue_read = now
        opened, queue = self._experiments.opened, self._kvs.queued()
        self._published_attended = queue.attended
        self._queued = len(queue.runs)
        waiting = set[RunRef]()
        for name, each in [*opened.items()]:
            found = self._isolation.attempt(name, each.core.waiting, frozenset[str]())
            waiting |= {RunRef(name, run) for run in found}
        self._waiting = tuple(each for each in queue.runs if RunRef(each.experiment, each.run) in waiting)
        admitted = self._experiments.admitted(queue, now, waiting)
        for name in [name for name in opened if name not in admitted]:
            closed = opened.pop(name).core
            self._tell_keeper(closed, grows=False)
            self._cores.keep(closed)
        for name, runs in admitted.items():
            if name not in opened:
                core = self._isolation.attempt(name, partial(self._opened, name), None)
                if core is None:
                    continue
                opened[name] = Opened(core=core, runs=runs)
            each = opened[name]
            each.runs = each.core.attended = runs
            known = each.core.state.runs
            # The queue may be ahead of the log, or a late command has queued a run.
            each.is_behind |= not all(run in known and known[run].is_open for run in runs)
        self._plans.keep(self._experiments.unplanned())
        attended = self._experiments.attended()
        self._pruned.keep({RunRef(name, run) for name, runs in attended.items() for run in runs})
        if attended != self._published_runs:
            # Publish first: the next leader must continue these runs after a crash.
            self._published_runs = attended
            self._renew()

    def _opened(self, name: str) -> Core:
        self._history.open(name, self._term)
        return self._cores.take(self._kvs.experiment(name), self._restored)

    def _restored(self, name: str) -> ExperimentState:
        state = restored(self._kvs, name)
        self._projections.begin(state)
        return state

    def _read_on(self) -> bool:
        """Read logs on for a moment; return True if some are incomplete."""
        is_left = False
        for name, each in self._experiments.behind():
            began = time.monotonic()
            while self._isolation.attempt(name, partial(self._read_page, each), False):
                if self.stop.is_set() or not self._lead():
                    return True
                if time.monotonic() - began > _READING_S and len(self._experiments.opened) > 1:
                    is_left = True
                    break
        return is_left

    def _read_page(self, each: Opened) -> bool:
        """Read one page of a log; return True if there is more."""
        core = each.core
        if events := self._kvs.events(core.state.name, core.state.seq):
            self._reading.apply(core, events, is_news=not each.is_new)
            return True
        each.is_behind = each.is_new = False
        for run in each.runs:
            if run not in core.state.runs:
                why = f"{run} is in the queue, but not in the log"
                raise UnreadableError.for_event(core.state.name, core.state.seq, why)
            if not core.state.runs[run].is_open:
                # A late command had queued it.
                self._perform(core, [api.Dequeue(run=run)])
        return False

    # --- a round of decisions --------------------------------------------------------------------

    def _turn(self) -> None:
        """Let every open run decide; if nothing changed, wait for news."""
        self._cluster_log.read_on()  # first, so that its errors are not attributed to an experiment
        is_reading = self._read_on()
        overviews = self._look_over()
        snapshot = self._observe(overviews)
        if self._tend_machines(overviews):
            self._membership.look_again()
            self._experiments.look_again()
            return
        ending = {life for each in overviews for life in each.ending}
        if self._cluster_log.tend(self._term, snapshot, ending=ending, busy=_busy(overviews)):
            self._experiments.look_again()
            return
        if self._keeper is not None:
            self._keeper.report("", Progress(seq=self._cluster_log.state.seq, grows=True))
        unready = self._experiments.unready()
        self._rest(is_known=not (unready or is_reading))
        if unready or sum(len(each.runs) for each in overviews) != 1:
            self._look_ahead_no_more()
        has_changed = self._round(snapshot, is_whole=not unready)
        self._history.tend(self._term)
        if has_changed and not is_reading:
            return
        self._pace()
        cores = self._experiments.ready()
        wakes = (self._plans.wake_s(), self._draws.wake_s(), self._pruned.wake_s(), *self._wakes(cores))
        wait_s = min(self._settings.tick_s, *wakes)
        if not self._experiments.opened:
            wait_s *= 2
        self._watch(cores, 0.0 if is_reading else wait_s)

    def _running(self) -> list[tuple[Core, Run]]:
        """Return the active runs that have started and are not paused."""
        return [(core, run) for core, run in self._experiments.open_runs() if run.state is RunState.RUNNING]

    def _is_running(self) -> bool:
        """True if a run may be in progress, including runs with unread logs."""
        is_known = self._queued is not None and not any(
            each.is_behind for each in self._experiments.opened.values()
        )
        return bool(self._running()) or not is_known

    def _rest(self, *, is_known: bool) -> None:
        """Adapt the number of workers to the use of the cluster; pause runs before scaling to zero.

        Args:
            is_known: True if the logs of all active experiments are read.
        """
        if self._membership.is_pausing:
            for core, run in self._running():
                pause = api.Note(event=RunPaused(run=run.id, reason=_NO_WORKERS))
                self._isolation.attempt(core.state.name, partial(self._perform, core, [pause]), False)
            return
        states = [core.state for core in self._experiments.ready().values()]
        open_runs = [run for _, run in self._experiments.open_runs()]
        use = use_of(states, open_runs, self._queued or 0, is_known=is_known)
        bounds = [
            found for run in use.runs if run.kind == "fit" and (found := goal_of(run).workers) is not None
        ]
        least, most = max((b[0] for b in bounds), default=1), max((b[1] for b in bounds), default=1000)
        self._membership.rest(use, bounds=(least, max(least, most)))

    def _tend_machines(self, overviews: Iterable[Overview]) -> bool:
        """Act on broken and slow machines; return True if their known state is outdated."""
        statuses, health = self._membership.statuses, self._membership.health
        self._machines.label(self._term, statuses, health, self._slowness, self._reading.now())
        return self._machines.tend(
            self._term,
            statuses,
            health,
            evidence=evidence(each.ended for each in overviews),
            open_runs=[(core.state, run) for core, run in self._experiments.open_runs()],
            now=self._reading.now(),
        )

    def _slowness(self) -> list[dict[str, tuple[float, int]]]:
        """Return each experiment's slowness of workers."""
        ready = self._experiments.ready()
        return [self._isolation.attempt(name, core.slowness, {}) for name, core in ready.items()]

    def _look_over(self) -> list[Overview]:
        """Return the overview of each loaded experiment, isolating faults."""
        for name, core in self._experiments.ready().items():
            overview = self._isolation.attempt(name, partial(Overview.of, core), None)
            if overview is not None:
                self._experiments.opened[name].overview = overview
        ready, overviews = self._experiments.ready(), self._experiments.overviews()
        for name in ready:
            self._tell_keeper(ready[name], grows=True)
        return [overviews[name] for name in ready]

    def _round(self, snapshot: ClusterSnapshot, *, is_whole: bool) -> bool:
        """Let the runs decide in order; return True if anything changed.

        Args:
            is_whole: True if the logs of all active experiments are read.
        """
        has_changed = False
        taken = self._experiments.taken(snapshot.workers, time.monotonic())
        offers = self._sharing.round(
            self._experiments.ready(), self._reading.now(), taken=taken, has_others=not is_whole
        )
        try:
            for offer in offers:
                decide = partial(self._decide, offer, snapshot, is_whole=is_whole)
                has_changed |= self._isolation.attempt(offer.core.state.name, decide, False)
        except CoreFaultError as fault:
            self._isolation.attempt(fault.core.state.name, partial(_again, fault), None)
            return True
        return has_changed

    def _tell_keeper(self, core: Core, *, grows: bool) -> None:
        """Report a log's progress every `_TOLD_EVERY` events."""
        state, created = core.state, core.record.created
        if self._keeper is not None and (
            not grows or state.seq >= self._keeper.known(state.name) + _TOLD_EVERY
        ):
            open_since = (
                task.attempts[-1].assigned for run in state.open_runs() for task in run.open.values()
            )
            live_before = min(open_since, default=self._reading.now())
            progress = Progress(seq=state.seq, created=created, grows=grows, live_before=live_before)
            self._keeper.report(state.name, progress)

    def _wakes(self, cores: Mapping[str, Core]) -> list[float]:
        now = self._reading.now()
        return [
            self._isolation.attempt(name, partial(core.wake_s, now), math.inf) for name, core in cores.items()
        ]

    def _decide(self, offer: RunOffer, snapshot: ClusterSnapshot, *, is_whole: bool) -> bool:
        core, run = offer.core, offer.run
        recalled = self._trials.recalled(run)
        if recalled is not None:
            return self._perform(core, [api.Note(event=recalled)])
        self._history.inform(core, run)
        planned = self._planner_process.advise(core) if offer.is_alone else without_plan(run)
        ahead = self._look_ahead(core) if offer.is_alone else None
        if self._autoscaler is not None and (released := self._autoscaler.released(core.state)):
            snapshot = replace(snapshot, exclusions=(*snapshot.exclusions, *released))
        self._pruned.tend(core.state.name, run, self._term)
        with self._metrics.deciding():
            steps = core.decide(offer.on(snapshot), run)
        if self._pruned.is_busy(core.state.name, run.id):
            # An ended run gets no further attention, so its end waits.
            steps = [step for step in steps if not _is_end(step)]
        steps = [*(api.Note(event=event) for event in (planned, ahead) if event is not None), *steps]
        self._membership.limits.grow(core.to_grow(snapshot, run))
        self._trials.keep(core.state.name, run)
        if not steps and run.state is RunState.QUEUED and run.plan is None:
            steps = self._plans.steps(core, run, is_awaited=snapshot.is_awaited)
        if not any(isinstance(step, api.Note) for step in steps):
            steps += self._draws.steps(core, run)
        has_changed, open_runs = False, self._experiments.open_runs()
        now = self._reading.now()
        for write in self._taken.noted(core, run, steps, open_runs, now, is_whole=is_whole):
            if write.steps:
                act = partial(self._perform, write.core, write.steps)
                is_own = write.core is core
                has_changed |= act() if is_own else self._isolation.attempt(write.core.state.name, act, False)
        return has_changed

    def _look_ahead(self, core: Core) -> ForecastMade | None:
        """Return a forecast event, if any; request another number of workers if advised."""
        if self._autoscaler is None:
            return None
        ahead = self._autoscaler.update(core, self._reading.now(), self._membership.size_history)
        if ahead is not None and ahead.asked_for is not None:
            reason = f"by the forecast of {core.state.name}/{ahead.run}"
            has_asked = self._membership.ask_for(ahead.asked_for, reason)
            return ahead if has_asked else ahead.model_copy(update={"asked_for": None})
        return ahead

    def _look_ahead_no_more(self) -> None:
        self._planner_process.forget()
        if self._autoscaler is not None:
            self._autoscaler.forget()

    def _pace(self) -> None:
        """Let news accumulate briefly while all workers are busy: several commits then cost one decision."""
        if is_busy(self._look_over()):
            self.stop.wait(max(0.0, self._decided + _DECISION_INTERVAL_S - time.monotonic()))

    def _perform(self, core: Core, steps: Sequence[Step]) -> bool:
        """Write steps and apply the resulting events; return False if nothing changed."""
        request = api.DecideRequest(term=self._term, after=core.state.seq, steps=tuple(steps))
        answer = self._kvs.decide(core.state.name, request)
        self._decided = time.monotonic()
        for step, outcome in zip(steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s: %s", line(step), outcome.reason)
                self._membership.look_again()
            if isinstance(step, api.Note) and isinstance(step.event, RunPaused):
                # The workers' reports of free space are old: read them again.
                self._membership.look_again()
            if _is_end(step):
                self._queue_read = -self._settings.tick_s  # another run may start
        self._reading.apply(core, answer.events)
        # Events allow a new decision, even if they are the reason for a refusal.
        return bool(answer.events) or any(outcome.outcome == "done" for outcome in answer.outcomes)

    # --- the snapshot -------------------------------------------------------------------------------

    def _observe(self, overviews: Collection[Overview]) -> ClusterSnapshot:
        snapshot = self._membership.snapshot(self._reading.now())
        if self._metrics.is_due():
            held = {place for each in overviews for place in each.held}
            self._metrics.update(held, max((each.gap for each in overviews), default=0.0), snapshot)
        return snapshot

    def _watch(self, cores: Mapping[str, Core], wait_s: float) -> None:
        """Wait for news and apply them."""
        try:
            answer = self._kvs.watch(
                {name: core.state.seq for name, core in cores.items()}, self._cluster, wait_s
            )
        except UnreadableError as error:
            if error.experiment not in cores or isinstance(error, UnreadableClusterLogError):
                raise
            self._isolation.quarantine(error.experiment, error)
            return
        if answer.cluster != self._cluster:
            self._cluster = answer.cluster
            self._membership.hear()
            self._deletion.look_again()
            self._queue_read = -self._settings.tick_s
        for name, events in answer.events.items():
            self._isolation.attempt(name, partial(self._reading.apply, cores[name], events), None)

    def _lead(self) -> bool:
        """Keep the leadership; calls the store only after a third of the lease."""
        self.turned = time.monotonic()
        return self.turned < self._led_until or bool(self._renew())

    @property
    def term(self) -> int:
        """Return the term that this controller certainly leads, else 0. Thread-safe."""
        term = self._term
        return term if self._leads_for_certain(term) else 0

    def is_settled(self, experiment: str, seq: int) -> bool:
        """True if the data of all projections of a log's first `seq` events are stored. Thread-safe."""
        return self._projections.is_settled(experiment, seq)

    def _leads_for_certain(self, term: int) -> bool:
        """True if no other controller can have led since that term began. Thread-safe."""
        return term == self._term and time.monotonic() < self._led_until + _LEADERSHIP_S / 3

    def _forget(self, experiment: str) -> None:
        if self._keeper is not None:
            self._keeper.forget(experiment)
        self._projections.forget(experiment)
        self._pruned.forget(experiment)

    def _renew(self) -> int:
        """Renew the lease; return the term, or 0 if another controller leads."""
        now = self.turned = time.monotonic()
        attended = None
        if self._published_runs is not None:
            overviews = self._experiments.overviews()
            runs = {RunRef(name, run.id): run for name, each in overviews.items() for run in each.runs}
            devices = {place for each in overviews.values() for place in each.to_train}
            attended_runs = self._sharing.attended(
                self._published_runs, runs, len(devices), self._waiting, self._published_attended
            )
            attended = attended_runs.model_copy(update={"most_workers": self._settings.most_workers})
        settings = self._settings
        answer = self._kvs.lead(
            settings.holder,
            _LEADERSHIP_S,
            process=settings.process,
            is_start=not self._term,
            open_runs=settings.open_runs,
            attended=attended,
        )
        if answer.term == 0:
            self._metrics.stood_by()
            self._log_leader(answer.holder)
            self._plans.keep(())
            return 0
        if answer.term != self._term:
            self._published_runs = None
            self._membership.take_over()
            self._plans.take_over()
            self._deletion.look_again()
            self._pruned.look_again()
            self._begin_anew()
        self._term = answer.term
        self._metrics.leading.set(1)
        self._led_until = now + _LEADERSHIP_S / 3
        return self._term

    def _log_leader(self, holder: str) -> None:
        if holder == self._settings.holder:
            log.warning(
                "another process leads as %r: give each controller a name of its own with CEREBRO_HOLDER",
                holder,
            )
        else:
            log.info("%s leads", holder)

    @property
    def newest_term(self) -> int:
        """Return the newest term of this process, even an ended one; 0 if it never led. Thread-safe."""
        return self._term


def _is_end(step: Step) -> bool:
    return isinstance(step, api.Note) and isinstance(step.event, RunFinished)


def _busy(overviews: Iterable[Overview]) -> set[str]:
    return {name for each in overviews for name in each.busy}


def _again(fault: CoreFaultError) -> None:
    assert fault.__cause__ is not None
    raise fault.__cause__
