"""Looks at the cluster for its page and for the read API: however many look, the store is asked once in a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from cerebro.contract.health import HealthAnswer
from cerebro.contract.records import AuditEntry, Reclaim, Troubles, UsageSample
from cerebro.errors import BadRequestError, IllegalEventError, NotFoundError, StoreUnavailableError
from dispatcher.cluster.disks import Disks
from dispatcher.cluster.summary import Summary, summary
from dispatcher.cluster.view import PAGE, SPANS, ClusterView, Told, cluster, in_order
from dispatcher.cluster.volumes import VolumesView, volumes
from dispatcher.reading.reader import READING_S, WORKERS_S, Reader

USAGE_S = 30.0
"""A worker's history is asked for anew after so long: there is a sample each half minute."""
MOST_HISTORIES = 40
"""Workers whose history one page asks for."""
MOST_LOGS = 40
"""Experiments whose logs one page looks into: those at work, and of the others those that worked last."""
GLANCE_S = 0.1
"""How long it waits for the log of one that is not at work: the next look finds more of it."""
_MOST_KEPT = 16
"""Pages of workers, at most, that are kept."""

T = TypeVar("T")


class Cluster:
    """The cluster as it was at most `WORKERS_S` seconds ago. Safe for several threads."""

    def __init__(self, reader: Reader, disks: Disks) -> None:
        self._reader, self._disks = reader, disks
        self._looking = threading.Lock()
        """Held by whoever asks the store: the others wait for the answer."""
        self._views: OrderedDict[tuple[str, int], tuple[float, ClusterView]] = OrderedDict()
        self._usage: dict[str, tuple[float, tuple[UsageSample, ...]]] = {}
        self._reclaim: tuple[float, Reclaim] = (float("-inf"), Reclaim())

    def look(self, *, span: str, page: int) -> ClusterView:
        """The cluster; what the store cannot say meanwhile is left out.

        Args:
            span: of histories, a name of `SPANS`; the first of them for any other.
            page: of workers, from 1.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        span = span if span in SPANS else next(iter(SPANS))
        with self._looking:
            at, kept = self._views.pop((span, page), (float("-inf"), None))
            if kept is None or self._reader.monotonic() >= at + WORKERS_S:
                at, kept = self._reader.monotonic(), self._look(span, page)
            self._views[span, page] = at, kept
            while len(self._views) > _MOST_KEPT:
                self._views.popitem(last=False)
            return kept

    def volumes(self) -> VolumesView:
        """The newest look at the volumes; begins another one if it is old."""
        reader = self._reader
        measured, is_measuring = self._disks.newest()
        with self._looking:
            at, known = self._reclaim
            if reader.monotonic() >= at + WORKERS_S:
                known = self._asked(reader.store.reclaim, known)
                self._reclaim = reader.monotonic(), known
        return volumes(
            measured,
            is_measuring=is_measuring,
            summaries=reader.summaries(),
            unneeded=frozenset(known.datasets),
        )

    def _look(self, span: str, page: int) -> ClusterView:
        reader, store = self._reader, self._reader.store
        now = reader.now()
        statuses = reader.workers()
        queue = reader.queue()
        troubles = self._asked(store.troubles, Troubles())
        experiments = [entry.experiment for entry in queue.runs]
        experiments += [task.partition("/")[0] for status in statuses for task in status.tasks]
        begin = now - SPANS[span]
        at_work = set(experiments)
        listed = reader.summaries()
        # All that happened in the span, by whichever run, and the newest experiment: it knows why a worker was lost.
        experiments += [
            each.experiment.name for i, each in enumerate(listed) if i == 0 or each.last_event > begin
        ]
        shown = in_order(statuses)[(page - 1) * PAGE :][:MOST_HISTORIES]
        told = Told(
            statuses=statuses,
            summaries=self._summaries(
                list(dict.fromkeys(experiments))[:MOST_LOGS], at_work, troubles, begin, now
            ),
            queue=queue,
            troubles=troubles,
            size_request=self._asked(store.size_request, None),
            health=self._asked(store.workers_health, HealthAnswer()),
            audit=self._asked(store.audit, tuple[AuditEntry, ...]()),
            usage={
                each.record.worker: self._usage_of(each.record.worker)
                for each in shown
                if each.usage is not None
            },
        )
        return cluster(told, now=now, span=span, page=page)

    def _usage_of(self, worker: str) -> tuple[UsageSample, ...]:
        """Samples of the last day; none where the store has none."""
        now = self._reader.monotonic()
        at, known = self._usage.get(worker, (float("-inf"), ()))
        if now >= at + USAGE_S:
            known = self._asked(lambda: self._reader.store.usage(worker), known)
            self._usage[worker] = now, known
        return known

    def _summaries(
        self, experiments: list[str], at_work: set[str], troubles: Troubles, begin: float, now: float
    ) -> dict[str, Summary]:
        found: dict[str, Summary] = {}
        for name in experiments:
            try:
                found[name] = self._reader.look(
                    name,
                    lambda read_model: summary(
                        read_model.state,
                        troubles=troubles,
                        begin=begin,
                        now=now,
                        left=lambda run: read_model.throughput(now, run).left,
                    ),
                    timeout_s=READING_S if name in at_work else GLANCE_S,
                )
            except (NotFoundError, IllegalEventError, StoreUnavailableError):
                continue  # deleted meanwhile, of another version, or not read yet: its page says more
        return found

    def _asked(self, call: Callable[[], T], absent: T) -> T:
        """What the store says; `absent` while it is away, and where it is older than the question."""
        try:
            return self._reader.ask(call)
        except (StoreUnavailableError, NotFoundError, BadRequestError):
            return absent
