"""The web page with a real cluster and browser, through the life of an experiment."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

from cerebro import Experiment
from cerebro.errors import NotFoundError
from cerebro.usercode.archive import pack
from tests.e2e.browser import (
    Complaints,
    sign_in,
    violations,
    window,
)
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.e2e.walk import Walk, write_data
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

NAME, USER = "walk", "Ada"


def start(walk: Walk) -> None:
    """Use the start form: it lists the archive, refuses a wrong locator and previews a right one."""
    page = walk.page
    code = walk.folder / "code"
    code.mkdir()
    (code / "helpers.py").write_text("VALUE = 42\n")
    (walk.folder / "code.zip").write_bytes(pack(code))
    table, objects = write_data(walk.folder / "data", 40)
    walk.go("/start")
    page.get_by_label("Name").fill(NAME)
    page.set_input_files("#archive", walk.folder / "code.zip")
    walk.shows("code.zip is stored and will be used")
    walk.shows("helpers.py", "#archive-found")
    page.locator("#train_metadata").fill(table + ".gone")
    page.locator("#train_metadata-mistake").wait_for()
    page.locator("#train_metadata").fill(table)
    page.locator("#train_objects").fill(objects)
    walk.shows("40 rows, 4 columns", "#train_metadata-found")
    walk.shows("names the objects", "#train_objects-found")
    sample = page.locator("#train_objects-found img")
    sample.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth === 8", arg=sample.element_handle())
    valid = walk.folder / "valid"
    page.locator("#valid_metadata").fill(write_data(valid, 12, first=100)[0])
    walk.shows("12 rows, 4 columns", "#valid_metadata-found")
    page.get_by_role("button", name="Create experiment").click()
    page.wait_for_url(f"**/start/{NAME}")
    walk.shows(f'Experiment.attach("{NAME}")')
    page.get_by_role("link", name=f"Page of {NAME}").click()
    page.wait_for_url(f"**/experiments/{NAME}")


def preprocess(walk: Walk) -> None:
    """Watch ETL from a notebook: a partition in progress, all rows, and the failed row with its cause."""
    walk.tab("Data")
    walk.shows("No data set yet")
    mine = Experiment.attach(NAME)
    spec = TinyETL(gate=walk.lab.gate.port, held=5, broken=7)
    running = walk.lab.spawn(lambda: mine.run_etl(spec, max_failed=0.5, progress=False))
    knock = walk.lab.gate.knock()
    walk.shows("rows so far")
    walk.says(walk.page.locator("tr", has_text=knock.worker).first, re.compile("."))
    walk.lab.gate.open()
    walk.shows("52 rows in, 51 out, 1 failed")
    running.result(HANG_S)
    walk.lab.gate.close()
    walk.page.locator("a[data-failed]").first.click()
    walk.shows("cannot read row 7", "#failed-rows")


def fit(walk: Walk) -> Future[Any]:
    """Start a fit: model `a` blocks in its second epoch, `c` fails until it is fixed."""
    trouble = {"c": f"raise until {walk.folder / 'mended'}"}
    spec = TinyTraining(gate=walk.lab.gate.port, holds=[("a", 2)], trouble=trouble)
    return walk.lab.fit(Experiment.attach(NAME), spec, tags="abc", epochs=3)


def watch(walk: Walk, running: Future[Any]) -> None:
    """Watch the curves grow; stop a model; its sub-epoch is revoked, and the page names the user."""
    page = walk.page
    walk.tab("Curves")
    knock = walk.lab.gate.knock()
    page.evaluate("window.isThisStillTheSamePage = true")
    drawn = """() => document.querySelector("#curves .js-plotly-plot")?.data?.length"""
    page.wait_for_function(drawn)
    before = walk.points

    other = page.context.new_page()  # a second tab, so that the first can be watched
    second = Walk(lab=walk.lab, page=other, address=walk.address, folder=walk.folder)
    change_scheduler(second)
    second.go(f"/experiments/{NAME}/models/m00")
    second.says(other.locator(".model-heading"), "running")
    second.says(other.locator("[data-key=sub_epochs]"), re.compile("running"))
    other.get_by_role("button", name="Stop model").click()
    second.says(other.locator(".model-heading"), "stopped")
    second.says(other.locator("[data-key=sub_epochs]"), "revoked")
    assert len(walk.lab.log(Experiment.attach(NAME)).state().runs["fit-1"].models["m00"].sub_epochs) == 2
    knock.let_through()
    second.tab("History")
    second.says(other.locator("tr", has_text="stopped model m00"), USER)

    page.bring_to_front()
    page.wait_for_function(
        f"""() => document.querySelector("#curves .js-plotly-plot").data
            .reduce((all, trace) => all + (trace.y?.length || 0), 0) > {before}"""
    )
    assert page.evaluate("window.isThisStillTheSamePage")
    other.close()
    result = walk.lab.result(running, Experiment.attach(NAME))
    assert set(result.failures()) == {"m02"}


def change_scheduler(walk: Walk) -> None:
    """Use the form of the schedule tab."""
    walk.go(f"/experiments/{NAME}/schedule")
    walk.page.get_by_label("Scheduler of fit-1").select_option("fifo")
    walk.page.get_by_role("button", name="Change").click()
    walk.says(walk.page.locator(".tile", has_text="Scheduler"), "fifo")


def find_the_mistake(walk: Walk) -> None:
    """Go from the models list to the traceback in the failed sub-epoch's log, and find it by a search of all logs."""
    page = walk.page
    walk.tab("Models")
    walk.says(walk.row("m02"), "failed")
    walk.row("m02").get_by_role("link", name="m02", exact=True).click()
    walk.shows("ZeroDivisionError: a mistake in user code", "#model-failure")
    page.get_by_role("link", name="Logs", exact=True).last.click()
    walk.shows("about to divide by zero", "#log")
    walk.shows("in misbehave", "#log")
    page.get_by_label("Find").fill("about to divide")
    page.get_by_role("button", name="Show").click()
    walk.shows("about to divide", "table.hits mark")


def go_on(walk: Walk) -> None:
    """Resume a stopped model, stop and resume the run, retry a fixed model; all train to their last epoch."""
    page = walk.page
    (walk.folder / "mended").touch()
    walk.go(f"/experiments/{NAME}/models/m00")
    page.get_by_role("button", name="Resume model").click()
    walk.lab.gate.knock()
    walk.says(page.locator(".model-heading"), "running")
    page.get_by_role("button", name="Stop", exact=True).click()
    walk.says(page.locator(".heading").first, "stopped")
    page.get_by_role("button", name="Resume", exact=True).click()
    knock = walk.lab.gate.knock()
    walk.says(page.locator(".model-heading"), "running")
    walk.go(f"/experiments/{NAME}/models/m02")
    page.get_by_role("button", name="Retry model").click()
    walk.says(page.locator(".model-heading"), re.compile("queued|running|finished"))
    knock.let_through()
    walk.says(page.locator(".model-heading"), "finished")
    walk.go(f"/experiments/{NAME}/models/m00")
    walk.says(page.locator(".model-heading"), "finished")
    walk.says(page.locator(".heading").first, "finished")
    walk.tab("History")
    for what in (
        "stopped model m00",
        "resumed model m00",
        "stopped fit-1",
        "resumed fit-1",
        "retried model m02",
    ):
        walk.says(page.locator("tr", has_text=what), USER)
    walk.lab.check(Experiment.attach(NAME), "fit-1")  # the same weights as without interference


def take_a_checkpoint(walk: Walk) -> None:
    """Download a checkpoint; it equals the file on the volume and has the checksum of the page."""
    page = walk.page
    walk.tab("Checkpoints")
    row = page.locator("tr.best").first
    with page.expect_download() as waiting:
        row.get_by_role("link", name="Download").click()
    content = Path(waiting.value.path()).read_bytes()
    assert row.locator("code").inner_text() == xxhash.xxh3_64_hexdigest(content)
    path = walk.lab.volumes.checkpoints / row.locator(".path").inner_text()
    assert hashlib.sha256(content).digest() == hashlib.sha256(path.read_bytes()).digest()


def read_the_report(walk: Walk, browser: Browser) -> None:
    """Open the report without a network; it draws its figures."""
    with walk.page.expect_download() as waiting:
        walk.page.get_by_role("link", name="Report", exact=True).click()
    report = walk.folder / "report.html"
    waiting.value.save_as(report)
    with window(browser, offline=True) as context:
        requests: list[str] = []
        context.on("request", lambda request: requests.append(request.url))
        complaints = Complaints()
        page = complaints.listen(context.new_page())
        page.goto(report.as_uri())
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        assert page.locator("h1").inner_text().startswith(NAME) or NAME in page.title()
        assert "m02" in page.inner_text("body")
        assert violations(page) == []
        page.screenshot(path=walk.folder / "report.png", full_page=True)
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
        complaints.check()


def archive(walk: Walk) -> None:
    """Archive the experiment, find it in the archive, and restore it."""
    page = walk.page
    walk.go(f"/experiments/{NAME}")
    page.locator("#more summary").click()
    page.get_by_role("button", name="Archive", exact=True).click()
    walk.shows("archived", ".heading")
    walk.go("/experiments")
    page.wait_for_function(f"() => !document.querySelector('tr[data-key={NAME}]')")
    walk.go("/experiments?archived=yes")
    page.locator(f"tr[data-key={NAME}]").wait_for()
    walk.go(f"/experiments/{NAME}")
    page.locator("#more summary").click()
    page.get_by_role("button", name="Unarchive").click()
    page.wait_for_function("() => !document.querySelector('.heading').innerText.includes('archived')")


def delete(walk: Walk) -> None:
    """Delete by typing its name: page, data and log are gone, the name is free, and the audit keeps the record."""
    page, volumes = walk.page, walk.lab.volumes
    state = walk.lab.log(Experiment.attach(NAME)).state()
    (dataset,) = state.datasets
    held = [
        volumes.checkpoints / NAME, volumes.tensorboard / NAME, volumes.logs / "tasks" / NAME,
        volumes.shared / "datasets" / dataset,
    ]  # fmt: skip
    assert [path for path in held if not path.exists()] == []
    walk.go(f"/experiments/{NAME}")
    page.locator("#more summary").click()
    page.get_by_role("link", name="Delete with its data").click()
    page.get_by_role("textbox").fill("something else")
    page.get_by_role("button", name="Delete").click()
    walk.shows("repeat its exact name")
    page.get_by_role("textbox").fill(NAME)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/experiments")
    page.wait_for_function(f"() => !document.querySelector('tr[data-key={NAME}]')")
    walk.go(f"/experiments/{NAME}")
    walk.shows("Status 404")
    with pytest.raises(NotFoundError):
        Experiment.attach(NAME)
    assert [path for path in held if path.exists()] == []
    walk.go("/cluster")
    walk.says(page.locator("tr", has_text=f"deleted experiment {NAME}"), USER)
    assert Experiment(NAME, locators=walk.lab.tables(train=4)).state().runs == {}


def test_the_page_controls_an_experiment_from_sign_in_to_deletion(
    lab: Lab, browser: Browser, tmp_path: Path
) -> None:
    """All functions of the page in a user's order. Screenshots stay in the test's folder."""
    info = lab.info()
    complaints = Complaints()
    with window(browser) as context:
        page = complaints.listen(context.new_page())
        walk = Walk(lab=lab, page=page, address=info.dispatcher, folder=tmp_path)
        sign_in(page, walk.address, info.token(), name=USER)
        start(walk)
        try:
            preprocess(walk)
            running = fit(walk)
            watch(walk, running)
            find_the_mistake(walk)
            go_on(walk)
            take_a_checkpoint(walk)
            walk.tab("Overview")
            read_the_report(walk, browser)
        except AssertionError:
            print(lab.timeline(Experiment.attach(NAME)))  # noqa: T201 - shown beside the failure
            raise
        archive(walk)
        delete(walk)
    complaints.check(allowed=("status of 404", "status of 409"))
