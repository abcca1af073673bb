"""The overview: the best model first, then running, waiting and failed work."""

from __future__ import annotations

import re

from cerebro.contract.events import ModelStopRequested, RunRequested, RunStarted, TaskRevoked
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story, running_story, status


def test_the_overview_starts_with_the_best_model(bench: Bench, browser: Browser) -> None:
    """The best model, its hyperparameters and the code that loads it."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits").text)
    assert "Best model so far: m00 accuracy 0.9405 at epoch 2 (higher is better, training)" in page
    assert "learning_rate 0.1 layers 1 batch_size 32" in page
    assert 'Experiment.attach("digits").result("fit-1").best.modules()' in page
    assert "23 % of fit-1: 10/42 tasks" in page
    assert "5 queued, 2 running, 1 failed" in page
    assert "trains m05, epoch 1, partition 0 worker-0" in page
    assert "failed 1\u00d7 ValueError: shapes differ user error" in page
    assert "etl-1 finished 2 /2" in page
    assert "Makespan" not in page
    assert page.index("Best model so far") < page.index("Alerts") < page.index("Running tasks")
    assert "train 1,796 1,796 0" in page


def beside_a_fit() -> Story:
    """A second fit trains, a test of the first fit's models runs, and another test waits."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=1)
    story.train("m00", 1)
    story.finish()
    story.fit(models=2, run="fit-2")
    story.run_task("fit-2/train/m00/e1/p1", "worker-1", None)
    story.test(is_whole=True, is_open=True)
    waiting = EvaluateRequest(kind="test", fit="fit-2", models=("m01",), split="test")
    story.append(RunRequested(run="test-2", request=waiting, author="ada"))
    return story


def test_concurrent_runs_are_all_shown(bench: Bench, browser: Browser) -> None:
    """The header names the fit, then the other runs with a stop button each. Waiting runs name their reason."""
    bench.store.add(beside_a_fit())
    source = browser.get("/experiments/digits").text
    page = text_of(source)
    assert "of fit-2: 0/" in page
    assert "test-1 running, 0/1 test-2 queued, 0/0" in page
    assert all(f'value="{run}"' in source for run in ("fit-2", "test-1", "test-2"))
    assert "Stop Stop test-1 Stop test-2" in page
    assert "trains m00, epoch 1, partition 1 worker-1" in page
    assert "tests m00 worker-0" in page
    assert "fit-2 is running, and its model m01 is not finished" in page
    for tab in ("models", "curves"):  # a test that waits has no values yet
        assert browser.get(f"/experiments/digits/{tab}?fit=fit-2").status.startswith("200")


def test_a_failed_run_shows_its_failures_first(bench: Bench, browser: Browser) -> None:
    """Grouped by cause, before everything else; the first group is open."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    for model in ("m00", "m01"):
        story.fail(
            f"fit-1/train/{model}/e1/p0", "worker-0", "ValueError: shapes differ", "Traceback\n  line 3"
        )
    story.finish(error="all models failed")
    bench.store.add(story)
    page = browser.get("/experiments/digits").text
    assert "Failures failed 2\u00d7 ValueError: shapes differ" in text_of(page)
    assert re.search(r'<details class="card failure" id="failure-1"[^>]* open>', page)
    assert page.index("Failures</h2>") < page.index("Models</dt>")
    # Tasks of given-up models are not due, but the run has completed none.
    assert "fit-1 failed after 0/12 tasks" in text_of(page)
    assert "100 %" not in page
    assert "100 %" not in browser.get("/experiments").text


def fitted_story() -> Story:
    """A finished fit of one model, ready for a test."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=1)
    story.train("m00", 1)
    story.finish()
    return story


def test_scores_of_a_test_are_for_the_whole_split(bench: Bench, browser: Browser) -> None:
    """As user code returned them."""
    story = fitted_story()
    story.test(is_whole=True)
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits").text)
    assert "test-1 m00 1 2 /2 auc 0.8125" in page
    assert "means over" not in page


def test_scores_of_a_test_in_parts_are_marked_as_means_weighted_by_rows(
    bench: Bench, browser: Browser
) -> None:
    """300 rows at 1.0 and 100 rows at 0.9 give 0.975. Runs of older versions are like this."""
    story = fitted_story()
    story.test()
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits").text)
    assert "test-1 m00 1 2 /2 accuracy 0.975 means over 2 parts of the split, weighted by rows" in page


def test_a_test_of_many_models_lists_the_best_and_links_to_all(bench: Bench, browser: Browser) -> None:
    """The page stays small, however many models are tested."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=50, epochs=1)
    for number in range(50):
        story.train(f"m{number:02}", 1)
    story.finish()
    request = EvaluateRequest(kind="test", fit="fit-1", split="test")
    story.append(RunRequested(run="test-1", request=request))
    models = {f"m{number:02}": 1 for number in range(50)}
    plan = EvaluatePlan(
        kind="test", dataset="d1", fit="fit-1", models=models, partitions={0: 400}, is_whole=True
    )
    story.append(RunStarted(run="test-1", plan=plan))
    for index, model in enumerate(models):
        result = TaskResult(rows=400, metrics={"accuracy": index / 100})
        story.run_task(f"test-1/test/{model}", "worker-0", result)
    bench.store.add(story)
    answer = browser.get("/experiments/digits").text
    shown = re.findall(r'data-key="test-1-(m\d+)"', answer)
    assert shown == [f"m{number}" for number in range(49, 29, -1)]
    assert "the best 20 of 50" in text_of(answer)
    assert 'href="/experiments/digits/models?sort=-test"' in answer
    best = browser.get("/api/views/experiments/digits/models?sort=-test&size=1").json
    assert best is not None
    assert best["rows"][0]["id"] == "m49"


def test_silent_and_lost_workers_have_a_notice(bench: Bench, browser: Browser) -> None:
    """Each worker has one notice, from its last report or from the log."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit()
    story.lose("worker-1")
    bench.store.add(story)
    bench.store.statuses = [status("worker-0", silent_s=40.0)]
    page = text_of(browser.get("/experiments/digits").text)
    assert (
        "worker-0 is lost: tasks on partitions that only it holds wait until it returns. It last reported 40 s ago ."
        in page
    )
    assert "worker-1 is lost (silent for 15 s)" in page
    assert page.count("No worker answers, so fit-1 waits") == 1
    cluster = text_of(browser.get("/cluster").text)
    assert "worker-0 lost" in cluster  # the same state


def test_a_worker_busy_with_another_experiment_is_shown(bench: Bench, browser: Browser) -> None:
    """The row names the other experiment."""
    bench.store.add(Story("digits"))
    bench.store.statuses = [
        status("worker-0", running="whales/fit-1/train/m01/e2/p0"),
        status("w1", running="?"),
        status("w2", running="whales/fit-1/train/m02/e1/p0, orcas/etl-1/etl/train/p3"),
    ]
    page = text_of(browser.get("/experiments/digits").text)
    assert "trains m01, epoch 2, partition 0 for experiment whales" in page
    assert "trains m02, epoch 1, partition 0 for experiment whales preprocesses" in page
    assert "for experiment orcas" in page


def test_a_fit_with_failed_or_stopped_models_is_not_finished(bench: Bench, browser: Browser) -> None:
    """The run ended, and page and list count the failed and stopped models."""
    story = Story("partly")
    story.workers_join()
    story.etl()
    story.fit(models=8, epochs=1)
    story.train("m00", 1)
    for number in range(1, 7):
        story.fail(f"fit-1/train/m0{number}/e1/p0", "worker-0", "ValueError: shapes differ")
    story.append(ModelStopRequested(run="fit-1", model="m07", by="ann"))
    story.finish()
    story.test(is_whole=True)
    bench.store.add(story)
    head = browser.get("/experiments/partly").text.partition('class="tabline"')[0]
    assert 'data-icon="finished"' in head  # the tab's icon shows that no run is active
    assert '<span class="state state-ended">' in head
    assert "state-finished" not in head
    assert "6 of 8 models failed, 1 stopped" in text_of(head)
    row = browser.get("/experiments").text.partition("<tbody>")[2]
    assert "state-finished" not in row
    assert "1 /8 1 stopped 6 failed" in text_of(row)


def test_the_best_model_of_all_fits_is_shown(bench: Bench, browser: Browser) -> None:
    """A newer fit with a worse best model hides nothing; header, overview and list agree."""
    story = Story("twice")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=2)
    for epoch in (1, 2):
        story.train("m00", epoch)
    story.finish()
    story.fit(models=1, epochs=1, run="fit-2")
    story.train("m00", 1, run="fit-2")
    story.finish("fit-2")
    bench.store.add(story)
    for address in ("/experiments/twice", "/experiments/twice?fit=fit-1"):
        page = text_of(browser.get(address).text)
        assert "Best model: m00 of fit-1 accuracy 0.9405 at epoch 2" in page
        assert 'result("fit-1").best.modules()' in page
        assert "best of fit-1 m00 accuracy" in page
    source = browser.get("/experiments/twice").text
    assert 'href="/experiments/twice/models/m00?fit=fit-1"' in source.partition('class="tabline"')[0]
    assert "0.9405" in text_of(browser.get("/experiments").text)


def test_restarted_sub_epochs_are_counted_with_a_link(bench: Bench, browser: Browser) -> None:
    """Without a restart, the section says only that there is no alert."""
    for name, restarts in (("digits", 1), ("letters", 0)):
        story = Story(name)
        story.workers_join()
        story.etl()
        story.fit(models=1, epochs=1)
        for _ in range(restarts):
            story.run_task("fit-1/train/m00/e1/p0", "worker-0", None)
            gone = TaskRevoked(task="fit-1/train/m00/e1/p0", attempt=1, worker="worker-0", reason="lost")
            story.append(gone)
        story.train("m00", 1)
        story.finish()
        bench.store.add(story)
    words = "1 sub-epoch restarted after attempts that did not commit: schedule"
    assert words in text_of(browser.get("/experiments/digits").text)
    assert "restarted" not in text_of(browser.get("/experiments/letters").text)
