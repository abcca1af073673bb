"""Requested pods without a worker yet: waiting times and messages. No I/O; keeps state; not thread-safe.

`controller.scaling.membership` updates it and copies the answers into the snapshot; `worker_set_size` owns it.

- After a change of size or the loss of a pod, its partitions are not rebuilt for a minute.
- After scaling up from zero (`controller.scaling.autoscaler.scale_to_zero`), for ten minutes: the pods' volumes hold
all data, and nodes may have to start first. Runs use the workers already present.
- After the size was raised, ETL plans wait for ten minutes, because they divide the data among the present
workers.
- After a quarter of an hour without a node, the last pods count as stalled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from cerebro.contract.records import WorkerStatus
from controller.scaling.cluster_snapshot import are_coming
from controller.scaling.orchestrator import Fleet

FILLING_S = 60.0
"""Seconds to wait for a pod. With its image on the node it takes a few; a slower one is not worth idle devices."""
WAITED_S = 600.0
"""Seconds to wait for more workers: a node starts within some minutes."""
STALLED_S = 900.0
"""Seconds after which a pod will find no node."""

_KINDS = frozenset({"train", "etl"})


class Arrivals:
    """The starting pods of one worker set. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._filling: tuple[int, float] | None = None
        """Requested pods, and the time since at least one is missing."""
        self._size: int | None = None
        self._raised_at = -math.inf
        self._is_scaling_up = False
        self._pending: dict[str, float] = {}
        """Pods without a node, or not created -> since when."""
        self._fleet: Fleet | None = None
        self._num_present = 0
        self._now = 0.0

    def observe(
        self,
        statuses: Iterable[WorkerStatus],
        fleet: Fleet | None,
        now: float,
        *,
        is_scaling_up: bool = False,
    ) -> None:
        """Update the registered workers and the pods; `None` while the cluster manager is unreachable.

        Args:
            is_scaling_up: True while the cluster scales up from zero.
        """
        self._now, self._fleet, self._is_scaling_up = now, fleet, is_scaling_up
        if fleet is None:
            self._filling = None
            return
        statuses = tuple(statuses)
        if fleet.size > (self._size if self._size is not None else 0 if is_scaling_up else fleet.size):
            self._raised_at = now
        self._size = fleet.size
        self._num_present = _num_present(statuses, fleet)
        if self._num_present >= fleet.size:
            self._raised_at = -math.inf
        if not are_coming(statuses, fleet):
            self._filling = None
        elif self._filling is None or self._filling[0] != fleet.size:
            self._filling = (fleet.size, now)
        pod_problems = fleet.pod_problems()
        stuck = [name for name in pod_problems if fleet.is_wanted(name) and _has_no_node(name, fleet)]
        self._pending = {name: self._pending.get(name, now) for name in stuck}

    @property
    def is_filling(self) -> bool:
        """True if starting pods may bring missing partitions."""
        is_new = self._filling is not None and self._now - self._filling[1] < FILLING_S
        return is_new or (self._is_scaling_up and self.is_awaited)

    @property
    def is_awaited(self) -> bool:
        """True if more workers were requested recently and are not all present."""
        return self._now - self._raised_at < WAITED_S

    @property
    def progress_text(self) -> str:
        """Progress of starting workers, for people; "" without any."""
        if self._fleet is None:
            return ""
        is_made = any(map(self._fleet.is_wanted, self._fleet.expected))
        if not self.is_awaited and not is_made:
            return ""
        node = "; a node is being made" if is_made else ""
        return f"workers are starting: {self._num_present} of {self._fleet.size}{node}"

    def stalled(self) -> tuple[int, str] | None:
        """Return the number of workers that find nodes, and the reason, or `None`.

        The last pods must have been without a node for a quarter of an hour. A worker set removes its last
        pods only, so a stuck pod before others stays.
        """
        if self._fleet is None:
            return None
        size, why = self._fleet.size, ""
        while size and (pod := _pod_name(self._fleet, size - 1)) in self._pending:
            if self._now - self._pending[pod] < STALLED_S:
                break
            size, why = (
                size - 1,
                f"{pod} had not found a node after 15 min: {self._fleet.pod_problems()[pod]}",
            )
        return (size, why) if why else None


def _num_present(statuses: Iterable[WorkerStatus], fleet: Fleet) -> int:
    """Return the number of requested pods with all their workers registered."""
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for status in statuses:
        if status.record.pod is not None and not status.is_lost:
            kinds[status.record.pod.uid].update(_KINDS.intersection(status.record.kinds))
    all_kinds = set[str]().union(*kinds.values())
    return sum(
        bool(all_kinds) and kinds[pod.uid] == all_kinds
        for name, pod in fleet.pods.items()
        if fleet.is_wanted(name)
    )


def _pod_name(fleet: Fleet, ordinal: int) -> str:
    """Return the pod with this ordinal, existing or not created, or ""."""
    return next((n for n in (*fleet.pods, *fleet.not_created) if n.rpartition("-")[2] == str(ordinal)), "")


def _has_no_node(name: str, fleet: Fleet) -> bool:
    return name in fleet.not_created or fleet.pods[name].is_pending
