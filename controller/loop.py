"""The thin loop around the pure core: reads the log, lets the core decide, writes the steps.

Owns no state that matters: what it holds is a fold of the log and is rebuilt from there after a crash. One
experiment is worked on at a time, the one whose open run is oldest; the others wait in the queue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from cerebro.commands.planning import etl_weights, plan_evaluation, plan_fit
from cerebro.contract import api
from cerebro.contract.events import Event, RunFinished, RunPaused, RunStarted, SchedulerChanged
from cerebro.contract.records import ExperimentRecord, Unreadable
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest, Plan
from cerebro.errors import CerebroError, ConflictError, IllegalEventError, RetryableError, UnreadableError
from cerebro.runtime.kvs import KvsClient
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.state import ExperimentState, Run, RunState, whole
from controller.advisor import Advisor, Helper
from controller.assigning import revoke_task
from controller.cluster_snapshot import ClusterSnapshot
from controller.core import Core
from controller.decide import Step
from controller.deletion import Deletion
from controller.event_logging import fields, line
from controller.fold_cache import FoldCache
from controller.membership import Membership
from controller.metrics import Metrics
from controller.orchestrator import Orchestrator
from controller.preparation_process import prepare_etl
from controller.settings import Settings

log = logging.getLogger(__name__)

_LEADERSHIP_S = 5.0
"""Of the controller's own lease. A restarted controller has its predecessor's name and goes on at once; one that takes
over from another machine waits at most this long."""

_QUARANTINED = "the experiment's log cannot be read any further, so it is quarantined"

_DECISION_INTERVAL_S = 0.025
"""Between two decisions while every worker has work. Workers are a unit ahead, so nobody waits for it."""


class Observer(Protocol):
    """Is shown each event; must return at once."""

    def observe(self, state: ExperimentState, event: Event) -> None:
        """`event` was applied to `state`."""
        ...

    def forget(self, experiment: str) -> None:
        """The experiment is being deleted: nothing is to be written for it any more, until one of its name is new."""
        ...


class Controller:
    """The loop. `stop` may be set from a signal handler or another thread."""

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        observer: Observer,
        helper: Helper,
        orchestrator: Orchestrator | None = None,
        *,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._kvs, self._settings, self._observer = kvs, settings, observer
        self._advisor = Advisor(helper)
        self._cores = FoldCache()
        self._cluster = 0
        self._term = 0
        self._led_until = 0.0
        self._decided = self._watched = 0.0
        self._deletion = Deletion(kvs, settings.volumes, observer.forget, self._renew)
        self._membership = Membership(kvs, orchestrator, lease_s=settings.lease_s, tick_s=settings.tick_s)
        self._store_ahead_s = time.time() - time.monotonic()
        self.stop = threading.Event()
        self.turned = time.monotonic()
        """When the loop last turned, whether it leads and whether the store answers or not."""

    def run(self) -> None:
        """Work until `stop` is set. A store that is away is waited for."""
        while not self.stop.is_set():
            try:
                if not self._lead():
                    self.stop.wait(self._settings.tick_s)
                    continue
                self._membership.tend()
                self._deletion.tend(self._term)
                entry = next(iter(self._kvs.queue()), None)
                if entry is None:
                    self._look(None)
                    self._watch({}, self._settings.tick_s * 2)
                else:
                    self._work_or_quarantine(entry)
            except RetryableError as error:
                self._membership.store_was_away()
                self._metrics.leading.set(0)
                log.warning("store away: %s", error)
            except ConflictError as error:
                self._metrics.leading.set(0)
                log.warning("leadership lost: %s", error)
                self._led_until = 0.0
            self._advisor.forget()

    # --- one experiment --------------------------------------------------------------------------

    def _work_or_quarantine(self, entry: api.QueueEntry) -> None:
        """Work on an experiment; one that cannot be read must not keep all others from going on."""
        try:
            self._work(entry)
        except UnreadableError as error:
            log.exception("experiment %s is quarantined: %s", entry.experiment, error)
            why = Unreadable(
                seq=error.seq, reason=error.reason or str(error), by=self._settings.holder, time=time.time()
            )
            self._kvs.quarantine(entry.experiment, why, self._term)

    def _work(self, entry: api.QueueEntry) -> None:
        with self._cores.of(self._kvs.experiment(entry.experiment)) as core:
            try:
                if self._catch_up(core):
                    self._work_on(core, entry)
            except UnreadableError as error:
                self._apply(core, error.readable, is_news=False)
                self._take_back(whole(core.state, partial(self._events, core.state.name)))
                raise

    def _events(self, experiment: str, after: int) -> tuple[Event, ...]:
        """What may take many calls: the leadership is kept meanwhile."""
        self._lead()
        return self._kvs.events(experiment, after)

    def _take_back(self, state: ExperimentState) -> None:
        """Take every attempt back that is known to be open: workers are wanted elsewhere."""
        run = state.active_run()
        steps = [revoke_task(task, _QUARANTINED, force=True) for task in run.open.values()] if run else []
        if steps:
            with contextlib.suppress(UnreadableError):  # that is in the answer, too
                self._kvs.decide(
                    state.name, api.DecideRequest(term=self._term, after=state.seq, steps=tuple(steps))
                )

    def _work_on(self, core: Core, entry: api.QueueEntry) -> None:
        experiment, state = entry.experiment, core.state
        if entry.run not in state.runs:
            why = f"{entry.run} is in the queue, but not in the log"
            raise UnreadableError.of(experiment, state.seq, why)
        if not state.runs[entry.run].is_open:
            # A command that came too late had put it there.
            self._perform(core, [api.Dequeue(run=entry.run)])
            return
        while not self.stop.is_set() and self._lead():
            self._membership.tend()
            self._deletion.tend(self._term)
            planned = self._advisor.advise(core)
            run = state.active_run()
            if run is None:
                return
            snapshot = self._look(state)
            with self._metrics.deciding():
                steps = core.decide(snapshot)
            if planned is not None:
                steps.insert(0, api.Note(event=planned))
            if not steps and run.state is RunState.QUEUED and run.plan is None:
                steps = self._plan(core.record, state, run)
            if steps and self._perform(core, steps):
                continue
            self._pace(state)
            wait_s = min(self._settings.tick_s, core.wake_s(self._now()))
            news = self._watch({experiment: state.seq}, wait_s)
            self._apply(core, news.get(experiment, ()))

    def _pace(self, state: ExperimentState) -> None:
        """Let news gather for a moment while every device has work: then several commits cost one decision."""
        if all(worker.is_occupied for worker in state.workers.values() if worker.is_alive and worker.trains):
            self.stop.wait(max(0.0, self._decided + _DECISION_INTERVAL_S - time.monotonic()))

    def _perform(self, core: Core, steps: Sequence[Step]) -> bool:
        """Write steps and take in what the log says then; false when nothing has changed, so that the caller waits."""
        request = api.DecideRequest(term=self._term, after=core.state.seq, steps=tuple(steps))
        answer = self._kvs.decide(core.state.name, request)
        self._decided = time.monotonic()
        for step, outcome in zip(steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s: %s", line(step), outcome.reason)
                self._membership.look_again()
            if isinstance(step, api.Note) and isinstance(step.event, RunPaused):
                # Whether there is free space again is to be asked of the workers: their last reports are old.
                self._membership.look_again()
        self._apply(core, answer.events)
        # With news there is something to decide on, also if they are why a step was refused.
        return bool(answer.events) or any(outcome.outcome == "done" for outcome in answer.outcomes)

    def _catch_up(self, core: Core) -> bool:
        """Read on in the log to its end, which may take long: whether it was reached and this controller leads."""
        while events := self._kvs.events(core.state.name, core.state.seq):
            self._apply(core, events, is_news=False)
            if self.stop.is_set() or not self._lead():
                return False
        return True

    def _apply(self, core: Core, events: Sequence[Event], *, is_news: bool = True) -> None:
        for event in events:
            try:
                core.apply(event, is_news=is_news)
            except Exception as cause:
                if core.state.seq < event.seq:
                    if isinstance(cause, IllegalEventError):
                        # It will be so the next time, for every controller that starts.
                        raise UnreadableError.of(core.state.name, event.seq, str(cause)) from cause
                    raise
                # The log is sound: the error is ours.
                log.exception("the schedule of %s is made anew at event %d", core.state.name, event.seq)
                core.start_over()
            if is_news:
                self._store_ahead_s = event.time - time.monotonic()
                self._metrics.happened(event)
                log.info("%s", line(event), extra=fields(core.state, event))
                if isinstance(event, SchedulerChanged) and event.scheduler not in POLICIES:
                    log.warning(
                        "no scheduler %r is known: %s dispatches by %s",
                        event.scheduler,
                        event.run,
                        DEFAULT_POLICY,
                    )
            self._observer.observe(core.state, event)
        if events and not is_news:
            # After the wall clock was set back, the log's times are ahead of it.
            self._store_ahead_s = max(self._store_ahead_s, events[-1].time - time.monotonic())

    # --- plans -----------------------------------------------------------------------------------

    def _plan(self, record: ExperimentRecord, state: ExperimentState, run: Run) -> list[Step]:
        weights = etl_weights(state)
        able = weights if run.kind == "etl" else [w for w in state.workers.values() if w.is_alive]
        if not able:
            return []
        try:
            plan = self._plan_of(record, state, run, weights)
        except CerebroError as error:
            return [api.Note(event=RunFinished(run=run.id, outcome="failed", error=str(error)))]
        except Exception as error:
            # Plans are made of what users give: whatever it is that we did not foresee fails this run, not all others.
            log.exception("cannot plan %s", run.id)
            reason = f"the controller could not plan it, see `cerebro logs controller`: {type(error).__name__}: {error}"
            return [api.Note(event=RunFinished(run=run.id, outcome="failed", error=reason))]
        return [api.Note(event=RunStarted(run=run.id, plan=plan))]

    def _plan_of(
        self, record: ExperimentRecord, state: ExperimentState, run: Run, weights: dict[str, float]
    ) -> Plan:
        if isinstance(run.request, EtlRequest):
            volumes = self._settings.volumes
            return prepare_etl(record, state, run.request, weights, volumes, meanwhile=self._meanwhile)
        if isinstance(run.request, FitRequest):
            return plan_fit(state, run.request)
        assert isinstance(run.request, EvaluateRequest)
        return plan_evaluation(state, run.request)

    def _meanwhile(self) -> None:
        """What goes on while a long plan is made: leading, and requests for another number of workers."""
        if self._lead():
            if time.monotonic() - self._watched >= self._settings.tick_s:
                self._watch({}, 0.0)
            self._membership.tend()

    # --- the snapshot -------------------------------------------------------------------------------

    def _look(self, state: ExperimentState | None) -> ClusterSnapshot:
        snapshot = self._membership.snapshot(self._now())
        if self._metrics.is_due():
            self._metrics.look(state, snapshot)
        return snapshot

    def _now(self) -> float:
        """The time that an event would have now, as far as the newest one tells: for when a unit is expected to end.
        Whether a worker is there is told by `WorkerStatus.silent_s`, which counts elapsed time."""
        return time.monotonic() + self._store_ahead_s

    def _watch(self, cursors: dict[str, int], wait_s: float) -> dict[str, tuple[Event, ...]]:
        answer = self._kvs.watch(cursors, self._cluster, wait_s)
        self._watched = time.monotonic()
        if answer.cluster != self._cluster:
            self._cluster = answer.cluster
            self._membership.hear()
            self._deletion.look_again()
        return answer.events

    def _lead(self) -> bool:
        """Keep the leadership; asks the store only when a third of the lease has passed."""
        self.turned = time.monotonic()
        return self.turned < self._led_until or bool(self._renew())

    def _renew(self) -> int:
        """Renew the leadership's lease now; its term, 0 if another controller leads."""
        now = self.turned = time.monotonic()
        answer = self._kvs.lead(self._settings.holder, _LEADERSHIP_S)
        if answer.term == 0:
            self._metrics.stood_by()
            log.info("%s leads", answer.holder)
            return 0
        if answer.term != self._term:
            self._membership.take_over()
            self._deletion.look_again()
        self._term = answer.term
        self._metrics.leading.set(1)
        self._led_until = now + _LEADERSHIP_S / 3
        return self._term
