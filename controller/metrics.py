"""The controller's metrics for Prometheus.

Labels are states, kinds and outcomes, so their number does not depend on users' names. Counters cover events
that this process saw happen; past events read from a log are not counted again.
"""

from __future__ import annotations

import time
from collections import Counter as Count
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from prometheus_client import Counter, Gauge, Histogram, generate_latest

from cerebro.contract.events import (
    Event,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
)
from cerebro.contract.tasks.bodies import KINDS
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.usage.volumes import VolumeCollector
from cerebro.runtime.web.health import registry
from cerebro.state import TaskKey
from controller.scaling.cluster_snapshot import ClusterSnapshot, Liveness
from controller.sharing.arbiter import DeviceSlot

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_POLL_S = 5.0
"""Seconds between two counts of workers: decisions are frequent, scrapes come every 15 s or so."""

WORKER_STATES = ("busy", "idle", *Liveness, "quarantined")


class _Projection(Protocol):
    def lag_s(self) -> float: ...


class Metrics:
    """Metrics of one process. The loop updates them; any thread may read them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_count_at = -_POLL_S
        self.registry = registry()
        self.leading = Gauge(
            "cerebro_controller_leading",
            "1 while this process leads, 0 while it stands by or the store is away.",
            registry=self.registry,
        )
        self._decision = Histogram(
            "cerebro_controller_decision_seconds",
            "Seconds of a decision without reading and writing; its count is the number of decisions.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._tasks = Counter(
            "cerebro_controller_attempts_ended",
            "Attempts at tasks that ended, by kind and outcome.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self._workers = Gauge(
            "cerebro_controller_workers",
            "Registered workers by state.",
            ("state",),
            registry=self.registry,
        )
        self._devices = Gauge(
            "cerebro_controller_devices",
            "Devices of the workers that are there, by whether a task has them.",
            ("state",),
            registry=self.registry,
        )
        self._gap = Gauge(
            "cerebro_controller_schedule_gap_ratio",
            "By how much the makespan exceeds its lower bound, at the newest completed epoch: "
            "of the open fit run where that is most; 0 without one.",
            registry=self.registry,
        )
        self._rows = Counter(
            "cerebro_controller_etl_rows",
            "Rows of committed ETL tasks: read, turned into examples, failed.",
            ("result",),
            registry=self.registry,
        )
        for result in ("in", "out", "failed"):
            self._rows.labels(result)
        for kind in KINDS:
            for outcome in ("committed", "failed", "revoked"):
                self._tasks.labels(kind, outcome)

    def watch(self, projection: _Projection, volumes: Mapping[str, Path]) -> None:
        """Measure these at each scrape."""
        lag = Gauge(
            "cerebro_controller_projection_lag_seconds",
            "Age of the oldest commit whose values are not in TensorBoard's files yet.",
            registry=self.registry,
        )
        lag.set_function(projection.lag_s)
        self.registry.register(VolumeCollector(volumes))

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def stood_by(self) -> None:
        """Reset the gauges, because another process leads."""
        self.leading.set(0)
        self._gap.set(0)
        self._workers.clear()
        self._devices.clear()

    # --- updates by the loop ---------------------------------------------------------------------

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Measure a decision."""
        with self._decision.time():
            yield

    def happened(self, event: Event) -> None:
        """Count a new event."""
        match event:
            case TaskCommitted():
                kind = self._attempt_ended(event.task, "committed")
                if kind == "etl":
                    self._rows.labels("in").inc(event.result.rows + event.result.rows_failed)
                    self._rows.labels("out").inc(event.result.rows)
                    self._rows.labels("failed").inc(event.result.rows_failed)
            case TaskFailed():
                # Released by an ending worker: not a failed attempt, see `cerebro.state.tasks.task`.
                is_revoked = event.failure.kind is FailureKind.PREEMPTED
                self._attempt_ended(event.task, "revoked" if is_revoked else "failed")
            case TaskRevoked():
                self._attempt_ended(event.task, "revoked")

    def _attempt_ended(self, task: str, outcome: str) -> str:
        kind = TaskKey.parse(task).kind
        self._tasks.labels(kind, outcome).inc()
        return kind

    def is_due(self) -> bool:
        """True if `update` is due."""
        return self._monotonic() - self._last_count_at >= _POLL_S

    def update(self, held: Collection[DeviceSlot], gap: float, snapshot: ClusterSnapshot) -> None:
        """Count workers and their devices.

        Args:
            held: device slots with a task.
            gap: largest gap of the open fit runs.
        """
        self._gap.set(gap)
        self._last_count_at = self._monotonic()
        workers = Count(_states(held, snapshot))
        for name in WORKER_STATES:
            self._workers.labels(name).set(workers[name])
        devices = Count(_device_states(held, snapshot))
        for name in ("busy", "idle"):
            self._devices.labels(name).set(devices[name])


def _states(held: Collection[DeviceSlot], snapshot: ClusterSnapshot) -> Iterator[str]:
    busy = {slot.worker for slot in held}
    for name, view in snapshot.workers.items():
        if view.absence is not None:
            yield view.absence.how
        else:
            yield "busy" if name in busy else "idle"
    for _ in snapshot.excluded:
        yield "quarantined"


def _device_states(held: Collection[DeviceSlot], snapshot: ClusterSnapshot) -> Iterator[str]:
    for name, view in snapshot.workers.items():
        if view.absence is None and "train" in view.kinds:
            for device in range(view.devices):
                yield "busy" if DeviceSlot(name, device) in held else "idle"
