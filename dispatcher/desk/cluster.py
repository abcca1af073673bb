"""The cluster page: workers, the queue, disks and what can be reclaimed, what was done and by whom."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from flask import Blueprint, Response, request

from cerebro.contract.api import QueueEntry
from cerebro.contract.records import AuditEntry, Reclaim, Troubles, UsageSample
from cerebro.errors import BadRequestError, IllegalEventError, NotFoundError, StoreUnavailableError
from dispatcher.pages.addresses import page_number
from dispatcher.pages.rendering import live_route, render
from dispatcher.reading import Reader
from dispatcher.services import Services
from dispatcher.views.cluster import PAGE, SPANS, ClusterView, Told, cluster, in_order
from dispatcher.views.glimpse import Glimpse, glimpse
from dispatcher.views.volumes import VolumesView, volumes

USAGE_S = 30.0
"""A worker's history is asked for anew after so long: there is a sample each half minute."""
MOST_HISTORIES = 40
"""Workers whose history one page asks for."""
MOST_LOGS = 12
"""Experiments whose logs one page looks into."""

T = TypeVar("T")


def add(blueprint: Blueprint, services: Services) -> None:
    """Add the route."""
    usage = Usages(services)

    @live_route(blueprint, "/cluster", "cluster")
    def page() -> Response:
        view = look(services, usage, span=request.args.get("span", "hour"), page=page_number())
        disks = look_at_disks(services)
        title = f"{view.running} of {view.total} running · cluster" if view.total else "cluster"
        is_live = bool(view.queue) or disks.is_measuring
        return Response(
            render("cluster.html", title=title, is_live=is_live, view=view, disks=disks, spans=SPANS)
        )


class Usages:
    """Workers' histories, each asked for at most every `USAGE_S` seconds. Safe for several threads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = Lock()
        self._known: dict[str, tuple[float, tuple[UsageSample, ...]]] = {}

    def of(self, worker: str) -> tuple[UsageSample, ...]:
        """Samples of the last day; none where the store has none."""
        now = self._services.monotonic()
        with self._lock:
            asked, known = self._known.get(worker, (-USAGE_S, ()))
        if now - asked < USAGE_S:
            return known
        found = _asked(self._services.reader, lambda: self._services.store.usage(worker), known)
        with self._lock:
            self._known[worker] = (now, found)
        return found


def look(services: Services, usage: Usages, *, span: str, page: int) -> ClusterView:
    """The cluster as it is now; what the store cannot say meanwhile is left out.

    Raises:
        StoreUnavailableError: the store is away and was never read.
    """
    store, reader = services.store, services.reader
    now = reader.now()
    statuses, nobody = reader.workers(), tuple[QueueEntry, ...]()
    queue = _asked(reader, store.queue, nobody)
    troubles = _asked(reader, store.troubles, Troubles())
    experiments = [entry.experiment for entry in queue]
    experiments += [(status.running or "").partition("/")[0] for status in statuses if status.running]
    experiments += [each.experiment.name for each in reader.summaries()[:1]]
    begin = now - SPANS.get(span, SPANS["hour"])
    shown = in_order(statuses)[(page - 1) * PAGE :][:MOST_HISTORIES]
    told = Told(
        statuses=statuses,
        glimpses=_glimpses(reader, list(dict.fromkeys(experiments))[:MOST_LOGS], troubles, begin, now),
        queue=queue,
        troubles=troubles,
        wish=_asked(reader, store.size, None),
        audit=_asked(reader, store.audit, tuple[AuditEntry, ...]()),
        usage={
            status.record.worker: usage.of(status.record.worker)
            for status in shown
            if status.usage is not None
        },
    )
    return cluster(told, now=now, span=span, page=page)


def look_at_disks(services: Services) -> VolumesView:
    """The newest look at the volumes; begins another one if it is old."""
    measured, is_measuring = services.disks.newest()
    reader = services.reader
    unneeded = _asked(reader, services.store.reclaim, Reclaim()).datasets
    return volumes(
        measured, is_measuring=is_measuring, summaries=reader.summaries(), unneeded=frozenset(unneeded)
    )


def _glimpses(
    reader: Reader, experiments: list[str], troubles: Troubles, begin: float, now: float
) -> dict[str, Glimpse]:
    found: dict[str, Glimpse] = {}
    for name in experiments:
        try:
            found[name] = reader.look(
                name, lambda followed: glimpse(followed.state, troubles=troubles, begin=begin, now=now)
            )
        except (NotFoundError, IllegalEventError, StoreUnavailableError):
            continue  # deleted meanwhile, of another version, or not read yet: its page says more
    return found


def _asked(reader: Reader, call: Callable[[], T], absent: T) -> T:
    """What the store says; `absent` while it is away, and where it is older than the question."""
    try:
        return reader.ask(call)
    except (StoreUnavailableError, NotFoundError, BadRequestError):
        return absent
