"""Prometheus metrics of the dispatcher: ``GET /metrics``, which needs the token like every page.

`Metrics` counts each request of the application, and `pages.poll_cache` reports the polls that it answers itself.
`__main__` also offers the metrics without token at `Settings.health_bind`. Labels contain names of routes, not
addresses, so their number is bounded. Counts cover this process only.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from flask import Flask, Response, g, request, session
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from cerebro.runtime.web.health import EXPOSITION_TYPE, registry

VIEWER_S = 60.0
"""A session counts as a viewer for this many seconds after a request."""
COUNTED = "cerebro.counted"
"""Key in the WSGI environment of an answered request for its `Counted`."""
_MAX_VIEWERS = 10_000
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """Labels of a request. `viewer` identifies a session, or the user that a proxy names; else it is empty."""

    route: str
    method: str
    viewer: str


class Metrics:
    """Metrics of one application. Safe for several threads.

    Args:
        monotonic: seconds that never go back.
        is_away: returns True while the store does not answer.
    """

    def __init__(self, monotonic: Callable[[], float], is_away: Callable[[], bool]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._viewers: dict[bytes, float] = {}
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
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        viewers = Gauge(
            "cerebro_dispatcher_viewers",
            "Sessions with a request within the last minute.",
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
        """Count all requests, and add the route."""
        app.before_request(self._begin)
        app.after_request(self._end)
        app.add_url_rule("/metrics", "metrics", self._answer)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def viewers(self) -> float:
        """Return the number of sessions within the last `VIEWER_S` seconds."""
        with self._lock:
            self._forget()
            return float(len(self._viewers))

    def _answer(self) -> Response:
        return Response(self.exposition(), content_type=EXPOSITION_TYPE)

    def _begin(self) -> None:
        g.began = perf_counter()

    def _end(self, response: Response) -> Response:
        is_person = g.get("identity") in ("session", "proxy", "oidc")
        counted = Counted(
            route=request.endpoint or "none",
            # Callers may send any method, so requests without a route share one label.
            method=request.method if request.endpoint else "any",
            viewer=f"{session.get('csrf', '')}{g.get('name', '')}" if is_person else "",
        )
        request.environ[COUNTED] = counted
        self.count(counted, response.status_code, perf_counter() - g.began if "began" in g else None)
        return response

    def count(self, counted: Counted, status: int, seconds: float | None) -> None:
        """Count an answered request, with its duration if known."""
        self._requests.labels(counted.route, counted.method, f"{status // 100}xx").inc()
        if seconds is not None:
            self._seconds.labels(counted.route).observe(seconds)
        if counted.viewer:
            self._add_viewer(counted.viewer)

    def _add_viewer(self, viewer: str) -> None:
        with self._lock:
            if len(self._viewers) >= _MAX_VIEWERS:
                self._forget()
            if len(self._viewers) < _MAX_VIEWERS:
                self._viewers[hashlib.sha256(viewer.encode()).digest()[:16]] = self._monotonic()

    def _forget(self) -> None:
        oldest = self._monotonic() - VIEWER_S
        self._viewers = {viewer: time for viewer, time in self._viewers.items() if time >= oldest}
