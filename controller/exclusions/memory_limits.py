"""Giving the pods of workers more memory while they run, where the cluster manager can: which may have more, what was
asked for, and what came of it. Belongs to the loop; not thread-safe.

A pod is given twice what it has, up to a bound that whoever runs the cluster has set. What it asks for grows by the
same factor, so that the memory is its own on its node, and its quality of service stays. The worker's next report tells
that it has it (`controller.scaling.cluster_snapshot`). A pod that is refused, or has not got it in time, is not asked
for again; the sub-epoch is given up then as if there were nothing to ask (`controller.exclusions.memory_needs`). A pod
that is made anew has what the chart says. Of a worker that is away, or whose pod is being replaced, the next pod may
have
more: nothing is given up for that. Nor is it while the cluster manager is not heard, as when a controller has just
begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from cerebro.contract.records import PodRef, WorkerStatus
from cerebro.errors import ClusterError, RetryableError
from controller.scaling.cluster_snapshot import Growth, memory_of
from controller.scaling.orchestrator import Fleet, Memory

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""So long a node has to give a pod what was granted, and the worker to say so."""
_PAUSE_S = 5.0
"""Before a cluster manager that was away is asked again."""
_NEARLY = 0.99
"""A worker tells its limit as its kernel has it, in whole pages."""


class Resizing(Protocol):
    """What is asked of a cluster manager (`controller.scaling.orchestrator`)."""

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Give a container of a pod more memory, while it runs."""
        ...


class _Container(NamedTuple):
    """Of a worker, and what it has."""

    pod: PodRef
    memory: Memory
    has_bytes: int
    """As the worker says."""


class _Asked(NamedTuple):
    limit: int
    at: float


class MemoryLimits:
    """The memory of all workers' pods.

    Args:
        most_bytes: that a pod's container may be given; 0: all stay as they are.
        clock: monotonic seconds.
    """

    def __init__(
        self, manager: Resizing | None, most_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager, self._most, self._clock = manager, most_bytes, clock
        self._containers: dict[str, _Container] = {}
        self._asked: dict[str, _Asked] = {}
        """Pod's uid -> what it is to have, while it has less."""
        self._refused: dict[str, str] = {}
        """Pod's uid -> why it gets no more."""
        self._not_before = float("-inf")

    def look(self, statuses: Collection[WorkerStatus], fleet: Fleet | None) -> Growth:
        """Which workers may have more memory than they have.

        Args:
            fleet: `None` while the cluster manager is not heard: what it was asked for is waited for.
        """
        if not self._most or self._manager is None:
            return Growth()
        if fleet is not None:
            self._containers = {s.record.worker: each for s in statuses if (each := _container(s, fleet))}
            for each in self._containers.values():
                self._see(each, fleet)
        uids = {status.record.pod.uid for status in statuses if status.record.pod is not None}
        self._asked = {uid: each for uid, each in self._asked.items() if uid in uids}
        self._refused = {uid: why for uid, why in self._refused.items() if uid in uids}
        workers = frozenset(status.record.worker for status in statuses if self._may_grow(status, fleet))
        problem = next(iter(self._refused.values()), "")
        return Growth(most_bytes=self._most, workers=workers, is_known=fleet is not None, problem=problem)

    def _may_grow(self, status: WorkerStatus, fleet: Fleet | None) -> bool:
        """Whether a worker may have more memory, now or in the pod that it comes back in."""
        ref, has_bytes = status.record.pod, memory_of(status)
        if ref is None or ref.uid in self._refused or "train" not in status.record.kinds:
            return False
        pod = fleet.pods.get(ref.name) if fleet is not None else None
        is_bounded = pod is None or ref.container in pod.memory
        return is_bounded and has_bytes is not None and has_bytes < self._most

    def _see(self, each: _Container, fleet: Fleet) -> None:
        """What has come of what was asked for a pod."""
        uid = each.pod.uid
        asked = self._asked.get(uid)
        if asked is None:
            return
        if each.has_bytes >= _NEARLY * asked.limit:
            del self._asked[uid]
            log.info("%s has %.4g GiB of memory now", each.pod.name, each.has_bytes / 2**30)
        elif self._clock() - asked.at > WAIT_S:
            why = fleet.pods[each.pod.name].unresized or f"it has not got it within {WAIT_S:.0f} s"
            self._refuse(each, f"pod {each.pod.name} is not given more memory: {why}")

    def grow(self, workers: Collection[str]) -> None:
        """Ask for more memory for these, unless that is asked for already. Those that get none are not among those that
        may have more, at the next look."""
        for name in workers:
            each = self._containers.get(name)
            is_due = each is not None and each.pod.uid not in self._asked | self._refused
            if each is None or not is_due or self._manager is None or self._clock() < self._not_before:
                continue
            limit = min(2 * each.has_bytes, self._most)
            memory = Memory(each.memory.request * limit // each.memory.limit, limit)
            try:
                self._manager.resize(each.pod.name, each.pod.container, memory)
            except RetryableError as error:
                self._not_before = self._clock() + _PAUSE_S
                log.warning("%s", error)
            except ClusterError as error:
                self._refuse(each, str(error))
            else:
                self._asked[each.pod.uid] = _Asked(limit, self._clock())
                log.info("asked for %.4g GiB of memory for %s", limit / 2**30, each.pod.name)

    def _refuse(self, each: _Container, why: str) -> None:
        self._asked.pop(each.pod.uid, None)
        self._refused[each.pod.uid] = why
        log.warning("%s. Raise worker.resources.worker.limits.memory in the chart's values instead", why)


def _container(status: WorkerStatus, fleet: Fleet) -> _Container | None:
    """Of a worker that trains, in a pod as it is now."""
    ref, has_bytes = status.record.pod, memory_of(status)
    pod = fleet.pods.get(ref.name) if ref is not None else None
    if ref is None or pod is None or pod.uid != ref.uid or has_bytes is None or pod.dead or pod.leaving:
        return None
    memory = pod.memory.get(ref.container)
    return _Container(ref, memory, has_bytes) if memory and "train" in status.record.kinds else None
