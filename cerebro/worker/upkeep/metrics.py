"""A worker's Prometheus metrics.

Slots record attempts, and `Housekeeping` records usage; the health endpoint serves `exposition`. Labels are kinds,
outcomes and GPU numbers. Names of experiments and models are only in the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cerebro.contract.records import WorkerUsage
from cerebro.contract.tasks.bodies import KINDS
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.usage.volumes import VolumeCollector
from cerebro.runtime.web.health import registry

_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_COMMITTED = "committed"


class Metrics:
    """Counters of one worker. Thread-safe.

    Args:
        volumes: folders by name, to measure free space.
    """

    def __init__(self, volumes: Mapping[str, Path]) -> None:
        self.registry = registry()
        self.registry.register(VolumeCollector(volumes))
        self._seconds = Histogram(
            "cerebro_worker_attempt_seconds",
            "Seconds of an attempt at a task, from its start to its result or failure, by kind.",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._attempts = Counter(
            "cerebro_worker_attempts",
            "Attempts at tasks that ended here, by kind and outcome: committed, or how they failed.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        for kind in KINDS:
            self._attempts.labels(kind, _COMMITTED)
        self._idle = _Idle()
        self.registry.register(self._idle)
        self._used = _Used()
        self.registry.register(self._used)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count the block as busy, except while `waiting`. Idle time is time without a task on any device."""
        self._idle.end()
        try:
            yield
        finally:
            self._idle.begin()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a block within `serving` as idle."""
        self._idle.begin()
        try:
            yield
        finally:
            self._idle.end()

    def record_attempt(self, kind: str, answer: TaskResult | Failure, seconds: float) -> None:
        """Record the outcome and duration of an attempt."""
        outcome: str | FailureKind = answer.kind if isinstance(answer, Failure) else _COMMITTED
        self._attempts.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    def record_usage(self, usage: WorkerUsage) -> None:
        """Record a measurement of usage."""
        self._used.newest = usage


class _Idle:
    """Counts seconds without a task, including the current wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_before = 0.0
        self._num_busy = 0
        self._since: float | None = time.monotonic()

    def begin(self) -> None:
        with self._lock:
            self._num_busy -= 1
            if not self._num_busy:
                self._since = time.monotonic()

    def end(self) -> None:
        with self._lock:
            if not self._num_busy:
                self._seconds_before, self._since = self._seconds(), None
            self._num_busy += 1

    def _seconds(self) -> float:
        since = self._since
        return self._seconds_before + (0.0 if since is None else time.monotonic() - since)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            seconds = self._seconds()
        yield CounterMetricFamily("cerebro_worker_idle_seconds", "Seconds without a task.", seconds)


class _Used:
    """Exposes the latest usage measurement. GPUs that it lacks disappear from the metrics."""

    def __init__(self) -> None:
        self.newest: WorkerUsage | None = None

    def collect(self) -> Iterator[Metric]:
        usage = self.newest
        of_worker = (
            ("used_cores", "Processor seconds per second, of the worker and all below it.", "cores_used"),
            ("cores", "Processor cores that the worker may use.", "cores"),
            ("memory_bytes", "Memory of the worker and all below it.", "memory_bytes"),
            ("memory_limit_bytes", "Memory that it may use.", "memory_limit_bytes"),
        )
        for name, text, field in of_worker:
            family = GaugeMetricFamily(f"cerebro_worker_{name}", text)
            if usage is not None:
                family.add_metric((), _number(getattr(usage, field)))
            yield family
        of_gpu = (
            ("used_ratio", "Share of the time that a GPU was busy.", "used_share"),
            ("memory_bytes", "Memory of a GPU in use, by any process.", "memory_bytes"),
            ("memory_size_bytes", "Memory of a GPU.", "memory_total_bytes"),
        )
        for name, text, field in of_gpu:
            family = GaugeMetricFamily(f"cerebro_worker_gpu_{name}", text, labels=("gpu",))
            for number, gpu in enumerate(usage.gpus if usage else ()):
                family.add_metric((str(number),), _number(getattr(gpu, field)))
            yield family


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
