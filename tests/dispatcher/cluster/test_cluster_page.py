"""The cluster page distinguishes absent, unmeasured and idle devices, and shows the queue."""

from __future__ import annotations

import pytest

from cerebro.contract.events import RunRequested, TaskCommitted
from cerebro.contract.priority import HIGH
from cerebro.contract.records import (
    Device,
    GpuUsage,
    Replica,
    UsageSample,
    WorkerSetStatus,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EvaluateRequest
from cerebro.contract.stored.health import (
    CheckResult,
    HealthAnswer,
    Incident,
    Pace,
    Probe,
    Quarantine,
    WorkerCheck,
    WorkerHealth,
)
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.state.worker_quarantine import CHECK_PASSED
from dispatcher.cluster.summary import summary
from dispatcher.cluster.view import ClusterData, cluster, slots
from tests.dispatcher.fakes import Bench
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import NOW, Story, running_story, status, story_on_two_devices
from tests.state.stories import Story as FitStory
from tests.state.stories import joined, lost, sub_epoch

GIB = 1 << 30


def worker(
    name: str, *, gpus: tuple[str, ...] = (), devices: int = 1, silent_s: float = 0.4, **changes: object
) -> WorkerStatus:
    found = status(name, silent_s=silent_s)
    known = found.record.model_copy(
        update={
            "gpus": gpus,
            "cores": 4,
            "replicas": (Replica(dataset="d1", partition=0),),
            "devices": (Device(kind="cpu", name="a core", threads=1),) * devices,
        }
    )
    return found.model_copy(update={"record": known, **changes})


def usage(**changes: object) -> WorkerUsage:
    return WorkerUsage.model_validate({"cores": 4} | changes)


def gpu(share: float | None) -> GpuUsage:
    return GpuUsage(name="H200", used_share=share, memory_bytes=GIB, memory_total_bytes=4 * GIB)


def cluster_data(*statuses: WorkerStatus, **changes: object) -> ClusterData:
    values: dict[str, object] = {"statuses": statuses, "summaries": {}, "usage": {}}
    return ClusterData(**(values | changes))  # type: ignore[arg-type]


def test_gpus_missing_unmeasured_and_idle_have_different_texts() -> None:
    """No GPU, no measurement, and 0 %."""
    bench = Bench()
    bench.store.statuses = [
        worker("worker-0"),
        worker("worker-1", gpus=("H200",)),
        worker("worker-2", gpus=("H200",), usage=usage(gpus=(gpu(0.0),))),
    ]
    page = bench.signed_in().get("/cluster").text
    rows = [part.split("</tr>")[0] for part in page.split('<tr data-key="worker-')[1:]]
    assert "no GPU" in rows[0]
    assert "not measured" in rows[1]
    assert "no GPU" not in rows[1]
    assert "0 %" in rows[2]
    assert "25 % memory" in rows[2]


def test_workers_are_sorted_by_number_and_show_their_usage() -> None:
    """Rows keep their order; values near their limit are highlighted."""
    full = usage(
        cores_used=1.0, memory_bytes=9, memory_limit_bytes=10, shards_used_bytes=1, shards_total_bytes=2
    )
    view = cluster(cluster_data(worker("worker-10"), worker("worker-2", usage=full)), now=NOW)
    assert [card.name for card in view.workers] == ["worker-2", "worker-10"]
    card = view.workers[0].usage
    assert (card.processor.share, card.memory.share, card.disk.share) == (0.25, 0.9, 0.5)
    assert (card.memory.is_high, card.disk.is_high) == (True, False)
    assert view.workers[1].usage.memory.share is None


def test_a_lost_worker_stays_with_the_cause_of_its_loss() -> None:
    """The page names the cause that the worker or the log reported, and clears the usage."""
    story = running_story()
    story.lose("worker-1")
    cluster_summary = summary(story.state, worker_set_status=WorkerSetStatus(), begin=NOW - 3600, now=NOW)
    lost = worker(
        "worker-1", silent_s=99.0, usage=usage(cores_used=2.0), running="digits/fit-1/train/m04/e1/p1"
    )
    view = cluster(
        cluster_data(lost, worker("worker-0", leaving="spot notice"), summaries={"digits": cluster_summary}),
        now=NOW,
    )
    first, second = view.workers
    assert (first.state, first.note) == ("stopping", "spot notice")
    assert (second.state, second.note, second.work.tasks) == ("lost", "silent for 15 s", ())
    assert second.usage.processor.share is None
    assert (view.totals.running, view.totals.idle, view.totals.lost) == (0, 0, 1)


def test_devices_and_their_tasks_are_shown() -> None:
    """A lost worker's devices do not count."""
    bench = Bench()
    story, key = story_on_two_devices()
    bench.store.add(story)
    bench.store.statuses = [
        worker("worker-0", devices=2, running=f"digits/{key}"),
        worker("worker-1", devices=4),
        worker("worker-2", devices=8, silent_s=99.0),
    ]
    page = text_of(bench.signed_in().get("/cluster").text)
    assert "Devices 2 of 6 have a task" in page
    assert "for digits on devices 0, 1" in page
    assert "2 of 2 busy" in page
    assert "0 of 4 busy" in page


def test_history_keeps_gaps() -> None:
    """A gap in the measurements stays a gap instead of 0."""
    found = slots([(0.5, 0.2), (0.7, 0.4), (59.5, 1.0), (60.0, 9.0), (-1.0, 9.0)], 0.0, 60.0)
    assert found[0] == pytest.approx(0.3)
    assert found[59] == 1.0
    assert found[1:59] == (None,) * 58


UNKNOWN = "fit-1 is running, and its best model is not known before it has ended"


def test_the_queue_shows_wait_reasons() -> None:
    """Open runs give the reason from their log; waiting runs show their position."""
    story = running_story()
    best = EvaluateRequest(kind="test", fit="fit-1", split="test")
    story.append(RunRequested(run="test-1", request=best, author="bob"))
    story.lose("worker-0")
    story.lose("worker-1")
    cluster_summary = summary(story.state, worker_set_status=WorkerSetStatus(), begin=0, now=NOW)
    runs = (
        api.QueueEntry(experiment="digits", run="fit-1"),
        api.QueueEntry(experiment="digits", run="test-1"),
        api.QueueEntry(experiment="whales", run="etl-1"),
        api.QueueEntry(experiment="birds", run="etl-1"),
    )
    queue = api.QueueAnswer(runs=runs, open_runs=3)
    full = queue.model_copy(update={"open_runs": 1})
    rows = cluster(cluster_data(summaries={"digits": cluster_summary}, queue=full), now=NOW).queue
    assert (rows[1].queue_position.place, rows[1].reason) == (1, UNKNOWN)
    rows = cluster(cluster_data(summaries={"digits": cluster_summary}, queue=queue), now=NOW).queue
    first = rows[0].run_summary
    assert (first.state, first.done, first.total, first.author) == ("running", 10, 42, "ada")
    assert (rows[1].run_summary.state, rows[1].run_summary.author, rows[1].reason) == (
        "queued",
        "bob",
        UNKNOWN,
    )
    assert (rows[2].run_summary.state, rows[2].reason) == ("queued", "")
    assert (rows[3].run_summary.state, rows[3].reason) == (
        "queued",
        "3 runs are open before it; 3 may be open at once",
    )


SHARED = api.QueueAnswer(
    runs=(
        api.QueueEntry(experiment="digits", run="fit-1"),
        api.QueueEntry(experiment="whales", run="fit-1"),
        api.QueueEntry(experiment="birds", run="etl-1"),
    ),
    open_runs=2,
    attended=api.Attended(
        runs=(
            api.AttendedRun(experiment="whales", run="fit-1", priority=HIGH, devices=1, could_use_more=True),
            api.AttendedRun(experiment="digits", run="fit-1", project="pixels", devices=3),
        ),
        devices=4,
    ),
)


def test_the_queue_shows_shares_and_devices_of_runs() -> None:
    """The cluster page shows all runs; an experiment's page shows its own with a link to its priority."""
    bench = Bench()
    bench.store.add(running_story())
    bench.store.waiting, bench.store.open_runs = SHARED.runs, SHARED.open_runs
    bench.store.attended = SHARED.attended
    browser = bench.signed_in()
    page = browser.get("/cluster").text
    rows = [part.split("</tr>")[0] for part in page.split('<tr data-key="')[1:]]
    assert "runs now" in rows[0]
    assert "20.0 %" in rows[0]
    assert "2 of 4 devices" in rows[0], "as its log says, which is newer than what was told"
    assert "pixels" in rows[0]
    assert "it has fewer devices than it is due, and it is next in turn" in page
    assert "1st in the queue" in page
    assert "2 runs are open before it; 2 may be open at once" in page
    page = browser.get("/experiments/digits").text
    assert "Fair share" in page
    assert "fit-1 has 2 of 4 devices now" in page
    assert '<option value="normal" selected>' in page
    answer = browser.get("/api/views/experiments/digits").json or {}
    found = answer["queue"]["position"]
    assert (found["due"], found["devices"], found["of"]) == (pytest.approx(0.2), 2, 4)


def test_a_page_is_rebuilt_when_the_devices_of_its_run_change() -> None:
    """Its log does not grow then. Changes of other runs do not matter."""
    bench = Bench()
    bench.store.add(running_story())
    bench.store.waiting, bench.store.attended = SHARED.runs, SHARED.attended
    browser = bench.signed_in()

    path, host = "/fragments/experiments/digits", {"base_url": "http://127.0.0.1:7080"}
    tag = browser.get(path).headers["ETag"]
    whales, digits = SHARED.attended.runs
    for changed, status_code in (
        ((whales.model_copy(update={"devices": 0}), digits), 304),
        ((whales, digits.model_copy(update={"devices": 2})), 200),
    ):
        bench.store.attended = api.Attended(runs=changed, devices=4)
        bench.monotonic.now += 3
        answer = browser.client.get(path, headers={"If-None-Match": tag}, **host)
        assert answer.status_code == status_code


def test_the_page_keeps_its_data_while_the_store_is_unavailable() -> None:
    """The last good data, with a banner."""
    bench = Bench()
    bench.store.add(running_story())
    bench.store.statuses = [worker("worker-0")]
    bench.store.samples["worker-0"] = (UsageSample(time=NOW - 10, usage=usage(cores_used=1.0)),)
    browser = bench.signed_in()
    assert "worker-0" in browser.get("/cluster").text
    bench.store.is_away = True
    bench.monotonic.now += 60
    answer = browser.get("/cluster")
    assert answer.status_code == 200
    assert "worker-0" in answer.text
    assert "does not answer" in answer.text


def test_many_viewers_cause_one_request_to_the_store() -> None:
    """Pages and read API share one cached answer."""
    bench = Bench()
    bench.store.add(running_story())
    bench.store.statuses = [worker("worker-0", usage=usage(cores_used=1.0))]
    browser = bench.signed_in()
    bench.store.calls.clear()
    for path in ("/cluster", "/fragments/cluster", "/api/views/cluster", "/api/views/volumes") * 5:
        assert browser.get(path).status_code == 200
    for call in ("queue", "pod_problems", "size", "audit", "reclaim", "usage", "workers"):
        assert bench.store.calls.count(call) == 1, call
    bench.monotonic.now += 2.1
    browser.get("/cluster")
    assert bench.store.calls.count("queue") == 2
    assert bench.store.calls.count("usage") == 1


def test_busy_share_counts_runs_that_have_ended() -> None:
    """The share counts all experiments that ran in the time range, including finished ones."""
    bench = Bench()
    ended = Story("ended", began=NOW - 1800)
    ended.workers_join()
    ended.etl()
    ended.fit(models=2)
    ended.run_task("fit-1/train/m00/e1/p0", "worker-0", None)
    ended.time += 900
    result = TaskResult(rows=898, checkpoint=CheckpointRef(name="x", checksum="0" * 16, size=1))
    ended.append(TaskCommitted(task="fit-1/train/m00/e1/p0", attempt=1, worker="worker-0", result=result))
    ended.finish()
    for story in (Story("newest", began=NOW - 60), ended):
        bench.store.add(story)
    bench.store.statuses = [worker("worker-0")]
    page = bench.signed_in().get("/cluster").text
    assert '<span class="num quiet">25 %</span>' in page


def test_health_and_incidents_are_shown() -> None:
    """Excluded and unchecked workers, each with a reason; incidents newest first, with the author."""
    bench = Bench()
    bench.store.statuses = [worker("worker-0"), worker("worker-1")]
    mark = Quarantine(reason="2 sub-epochs failed: <ECC>", by="controller", time=NOW - 60)
    incidents = (
        Incident(time=NOW - 95, worker="worker-0", what=CHECK_PASSED, by="controller"),
        Incident(time=NOW - 90, worker="worker-1", what="check failed", by="controller"),
        Incident(
            time=NOW - 60,
            worker="worker-1",
            what="quarantined",
            evidence="2 sub-epochs failed: <ECC>",
            by="ada",
        ),
    )
    bench.store.machines = HealthAnswer(
        workers={"worker-1": WorkerHealth(quarantine=mark)}, incidents=incidents
    )
    page = bench.signed_in().get("/cluster").text
    rows = [part.split("</tr>")[0] for part in page.split('<tr data-key="worker-')[1:]]
    assert "not checked" in rows[0]
    assert "quarantined: 2 sub-epochs failed: &lt;ECC&gt;" in rows[1]
    assert "1 quarantined" in text_of(page)
    section = page.split('data-key="incidents"')[1]
    assert section.index("quarantined") < section.index("check failed")
    assert CHECK_PASSED not in section
    assert "ada" in section


def test_a_lost_worker_is_an_incident_and_so_is_its_return() -> None:
    """Several experiments report the loss, but it is listed once. A first join is no incident."""
    story = FitStory(workers=2)
    story.fit()
    story.append(lost(1, incarnation=story.state.workers["worker-1"].incarnation))
    story.append(joined(1, incarnation="next"))
    story.append(joined(2))
    known = summary(story.state, worker_set_status=WorkerSetStatus(), begin=0.0, now=story.time)
    health = HealthAnswer(incidents=(Incident(time=story.time + 5, worker="worker-0", what="slow"),))
    found = cluster(cluster_data(summaries={"one": known, "two": known}, health=health), now=story.time)
    assert [(each.worker, each.what) for each in found.incidents] == [
        ("worker-0", "slow"),
        ("worker-1", "is back"),
        ("worker-1", "lost"),
    ]
    assert found.incidents[1].evidence == "1 s after it was lost"


def test_slow_workers_are_labelled() -> None:
    """A worker is slow by its node check, or by the duration of its sub-epochs."""

    def checked(rate: float) -> WorkerHealth:
        probe = Probe(name="arithmetic", seconds=2.0, rate=rate)
        result = CheckResult(incarnation="a", probes=(probe,), device="H200")
        return WorkerHealth(check=WorkerCheck(requested=1.0, reason="r", by="a", ended=2.0, result=result))

    bench = Bench()
    bench.store.statuses = [worker(f"worker-{number}") for number in range(3)]
    rates = {"worker-0": 100.0, "worker-1": 90.0, "worker-2": 40.0}
    known = {name: checked(rate) for name, rate in rates.items()}
    known["worker-1"] = WorkerHealth(
        check=known["worker-1"].check, pace=Pace(factor=2.1, sub_epochs=9, time=1.0)
    )
    bench.store.machines = HealthAnswer(workers=known)
    page = bench.signed_in().get("/cluster").text
    rows = [part.split("</tr>")[0] for part in page.split('<tr data-key="worker-')[1:]]
    assert "slow: its check took 2.2 times the median of equal devices" in rows[2]
    assert "slow: its sub-epochs take 2.1 times as long as on others" in rows[1]
    assert "slow" not in rows[0]
    assert "healthy" in rows[0]


def test_the_page_shows_the_number_of_starting_workers() -> None:
    """Or that the cluster is scaled to zero. Without either the page says nothing."""
    bench = Bench()
    assert "workers are starting" not in Bench().signed_in().get("/cluster").text.lower()
    bench.store.worker_set = WorkerSetStatus(note="workers are starting: 2 of 4; a node is being made")
    assert "Workers are starting: 2 of 4; a node is being made." in text_of(
        bench.signed_in().get("/cluster").text
    )


def test_busy_devices_equal_those_of_the_queue() -> None:
    """The log of an open run is newer than a worker's last report."""
    story = FitStory(workers=2)
    story.fit(models=2)
    story.start(sub_epoch(1, 0, "m00"), 0)
    story.start(sub_epoch(1, 1, "m01"), 1)
    known = summary(story.state, worker_set_status=WorkerSetStatus(), begin=0.0, now=story.time)
    statuses = (worker("worker-0"), worker("worker-1"))
    found = cluster(cluster_data(statuses=statuses, summaries={"one": known}), now=story.time)
    assert (found.totals.devices_used, found.totals.devices) == (2, 2)
    assert len(known.held["fit-1"]) == 2
