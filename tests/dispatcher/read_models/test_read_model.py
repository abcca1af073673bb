"""The incremental read model equals the full fold after every event, and reports throughput."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro import figures
from cerebro.contract.events import (
    LivePoint,
    ModelResumed,
    ModelStopRequested,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import ExperimentSummary
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.figures import ProgressAxis, observations
from cerebro.figures.models import summaries
from cerebro.figures.search import values_of_epochs
from cerebro.state.reports.throughput import BASIS, ThroughputMeter
from dispatcher.experiments.view import row_of
from dispatcher.read_models import read_model as read_model_module
from dispatcher.read_models.model_table import ModelTable
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import header
from tests.dispatcher.stories import NOW, Story, running_story


def eventful() -> Story:
    """A fit with every event type that changes rows."""
    story = running_story()
    story.append(RunPaused(run="fit-1", reason="no room", needs_bytes=1))
    story.append(RunResumed(run="fit-1"))
    story.append(ModelStopRequested(run="fit-1", model="m06", by="ada"))
    story.append(TaskRevoked(task="fit-1/train/m05/e1/p0", attempt=1, worker="worker-0", reason="a reason"))
    story.run_task("fit-1/train/m05/e1/p0", "worker-0", None)
    story.append(ModelResumed(run="fit-1", model="m06", by="ada"))
    return story


def test_rows_and_sums_equal_the_fold_after_every_event() -> None:
    story = eventful()
    read_model = ReadModel(story.record)
    for event in story.events:
        read_model.apply([event])
        run = read_model.fit()
        if run is None:
            continue
        table, expected = read_model.table(run), list(summaries(run))
        assert table.rows() == expected
        assert table.progress() == run.progress()
        assert dict(table.counts()) == Counter(row.state for row in expected)
        assert [row.id for row in table.failed()] == [row.id for row in expected if row.failure]
        best = run.best_model()
        found = table.best()
        assert (found.id if found else None) == (best.id if best else None)
        assert table.longest() == max(
            (
                0 if run.models[row.id].is_cut_short else row.progress.total - row.progress.done
                for row in expected
            ),
            default=0,
        )


@pytest.mark.parametrize("axis", ["time", "epoch"])
def test_values_by_epoch_equal_the_fold_after_every_event(axis: ProgressAxis) -> None:
    """For the figure of the best value so far."""
    story = eventful()
    read_model = ReadModel(story.record)
    for event in story.events:
        read_model.apply([event])
        if run := read_model.fit():
            values = read_model.table(run).epoch_values()
            assert values_of_epochs(values, axis, run.clock.first_start) == observations(run, axis)


@pytest.mark.parametrize("is_whole", [True, False])
def test_results_of_a_test_equal_the_fold_after_every_event(is_whole: bool) -> None:
    """A model has a test value when all partitions are tested."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    story.train("m01", 1)
    story.test("m01", is_whole=is_whole)
    read_model = ReadModel(story.record)
    for event in story.events:
        read_model.apply([event])
        run = read_model.fit()
        if run is None:
            continue
        tests = [test for test in figures.tests_of(read_model.state, run) if test.plan]
        for test in tests:
            assert read_model.tested(test).results() == figures.tested(test)
            assert read_model.tested(test).values("accuracy") == {
                each.model: each.metrics["accuracy"]
                for each in figures.tested(test)
                if "accuracy" in each.metrics and each.done == each.parts
            }
        assert dict(read_model.columns(run).tests) == (
            read_model.tested(tests[0]).values("accuracy") if tests else {}
        )
    assert is_whole or read_model.columns(read_model.state.runs["fit-1"]).tests == {"m01": 0.975}


def test_the_best_model_is_found_again_after_its_loss() -> None:
    story = running_story()
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    run = read_model.fit()
    assert run is not None
    table = read_model.table(run)
    first = table.best()
    assert first is not None
    run.models[first.id].roll_back()
    run.models[first.id].roll_back()
    run.models[first.id].roll_back()
    run.models[first.id].roll_back()
    table.invalidate(first.id)
    second = table.best()
    assert second is not None
    assert second.id != first.id


def live(task: str, rows: int, *, seq: int = 1, attempt: int = 1) -> LivePoint:
    return LivePoint(
        seq=seq, time=NOW, task=task, attempt=attempt, worker="worker-0", rows=rows, total_rows=898
    )


def test_points_of_ended_sub_epochs_are_dropped() -> None:
    story = running_story()
    ended, running = "fit-1/train/m00/e1/p0", "fit-1/train/m05/e1/p0"
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    read_model.add_points([live(ended, 10), live(running, 20, seq=2)])
    assert set(read_model.live.newest) == {running}
    assert read_model.live.newest[running].rows == 20


def test_a_point_that_is_ahead_of_the_log_is_kept() -> None:
    story = running_story()
    read_model = ReadModel(story.record)
    started = next(
        index
        for index, event in enumerate(story.events)
        if isinstance(event, TaskStarted) and event.task == "fit-1/train/m05/e1/p0"
    )
    read_model.apply(story.events[: started - 1])
    read_model.add_points([live("fit-1/train/m05/e1/p0", 20)])
    assert read_model.live.newest["fit-1/train/m05/e1/p0"].rows == 20


def test_the_final_schedule_is_computed_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One computation stays valid for a long time.
    monkeypatch.setattr(read_model_module, "_SCHEDULE_SHARE", 1e-9)
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    story.train("m00", 1)
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    run = read_model.fit()
    assert run is not None
    first = read_model.schedule_now(run, story.time)
    assert first is not None
    assert first.is_growing
    story.train("m01", 1)
    read_model.apply(story.events[read_model.state.seq :])
    assert read_model.schedule_now(run, story.time) is first
    story.finish()
    read_model.apply(story.events[read_model.state.seq :])
    last = read_model.schedule_now(run, story.time)
    assert last is not None
    assert not last.is_growing


@pytest.mark.parametrize("is_running", [False, True])
def test_remaining_time_is_remaining_work_divided_by_throughput(is_running: bool) -> None:
    story = running_story()
    if not is_running:
        story.append(RunPaused(run="fit-1", reason="no room", needs_bytes=1))
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    run = read_model.fit()
    assert run is not None
    throughput = read_model.throughput(story.time)
    done, total = run.progress()
    committed = sum(len(model.sub_epochs) for model in run.models.values())
    # The clock stops at the pause, which is now.
    elapsed = story.time - run.clock.started
    assert throughput.rows_per_s == pytest.approx(committed * 898 / elapsed, rel=0.05)
    assert throughput.sub_epochs_per_min == pytest.approx(60 * committed / elapsed, rel=0.05)
    assert throughput.time_left is not None
    assert throughput.time_left.seconds == pytest.approx(
        (total - done) * 898 / throughput.rows_per_s, rel=0.05
    )
    assert throughput.time_left.ends_at == story.time + throughput.time_left.seconds
    assert throughput.time_left.basis == BASIS


def test_rows_of_running_sub_epochs_count_for_throughput() -> None:
    story = running_story()
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    before = read_model.throughput(story.time + 10)
    read_model.add_points([live("fit-1/train/m05/e1/p0", 500)])
    after = read_model.throughput(story.time + 10)
    assert after.rows_per_s > before.rows_per_s
    assert after.time_left is not None
    assert before.time_left is not None
    assert after.time_left.seconds < before.time_left.seconds


def test_validations_do_not_shorten_the_remaining_time() -> None:
    """Validations are short; as sub-epochs they would make the estimate too small."""
    story = running_story()
    run = story.state.runs["fit-1"]
    table = ModelTable(run)
    with_validations, without = ThroughputMeter(), ThroughputMeter()
    for meter in (with_validations, without):
        for at in range(4):
            began, ended = story.time - 10, story.time - at
            meter.commit(run, "train", worker="worker-0", started=began, ended=ended, rows=898)
    for at in range(40):
        began, ended = story.time - at - 0.1, story.time - at
        with_validations.commit(run, "valid", worker="worker-1", started=began, ended=ended, rows=300)
    found = with_validations.throughput(run, story.time, sub_epochs=table)
    assert found.time_left is not None
    assert found == without.throughput(run, story.time, sub_epochs=table)


def test_the_header_shows_the_newest_fit_not_a_later_test() -> None:
    """Otherwise a finished test would hide a stopped fit, in the header and in the list."""
    story = Story("halted")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.train("m00", 1)
    story.append(RunStopRequested(run="fit-1", by="ann"))
    story.append(RunFinished(run="fit-1", outcome="stopped"))
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    assert header(read_model, now=NOW).halted is None  # the stopped fit itself is shown
    story.test()
    read_model.apply(story.events[read_model.state.seq :])
    found = header(read_model, now=NOW)
    assert (found.run.id, found.state, found.halted) == ("fit-1", "stopped", None)
    assert (found.run.done, found.run.total) == (2, 12)
    assert "resume_run" in found.may
    summary = ExperimentSummary(
        experiment=story.record, last_seq=len(story.events), last_event=story.time, open_runs=()
    )
    row = row_of(read_model, summary, NOW)
    assert (row.run.id, row.state, row.run.done, row.run.total, row.problem) == (
        "fit-1",
        "stopped",
        2,
        12,
        "",
    )
    story.append(RunResumed(run="fit-1", by="ann"))
    read_model.apply(story.events[read_model.state.seq :])
    assert header(read_model, now=NOW).state == "running"


def test_a_stopped_fit_can_be_resumed_after_a_newer_one() -> None:
    """Header and list still show it after the newest fit."""
    story = Story("halted")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.train("m00", 1)
    story.append(RunStopRequested(run="fit-1", by="ann"))
    story.append(RunFinished(run="fit-1", outcome="stopped"))
    story.fit(models=1, epochs=1, run="fit-2")
    story.train("m00", 1, run="fit-2")
    story.finish("fit-2")
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    found = header(read_model, now=NOW)
    assert (found.run.id, found.state) == ("fit-2", "finished")
    assert found.halted is not None
    assert (found.halted.id, found.halted.done, found.halted.total) == ("fit-1", 2, 12)
    summary = ExperimentSummary(
        experiment=story.record, last_seq=len(story.events), last_event=story.time, open_runs=()
    )
    assert row_of(read_model, summary, NOW).problem == "fit-1 was stopped after 2 of 12 tasks"


def test_a_failed_test_is_shown_with_the_finished_fit() -> None:
    story = Story("untested")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=1)
    story.train("m00", 1)
    story.finish()
    request = EvaluateRequest(kind="test", fit="fit-1", split="test")
    story.append(RunRequested(run="test-1", request=request))
    story.append(RunFinished(run="test-1", outcome="failed", error="KeyError: label"))
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    found = header(read_model, now=NOW)
    assert (found.run.id, found.state, found.note) == ("fit-1", "finished", "test-1 failed: KeyError: label")


def test_models_are_compared_by_tests_on_one_data_set() -> None:
    """After a test on new rows, values on earlier rows are left out of the table."""
    story = Story("tested")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    for model in ("m00", "m01"):
        story.train(model, 1)
    story.finish()
    story.etl(run="etl-2", dataset="d2")
    for number, (dataset, model) in enumerate((("d1", "m00"), ("d2", "m01")), start=1):
        plan = EvaluatePlan(
            kind="test", dataset=dataset, fit="fit-1", models={model: 1}, partitions={0: 5}, is_whole=True
        )
        request = EvaluateRequest(kind="test", fit="fit-1", split="test")
        story.append(RunRequested(run=f"test-{number}", request=request))
        story.append(RunStarted(run=f"test-{number}", plan=plan))
        result = TaskResult(rows=5, metrics={"accuracy": 0.5})
        story.run_task(f"test-{number}/test/{model}", "worker-0", result)
        story.finish(f"test-{number}")
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    assert dict(read_model.columns(read_model.state.runs["fit-1"]).tests) == {"m01": 0.5}
