"""The loop around the pure cores: read the logs, let each core decide, write the steps.

Each turn first records changes of the workers in the cluster log, which every experiment reads before it decides. The
loop holds only folds of logs, which are rebuilt after a crash. It works on `Settings.open_runs` runs at a time, the
oldest in the queue; the others wait. Each experiment has its own core, called in the arbiter's order
(`controller.sharing.rounds`). An unreadable or faulty experiment affects no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from cerebro.errors import ConflictError, RetryableError, UnreadableClusterLogError
from cerebro.runtime.kvs.client import KvsClient
from controller.exclusions.machines import Machines
from controller.loop.admission import Admission
from controller.loop.cluster_facts import ClusterFacts
from controller.loop.isolation import Isolation
from controller.loop.leadership import Leadership
from controller.loop.log_follower import LogFollower
from controller.loop.log_keeper import LogKeeper
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments, Overview, is_busy
from controller.loop.run_decisions import RunDecisions
from controller.loop.scaling import Scaling
from controller.loop.step_writer import StepWriter
from controller.metrics import Metrics
from controller.planning import BackgroundProcess, PlannerProcess
from controller.preparation.plan_maker import PlanMaker
from controller.projections.history import RunHistory
from controller.projections.projection import Projection, Projections
from controller.scaling.autoscaler.autoscaler import Autoscaler
from controller.scaling.autoscaler.scale_to_zero import ScaleToZeroRules
from controller.scaling.cluster_log import ClusterLog
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.scaling.membership import Membership
from controller.scaling.orchestrator import Orchestrator
from controller.settings import Settings
from controller.sharing.rounds import Sharing
from controller.sources.trial_cache import TrialCache
from controller.storage.deletion import Deletion
from controller.storage.pruned_files import PrunedFiles

log = logging.getLogger(__name__)

_DECISION_INTERVAL_S = 0.025
"""Seconds between two decisions while every worker has work. Workers have a queued sub-epoch, so none waits."""

_STAND_BY_S = 10.0
"""Seconds without an attempt to lead, for a controller that cannot read the cluster log."""


class Controller:
    """The controller's services, and the loop that calls them. `stop` may be set from any thread or signal handler.

    Attributes:
        leadership: the lease of the leading controller.
        projections: data derived from the logs.
    """

    def __init__(
        self,
        kvs: KvsClient,
        settings: Settings,
        tensorboard: Projection,
        process: BackgroundProcess,
        orchestrator: Orchestrator | None = None,
        *,
        autoscaler: Autoscaler | None = None,
        metrics: Metrics | None = None,
        keeper: LogKeeper | None = None,
    ) -> None:
        self.stop = threading.Event()
        self._settings = settings
        self._metrics = metrics = metrics or Metrics()
        self._experiments = experiments = Experiments(settings.open_runs)
        self._history, sharing = RunHistory(kvs), Sharing()
        self.projections = Projections((tensorboard, self._history))
        self._reading = reading = LogReading(self.projections, metrics, keeper)
        self.leadership = leadership = Leadership(
            kvs,
            settings,
            metrics,
            attended=lambda: self._admission.attended(),  # noqa: PLW0108 - created below
            take_over=self._take_over,
            lose=lambda: self._plans.keep(()),
        )
        isolation = Isolation(
            kvs, experiments, reading, holder=settings.holder, term=leadership.keep, skip=sharing.skip
        )
        self._admission = Admission(
            kvs, settings, experiments, isolation, reading, leadership, self._history, sharing
        )
        self._membership = membership = Membership(
            kvs,
            orchestrator,
            lease_s=settings.lease_s,
            tick_s=settings.tick_s,
            max_memory=settings.max_memory,
            installed=settings.installed_workers,
            scale_to_zero=ScaleToZeroRules(
                is_on=settings.autoscaler == "act" and orchestrator is not None,
                idle_s=settings.idle_s,
                least=settings.least_workers,
                most=settings.most_workers,
            ),
        )
        self._cluster = ClusterFacts(
            ClusterLog(kvs), Machines(kvs), membership, experiments, isolation, reading, leadership, keeper
        )
        if autoscaler is not None:
            autoscaler.observe_workers(lambda: self._cluster.log.state.absences)
        self._writer = StepWriter(kvs, leadership, reading, membership, self._admission)
        self._logs = LogFollower(kvs, experiments, isolation, reading, leadership, self._writer, self.stop)
        self._scaling = Scaling(
            membership.size, autoscaler, experiments, isolation, reading, self._admission, self._writer
        )
        self._plans = PlanMaker(settings.volumes, kvs)
        self._pruned = PrunedFiles(settings.volumes, leadership.is_certain)
        self._decisions = RunDecisions(
            experiments=experiments,
            isolation=isolation,
            reading=reading,
            leadership=leadership,
            membership=membership,
            scaling=self._scaling,
            writer=self._writer,
            metrics=metrics,
            sharing=sharing,
            plans=self._plans,
            pruned=self._pruned,
            history=self._history,
            trials=TrialCache(kvs),
            planner=PlannerProcess(process),
        )
        writing = (keeper, self.projections, self._pruned)

        def forget(experiment: str) -> None:
            for each in writing:
                if each is not None:
                    each.forget(experiment)

        self._deletion = Deletion(kvs, settings.volumes, forget, leadership.renew)

    def run(self) -> None:
        """Work until `stop` is set. An unavailable store is retried."""
        while not self.stop.is_set():
            try:
                if not self.leadership.keep():
                    self.stop.wait(self._settings.tick_s)
                    continue
                self._membership.reconcile(self._reading.now(), is_running=self._scaling.is_running())
                self._deletion.reconcile(self.leadership.newest_term)
                self._admit()
                self._turn()
            except RetryableError as error:
                log.warning("store away: %s", error)
                self._metrics.leading.set(0)
                self._membership.registrations.store_was_away()
                self._invalidate()
                # An error from the store itself comes at once and may persist.
                self.stop.wait(self._settings.tick_s)
            except ConflictError as error:
                log.warning("leadership lost: %s", error)
                self._metrics.leading.set(0)
                self.leadership.doubt()
                self._plans.keep(())
                self._invalidate()
            except UnreadableClusterLogError as error:
                log.error("the controller stands by: %s", error)
                self._metrics.stood_by()
                self.leadership.hand_over()
                self._plans.keep(())
                self._invalidate()
                self.stop.wait(_STAND_BY_S)
        self._plans.keep(())
        self._pruned.close()

    def _admit(self) -> None:
        """Admit runs from the queue; end background work for the others."""
        if self._admission.update():
            self._plans.keep(self._experiments.unplanned())
            self._pruned.keep(self._experiments.attended_runs())

    def _turn(self) -> None:
        """Let every open run decide; if nothing changed, wait for news."""
        self._cluster.log.read_on()  # first, so that its errors are not attributed to an experiment
        is_reading = self._logs.read_on()
        overviews = self._logs.look_over()
        snapshot = self._observe(overviews)
        if self._cluster.record(overviews, snapshot):
            self._experiments.invalidate()
            return
        unready = self._experiments.unready()
        self._scaling.adapt(is_known=not (unready or is_reading))
        if unready or sum(len(each.runs) for each in overviews) != 1:
            self._decisions.forget_plans()
        has_changed = self._decisions.round(snapshot, is_whole=not unready)
        self._history.reconcile(self.leadership.newest_term)
        if is_reading or not has_changed:
            self._wait(is_reading=is_reading)

    def _observe(self, overviews: Sequence[Overview]) -> ClusterSnapshot:
        """Return the present workers, and update the metrics."""
        snapshot = self._membership.snapshot(self._reading.now())
        if self._metrics.is_due():
            held = {slot for each in overviews for slot in each.held}
            self._metrics.update(held, max((each.gap for each in overviews), default=0.0), snapshot)
        return snapshot

    def _wait(self, *, is_reading: bool) -> None:
        """Wait for news until the next decision is due; apply only present news if `is_reading`."""
        if is_busy(self._logs.look_over()):
            # Let news accumulate briefly: several commits then cost one decision.
            self.stop.wait(max(0.0, self._writer.written_at + _DECISION_INTERVAL_S - time.monotonic()))
        wait_s = min(self._settings.tick_s, self._decisions.wake_s())
        if not self._experiments.opened:
            wait_s *= 2
        if self._logs.wait(0.0 if is_reading else wait_s):
            self._membership.on_notification()
            self._deletion.invalidate()
            self._admission.invalidate()

    def _take_over(self) -> None:
        """Begin a term: another controller may have led before."""
        self._admission.take_over()
        self._membership.take_over()
        self._plans.take_over()
        self._deletion.invalidate()
        self._pruned.invalidate()
        self._invalidate()

    def _invalidate(self) -> None:
        """Mark all data as outdated."""
        self._experiments.invalidate()
        self._cluster.log.invalidate()
        self._decisions.forget_plans()
        self._admission.invalidate()
