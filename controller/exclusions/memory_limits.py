"""Larger memory limits for running worker pods, if the cluster manager supports it. Not thread-safe.

`controller.scaling.membership` owns it and calls `update` for each snapshot; `controller.loop.run_decisions` calls
`grow`. A pod's limit is doubled, up to a bound set by the cluster's operator. Its request grows by the same factor,
which reserves the memory on the node and keeps the pod's QoS class. The worker's next report confirms the change.
After a refusal, or without effect within 120 s, the pod is not resized again. A new pod starts with the chart's
limit. Which tasks then fail for lack of memory is decided in `controller.exclusions.memory_needs`.
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
"""Seconds within which a granted limit must be reported; then it counts as refused."""
_PAUSE_S = 5.0
"""Seconds before an unavailable cluster manager is called again."""
_NEARLY = 0.99
"""A worker reports its limit from the kernel, in whole pages."""


class Resizing(Protocol):
    """The calls to a cluster manager (`controller.scaling.orchestrator`)."""

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Raise the memory of a running pod's container."""
        ...


class _Container(NamedTuple):
    """A worker's container and its memory."""

    pod: PodRef
    memory: Memory
    limit_bytes: int
    """Limit reported by the worker."""


class _PendingLimit(NamedTuple):
    limit: int
    at: float


class MemoryLimits:
    """Raises the memory of worker pods and remembers requests and refusals.

    Args:
        max_bytes: maximum limit of a pod's container; 0 disables resizing.
        clock: monotonic seconds.
    """

    def __init__(
        self, manager: Resizing | None, max_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager, self._most, self._clock = manager, max_bytes, clock
        self._containers: dict[str, _Container] = {}
        self._pending: dict[str, _PendingLimit] = {}
        """Pod uid -> requested limit, until it takes effect."""
        self._refused: dict[str, str] = {}
        """Pod uid -> why it gets no more."""
        self._not_before = float("-inf")

    def update(self, statuses: Collection[WorkerStatus], fleet: Fleet | None) -> Growth:
        """Check the results of requests, and return which workers may get more memory.

        Args:
            fleet: `None` while the cluster manager is unreachable; open requests then stay open.
        """
        if not self._most or self._manager is None:
            return Growth()
        if fleet is not None:
            self._containers = {s.record.worker: each for s in statuses if (each := _container(s, fleet))}
            for each in self._containers.values():
                self._check_pending(each, fleet)
        uids = {status.record.pod.uid for status in statuses if status.record.pod is not None}
        self._pending = {uid: each for uid, each in self._pending.items() if uid in uids}
        self._refused = {uid: why for uid, why in self._refused.items() if uid in uids}
        workers = frozenset(status.record.worker for status in statuses if self._may_grow(status, fleet))
        problem = next(iter(self._refused.values()), "")
        return Growth(max_bytes=self._most, workers=workers, is_known=fleet is not None, problem=problem)

    def _may_grow(self, status: WorkerStatus, fleet: Fleet | None) -> bool:
        """True if a worker may get more memory, now or in its next pod."""
        ref, limit_bytes = status.record.pod, memory_of(status)
        if ref is None or ref.uid in self._refused or "train" not in status.record.kinds:
            return False
        pod = fleet.pods.get(ref.name) if fleet is not None else None
        is_bounded = pod is None or ref.container in pod.memory
        return is_bounded and limit_bytes is not None and limit_bytes < self._most

    def _check_pending(self, each: _Container, fleet: Fleet) -> None:
        """Check the result of a pod's request."""
        uid = each.pod.uid
        request = self._pending.get(uid)
        if request is None:
            return
        if each.limit_bytes >= _NEARLY * request.limit:
            del self._pending[uid]
            log.info("%s has %.4g GiB of memory now", each.pod.name, each.limit_bytes / 2**30)
        elif self._clock() - request.at > WAIT_S:
            why = (
                fleet.pods[each.pod.name].unresized
                or f"the new limit did not take effect within {WAIT_S:.0f} s"
            )
            self._mark_refused(each, f"pod {each.pod.name} is not given more memory: {why}")

    def grow(self, workers: Collection[str]) -> None:
        """Request more memory for these workers, except for open requests.

        A refused worker is missing from the next `Growth`.
        """
        for name in workers:
            each = self._containers.get(name)
            is_due = each is not None and each.pod.uid not in self._pending | self._refused
            if each is None or not is_due or self._manager is None or self._clock() < self._not_before:
                continue
            limit = min(2 * each.limit_bytes, self._most)
            memory = Memory(each.memory.request * limit // each.memory.limit, limit)
            try:
                self._manager.resize(each.pod.name, each.pod.container, memory)
            except RetryableError as error:
                self._not_before = self._clock() + _PAUSE_S
                log.warning("%s", error)
            except ClusterError as error:
                self._mark_refused(each, str(error))
            else:
                self._pending[each.pod.uid] = _PendingLimit(limit, self._clock())
                log.info("asked for %.4g GiB of memory for %s", limit / 2**30, each.pod.name)

    def _mark_refused(self, each: _Container, why: str) -> None:
        self._pending.pop(each.pod.uid, None)
        self._refused[each.pod.uid] = why
        log.warning("%s. Raise worker.resources.worker.limits.memory in the chart's values instead", why)


def _container(status: WorkerStatus, fleet: Fleet) -> _Container | None:
    """Return the container of a training worker whose pod is current."""
    ref, limit_bytes = status.record.pod, memory_of(status)
    pod = fleet.pods.get(ref.name) if ref is not None else None
    if ref is None or pod is None or pod.uid != ref.uid or limit_bytes is None or pod.dead or pod.leaving:
        return None
    memory = pod.memory.get(ref.container)
    return _Container(ref, memory, limit_bytes) if memory and "train" in status.record.kinds else None
