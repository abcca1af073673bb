"""What the dispatcher counts of itself, for Prometheus: ``GET /metrics``, behind the token like every page.

Labels are names of routes, never addresses: their number is bounded by the program.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from flask import Flask, Response, g, request, session
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from cerebro.runtime.health import EXPOSITION_TYPE, registry

VIEWER_S = 60.0
"""Who has asked for anything within this time counts as a viewer."""
COUNTED = "cerebro.counted"
"""Where the environment of a request holds what it is counted as, once it was answered."""
_MAX_VIEWERS = 10_000
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a request is counted as; `viewer` is empty unless a person asked."""

    route: str
    method: str
    viewer: str


class Metrics:
    """Counters of one application. Safe for several threads.

    Args:
        monotonic: seconds that never go back.
        is_away: whether the store does not answer.
    """

    def __init__(self, monotonic: Callable[[], float], is_away: Callable[[], bool]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: dict[bytes, float] = {}
        self.registry = registry()
        self._requests = Counter(
            "cerebro_dispatcher_requests",
            "Requests answered, by route, method and class of the status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "cerebro_dispatcher_request_seconds",
            "Seconds from a request's arrival to its answer's first byte, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        viewers = Gauge(
            "cerebro_dispatcher_viewers",
            "Sessions that asked for anything within the last minute.",
            registry=self.registry,
        )
        viewers.set_function(self.viewers)
        outage = Gauge(
            "cerebro_dispatcher_store_away",
            "1 while the store does not answer the dispatcher, else 0.",
            registry=self.registry,
        )
        outage.set_function(lambda: float(is_away()))

    def install(self, app: Flask) -> None:
        """Count every request from now on, and add the route."""
        app.before_request(self._begin)
        app.after_request(self._end)
        app.add_url_rule("/metrics", "metrics", self._answer)

    def exposition(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def viewers(self) -> float:
        """Sessions seen within the last `VIEWER_S` seconds."""
        with self._lock:
            self._forget()
            return float(len(self._seen))

    def _answer(self) -> Response:
        return Response(self.exposition(), content_type=EXPOSITION_TYPE)

    def _begin(self) -> None:
        g.began = perf_counter()

    def _end(self, response: Response) -> Response:
        is_person = g.get("identity") in ("session", "proxy")
        counted = Counted(
            route=request.endpoint or "none",
            # A method is whatever the caller sends: what no route takes is one word.
            method=request.method if request.endpoint else "any",
            viewer=f"{session.get('csrf', '')}{g.get('name', '')}" if is_person else "",
        )
        request.environ[COUNTED] = counted
        self.count(counted, response.status_code, perf_counter() - g.began if "began" in g else None)
        return response

    def count(self, counted: Counted, status: int, seconds: float | None) -> None:
        """A request was answered, in so many seconds if that is known."""
        self._requests.labels(counted.route, counted.method, f"{status // 100}xx").inc()
        if seconds is not None:
            self._seconds.labels(counted.route).observe(seconds)
        if counted.viewer:
            self._saw(counted.viewer)

    def _saw(self, viewer: str) -> None:
        with self._lock:
            if len(self._seen) >= _MAX_VIEWERS:
                self._forget()
            if len(self._seen) < _MAX_VIEWERS:
                self._seen[hashlib.sha256(viewer.encode()).digest()[:16]] = self._monotonic()

    def _forget(self) -> None:
        oldest = self._monotonic() - VIEWER_S
        self._seen = {viewer: time for viewer, time in self._seen.items() if time >= oldest}
