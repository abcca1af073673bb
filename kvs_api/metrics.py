"""Prometheus metrics of one kvs_api process, and values read from Redis at each scrape.

`kvs_api.api.app` counts requests; `MeteredStore` counts steps and live points. `kvs_api.__main__` serves the text. The
plain `Store` has no metrics. Labels are names of routes, steps and outcomes, never of user objects, so their
number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import redis
from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from cerebro.contract.rest import api
from cerebro.runtime.web.health import registry
from kvs_api.store import keys
from kvs_api.store.store import Store

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Buckets: steps take milliseconds, reads that wait for news up to `api.MAX_WAIT_S`."""


class Metrics:
    """Counters of one process. Thread-safe."""

    def __init__(self) -> None:
        self.registry = registry()
        self._requests = Counter(
            "cerebro_kvs_api_requests",
            "Requests answered, by route, method and class of the status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "cerebro_kvs_api_request_seconds",
            "Seconds from a request's arrival to its answer, time spent waiting for news included.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._steps = Counter(
            "cerebro_kvs_api_steps",
            "Steps of controller and workers that were decided on, by step and outcome.",
            ("step", "outcome"),
            registry=self.registry,
        )
        self._points = Counter(
            "cerebro_kvs_api_live_points",
            "Live points that workers sent.",
            registry=self.registry,
        )
        self._written = Gauge(
            "cerebro_kvs_api_last_write_timestamp_seconds",
            "When Redis last confirmed a change of shared state to this process; 0: not yet.",
            registry=self.registry,
        )

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request, also a refused one, and its duration."""
        self._requests.labels(route, method, f"{status // 100}xx").inc()
        self._seconds.labels(route).observe(seconds)

    def watch(self, store: MeteredStore) -> None:
        """Read values of `store` at each scrape."""
        self.registry.register(_StoreCollector(store))

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def count_steps(self, steps: Iterable[Any], outcomes: Sequence[str]) -> None:
        """Count the outcomes of steps."""
        for step, outcome in zip(steps, outcomes, strict=True):
            self._steps.labels(step.op, outcome).inc()

    def count_points(self, points: int) -> None:
        """Count a worker's live points."""
        self._points.inc(points)

    def record_write(self) -> None:
        """Record the time of a change confirmed by Redis, and so on disk (``appendfsync always``)."""
        self._written.set(time.time())


class MeteredStore(Store):
    """`Store` with counters."""

    def __init__(self, url: str, *arguments: Any, metrics: Metrics, **options: Any) -> None:
        super().__init__(url, *arguments, **options)
        self._metrics = metrics

    def decide(self, experiment: str, request: api.DecideRequest) -> tuple[list[dict[str, str]], list[str]]:
        """Apply the controller's steps and count their outcomes."""
        outcomes, events = super().decide(experiment, request)
        self._metrics.count_steps(request.steps, [outcome["outcome"] for outcome in outcomes])
        return outcomes, events

    def report(self, worker: str, request: api.ReportRequest) -> dict[str, Any]:
        """Apply a worker's report and count the outcomes of its steps."""
        answer = super().report(worker, request)
        # A replaced worker gets no outcomes.
        if answer.get("outcomes"):
            self._metrics.count_steps(request.steps, [outcome["outcome"] for outcome in answer["outcomes"]])
        self._metrics.count_points(sum(map(len, request.live.values())))
        return answer

    def _run(self, *arguments: Any) -> dict[str, Any]:
        answer = super()._run(*arguments)
        if _has_written(answer):
            self._metrics.record_write()
        return answer

    def facts(self) -> dict[str, Any]:
        """Return Redis' information on memory and persistence, and the length of the queue.

        Raises:
            redis.RedisError: Redis is away.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.info("persistence")
        pipe.info("memory")
        pipe.llen(keys.QUEUE)
        persistence, memory, queued = pipe.execute()
        return {**persistence, **memory, "queued": queued}


def _has_written(answer: dict[str, Any]) -> bool:
    """Return whether a call of the script changed anything, by its answer.

    A current report is always written, a decision if a step was done. A leader's lease, a numbered event and
    an entry of the cluster log count as well.
    """
    if "outcomes" in answer:
        done = (outcome["outcome"] == "done" for outcome in answer["outcomes"])
        return answer.get("current") is True or any(done)
    return "seq" in answer or answer.get("written") is True or answer.get("term", 0) > 0


class _StoreCollector:
    def __init__(self, store: MeteredStore) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "cerebro_kvs_api_waiting_readers", "Requests that wait for news now.", self._store.waiting
        )
        try:
            facts = self._store.facts()
        except redis.RedisError:
            facts = None
        yield GaugeMetricFamily(
            "cerebro_kvs_api_store_up", "1 while Redis answers, else 0.", float(facts is not None)
        )
        if facts is None:
            return
        is_persisting = facts.get("aof_enabled") == 1 and facts.get("aof_last_write_status") == "ok"
        yield GaugeMetricFamily(
            "cerebro_kvs_api_store_persisting",
            "1 while Redis has its append-only file on and could write to it last, else 0.",
            float(is_persisting),
        )
        yield GaugeMetricFamily(
            "cerebro_kvs_api_store_file_bytes",
            "Size of Redis' append-only file.",
            facts.get("aof_current_size", 0),
        )
        yield GaugeMetricFamily(
            "cerebro_kvs_api_store_memory_bytes", "Memory that Redis uses.", facts["used_memory"]
        )
        yield GaugeMetricFamily(
            "cerebro_kvs_api_queued_runs", "Runs that were requested and have not ended.", facts["queued"]
        )
