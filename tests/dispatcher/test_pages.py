"""The list and the experiment's page show what the log says."""

from __future__ import annotations

import html
import re
import threading

import pytest
from werkzeug.test import TestResponse

from cerebro.contract.events import (
    ClientEvent,
    ModelStopRequested,
    RunFinished,
    RunStopRequested,
    SchedulePlanned,
)
from cerebro.contract.records import ExperimentSummary
from cerebro.state import epoch_report
from dispatcher import formats
from dispatcher.followed import Followed
from dispatcher.pages import report
from dispatcher.views import models as models_view
from dispatcher.views.experiments import row_of
from tests.dispatcher.fakes import TOKEN, Bench, Browser
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
    assert "digits running 23 % fit-1" in row
    assert "0 /8 1 failed" in row
    assert "accuracy \u2191 , higher is better 0.9405" in row
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
    first = text_of(browser.get("/experiments").text)
    assert "50 of 120." in first
    assert "Page 1 of 3" in first
    for page in ("3", "99"):
        last = text_of(browser.get(f"/experiments?page={page}").text)
        assert "20 of 120." in last
        assert "Page 3 of 3" in last
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
    assert "events" not in bench.store.calls


def test_overview_gives_the_answer_first(bench: Bench, browser: Browser) -> None:
    """Best model, its hyper-parameters, the code that loads it; then what runs and what failed."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits").text)
    assert "Best model so far: m00 accuracy 0.9405 at epoch 2 (higher is better, training)" in page
    assert "learning_rate 0.1 layers 1 batch_size 32" in page
    assert 'Experiment.attach("digits").result("fit-1").best.load()' in page
    assert "23 % of fit-1: 10/42 tasks" in page
    assert "5 queued, 2 running, 1 failed" in page
    assert "trains m05, epoch 1, partition 0 worker-0" in page
    assert "failed 1\u00d7 ValueError: shapes differ user error" in page
    assert "etl-1 finished 2 /2" in page
    assert "train 1,796 1,796 0" in page


def test_failed_run_opens_on_its_failures(bench: Bench, browser: Browser) -> None:
    """Grouped by cause, the first one open, before everything else."""
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
    assert "Why it failed failed 2\u00d7 ValueError: shapes differ" in text_of(page)
    assert re.search(r'<details class="card failure" id="failure-1"[^>]* open>', page)
    assert page.index("Why it failed") < page.index("Models</dt>")
    # Nothing is due of models that were given up; but nothing of the run is done either.
    assert "failed of fit-1: 0/12 tasks" in text_of(page)
    assert "100 %" not in page
    assert "100 %" not in browser.get("/experiments").text


def test_table_of_models(bench: Bench, browser: Browser) -> None:
    """State, epoch, units, latest and best, what varies and nothing else, attempts in vain, worker, cause."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models").text)
    assert "queued 5 running 2 failed 1" in page
    assert "m00 best queued 0.9405 0.9405 3 4 /6 2 0.1 1" in page
    assert "m04 running \u2013 \u2013 1 0 /6" in page
    assert "user error: ValueError: shapes differ" in page
    assert "8 of 8 models." in page
    assert "batch_size 32" not in page


def test_models_are_sorted_and_filtered_by_the_server(bench: Bench, browser: Browser) -> None:
    """Rows and totals are of one set; the order is announced; the address says it all."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models?sort=-hp.learning_rate&filter=layers+%3D+2").text
    assert re.findall(r'data-model="(m\d+)"', page) == ["m01", "m03", "m05", "m07"]
    assert "4 of 4 models that match, 8 in all." in text_of(page)
    assert re.search(
        r'<th scope="col" class="num" aria-sort="descending"><a data-soft href="[^"]*">learning_rate', page
    )


def test_filter_with_a_mistake_shows_the_place(bench: Bench, browser: Browser) -> None:
    """Beside the field, with what was typed; all models stay."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models?filter=layers+%3D%3D").text
    assert re.search(r'role="alert" data-key="mistake">filter, character \d+', page)
    assert 'value="layers =="' in page
    assert "8 of 8 models." in text_of(page)


def test_filter_that_leaves_nothing_offers_to_clear_it(bench: Bench, browser: Browser) -> None:
    """Nothing matches is not nothing yet."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models?filter=layers+%3D+9").text)
    assert "No model matches 8 models are in fit-1" in page
    assert "Clear the filter" in page


def test_chosen_models_are_compared(bench: Bench, browser: Browser) -> None:
    """Only where they differ, unless all is asked for; unknown ones are left out; actions only where possible."""
    bench.store.add(running_story())
    page = text_of(browser.get("/experiments/digits/models?pick=m00,m07,nobody").text)
    compared = page.partition("Comparison")[2]
    assert "2 chosen m00, m07" in page
    assert "Stop 1" in page
    assert "Retry 1" in page
    assert "learning_rate 0.1 0.00078125" in compared
    assert "batch_size" not in compared
    whole = text_of(browser.get("/experiments/digits/models?pick=m00&pick=m07&all=1").text)
    assert "batch_size 32 32" in whole.partition("Comparison")[2]


def test_page_of_a_model(bench: Bench, browser: Browser) -> None:
    """Its numbers, epochs, units; what may be done with it; the way to its neighbours."""
    bench.store.add(running_story())
    page = browser.get("/experiments/digits/models/m01").text
    shown = text_of(page)
    assert "Best 0.9175 at epoch 1" in shown
    assert "trains m01, epoch 1, partition 1 committed worker-1 898" in shown
    assert "Stop model" in shown
    assert 'data-step="previous" data-soft aria-label="Model before: m00"' in page
    assert 'data-step="next" data-soft aria-label="Next model: m02"' in page
    failed = text_of(browser.get("/experiments/digits/models/m07").text)
    assert "Retry model" in failed
    assert "Stop model" not in failed
    assert browser.get("/experiments/digits/models/nobody").status_code == 404


def test_schedule_of_a_running_fit(bench: Bench, browser: Browser) -> None:
    """Makespan so far, bound, gap and idle time, the plan, a row per epoch, and each unit."""
    story = running_story()
    plan: dict[str, object] = {"makespan_s": 12.1, "dispatch_s": 13.4, "lower_bound_s": 12.0, "seconds": 0.5}
    plan["order"] = [("worker-0", "m00", 2, 0, 1.0)]
    story.tell(SchedulePlanned.model_validate({"run": "fit-1", "source": "planner/cyclic", **plan}))
    story.tell(epoch_report(story.state, story.state.runs["fit-1"], 1))
    bench.store.add(story)
    bench.clock.now = story.time + 10.0
    page = text_of(browser.get("/fragments/experiments/digits/schedule").text)
    assert "Makespan so far 35.4 s from the first unit to the last; epoch 1 of 3 Lower bound 22.2 s" in page
    assert "Gap to the bound 59.5 % so much longer than the bound Idle 36.2 %" in page
    assert "the run follows a plan of planner/cyclic: 12.1 s instead of 13.4 s" in page
    assert "2 so far 35.4 s 22.2 s 59.5 % 6.8 s" in page
    assert "1 17.4 s 8.0 s 117.5 % 18.8 s" in page
    assert "trains m07, epoch 1, partition 0 failed worker-0" in page
    assert "Change" in page


def test_schedule_stands_still_while_the_store_is_away(bench: Bench, browser: Browser) -> None:
    """What runs on is not known then: time ends where the outage began."""
    bench.store.add(running_story())
    page = "/fragments/experiments/digits/schedule"
    browser.get(page)
    bench.store.is_away = True
    bench.monotonic.now += 10.0
    before = browser.get(page).text
    bench.clock.now += 100.0
    bench.monotonic.now += 10.0
    after = browser.get(page).text
    found = re.findall(r'Makespan so far</dt><dd class="large">([^<]*)', before)
    assert found == re.findall(r'Makespan so far</dt><dd class="large">([^<]*)', after) != []


def test_tabs_before_there_is_anything(bench: Bench, browser: Browser) -> None:
    """Each says why it is empty and gives the next step as a command that can be copied."""
    bench.store.add(Story("digits"))
    for tab, said in (
        ("", "No run yet"),
        ("/models", "No fit run yet"),
        ("/curves", "No fit run yet"),
        ("/analysis", "No fit run yet"),
        ("/schedule", "No fit run yet"),
        ("/data", "Nothing is preprocessed yet"),
    ):
        page = browser.get(f"/experiments/digits{tab}").text
        assert said in page
        assert 'data-copy="' in page


def test_data_is_an_equation(bench: Bench, browser: Browser) -> None:
    """Rows in = rows out + rows failed, in all and for each split and partition."""
    story = Story("digits")
    story.workers_join()
    story.etl(failed=3)
    bench.store.add(story)
    page = browser.get("/experiments/digits/data").text
    assert "Done: 1,796 rows in = 1,790 out + 6 failed." in text_of(page)
    assert "train 2 /2 1,796 1,790 6" in text_of(page)
    assert "failed-rows?split=train&amp;partition=0" in page


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
    page = text_of(browser.get("/experiments/digits").text)
    assert "digits paused the checkpoint volume is full" in page
    assert page.count("the checkpoint volume is full") == 2  # beside the name, and in the table of runs
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
    assert "worker-0 is lost: what only it holds waits for its return. It last reported 40 s ago ." in page
    assert "worker-1 is lost (silent for 15 s)" in page
    assert page.count("No worker answers, so fit-1 waits") == 1
    cluster = text_of(browser.get("/cluster").text)
    assert "worker-0 lost" in cluster  # the same word


def test_what_goes_on_without_news_is_an_instant(bench: Bench, browser: Browser) -> None:
    """A page that is not sent again, since nothing happened, must not look younger than it is."""
    story = running_story()
    bench.store.add(story)
    bench.store.statuses = [status("worker-0"), status("worker-1", silent_s=40.0)]
    bench.clock.now = story.time
    page = browser.get("/experiments/digits").text
    reported = formats.iso(story.time - 40.0)
    assert f'It last reported <time datetime="{reported}" data-show="ago"' in page
    assert len(re.findall(r'<time datetime="[\dT:-]+Z" data-show="left">', page)) == 2


def test_page_of_an_open_run_is_made_anew_though_nothing_happens(bench: Bench, browser: Browser) -> None:
    """Throughput falls and the end moves away while no unit ends."""
    bench.store.add(running_story())
    path, host = "/fragments/experiments/digits", {"base_url": "http://127.0.0.1:7080"}
    first = browser.get(path)
    bench.clock.now += 60
    bench.monotonic.now += 60
    later = browser.client.get(path, headers={"If-None-Match": first.headers["ETag"]}, **host)
    assert later.status_code == 200
    rate = re.compile(r"Throughput</dt><dd class=\"large\">([\d.,]+) rows/s")
    old, new = (float(rate.findall(page.text)[0].replace(",", "")) for page in (first, later))
    assert new < old


def test_workers_stand_in_the_order_of_their_numbers(bench: Bench, browser: Browser) -> None:
    """Here as on the cluster page."""
    bench.store.add(running_story())
    bench.store.statuses = [status(f"worker-{number}") for number in (10, 2, 1, 0)]
    for path in ("/experiments/digits", "/cluster"):
        rows = re.findall(r'<tr [^>]*data-key="(worker-\d+)"', browser.get(path).text)
        assert rows == ["worker-0", "worker-1", "worker-2", "worker-10"], path


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
    for tab in ("", "/models", "/models/m00", "/schedule"):
        assert "<script>" not in browser.get(f"/fragments/experiments/digits{tab}").text


def test_older_fit_can_be_chosen(bench: Bench, browser: Browser) -> None:
    """The newest is shown by default; an unknown one falls back to it."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.finish()
    story.fit(models=3, run="fit-2")
    bench.store.add(story)
    for asked, shown, models in (("", "fit-2", 3), ("?fit=fit-1", "fit-1", 2), ("?fit=nonsense", "fit-2", 3)):
        page = browser.get(f"/experiments/digits/models{asked}").text
        assert f"<option selected>{shown}</option>" in page
        assert f"{models} of {models} models." in text_of(page)


def test_many_models_are_paged(bench: Bench, browser: Browser) -> None:
    """50 at a time, and the cut is announced."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=120)
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits/models?page=3").text)
    assert "20 of 120 models." in page
    assert "Page 3 of 3" in page


def test_fragment_says_whether_to_come_back(bench: Bench, browser: Browser) -> None:
    """Soon while something runs, later when nothing does; with the title and icon of the tab, and no form's token."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    bench.store.add(story)
    bench.store.add(running_story("busy"))
    rests = browser.get("/fragments/experiments/digits").text
    busy = browser.get("/fragments/experiments/busy").text
    assert 'data-every="10.0"' in rests
    assert 'data-icon="finished"' in rests
    assert 'data-every="1.5"' in busy
    assert 'data-title="23 % running' in busy
    assert "<html" not in busy
    assert re.findall(r'name="csrf" value="([^"]*)"', busy) == [""] * busy.count('name="csrf"')


def test_fragment_that_has_not_changed_is_not_sent_again(bench: Bench, browser: Browser) -> None:
    """304 until the log grows."""
    story = running_story()
    bench.store.add(story)
    path = "/fragments/experiments/digits/models"
    tag = browser.get(path).headers["ETag"]

    def again() -> int:
        bench.monotonic.now += 1.0
        host = {"base_url": "http://127.0.0.1:7080"}
        return browser.client.get(path, headers={"If-None-Match": tag}, **host).status_code

    assert again() == 304
    story.pause("the checkpoint volume is full")
    assert again() == 200


def test_several_experiments_are_archived_at_once(bench: Bench, browser: Browser) -> None:
    """Those whose state allows it; for the others the page says why not."""
    bench.store.add(Story("one"))
    bench.store.add(Story("two"))
    sent = browser.post(
        "/experiments/actions", {"action": "archive", "name": ["one", "two"]}, form="/experiments"
    )
    assert sent.status_code == 303
    assert [type(event).__name__ for event in bench.store.logs["one"]] == ["ExperimentArchived"]
    bench.monotonic.now += 1.0
    again = browser.post(
        "/experiments/actions", {"action": "unarchive", "name": ["one", "nobody"]}, form="/experiments"
    )
    assert again.status_code == 409
    assert "1 of 2 done: one. nobody: " in text_of(again.text)
    assert "Nothing was done" not in again.text
    assert len(bench.store.logs["one"]) == 2


def test_batch_that_the_store_interrupts_says_what_was_done(bench: Bench, browser: Browser) -> None:
    """And of which experiment it is not known, and which were not tried."""
    names = ["one", "two", "three"]
    for name in names:
        bench.store.add(Story(name))
    append = bench.store.append

    def then_away(experiment: str, event: ClientEvent) -> int:
        bench.store.is_away = experiment == "two"
        return append(experiment, event)

    bench.store.append = then_away  # type: ignore[method-assign]
    sent = browser.post("/experiments/actions", {"action": "archive", "name": names}, form="/experiments")
    told = text_of(sent.text)
    assert sent.status_code == 409
    assert "1 of 3 done: one. two: it is not known whether it was done: " in told
    assert "Not tried: three." in told


def test_batch_ends_in_time(bench: Bench, browser: Browser) -> None:
    """However many experiments it names, and however slow the store is."""
    names = [f"x-{number}" for number in range(10)]
    for name in names:
        bench.store.add(Story(name))
    append = bench.store.append

    def slow(experiment: str, event: ClientEvent) -> int:
        bench.monotonic.now += 4.0
        return append(experiment, event)

    bench.store.append = slow  # type: ignore[method-assign]
    sent = browser.post("/experiments/actions", {"action": "archive", "name": names}, form="/experiments")
    assert "4 of 10 done: x-0, x-1, x-2, x-3. Not tried: x-4, x-5," in text_of(sent.text)


def test_batch_of_nothing_says_what_to_do(bench: Bench, browser: Browser) -> None:
    """A form without scripts can be sent without a ticked box."""
    bench.store.add(Story("one"))
    sent = browser.post("/experiments/actions", {"action": "archive"}, form="/experiments")
    assert sent.status_code == 409
    assert "tick one or more" in text_of(sent.text)


def test_stopped_run_and_model_say_who_stopped_them(bench: Bench, browser: Browser) -> None:
    """Stopped is not failed."""
    story = running_story()
    story.tell(ModelStopRequested(run="fit-1", model="m01", by="grace"))
    story.tell(RunStopRequested(run="fit-1", by="ada"))
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits/models/m01").text)
    assert "digits stopping by ada," in page
    assert "grace stopped model m01" in page


def test_report_is_one_file_to_keep(bench: Bench, browser: Browser) -> None:
    """Named after experiment and run; without a fit run there is none, and the page says so."""
    bench.store.add(running_story())
    bench.store.add(Story("bare"))
    sent = browser.get("/experiments/digits/report")
    assert sent.headers["Content-Disposition"] == "attachment; filename=digits-fit-1.html"
    assert "<h1>digits, fit-1</h1>" in sent.text
    assert browser.get("/experiments/bare/report").status_code == 404


def test_long_files_are_written_while_others_look(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever downloads a report or a table holds nobody up; one report is written at a time."""
    bench.store.add(running_story())
    seen: list[int] = []

    def look(*_: object, **__: object) -> str:
        at = threading.Thread(target=lambda: seen.append(browser_of_another().status_code))
        at.start()
        at.join(5.0)
        return "written"

    def browser_of_another() -> TestResponse:
        return bench.app.test_client().get(
            "/api/views/experiments/digits", headers={"Authorization": f"Bearer {TOKEN}"}
        )

    monkeypatch.setattr(report, "report_html", look)
    monkeypatch.setattr(models_view, "csv_text", look)
    assert browser.get("/experiments/digits/report").text == "written"
    assert browser.get("/api/views/experiments/digits/models.csv").text == "written"
    assert seen == [200, 200]


def test_one_report_is_written_at_a_time(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is asked for again."""
    bench.store.add(running_story())
    inner: list[int] = []

    def write(*_: object, **__: object) -> str:
        inner.append(bench.signed_in().get("/experiments/digits/report").status_code)
        return "written"

    monkeypatch.setattr(report, "report_html", write)
    assert browser.get("/experiments/digits/report").status_code == 200
    assert inner == [503]


def test_times_are_exact_on_hover(bench: Bench, browser: Browser) -> None:
    """Relative in the table, ISO 8601 in UTC in the title."""
    bench.store.add(Story("digits", began=NOW - 7200))
    assert re.search(
        r'<time datetime="([\dT:-]+Z)" data-show="ago" title="\1">2 h ago</time>',
        browser.get("/experiments/digits").text,
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


def test_a_stopped_fit_stays_in_sight_and_can_be_resumed(bench: Bench, browser: Browser) -> None:
    """Whatever ran after it."""
    story = Story("halted")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.train("m00", 1)
    story.tell(RunFinished(run="fit-1", outcome="stopped"))
    story.test()
    bench.store.add(story)
    page = browser.get("/experiments/halted").text
    assert "fit-1 stopped, 2/12" in text_of(page)
    assert "Resume fit-1" in text_of(page)
    assert "fit-1 was stopped after 2 of 12 tasks" in text_of(browser.get("/experiments").text)


def test_list_tells_how_long_all_runs_took(bench: Bench, browser: Browser) -> None:
    """Not the newest one alone, and without the time between them; nothing of an experiment that never ran."""
    story = Story("worked")
    story.workers_join()
    story.etl()
    story.time += 100_000
    story.fit(models=1)
    story.train("m00", 1)
    story.finish()
    bench.store.add(story)
    bench.store.add(Story("new"))
    bench.clock.now = story.time + 10
    runs = story.state.runs.values()
    rows = {
        row.name: row
        for row in (row_of(_followed(each), _summary(each), 0) for each in (story, Story("new")))
    }
    worked = rows["worked"]
    assert worked.ended is not None
    assert worked.begun is not None
    assert worked.ended - worked.begun == pytest.approx(sum(run.ended - run.started for run in runs))
    assert worked.started == story.state.runs["etl-1"].started
    assert (rows["new"].started, rows["new"].begun) == (None, None)
    new = text_of(browser.get("/experiments").text).split("new new")[1]
    assert new.startswith(" \u2013 \u2013 \u2013 \u2013 \u2013 \u2013 ada")


def test_epochs_whose_checkpoints_are_gone_say_so(bench: Bench, browser: Browser) -> None:
    """A model keeps its newest two states and its best epoch's."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=1, epochs=3)
    for epoch in (1, 2, 3):
        story.train("m00", epoch)
    bench.store.add(story)
    page = text_of(browser.get("/experiments/digits/models/m00").text)
    assert page.count(" removed ") == 2


def _followed(story: Story) -> Followed:
    followed = Followed(story.record)
    followed.apply(story.events)
    return followed


def _summary(story: Story) -> ExperimentSummary:
    return ExperimentSummary(experiment=story.record, last_seq=0, last_event=story.time, open_runs=())
