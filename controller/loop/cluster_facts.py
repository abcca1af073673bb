"""Facts about workers that concern every experiment: recorded once, before the experiments decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.exclusions.health import evidence
from controller.exclusions.machines import Machines
from controller.loop.isolation import Isolation
from controller.loop.leadership import Leadership
from controller.loop.log_keeper import LogKeeper, Progress
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments, Overview
from controller.scaling.cluster_log import ClusterLog
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.scaling.membership import Membership


@dataclass
class ClusterFacts:
    """Records broken and slow machines, and changes of the workers. Owned by the loop; not thread-safe.

    Args:
        log: the cluster log, which every experiment reads.
        keeper: makes snapshots of the cluster log; `None` without snapshots.
    """

    log: ClusterLog
    machines: Machines
    membership: Membership
    experiments: Experiments
    isolation: Isolation
    reading: LogReading
    leadership: Leadership
    keeper: LogKeeper | None

    def record(self, overviews: Sequence[Overview], snapshot: ClusterSnapshot) -> bool:
        """Record what changed since the last call; return True if the snapshot or the logs are outdated now."""
        if self._tend_machines(overviews):
            self.membership.invalidate()
            return True
        ending = {life for each in overviews for life in each.ending}
        busy = {name for each in overviews for name in each.busy}
        if self.log.reconcile(self.leadership.newest_term, snapshot, ending=ending, busy=busy):
            return True
        if self.keeper is not None:
            self.keeper.report("", Progress(seq=self.log.state.seq, grows=True))
        return False

    def _tend_machines(self, overviews: Sequence[Overview]) -> bool:
        """Act on broken and slow machines; return True if their known state is outdated."""
        statuses, health = self.membership.registrations.workers, self.membership.registrations.health
        term, now = self.leadership.newest_term, self.reading.now()
        self.machines.label(term, statuses, health, self._slowness, now)
        return self.machines.reconcile(
            term,
            statuses,
            health,
            evidence=evidence(each.ended for each in overviews),
            open_runs=[(core.state, run) for core, run in self.experiments.open_runs()],
            now=now,
        )

    def _slowness(self) -> list[dict[str, tuple[float, int]]]:
        """Return each experiment's slowness of workers."""
        ready = self.experiments.ready()
        return [self.isolation.attempt(name, core.slowness, {}) for name, core in ready.items()]
