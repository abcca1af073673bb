"""The metric families that each service exposes, with their labels and possible values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from cerebro.contract.records import GpuUsage, WorkerUsage
from cerebro.contract.tasks.results import TaskResult
from cerebro.worker.upkeep.metrics import Metrics as WorkerMetrics
from controller.metrics import Metrics as ControllerMetrics
from dispatcher.metrics import Metrics as DispatcherMetrics
from kvs_api.metrics import MeteredStore
from kvs_api.metrics import Metrics as KvsMetrics

_REDIS = {
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_current_size": 10,
    "used_memory": 20,
    "queued": 3,
}


class Family(NamedTuple):
    """A metric family, by its Prometheus name and type."""

    name: str
    kind: str
    labels: tuple[str, ...]


class QuietStore(MeteredStore):
    """A store with canned answers in place of Redis."""

    facts_now: Mapping[str, Any] | Exception = _REDIS

    def facts(self) -> dict[str, Any]:
        """See `MeteredStore`."""
        if isinstance(self.facts_now, Exception):
            raise self.facts_now
        return dict(self.facts_now)


class _NoProjection:
    def lag_s(self) -> float:
        return 0.0


def registries(folder: Path) -> dict[str, CollectorRegistry]:
    """Build each service's metrics registry as its ``__main__`` does."""
    kvs = KvsMetrics()
    kvs.watch(QuietStore("redis://127.0.0.1:1", metrics=kvs))
    controller = ControllerMetrics()
    controller.watch(_NoProjection(), {"shared": folder})
    worker = WorkerMetrics({"shards": folder})
    worker.record_attempt("train", TaskResult(), 1.0)
    gpu = GpuUsage(name="one", used_share=0.5, memory_bytes=1, memory_total_bytes=2)
    worker.record_usage(WorkerUsage(cores=2, gpus=(gpu,)))
    dispatcher = DispatcherMetrics(lambda: 0.0, lambda: False)
    return {
        "kvs_api": kvs.registry,
        "controller": controller.registry,
        "worker": worker.registry,
        "dispatcher": dispatcher.registry,
    }


def families(registry: CollectorRegistry) -> Iterator[Family]:
    """Yield the families named ``cerebro_*``; prometheus-client provides ``process_*``."""
    declared = {
        name: collector._labelnames
        for collector, names in registry._collector_to_names.items()
        for name in names
        if hasattr(collector, "_labelnames")
    }
    for metric in registry.collect():
        if not metric.name.startswith("cerebro_"):
            continue
        suffix = "_total" if metric.type == "counter" else ""
        labels = declared.get(metric.name)
        if labels is None:
            labels = tuple(metric.samples[0].labels) if metric.samples else ()
        yield Family(metric.name + suffix, metric.type, tuple(labels))
