"""The pages as a browser draws and runs them: watching a run live, sorting, choosing, brushing, steering, by mouse and
by keyboard; and all of it without scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from tests.dispatcher.fakes import TOKEN, Bench, Clock, settings
from tests.dispatcher.serving import serving
from tests.dispatcher.stories import CODE, NOW, Story, running_story, status
from tests.e2e.browser import PHONE, Complaints, overflow, settle, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.slow

WEIGHT_BYTES = 150_000
"""Of a page as sent, without plotly's script."""


PLACE = """([axis, place]) => {
    const plot = document.querySelector("#parallel .plot"), box = plot.getBoundingClientRect();
    const {_size: size, xaxis, yaxis} = plot._fullLayout;
    return [box.left + size.l + xaxis.c2p(axis), box.top + size.t + yaxis.c2p(place)];
}"""
"""Where a place on an axis of the parallel coordinates is on the screen."""


class Ticking(Clock):
    """A clock that goes on by itself: what was read of the store is kept for half a second, and a browser waits."""

    def __call__(self) -> float:
        return time.monotonic()


@pytest.fixture
def bench() -> Bench:
    bench = Bench(settings=settings(link_notebook="http://127.0.0.1:8888"), monotonic=Ticking())
    bench.store.add(running_story())
    bench.store.statuses = [status("worker-0"), status("worker-1")]
    return bench


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    with serving(bench.app) as at:
        yield at


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with window(browser) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must not break its own policy: scripts and styles that the policy blocks end up on the console."""
    complaints = Complaints()
    page = complaints.listen(context.new_page())
    yield page
    complaints.check(allowed=("Failed to load resource", "ERR_INTERNET_DISCONNECTED", "[DOM]"))


def grow(bench: Bench, name: str = "digits") -> Story:
    """The story whose log the store holds, to be told further."""
    story = Story(name, began=NOW - 120)
    story.events = bench.store.logs[name]
    for event in story.events:
        story.state.apply(event)
    story.time = story.events[-1].time
    return story


# --- watching ------------------------------------------------------------------------------------


def test_page_follows_the_run(page: Page, address: str, bench: Bench) -> None:
    """News shows without a reload; what the reader opened stays open; the tab's title and icon tell the state."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.click("summary:has-text('shapes differ')")
    grow(bench).pause("the checkpoint volume is full")
    page.wait_for_selector("text=the checkpoint volume is full")
    assert page.is_visible("text=Traceback")
    assert "paused" in page.title()
    assert "icon-paused" in str(page.get_attribute("#icon", "href"))


def test_nothing_moves_while_the_reader_selects_text(page: Page, address: str, bench: Bench) -> None:
    """The page says that it waits, and goes on after."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.wait_for_selector("#freshness[data-kind=live]")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#live h1'))")
    page.wait_for_selector("text=waits while you read")
    grow(bench).pause("the checkpoint volume is full")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_selector("text=the checkpoint volume is full")


def test_reader_can_pause_the_page(page: Page, address: str, bench: Bench) -> None:
    """And let it go on."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.click("#freshness[data-kind=live]")
    page.wait_for_selector("text=paused: press to go on")
    grow(bench).pause("the checkpoint volume is full")
    page.click("#freshness")
    page.wait_for_selector("text=the checkpoint volume is full")


def test_failed_refresh_keeps_the_last_data(page: Page, address: str, context: BrowserContext) -> None:
    """Dimmed, with the time since when there is no answer."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.wait_for_selector("#freshness[data-kind=live]")
    context.set_offline(True)
    page.wait_for_selector("#live.stale")
    assert page.is_visible("text=no answer since")
    assert page.is_visible("table >> text=trains m04")
    context.set_offline(False)
    page.wait_for_selector("#live:not(.stale)")


def test_zoom_outlives_an_update(page: Page, address: str, bench: Bench) -> None:
    """A reader who has zoomed in is not thrown out by the next point."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves")
    settle(page)
    shown = "document.querySelector('#curves .plot')._fullLayout.xaxis.range"
    page.evaluate("Plotly.relayout(document.querySelector('#curves .plot'), {'xaxis.range': [1, 1.5]})")
    grow(bench).pause("the checkpoint volume is full")
    page.wait_for_selector("#live >> text=the checkpoint volume is full")
    assert page.evaluate(shown) == [1, 1.5]


def test_zoomed_part_is_read_again_with_more_of_its_points(page: Page, address: str) -> None:
    """What was left out of the whole has room in a part; a double click reads the whole again."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves?axis=time")
    settle(page)
    plot = "document.querySelector('#curves .plot')"
    with page.expect_request(re.compile(r"figures/curves.*start=0\.00000&stop=40\.0000")):
        page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.range[0]': 10, 'xaxis.range[1]': 30}})")
    with page.expect_request(lambda asked: "figures/curves" in asked.url and "start" not in asked.url):
        page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.autorange': true}})")


# --- finding and choosing ------------------------------------------------------------------------


def test_search_goes_into_the_address_and_back(page: Page, address: str, bench: Bench) -> None:
    """`/` searches; Back undoes it, without loading the page anew."""
    bench.store.add(Story("whales"))
    sign_in(page, address, TOKEN)
    page.evaluate("window.stays = true")
    page.keyboard.press("/")
    page.keyboard.type("whal")
    page.keyboard.press("Enter")
    page.wait_for_selector("#rows tr[data-key=digits]", state="detached")
    assert page.url == f"{address}/experiments?q=whal"
    page.go_back()
    page.wait_for_selector("#rows tr[data-key=digits]")
    assert page.input_value("#q") == ""
    assert page.evaluate("window.stays")


def test_chosen_models_outlive_sorting_filtering_and_updates(page: Page, address: str, bench: Bench) -> None:
    """They are in the address, compared below the table, and still there after all that."""
    sign_in(page, address, TOKEN, "/experiments/digits/models")
    page.check("input[value=m01]")
    page.wait_for_selector("text=1 chosen")
    page.check("input[value=m03]")
    page.wait_for_selector("text=2 chosen")
    page.click("thead >> text=learning_rate")
    page.wait_for_selector("th[aria-sort]")
    page.fill("#filter", "layers = 1")
    page.keyboard.press("Enter")
    page.wait_for_selector("tr[data-model=m03]", state="detached")
    grow(bench).pause("the checkpoint volume is full")
    page.wait_for_selector("#live >> text=the checkpoint volume is full")
    assert "pick=m01,m03" in page.url
    compared = page.inner_text("[aria-label='Comparison of chosen models']")
    assert re.search(r"learning_rate\s+0\.05\s+0\.0125", compared)
    page.click("text=Choose none")
    page.wait_for_selector(".selection", state="detached")


def test_columns_are_chosen(page: Page, address: str) -> None:
    """Those that are ticked, in the address."""
    sign_in(page, address, TOKEN, "/experiments/digits/models")
    page.click("summary:has-text('Columns')")
    page.uncheck("#columns input[value=epoch]")
    page.check("#columns input[value='metric.loss']")
    page.click("#columns button")
    page.wait_for_selector("thead >> text=loss")
    assert page.locator("thead >> text='Epoch'").count() == 0
    assert "metric.loss" in page.url


def test_refused_fragment_is_not_put_into_the_page(page: Page, address: str) -> None:
    """Errors are JSON: the last good data stays, and the page says that it is not fresh."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.route("**/fragments/**", lambda route: route.fulfill(status=400, json={"message": "not understood"}))
    page.wait_for_selector("#freshness[data-kind=failed]")
    assert page.is_visible("h1 >> text=digits")
    assert "not understood" not in page.inner_text("#live")


def test_brush_filters_the_table(page: Page, address: str) -> None:
    """Dragging along an axis chooses a range; it is in the address as a sentence; a click on the axis lets go."""
    sign_in(page, address, TOKEN, "/experiments/digits/analysis")
    settle(page)
    page.locator("#parallel").scroll_into_view_if_needed()
    top, middle = page.evaluate(PLACE, [2, 1.0]), page.evaluate(PLACE, [2, 0.5])
    page.mouse.move(*top)
    page.mouse.down()
    page.mouse.move(*middle, steps=4)
    page.mouse.up()
    page.wait_for_selector("text=1 of 8 models")
    assert re.search(r"brush=best\+in\+0\.9\d+\.\.0\.94", page.url)
    page.mouse.click(*page.evaluate(PLACE, [2, 0.7]))
    page.wait_for_selector("text=8 of 8 models")
    assert "brush" not in page.url


def test_brush_over_words_filters_the_table(page: Page, address: str, bench: Bench) -> None:
    """What the script writes is what the server reads; a brush of another axis stays when the page is loaded anew, and
    an axis whose name ends like the metric's column takes nothing from it."""
    story = Story("words", began=NOW - 120)
    story.workers_join()
    story.etl()
    words = tuple(
        {"xbest": 0.1 * 2**i, "optimizer": "ada, (m)" if i % 2 else 'sg"d', "batch_size": 32}
        for i in range(4)
    )
    request = FitRequest(code=CODE, models=words, epochs=1, metric="accuracy", mode="max")
    story.tell(RunRequested(run="fit-1", request=request))
    models = {f"m{i:02}": given for i, given in enumerate(words)}
    story.tell(
        RunStarted(run="fit-1", plan=FitPlan(dataset="d1", models=models, partitions={0: 898, 1: 898}))
    )
    for model in models:
        story.train(model, 1)
    bench.store.add(story)
    sign_in(page, address, TOKEN, "/experiments/words/analysis")
    settle(page)
    axes = page.evaluate(
        "document.querySelector('#parallel .plot').layout.meta.axes.map((axis) => axis.name)"
    )
    at, metric = axes.index("optimizer"), axes.index("accuracy")
    first = page.evaluate(f"document.querySelector('#parallel .plot').layout.meta.axes[{at}].categories[0]")
    page.locator("#parallel").scroll_into_view_if_needed()
    for axis, low, high in ((at, 0.0, 0.3), (metric, 0.0, 1.0)):
        page.mouse.move(*page.evaluate(PLACE, [axis, low]))
        page.mouse.down()
        page.mouse.move(*page.evaluate(PLACE, [axis, high]), steps=4)
        page.mouse.up()
        page.wait_for_selector("text=2 of 4 models")
    written = parse_qs(urlsplit(page.url).query)["brush"][0]
    assert 'hp.optimizer in ("' in written
    assert first.replace('"', '\\"') in written
    page.reload()
    settle(page)
    page.wait_for_selector("text=2 of 4 models")
    shown = page.evaluate(
        "document.querySelector('#parallel .plot').layout.shapes.filter((box) => box.type === 'rect')"
        ".map((box) => (box.x0 + box.x1) / 2)"
    )
    assert sorted(round(middle) for middle in shown) == sorted([at, metric])


def test_figure_and_table_light_each_other_up(page: Page, address: str) -> None:
    """A row that is pointed at dims the other lines."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves")
    settle(page)
    page.hover("tr[data-model=m00]")
    opacities = (
        "document.querySelector('#curves .plot').data.filter((t) => t.meta?.model).map((t) => t.opacity ?? 1)"
    )
    page.wait_for_function(f"() => Math.min(...{opacities}) < 0.5")
    assert page.evaluate(f"Math.max(...{opacities})") == 1


def test_figure_says_its_data_in_a_table(page: Page, address: str) -> None:
    """For readers who do not see it."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves")
    settle(page)
    page.click("#curves-data summary")
    page.wait_for_selector("#curves-data td >> text=m00")
    assert "m00" in str(page.get_attribute("#curves .plot", "aria-label"))


# --- steering ------------------------------------------------------------------------------------


def test_model_is_stopped_and_resumed(page: Page, address: str, bench: Bench) -> None:
    """The page stays where it is and says what has become of the wish."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m01")
    page.click("text=Stop model")
    page.wait_for_selector(".model-heading >> text=stopped")
    page.click("text=Resume model")
    page.wait_for_selector(".model-heading >> text=queued")
    told = [type(event).__name__ for event in bench.store.logs["digits"][-2:]]
    assert told == ["ModelStopRequested", "ModelResumed"]


def test_refused_wish_says_why(page: Page, address: str) -> None:
    """In words that stay until they are read, while the page stays where it is."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m01")
    page.evaluate("document.querySelector('.model-heading input[name=model]').value = 'nobody'")
    page.click("text=Stop model")
    page.wait_for_selector(".toast >> text=nobody")
    page.click(".toast >> text=Close")
    page.wait_for_selector(".toast", state="detached")
    assert page.url == f"{address}/experiments/digits/models/m01"


def test_several_experiments_at_once(page: Page, address: str, bench: Bench) -> None:
    """Only what all the chosen states allow together is offered; the choice survives a search."""
    bench.store.add(Story("whales"))
    sign_in(page, address, TOKEN)
    assert page.is_hidden("#batch")
    page.check("input[value=whales]")
    assert page.is_hidden("#batch >> text='Stop'")
    page.check("input[value=digits]")
    assert page.is_visible("#batch >> text='Stop'")
    page.uncheck("input[value=digits]")
    page.fill("#q", "digits")
    page.keyboard.press("Enter")
    page.wait_for_selector("#rows tr[data-key=whales]", state="detached")
    page.click("#batch >> text='Archive'")
    page.wait_for_selector("#batch", state="hidden")
    assert type(bench.store.logs["whales"][-1]).__name__ == "ExperimentArchived"
    assert type(bench.store.logs["digits"][-1]).__name__ != "ExperimentArchived"


def test_keys(page: Page, address: str) -> None:
    """Digits are tabs, arrows step through models, `u` goes up, `?` explains; none of them while typing."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.keyboard.press("2")
    page.wait_for_url(f"{address}/experiments/digits/models")
    page.keyboard.press("/")
    page.keyboard.type("3")
    assert page.input_value("#filter") == "3"
    page.goto(f"{address}/experiments/digits/models/m03")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h2 >> text=m04")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("h2 >> text=m03")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_url(f"{address}/experiments/digits/models")


# --- for everybody -------------------------------------------------------------------------------


def test_pages_work_without_scripts(browser: Browser, address: str, bench: Bench) -> None:
    """All of it but the refreshing and the figures: reading, sorting, filtering, choosing, steering."""
    with window(browser, java_script_enabled=False) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN)
        page.click("text=digits")
        page.wait_for_url(f"{address}/experiments/digits")
        assert page.is_visible("text=trains m05, epoch 1, partition 0")
        page.click("nav >> text=Models")
        page.check("input[value=m00]")
        page.check("input[value=m03]")
        page.click("text=Compare chosen")
        page.wait_for_selector("text=2 chosen")
        page.click("thead >> text=learning_rate")
        page.wait_for_selector("th[aria-sort=ascending]")
        page.goto(f"{address}/experiments/digits/models/m01")
        page.click("text=Stop model")
        page.wait_for_selector(".model-heading >> text=stopped")
        assert type(bench.store.logs["digits"][-1]).__name__ == "ModelStopRequested"


def test_pages_of_many_models_are_light_and_fit_a_phone(browser: Browser, address: str, bench: Bench) -> None:
    """At most 150 kB as sent without plotly's script, and no wider than the window."""
    story = Story("many")
    story.workers_join()
    story.etl()
    story.fit(models=1000)
    bench.store.add(story)
    with window(browser, PHONE) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN)
        for tab in ("", "/models", "/curves", "/analysis", "/schedule", "/data"):
            fresh = context.new_page()
            weight = weigh(fresh, f"{address}/experiments/many{tab}")
            assert 10_000 < weight < WEIGHT_BYTES, tab
            assert overflow(fresh) == 0, tab
            fresh.close()


def weigh(page: Page, url: str) -> float:
    """Bytes of a page's document, style sheets and scripts as they are sent to a browser that has none of them; without
    plotly's script."""
    sent: dict[str, float] = {}
    counted: set[str] = set()

    def answered(event: dict[str, Any]) -> None:
        is_plotly = event["type"] == "Script" and "/plotly." in event["response"]["url"]
        if event["type"] in ("Document", "Stylesheet", "Script") and not is_plotly:
            counted.add(event["requestId"])

    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.responseReceived", answered)
    session.on(
        "Network.loadingFinished", lambda event: sent.update({event["requestId"]: event["encodedDataLength"]})
    )
    page.goto(url)
    settle(page)
    return sum(size for request, size in sent.items() if request in counted)
