"""Metrics match their documentation, have bounded cardinality and count real events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cerebro.contract.events import RunFinished, RunStarted, TaskFailed
from cerebro.contract.records import (
    ExperimentRecord,
    GpuUsage,
    Hyperparameters,
    Locator,
    Locators,
    WorkerUsage,
)
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import KINDS, Position, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import epoch_report
from cerebro.worker.upkeep.metrics import Metrics as WorkerMetrics
from controller.decisions.core import Core
from controller.loop import event_logging
from controller.loop.open_runs import Overview
from controller.metrics import Metrics as ControllerMetrics
from controller.scaling.cluster_snapshot import ClusterSnapshot
from kvs_api.api.app import App
from kvs_api.metrics import Metrics as KvsMetrics
from kvs_api.settings import Settings as StoreSettings
from kvs_api.store.store import Store
from tests.kvs_api.in_process import InThisThread, send_request
from tests.runtime.exposed import QuietStore, families, registries
from tests.state.stories import Story, sub_epoch

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"


def documented() -> dict[str, dict[str, tuple[str, tuple[str, ...]]]]:
    """Read service, name, type and labels from the documentation's table."""
    found: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 6 or not cells[1].startswith("`cerebro_"):
            continue
        services, name, kind, _, labels, _ = cells
        for service in services.split(", "):
            names = tuple(re.findall(r"`([a-z_]+)`:", labels))
            found.setdefault(service, {})[name.strip("`")] = (kind, names)
    return found


def test_the_table_lists_the_exposed_metrics(tmp_path: Path) -> None:
    exposed = {
        service: {one.name: (one.kind, one.labels) for one in families(registry)}
        for service, registry in registries(tmp_path).items()
    }
    assert documented() == exposed


def test_names_follow_the_conventions(tmp_path: Path) -> None:
    """Counters end in ``_total`` and histograms in ``_seconds``; labels never hold users' names."""
    for service, registry in registries(tmp_path).items():
        for one in families(registry):
            assert one.name.startswith((f"cerebro_{service}_", "cerebro_volume_"))
            assert (one.kind == "counter") == one.name.endswith("_total")
            assert not set(one.labels) & {"experiment", "run", "model", "sub_epoch", "task", "worker", "path"}
            if one.kind == "histogram":
                assert one.name.endswith("_seconds")


def test_expositions_can_be_read_by_prometheus(tmp_path: Path) -> None:
    """Prometheus' own parser reads each exposition, which includes the process memory."""
    for registry in registries(tmp_path).values():
        text = generate_latest(registry).decode()
        names = {family.name for family in text_string_to_metric_families(text)}
        assert "process_resident_memory_bytes" in names


def value(metrics: Any, name: str, **labels: str) -> float | None:
    found = metrics.registry.get_sample_value(name, labels)
    return None if found is None else float(found)


# --- kvs_api -------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[tuple[App, KvsMetrics]]:
    """kvs_api without a reachable Redis."""
    metrics = KvsMetrics()
    settings = StoreSettings(host="127.0.0.1", port=0, redis_url="redis://127.0.0.1:1", token="t")
    with closing(Store(settings.redis_url)) as store:
        yield App(settings, store, InThisThread(), metrics=metrics), metrics


def test_requests_are_counted_by_route_and_class(served: tuple[App, KvsMetrics]) -> None:
    """Refused requests count too; all unknown routes share the label value "none"."""
    app, metrics = served
    token = {"Authorization": "Bearer t"}
    for path in ("/v1/code/a", "/v1/code/b"):
        assert send_request(app, "GET", path, None, token).status_code == 503
    assert send_request(app, "GET", "/v1/code/a", None, {}).status_code == 401
    assert send_request(app, "BREW", "/nowhere", None, token).status_code == 404
    assert send_request(app, "BREW", "/v1/code/a", None, token).status_code == 405
    name, route = "cerebro_kvs_api_requests_total", "/v1/code/{sha256}"
    assert value(metrics, name, route=route, method="GET", status="5xx") == 2
    assert value(metrics, name, route=route, method="GET", status="4xx") == 1
    assert value(metrics, name, route="none", method="any", status="4xx") == 2
    assert value(metrics, "cerebro_kvs_api_request_seconds_count", route=route) == 3


def test_metrics_need_the_token_on_the_public_port(served: tuple[App, KvsMetrics]) -> None:
    """The metrics route has the application's token check."""
    app, _ = served
    assert send_request(app, "GET", "/metrics", None, {}).status_code == 401
    assert (
        b"cerebro_kvs_api_requests"
        in send_request(app, "GET", "/metrics", None, {"Authorization": "Bearer t"}).data
    )


@pytest.mark.parametrize(
    ("facts", "up", "persisting"),
    [
        ({"aof_enabled": 1, "aof_last_write_status": "ok", "used_memory": 1, "queued": 0}, 1, 1),
        ({"aof_enabled": 1, "aof_last_write_status": "err", "used_memory": 1, "queued": 0}, 1, 0),
        ({"aof_enabled": 0, "aof_last_write_status": "ok", "used_memory": 1, "queued": 0}, 1, 0),
        (redis.ConnectionError("away"), 0, None),
    ],
)
def test_the_persisting_metric_reports_the_append_only_file(
    facts: Any, up: int, persisting: int | None
) -> None:
    """`persisting` reports whether Redis writes its append-only file; it is unset without a connection."""
    metrics = KvsMetrics()
    store = QuietStore("redis://127.0.0.1:1", metrics=metrics)
    store.facts_now = facts
    metrics.watch(store)
    assert value(metrics, "cerebro_kvs_api_store_up") == up
    assert value(metrics, "cerebro_kvs_api_store_persisting") == persisting


@pytest.mark.parametrize(
    ("answer", "is_write"),
    [
        ({"outcomes": [{"outcome": "refused", "reason": "r"}, {"outcome": "already", "reason": ""}]}, False),
        ({"outcomes": [{"outcome": "refused", "reason": "r"}, {"outcome": "done", "reason": ""}]}, True),
        ({"outcomes": []}, False),
        ({"current": True, "outcomes": [], "reclaim": 0}, True),
        ({"current": False}, False),
        ({"current": "another"}, False),
        ({"term": 3, "holder": "me"}, True),
        ({"term": 0, "holder": "another"}, False),
        ({"stale": 4}, False),
        ({"missing": True}, False),
        ({"seq": 7}, True),
    ],
)
def test_a_call_without_a_change_is_no_write(
    answer: Any, is_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, repeated and late calls do not reach Redis' disk."""
    monkeypatch.setattr(Store, "_run", lambda *_: answer)
    metrics = KvsMetrics()
    assert QuietStore("redis://127.0.0.1:1", metrics=metrics)._run({}) == answer
    written = value(metrics, "cerebro_kvs_api_last_write_timestamp_seconds")
    assert written is not None
    assert (written > 0) == is_write


# --- controller ----------------------------------------------------------------------------------


def story_and_metrics() -> tuple[Story, ControllerMetrics]:
    """A story whose events the metrics received as they happened."""
    story, metrics = Story(), ControllerMetrics()
    count = len(story.log)
    story.etl()
    story.fit(models=1, epochs=1)
    story.fail(sub_epoch(1, 0), 0, FailureKind.CRASH)
    story.epoch(1)
    story.append(epoch_report(story.state, story.run, 1))
    for event in story.log[count:]:
        metrics.happened(event)
    return story, metrics


def test_the_gap_metric_is_the_largest_gap_of_open_fits() -> None:
    """Other runs that end or complete an epoch do not hide the gap; without an open fit it is 0."""
    name, metrics, stories, cores = "cerebro_controller_schedule_gap_ratio", ControllerMetrics(), [], []
    for number, makespan_s in enumerate((15.0, 12.0)):
        story = Story()
        story.fit(models=1, epochs=1)
        story.epoch(1)
        report = epoch_report(story.state, story.run, 1)
        story.append(report.model_copy(update={"makespan_s": makespan_s, "lower_bound_s": 10.0}))
        core = Core(ExperimentRecord(name=f"e{number}", locators=Locators(train=Locator(metadata="t.csv"))))
        core.state = story.state
        stories.append(story)
        cores.append(core)
    observed = []
    for ending in (*stories, None):
        metrics.update((), max(Overview.of(core).gap for core in cores), ClusterSnapshot())
        observed.append(value(metrics, name))
        if ending is not None:
            ending.append(RunFinished(run="fit-1", outcome="finished"))
            metrics.happened(ending.log[-1])
    assert observed == pytest.approx([0.5, 0.2, 0.0])


def test_lines_of_the_log_are_short_and_quote_no_user_code() -> None:
    """Plans, requests, task bodies and tracebacks are omitted from event lines and refused steps."""
    story = Story()
    models: dict[str, Hyperparameters] = {f"m{n:04}": {"batch_size": 1, "lr": 0.1} for n in range(2000)}
    story.fit(models=len(models), hyperparams=models)
    attempt: Any = {"task": str(sub_epoch(1, 0)), "attempt": 1, "worker": "worker-0"}
    failure = Failure(kind=FailureKind.USER_ERROR, message="boom", traceback="password = 'hunter2'")
    body = TrainTask(
        key=str(sub_epoch(1, 0)), experiment="one", run="fit-1", model="m00", hyperparams={"lr": 0.125}, code="0" * 64,
        dataset="d", seed=0, hang_timeout_s=1.0, epoch=1, partition=0, sub_epoch=0,
        position=Position(), checkpoint=None, keep=(),
    )  # fmt: skip
    started = next(event for event in story.log if isinstance(event, RunStarted) and event.run == "fit-1")
    messages = [
        *story.log,
        TaskFailed(**attempt, failure=failure),
        api.Note(event=started),
        api.Assign(**attempt, incarnation="a", body=body),
        RunFinished(run="fit-1", outcome="failed", error="x" * 10**6),
    ]
    lines = [event_logging.line(one) for one in messages]
    assert max(map(len, lines)) < 2100
    for text in lines:
        assert not re.search("hunter2|m0001|0.125", text)
    assert "boom" in lines[len(story.log)]
    assert '"run":"fit-1"' in lines[len(story.log) + 1]
    assert '"attempt":1' in lines[len(story.log) + 2]
    assert re.search(r"x\.\.\. \(10000\d\d characters\)$", lines[-1])


# --- worker --------------------------------------------------------------------------------------


def test_a_worker_counts_attempts_idle_time_and_use() -> None:
    """Attempt outcomes have fixed label values; unmeasured usage is NaN, not 0."""
    metrics = WorkerMetrics({})
    metrics.record_attempt("train", TaskResult(rows=3), 2.0)
    metrics.record_attempt("train", Failure(kind=FailureKind.HANG, message="m"), 30.0)
    with metrics.waiting():
        pass
    metrics.record_usage(
        WorkerUsage(cores=4, cores_used=1.5, gpus=(GpuUsage(name="g", memory_bytes=1, memory_total_bytes=2),))
    )
    attempts = "cerebro_worker_attempts_total"
    assert value(metrics, attempts, kind="train", outcome="committed") == 1
    assert value(metrics, attempts, kind="train", outcome="hang") == 1
    assert {value(metrics, attempts, kind=kind, outcome="committed") for kind in KINDS} == {0, 1}
    assert value(metrics, "cerebro_worker_attempt_seconds_sum", kind="train") == 32.0
    assert value(metrics, "cerebro_worker_used_cores") == 1.5
    unknown = value(metrics, "cerebro_worker_memory_bytes")
    assert unknown != unknown
    share = value(metrics, "cerebro_worker_gpu_used_ratio", gpu="0")
    assert share != share
    assert value(metrics, "cerebro_worker_gpu_memory_size_bytes", gpu="0") == 2
