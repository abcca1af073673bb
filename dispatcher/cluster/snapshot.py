"""Cached data of the cluster page. All viewers share one request to the store per 2 s (`WORKERS_S`).

The page and the read API call `Cluster`. It reads workers, queue and incidents from the store, and the logs of at
most 40 experiments, for which it waits up to 2 s each if they have work, else 0.1 s. Missing parts are shown as
empty. The computation is in `dispatcher.cluster.view`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from cerebro.contract.records import AuditEntry, Reclaim, UsageSample, WorkerSetStatus
from cerebro.contract.stored.health import HealthAnswer
from cerebro.errors import BadRequestError, IllegalEventError, NotFoundError, StoreUnavailableError
from dispatcher.cluster.disks import Disks
from dispatcher.cluster.summary import Summary, summary
from dispatcher.cluster.view import PAGE, SPANS, ClusterData, ClusterView, cluster, in_order
from dispatcher.cluster.volumes import VolumesView, volumes
from dispatcher.read_models.reader import READING_S, WORKERS_S, Reader

HISTORY_FRESH_S = 30.0
"""Seconds to cache a worker's history. Workers report a sample every 30 s."""
MAX_HISTORIES = 40
"""Maximum number of workers with history per page."""
MAX_LOGS = 40
"""Maximum number of experiments whose logs are read: first active ones, then the most recent."""
PAGE_READ_S = 0.1
"""Seconds to wait for the log of an inactive experiment. A later request continues reading it."""
MAX_CACHED_PAGES = 16
"""Maximum number of cached pages of workers."""

T = TypeVar("T")


class Cluster:
    """State of the cluster, at most `WORKERS_S` old while the store answers. Safe for several threads."""

    def __init__(self, reader: Reader, disks: Disks) -> None:
        self._reader, self._disks = reader, disks
        self._refreshing = threading.Lock()
        """Held during requests to the store. Other threads wait for the result."""
        self._views: OrderedDict[tuple[str, int], tuple[float, ClusterView]] = OrderedDict()
        self._usage: dict[str, tuple[float, tuple[UsageSample, ...]]] = {}
        self._reclaim: tuple[float, Reclaim] = (float("-inf"), Reclaim())

    def view(self, *, span: str, page: int) -> ClusterView:
        """Return the page of the cluster. Parts that the store cannot deliver now are empty.

        Args:
            span: time span of histories, a name in `SPANS`. Unknown names mean the first.
            page: page of workers, from 1.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        span = span if span in SPANS else next(iter(SPANS))
        with self._refreshing:
            at, cached = self._views.pop((span, page), (float("-inf"), None))
            if cached is None or self._reader.monotonic() >= at + WORKERS_S:
                at, cached = self._reader.monotonic(), self._build(span, page)
            self._views[span, page] = at, cached
            while len(self._views) > MAX_CACHED_PAGES:
                self._views.popitem(last=False)
            return cached

    def volumes(self) -> VolumesView:
        """Return the newest measurement of the volumes. Starts another one if it is old."""
        reader = self._reader
        measured, is_measuring = self._disks.newest()
        with self._refreshing:
            at, known = self._reclaim
            if reader.monotonic() >= at + WORKERS_S:
                known = self._call(reader.store.reclaim, known)
                self._reclaim = reader.monotonic(), known
        return volumes(
            measured,
            is_measuring=is_measuring,
            summaries=reader.summaries(),
            unneeded=frozenset(known.datasets),
        )

    def _build(self, span: str, page: int) -> ClusterView:
        reader, store = self._reader, self._reader.store
        now = reader.now()
        statuses = reader.workers()
        queue = reader.queue()
        worker_set_status = self._call(store.worker_set_status, WorkerSetStatus())
        experiments = [entry.experiment for entry in queue.runs]
        experiments += [task.partition("/")[0] for status in statuses for task in status.tasks]
        begin = now - SPANS[span]
        at_work = set(experiments)
        listed = reader.summaries()
        # Include the newest experiment: its log knows why a worker was lost.
        experiments += [
            each.experiment.name for i, each in enumerate(listed) if i == 0 or each.last_event > begin
        ]
        shown = in_order(statuses)[(page - 1) * PAGE :][:MAX_HISTORIES]
        data = ClusterData(
            statuses=statuses,
            summaries=self._summaries(
                list(dict.fromkeys(experiments))[:MAX_LOGS], at_work, worker_set_status, begin, now
            ),
            queue=queue,
            worker_set_status=worker_set_status,
            size_request=self._call(store.size_request, None),
            health=self._call(store.workers_health, HealthAnswer()),
            audit=self._call(store.audit, tuple[AuditEntry, ...]()),
            usage={
                each.record.worker: self._usage_of(each.record.worker)
                for each in shown
                if each.usage is not None
            },
        )
        return cluster(data, now=now, span=span, page=page)

    def _usage_of(self, worker: str) -> tuple[UsageSample, ...]:
        """Return usage samples of the last day, or none."""
        now = self._reader.monotonic()
        at, known = self._usage.get(worker, (float("-inf"), ()))
        if now >= at + HISTORY_FRESH_S:
            known = self._call(lambda: self._reader.store.usage(worker), known)
            self._usage[worker] = now, known
        return known

    def _summaries(
        self,
        experiments: list[str],
        at_work: set[str],
        worker_set_status: WorkerSetStatus,
        begin: float,
        now: float,
    ) -> dict[str, Summary]:
        found: dict[str, Summary] = {}
        for name in experiments:
            try:
                found[name] = self._reader.read(
                    name,
                    lambda read_model: summary(
                        read_model.state,
                        worker_set_status=worker_set_status,
                        begin=begin,
                        now=now,
                        time_left=lambda run: read_model.throughput(now, run).time_left,
                    ),
                    timeout_s=READING_S if name in at_work else PAGE_READ_S,
                )
            except (NotFoundError, IllegalEventError, StoreUnavailableError):
                continue  # deleted, of another version, or not read yet: the experiment's page says more
        return found

    def _call(self, call: Callable[[], T], absent: T) -> T:
        """Call the store. Returns `absent` while it is away, or if its version lacks the route."""
        try:
            return self._reader.call(call)
        except (StoreUnavailableError, NotFoundError, BadRequestError):
            return absent
