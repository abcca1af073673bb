"""The list and the experiment's page show what the log says."""

from __future__ import annotations

import html
import re

import pytest

from cerebro.contract.events import SchedulePlanned
from cerebro.state import epoch_report
from dispatcher import timetable
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.stories import NOW, Story, running_story, status


def text_of(page: str) -> str:
    """What a reader sees, with single blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.statuses = [status("worker-0"), status("worker-1")]
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def test_list_without_experiments_says_how_to_begin(browser: Browser) -> None:
    """Nothing yet is not nothing found."""
    assert "No experiment yet" in browser.get("/experiments").text


def test_row_of_a_running_experiment(bench: Bench, browser: Browser) -> None:
    """State, run, tasks, models, best metric with its direction, author."""
    bench.store.add(running_story())
    row = text_of(browser.get("/experiments").text)
    assert "digits running fit-1 16 /48" in row
    assert "0 /8 1 failed" in row
    assert "0.9405 accuracy \u2191" in row
    assert "ada" in row


def test_filter_and_its_empty_answer(bench: Bench, browser: Browser) -> None:
    """By name or author; nothing found offers to clear the filter."""
    bench.store.add(Story("digits"))
    bench.store.add(Story("whales", author="Grace"))
    assert "digits" not in text_of(browser.get("/experiments?q=grace").text)
    empty = browser.get("/experiments?q=%3Cscript%3E").text
    assert "Nothing matches" in empty
    assert "<script>" not in empty.replace('<script src="', "")
    assert "Clear the filter" in empty


def test_long_list_is_paged_and_the_cut_is_announced(bench: Bench, browser: Browser) -> None:
    """The server pages; a page past the end is the last one."""
    for index in range(120):
        bench.store.add(Story(f"x-{index:03}"))
    assert "50 of 120. Page 1 of 3." in text_of(browser.get("/experiments").text)
    for page in ("3", "99"):
        assert "20 of 120. Page 3 of 3." in text_of(browser.get(f"/experiments?page={page}").text)
    for nonsense in ("-1", "x", "0", "1" * 50, "\u0663"):
        assert "Page 1 of 3" in text_of(browser.get(f"/experiments?page={nonsense}").text)


def test_logs_of_ended_experiments_are_read_once(bench: Bench, browser: Browser) -> None:
    """Showing the list again costs no event of what has not changed."""
    story = Story("done")
    story.workers_join()
    story.etl()
    bench.store.add(story)
    browser.get("/experiments")
    bench.store.calls.clear()
    browser.get("/experiments")
    assert bench.store.calls == ["experiments"]


def test_experiment_page(bench: Bench, browser: Browser) -> None:
    """Runs, models with state, epoch and metric, workers and what they do."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits").text)
    assert "Best: m00 with accuracy 0.9405 (higher is better, training)" in page
    assert "fit-1 running 16 /48" in page
    assert "etl-1 finished 2 /2" in page
    assert "8 models: 5 queued, 2 running, 1 failed." in page
    assert "m00 best queued 3 /3 4 /6 0.9405 0.9405 2 0.1 1" in page
    assert "m04 running 1 /3 0 /6" in page
    assert "m07 failed: user error. ValueError: shapes differ" in page
    assert "worker-0 running trains m05, epoch 1, partition 0" in page
    assert "train 2 /2 1,796 1,796 0" in page
    assert "batch_size" not in page.partition("Models of")[2].partition("Preprocessing")[0]


def test_schedule_of_a_running_fit(bench: Bench, browser: Browser) -> None:
    """Makespan so far, bound, gap and idle time, the plan, a row per epoch, and a bar per unit up to now."""
    story = running_story()
    plan: dict[str, object] = {"makespan_s": 12.1, "dispatch_s": 13.4, "lower_bound_s": 12.0, "seconds": 0.5}
    plan["order"] = [("worker-0", "m00", 2, 0, 1.0)]
    story.tell(SchedulePlanned.model_validate({"run": "fit-1", "source": "planner/cyclic", **plan}))
    story.tell(epoch_report(story.state, story.state.runs["fit-1"], 1))
    bench.store.add(story)
    bench.clock.now = story.time + 10.0
    fragment = browser.get("/fragments/experiments/digits").text
    page = text_of(fragment)
    assert "Schedule of fit-1 35.4 s so far, at best 22.2 s (gap 59.5 % )" in page
    assert "workers were idle for 36.2 % of their time." in page
    assert "The run follows a plan of planner/cyclic: 12.1 s instead of 13.4 s." in page
    assert "2 so far 35.4 s 22.2 s 59.5 % 6.8 s" in page
    assert "1 17.4 s 8.0 s 117.5 % 18.8 s" in page
    assert "m05, partition 0, epoch 1, since 23.4 s" in page
    assert len(re.findall(r"<title>m\d\d, partition", fragment)) == 10 + 2


def test_fit_without_a_started_unit_has_no_schedule_yet(bench: Bench, browser: Browser) -> None:
    """No empty chart."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit()
    bench.store.add(story)
    assert "Schedule of" not in browser.get("/experiments/digits").text


def test_chart_of_a_long_run_is_bounded(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the newest units and says so."""
    monkeypatch.setattr(timetable, "BARS", 4)
    bench.store.add(running_story())
    page = browser.get("/experiments/digits").text
    assert "Units of digits/fit-1: the newest 4 of 12" in page
    assert len(re.findall(r"<title>m\d\d, partition", page)) == 4


def test_schedule_stands_still_while_the_store_is_away(bench: Bench, browser: Browser) -> None:
    """What runs on is not known then: the chart ends where the outage began."""
    bench.store.add(running_story())
    before = browser.get("/fragments/experiments/digits").text
    bench.store.is_away = True
    browser.get("/fragments/experiments/digits")
    bench.clock.now += 100.0
    after = browser.get("/fragments/experiments/digits").text
    assert re.findall("<p>.* so far, .*", before) == re.findall("<p>.* so far, .*", after) != []


def test_scores_of_a_test_are_weighted_by_rows(bench: Bench, browser: Browser) -> None:
    """300 rows at 1.0 and 100 at 0.9 are 0.975."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=1)
    story.train("m00", 1)
    story.finish()
    story.test()
    bench.store.add(story)
    assert "test-1 m00 1 2 /2 accuracy 0.975" in text_of(browser.get("/experiments/digits").text)


def test_paused_run_says_why(bench: Bench, browser: Browser) -> None:
    """At the top, and in the list."""
    story = running_story()
    story.pause("the checkpoint volume is full")
    bench.store.add(story)
    assert "fit-1 is paused: the checkpoint volume is full." in text_of(
        browser.get("/experiments/digits").text
    )
    assert "the checkpoint volume is full" in browser.get("/experiments").text


def test_silent_and_lost_workers_stand_out(bench: Bench, browser: Browser) -> None:
    """The log's word for a worker is not repeated when the worker itself says nothing."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit()
    story.lose("worker-1")
    bench.store.add(story)
    bench.store.statuses = [status("worker-0", silent_s=40.0)]
    page = text_of(browser.get("/experiments/digits").text)
    assert "worker-0 has been silent for 40 s." in page
    assert "worker-1 is lost (silent for 15 s)" in page
    assert "No worker answers, so fit-1 waits" in page


def test_worker_busy_elsewhere(bench: Bench, browser: Browser) -> None:
    """It says for which experiment."""
    bench.store.add(Story("digits"))
    bench.store.statuses = [
        status("worker-0", running="whales/fit-1/train/m01/e2/p0"),
        status("w1", running="?"),
    ]
    page = text_of(browser.get("/experiments/digits").text)
    assert "trains m01, epoch 2, partition 0 for experiment whales" in page


def test_failed_run_shows_its_error_escaped(bench: Bench, browser: Browser) -> None:
    """Tracebacks come from user code."""
    story = Story("digits", author="<b>ada</b>")
    story.workers_join()
    story.etl()
    story.fit()
    story.finish(error="<img src=x onerror=alert(1)>")
    bench.store.add(story)
    for path in ("/experiments", "/experiments/digits"):
        page = browser.get(path).text
        assert "<img src=x" not in page
        assert "&lt;img src=x" in page
        assert "<b>ada" not in page


def test_traceback_is_escaped(bench: Bench, browser: Browser) -> None:
    """Also inside its folded part."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit()
    story.fail("fit-1/train/m00/e1/p0", "worker-0", "<script>1</script>", "</pre><script>2</script>")
    bench.store.add(story)
    assert "<script>" not in browser.get("/fragments/experiments/digits").text


def test_older_fit_can_be_chosen(bench: Bench, browser: Browser) -> None:
    """The newest is shown by default; an unknown one falls back to it."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.finish()
    story.fit(models=3, run="fit-2")
    bench.store.add(story)
    assert "Models of fit-2" in browser.get("/experiments/digits").text
    assert "Models of fit-1" in browser.get("/experiments/digits?fit=fit-1").text
    assert "Models of fit-2" in browser.get("/experiments/digits?fit=nonsense").text


def test_many_models_are_paged(bench: Bench, browser: Browser) -> None:
    """100 at a time, and the cut is announced."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=250)
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits?page=3").text)
    assert "Shown: 50 of 250, page 3 of 3." in page


def test_fragment_says_whether_to_come_back(bench: Bench, browser: Browser) -> None:
    """Every 2 s while something runs; not at all once it ended."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    bench.store.add(story)
    bench.store.add(running_story("busy"))
    assert 'data-every="0"' in browser.get("/fragments/experiments/digits").text
    busy = browser.get("/fragments/experiments/busy").text
    assert 'data-every="2"' in busy
    assert 'data-title="33 % running' in busy
    assert "<html" not in busy


def test_times_are_exact_on_hover(bench: Bench, browser: Browser) -> None:
    """Relative in the table, ISO 8601 in UTC in the title."""
    bench.store.add(Story("digits", began=NOW - 7200))
    assert re.search(
        r'<time datetime="([\dT:-]+Z)" title="\1">2 h ago</time>', browser.get("/experiments/digits").text
    )


def test_links_are_shown_only_when_configured(bench: Bench, browser: Browser) -> None:
    """TensorBoard is linked; for the notebook, which is not, the page says what opens one."""
    page = browser.get("/experiments").text
    assert 'href="http://127.0.0.1:6006"' in page
    assert "Notebook: <code>make notebook</code>" in page


def test_unknown_experiment(browser: Browser) -> None:
    """Says so, with a way on."""
    answer = browser.get("/experiments/nowhere")
    assert answer.status_code == 404
    assert "no experiment" in text_of(answer.text)


def test_experiment_without_archive(bench: Bench, browser: Browser) -> None:
    """The code page says where its code comes from."""
    bench.store.add(Story("digits"))
    assert "specs come from the notebook" in browser.get("/experiments/digits/code").text


def test_log_that_cannot_be_read_spoils_only_its_own_row(bench: Bench, browser: Browser) -> None:
    """The list stays; the experiment's page says what to do."""
    good, bad = Story("good"), Story("bad")
    bad.workers_join(1)
    bad.events.append(bad.events[0])
    bench.store.add(good)
    bench.store.add(bad)
    listing = browser.get("/experiments")
    assert listing.status_code == 200
    assert "unreadable" in listing.text
    assert "good" in listing.text
    page = browser.get("/experiments/bad")
    assert page.status_code == 500
    assert "same version of Cerebro" in page.text


def test_fault_of_the_page_is_named_by_a_number(
    bench: Bench, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    """The cause goes to the log under it; the page does not show its inside."""
    bench.store.problem = RuntimeError("secret inside")
    answer = browser.get("/experiments")
    assert answer.status_code == 500
    assert "secret inside" not in answer.text
    assert answer.headers["X-Request-Id"] in answer.text
    assert "secret inside" in caplog.text
    assert answer.headers["X-Request-Id"] in caplog.text
