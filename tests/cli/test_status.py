"""Output of `cerebro status` on workers, experiments, runs and models."""

from __future__ import annotations

import json
import re
from typing import cast

import pytest

from cerebro.cli.administration import cluster_status as cli_status
from cerebro.cli.administration import queue as cli_queue
from cerebro.cli.administration.queue import ExperimentLog
from cerebro.cli.experiments.status import state_lines
from cerebro.contract.events import RunFinished, RunRequested, RunStarted, WorkerJoined, WorkerLost
from cerebro.contract.priority import LOW
from cerebro.contract.records import (
    SILENT_S,
    ExperimentRecord,
    ExperimentSummary,
    Hyperparameters,
    Locator,
    Locators,
    PodRef,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitPlan, FitRequest
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import ModelState, Worker
from cerebro.state.experiment import ExperimentState, fold
from cerebro.state.reports.throughput import ThroughputMeter
from research.simulation.store import VirtualStore
from tests.client.test_session import opened
from tests.dispatcher.stories import NOW, Story
from tests.state.runs import TimedStory
from tests.state.stories import sub_epoch
from tests.state.test_beside import evaluation, half_trained
from tests.state.test_best import two_fits


def test_workers_are_listed_by_name() -> None:
    """With the time since the last report, partitions and tasks."""
    lines = cli_status.worker_lines([_worker("worker-1", None), _worker("worker-0", "digits/fit-1.train")])
    assert [line.split() for line in lines[1:]] == [
        ["worker-0", "4", "s", "ago", "2", "8", "1", "1", "0", "train", "digits/fit-1.train"],
        ["worker-1", "4", "s", "ago", "2", "8", "1", "1", "0", "train", "idle"],
    ]
    assert cli_status.worker_lines([]) == ["  no worker has registered yet"]


def test_experiments_are_listed_with_their_open_runs() -> None:
    """With the page's wording; archived ones and pending deletions are marked.

    Without events there is no last event.
    """
    archived = _summary("old", 9, ()).model_copy(update={"is_archived": True})
    leaving = _summary("leaving", 9, ()).model_copy(update={"is_deleting": True})
    states = {"digits": "running fit-2", "new": "new", "old": "failed etl-1", "leaving": "finished fit-1"}
    listed = [_summary("digits", 7, ("fit-2",)), _summary("new", 0, ()), archived, leaving]
    lines = cli_status.experiment_lines(listed, states, now=1060.0)
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "digits running fit-2 1 min ago ada",
        "new new - ada",
        "old failed etl-1, archived 1 min ago ada",
        "leaving being deleted 1 min ago ada",
    ]
    assert cli_status.experiment_lines([], {}, now=0.0) == ["  no experiments yet"]


def test_the_state_of_an_experiment_comes_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed, finished and new are distinguished.

    If there are too many logs to read, only whether a run is in progress.
    """
    store = VirtualStore(lambda: 0.0)
    kvs, term = cast(KvsClient, store), store.lead("controller-0", 1e9).term
    kept = EtlRequest(code="0" * 64, code_fingerprint="0" * 64)
    for name, outcome in (("none", ""), ("bad", "failed"), ("good", "finished"), ("open", "")):
        store.create_experiment(_summary(name, 0, ()).experiment)
        if name != "none":
            store.append(name, RunRequested(run="etl-1", request=kept))
        if name == "open":
            beside = EvaluateRequest(kind="test", fit="fit-1", split="test")
            store.append(name, RunRequested(run="test-1", request=beside))
        if outcome:
            ended = RunFinished.model_validate({"run": "etl-1", "outcome": outcome})
            step = api.Note.model_validate({"event": ended})
            store.decide(name, api.DecideRequest(term=term, after=1, steps=(step,)))
    assert cli_status.states_of(kvs, store.experiments()) == {
        "none": "new",
        "bad": "failed etl-1",
        "good": "finished etl-1",
        "open": "queued etl-1, queued test-1",
    }
    monkeypatch.setattr(cli_status, "_TIMEOUT_S", -1.0)
    assert cli_status.states_of(kvs, store.experiments()) == {
        "none": "new",
        "bad": "ended",
        "good": "ended",
        "open": "in progress: etl-1, test-1",
    }


def test_an_experiment_shows_its_runs_and_models() -> None:
    """Runs with state and progress; models of the newest fit with their failures."""
    state = _state()
    failed = state.runs["fit-1"].models["m01"]
    failed.state, failed.failures.final = (
        ModelState.FAILED,
        Failure(kind=FailureKind.USER_ERROR, message="no\nmore"),
    )
    lines = state_lines(state, now=160.0)
    assert lines[0] == "Experiment digits"
    assert lines[3].split()[:2] == ["fit-1", "starting"]
    assert [line.split() for line in lines[-2:]] == [
        ["m00", "queued", "0/2", "-", "lr=0.1,", "batch_size=32"],
        ["m01", "failed", "0/2", "-", "lr=0.2,", "batch_size=32", "no"],
    ]


def test_the_status_names_the_best_model_of_all_fits() -> None:
    """The same as the page and `Experiment.status`: a worse model of a newer fit is not called the best."""
    story = two_fits()
    lines = state_lines(story.state, now=NOW)
    best = "  best model: m00 of fit-1, accuracy 0.9405 at epoch 2"
    assert best in lines
    assert best in opened(story.events, NOW).status().splitlines()
    assert not any(line.endswith("best") for line in lines)
    other_data = state_lines(two_fits(dataset="d2").state, now=NOW)
    assert "  best model: m00 of fit-2, accuracy 0.9205 at epoch 1" in other_data
    assert [line.split()[0] for line in other_data if line.endswith("best")] == ["m00"]


def test_models_are_listed_best_first() -> None:
    """Before the schedule, models without a value last. `--top` limits the list and says how to see all."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=4, epochs=2)
    for model, epoch in (("m01", 1), ("m03", 1), ("m03", 2), ("m02", 1)):
        story.train(model, epoch)

    def listed(top: int) -> list[str]:
        lines = state_lines(story.state, now=NOW, top=top)
        return [line.split()[0] for line in lines if line.startswith("  m0")]

    assert listed(20) == ["m03", "m01", "m02", "m00"]
    assert listed(2) == ["m03", "m01"]
    lines = state_lines(story.state, now=NOW, top=2)
    rest = lines.index("  the best 2 of 4 models; `--top 4` shows all")
    assert any(line.startswith("  schedule: ") for line in lines[rest:])
    log = ExperimentLog(state=story.state, meter=ThroughputMeter())
    queue = api.QueueAnswer(runs=(), open_runs=1)
    etl, fit = cli_queue.experiment_json(log, queue, {}, NOW, top=3)["runs"]
    assert "models" not in etl
    assert (fit["metric"], fit["mode"]) == ("accuracy", "max")
    assert [each["model"] for each in fit["models"]] == ["m03", "m01", "m02"]
    assert fit["models"][0]["best_epoch"] == 2
    assert fit["models"][0]["value"] == pytest.approx(0.9315)
    assert fit["models"][0]["hyperparameters"]["batch_size"] == 32
    assert json.loads(json.dumps(fit)) == fit


def _shared() -> api.QueueAnswer:
    """Two active fits, and a waiting one."""
    entries = [api.QueueEntry(experiment=name, run="fit-1") for name in ("one", "two", "three")]
    runs = (
        api.AttendedRun(experiment="two", run="fit-1", priority=LOW, could_use_more=True),
        api.AttendedRun(experiment="one", run="fit-1", project="pixels", devices=4),
    )
    attended = api.Attended(runs=runs, devices=4)
    return api.QueueAnswer(runs=tuple(entries), open_runs=2, attended=attended)


def _followed() -> ExperimentLog:
    """A fit with one of two sub-epochs done, within the last five minutes, as the second starts."""
    story, meter = TimedStory(), ThroughputMeter()
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    story.begins(sub_epoch(2, 0), 0, 40.0)
    state = ExperimentState(name="one")
    for event in story.log:
        meter.observe(state, event)
        state.apply(event)
    return ExperimentLog(state=state, meter=meter)


def test_the_queue_shows_shares_devices_and_wait_reasons() -> None:
    """One line per open run, with the remaining time if its log was read."""
    log = _followed()
    now = log.state.runs["fit-1"].clock.newest_commit
    rows = cli_queue.queue_lines(_shared(), {"one": log}, {}, now)
    cells = [re.split(r" {2,}", row.strip()) for row in rows[1:]]
    assert cells[0] == ["one", "fit-1", "runs now", "80%", "1 of 4 devices", "normal pixels", "5 min"]
    assert cells[1][:6] == ["two", "fit-1", "waits for a device", "20%", "0 of 4 devices", "low"]
    assert cells[1][7] == "other runs have the devices, and it is next in turn"
    assert cells[2][2:] == [
        "1st in the queue",
        "-",
        "-",
        "-",
        "-",
        "2 runs are open before it; 2 may be open at once",
    ]
    assert cli_queue.queue_lines(api.QueueAnswer(runs=()), {}, {}, now) == ["  no run is open"]


def test_a_wait_reason_from_the_log_precedes_the_queue_position() -> None:
    """For a run that waits for another run of its experiment, in the queue and in the experiment's status."""
    story = half_trained()
    story.append(evaluation(2, "m01"))
    log = ExperimentLog(state=story.state, meter=ThroughputMeter())
    entries = tuple(api.QueueEntry(experiment=story.state.name, run=run) for run in ("fit-1", "test-2"))
    queue = api.QueueAnswer(runs=entries, open_runs=1)
    why = "fit-1 is running, and its model m01 is not finished"
    rows = cli_queue.queue_lines(queue, {story.state.name: log}, {}, story.time)
    assert rows[2].endswith(why)
    lines = state_lines(story.state, now=story.time, queue=queue)
    assert any(line.strip().startswith("test-2") and line.endswith(why) for line in lines)
    assert not any("open before it" in line for line in rows + lines)


def test_the_cluster_status_as_json_equals_its_tables() -> None:
    """Workers, experiments and the queue, with numbers instead of text."""
    found = json.loads(
        json.dumps(
            cli_queue.cluster_json(
                workers=[_worker("worker-0", "one/fit-1/train/m00/e1/p0")],
                experiments=[_summary("one", 9, ("fit-1",))],
                states={"one": "running fit-1"},
                queue=_shared(),
                logs={"one": _followed()},
                pod_problems={},
                now=1.0,
            )
        )
    )
    assert [worker["name"] for worker in found["workers"]] == ["worker-0"]
    assert [(each["name"], each["state"]) for each in found["experiments"]] == [("one", "running fit-1")]
    assert [each["position"] for each in found["queue"]] == [
        "runs now",
        "waits for a device",
        "1st in the queue",
    ]
    assert sum(each["due"] or 0 for each in found["queue"]) == pytest.approx(1)


def test_a_lost_worker_is_not_called_idle() -> None:
    """Its last task is not shown; the reason is from a log or its pod."""
    worker = _worker("worker-0", "digits/fit-1/train/m00/e1/p0").model_copy(update={"silent_s": SILENT_S + 1})
    pod = PodRef(name="pod-1", uid="1", container="worker")
    in_pod = worker.model_copy(
        update={"record": worker.record.model_copy(update={"worker": "worker-1", "pod": pod})}
    )
    leaving = _worker("worker-2", None).model_copy(update={"leaving": "SIGTERM"})
    lines = cli_status.worker_lines(
        [worker, in_pod, leaving], {"worker-0": "its pod was evicted"}, {"pod-1": "no node fits"}
    )
    assert [line.split("train", 1)[1].strip() for line in lines[1:]] == [
        "lost: its pod was evicted",
        "lost: pod-1 does not start: no node fits",
        "stopping: SIGTERM",
    ]
    (line,) = cli_status.worker_lines([worker])[1:]
    assert line.endswith("lost: it does not report")


def test_status_shows_why_a_worker_was_lost() -> None:
    """Every experiment's log contains the cluster's events."""
    store = VirtualStore(lambda: 9.0)
    kvs, term = cast(KvsClient, store), store.lead("controller-0", 1e9).term
    joined = WorkerJoined(worker="w-0", incarnation="a", weight=1, kinds=("train",))
    lost_event = WorkerLost(worker="w-0", incarnation="a", reason="evicted")
    store.create_experiment(_summary("one", 0, ()).experiment)
    store.write_cluster_log(api.ClusterLogRequest(term=term, after=0, events=(joined, lost_event)))
    request = EtlRequest(code="0" * 64, code_fingerprint="0" * 64)
    store.append("one", RunRequested(run="etl-1", request=request))
    lost: dict[str, Worker] = {}
    cli_status.states_of(kvs, store.experiments(), lost)
    assert {name: worker.lost for name, worker in lost.items()} == {"w-0": "evicted"}


def _worker(name: str, running: str | None) -> WorkerStatus:
    record = WorkerRecord(
        worker=name, incarnation="a", weight=2, cores=8, gpus=("A100",), kinds=("train",), host="h", pid=1
    )
    return WorkerStatus(record=record, silent_s=4.2, running=running)


def _summary(name: str, last_seq: int, open_runs: tuple[str, ...]) -> ExperimentSummary:
    locators = Locators(train=Locator(metadata="train.csv"))
    record = ExperimentRecord(name=name, locators=locators, author="ada")
    return ExperimentSummary(experiment=record, last_seq=last_seq, last_event=1000.0, open_runs=open_runs)


def _state() -> ExperimentState:
    first: Hyperparameters = {"lr": 0.1, "batch_size": 32}
    second: Hyperparameters = {"lr": 0.2, "batch_size": 32}
    request = FitRequest(code="0" * 64, models=(first, second), epochs=2, metric="accuracy", mode="max")
    plan = FitPlan(dataset="d", models={"m00": first, "m01": second}, partitions={0: 10, 1: 10})
    return fold(
        "digits",
        [
            RunRequested(seq=1, time=90.0, run="fit-1", request=request),
            RunStarted(seq=2, time=100.0, run="fit-1", plan=plan),
        ],
    )


def test_the_number_of_starting_workers_is_printed_below_them() -> None:
    """With the reason for the other workers."""
    store = VirtualStore(lambda: 0.0)
    store.set_worker_set_status(
        WorkerSetStatus(pods={"w-3": "no node fits"}, note="workers are starting: 3 of 4")
    )
    lines = cli_status.store_lines(cast(KvsClient, store))
    place = lines.index("  workers are starting: 3 of 4")
    assert lines[place + 1] == "  w-3 does not start: no node fits"
