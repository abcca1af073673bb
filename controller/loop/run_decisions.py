"""One round of decisions: every open run decides once, and its steps are written."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial

from cerebro.contract.rest import api
from cerebro.state import RunState
from controller.loop.isolation import Isolation
from controller.loop.leadership import Leadership
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments
from controller.loop.scaling import Scaling
from controller.loop.step_writer import StepWriter, is_end
from controller.metrics import Metrics
from controller.planning import PlannerProcess, without_plan
from controller.preparation.plan_maker import PlanMaker
from controller.projections.history import RunHistory
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.scaling.membership import Membership
from controller.sharing.rounds import CoreFaultError, RunOffer, Sharing
from controller.sharing.taken import TakenTime
from controller.sources.suggestions.requests import SuggestionRequests
from controller.sources.trial_cache import TrialCache
from controller.storage.pruned_files import PrunedFiles


@dataclass(kw_only=True)
class RunDecisions:
    """Lets the open runs decide. Owned by the loop; not thread-safe.

    A core decides without I/O. This class adds the answers of background processes (plans, forecasts, suggestions of
    searches) and effects that belong to one run.

    Args:
        sharing: orders the runs and offers each its device slots.
        plans: plans of queued runs.
        pruned: removes the files of pruned checkpoints.
        history: priors from earlier runs.
        trials: trial results of earlier runs.
        planner: plans the order of sub-epochs, for a run that has all workers.
        draws: suggestions of searches.
        taken: device time that other runs take from a run.
    """

    experiments: Experiments
    isolation: Isolation
    reading: LogReading
    leadership: Leadership
    membership: Membership
    scaling: Scaling
    writer: StepWriter
    metrics: Metrics
    sharing: Sharing
    plans: PlanMaker
    pruned: PrunedFiles
    history: RunHistory
    trials: TrialCache
    planner: PlannerProcess
    suggestions: SuggestionRequests = field(default_factory=SuggestionRequests)
    taken: TakenTime = field(default_factory=TakenTime)

    def round(self, snapshot: ClusterSnapshot, *, is_whole: bool) -> bool:
        """Let the runs decide in order; return True if anything changed.

        Args:
            is_whole: True if the logs of all active experiments are read.
        """
        has_changed = False
        taken = self.experiments.taken(snapshot.workers, time.monotonic())
        offers = self.sharing.round(self.experiments.ready(), snapshot, taken=taken, has_others=not is_whole)
        try:
            for offer in offers:
                decide = partial(self._decide, offer, snapshot, is_whole=is_whole)
                has_changed |= self.isolation.attempt(offer.core.state.name, decide, False)
        except CoreFaultError as fault:
            self.isolation.attempt(fault.core.state.name, partial(_again, fault), None)
            return True
        return has_changed

    def wake_s(self) -> float:
        """Return the seconds until a decision may be due without an event, or infinity."""
        now = self.reading.now()
        cores = self.experiments.ready()
        dues = [
            self.isolation.attempt(name, partial(core.wake_s, now), math.inf) for name, core in cores.items()
        ]
        return min((self.plans.wake_s(), self.suggestions.wake_s(), self.pruned.wake_s(), *dues))

    def forget_plans(self) -> None:
        """Forget plans and forecasts in progress: they hold for one run with all workers."""
        self.planner.forget()
        self.scaling.forget()

    def _decide(self, offer: RunOffer, snapshot: ClusterSnapshot, *, is_whole: bool) -> bool:
        core, run = offer.core, offer.run
        recalled = self.trials.recalled(run)
        if recalled is not None:
            return self.writer.write(core, [api.Note(event=recalled)])
        self.history.inform(core, run)
        planned = self.planner.advise(core) if offer.is_alone else without_plan(run)
        forecast = self.scaling.forecast(core) if offer.is_alone else None
        if released := self.scaling.released(core.state):
            snapshot = replace(snapshot, exclusions=(*snapshot.exclusions, *released))
        self.pruned.reconcile(core.state.name, run, self.leadership.newest_term)
        with self.metrics.deciding():
            steps = core.decide(offer.on(snapshot), run)
        if self.pruned.is_busy(core.state.name, run.id):
            # An ended run gets no further attention, so its end waits.
            steps = [step for step in steps if not is_end(step)]
        steps = [*(api.Note(event=event) for event in (planned, forecast) if event is not None), *steps]
        self.membership.limits.grow(core.to_grow(snapshot, run))
        self.trials.keep(core.state.name, run)
        if not steps and run.state is RunState.QUEUED and run.plan is None:
            steps = self.plans.steps(core, run, is_awaited=snapshot.is_awaited)
        if not any(isinstance(step, api.Note) for step in steps):
            steps += self.suggestions.steps(core, run)
        has_changed, open_runs = False, self.experiments.open_runs()
        now = self.reading.now()
        for write in self.taken.noted(core, run, steps, open_runs, now, is_whole=is_whole):
            if write.steps:
                act = partial(self.writer.write, write.core, write.steps)
                is_own = write.core is core
                has_changed |= act() if is_own else self.isolation.attempt(write.core.state.name, act, False)
        return has_changed


def _again(fault: CoreFaultError) -> None:
    assert fault.__cause__ is not None
    raise fault.__cause__
