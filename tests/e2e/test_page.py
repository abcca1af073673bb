"""The web page as a user has it: a real cluster, a real browser, an experiment from its start to its deletion."""

from __future__ import annotations

import csv
import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

from cerebro import Experiment
from cerebro.archive import pack
from cerebro.errors import NotFoundError
from tests.e2e.browser import (
    DESKTOP,
    PHONE,
    SCHEMES,
    WAIT_MS,
    Complaints,
    Scheme,
    chromium,
    overflow,
    settle,
    sign_in,
    violations,
    window,
)
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow

NAME, USER = "walk", "Ada"
TABS = (
    "",
    "/models",
    "/curves",
    "/analysis",
    "/schedule",
    "/data",
    "/logs",
    "/code",
    "/checkpoints",
    "/history",
)
CHANGES_MS = 60_000
"""Longest wait for what the cluster has to do first: start a process, train a unit."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@dataclass(kw_only=True)
class Walk:
    """A user at the page, and beside it the user's notebook."""

    lab: Lab
    page: Page
    address: str
    folder: Path

    def go(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(self.address + path)

    def tab(self, name: str) -> None:
        """Open a tab of the experiment, as a reader does."""
        self.page.locator("nav.tabs").get_by_role("link", name=name, exact=True).click()
        self.page.wait_for_load_state()

    def shows(self, text: str | re.Pattern[str], within: str = "main", wait_ms: int = WAIT_MS) -> Locator:
        """Wait until the page says so, without loading it anew."""
        from playwright.sync_api import expect

        place = self.page.locator(within)
        expect(place).to_contain_text(text, timeout=wait_ms, use_inner_text=True)
        return place

    def row(self, text: str, within: str = "main") -> Locator:
        """The table's row with that heading."""
        return self.page.locator(f"{within} tr", has=self.page.get_by_role("rowheader", name=text)).first

    def says(self, place: Locator, text: str | re.Pattern[str], wait_ms: int = CHANGES_MS) -> None:
        """Wait until a part of the page says so."""
        from playwright.sync_api import expect

        expect(place).to_contain_text(text, timeout=wait_ms, use_inner_text=True)

    @property
    def points(self) -> int:
        """Points that the learning curves have as they are drawn."""
        return int(
            self.page.evaluate(
                """() => (document.querySelector("#curves .js-plotly-plot")?.data || [])
                .reduce((all, trace) => all + (trace.y?.length || 0), 0)"""
            )
        )


def image(level: int) -> bytes:
    """A grey PNG of 8 x 8 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([level]) * 8) * 8)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def write_data(folder: Path, rows: int, first: int = 0) -> tuple[str, str]:
    """A table whose rows name images, and the folder of those."""
    objects = folder / "images"
    objects.mkdir(parents=True)
    for number in range(3):
        (objects / f"{number}.png").write_bytes(image(80 * number))
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x", "label", "image"])
        writer.writerows(
            [n, f"{0.1 + n * 0.37:.3f}", n % 3, f"{n % 3}.png"] for n in range(first, first + rows)
        )
    return str(folder / "train.csv"), str(objects)


def start(walk: Walk) -> None:
    """The start page: an archive is listed, a wrong address is said to be wrong, a right one is previewed."""
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
    walk.shows("Named by column", "#train_objects-found")
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
    """ETL from a notebook, watched: a partition under way, then all rows, and the one that failed with its cause."""
    walk.tab("Data")
    walk.shows("Nothing is preprocessed yet")
    mine = Experiment.attach(NAME)
    spec = TinyETL(gate=walk.lab.gate.port, held=5, broken=7)
    running = walk.lab.spawn(lambda: mine.run_etl(spec, max_failed=0.5, progress=False))
    knock = walk.lab.gate.knock()
    walk.shows("rows so far", wait_ms=CHANGES_MS)
    walk.says(walk.page.locator("tr", has_text=knock.worker).first, re.compile("."))
    walk.lab.gate.open()
    walk.shows("52 rows in = 51 out + 1 failed", wait_ms=CHANGES_MS)
    running.result(CHANGES_MS / 1000)
    walk.lab.gate.close()
    walk.page.locator("a[data-failed]").first.click()
    walk.shows("cannot read row 7", "#failed-rows")


def fit(walk: Walk) -> Future[Any]:
    """A fit from the notebook: model `a` is held in its second epoch, `c` fails until it is mended."""
    trouble = {"c": f"raise until {walk.folder / 'mended'}"}
    spec = TinyTraining(gate=walk.lab.gate.port, holds=[("a", 2)], trouble=trouble)
    return walk.lab.fit(Experiment.attach(NAME), spec, tags="abc", epochs=3)


def watch(walk: Walk, running: Future[Any]) -> None:
    """Curves grow by themselves; a model is stopped and stops; its unit is taken back; who did it is told."""
    page = walk.page
    walk.tab("Curves")
    knock = walk.lab.gate.knock()
    page.evaluate("window.isThisStillTheSamePage = true")
    drawn = """() => document.querySelector("#curves .js-plotly-plot")?.data?.length"""
    page.wait_for_function(drawn, timeout=CHANGES_MS)
    before = walk.points

    other = page.context.new_page()  # a second tab: the first is left alone, to be seen growing
    desk = Walk(lab=walk.lab, page=other, address=walk.address, folder=walk.folder)
    change_scheduler(desk)
    desk.go(f"/experiments/{NAME}/models/m00")
    desk.says(other.locator(".model-heading"), "running")
    desk.says(other.locator("[data-key=units]"), re.compile("running"))
    other.get_by_role("button", name="Stop model").click()
    desk.says(other.locator(".model-heading"), "stopped")
    desk.says(other.locator("[data-key=units]"), "revoked")
    assert len(walk.lab.log(Experiment.attach(NAME)).state().runs["fit-1"].models["m00"].visits) == 2
    knock.let_through()
    desk.tab("History")
    desk.says(other.locator("tr", has_text="stopped model m00"), USER)

    page.bring_to_front()
    page.wait_for_function(
        f"""() => document.querySelector("#curves .js-plotly-plot").data
            .reduce((all, trace) => all + (trace.y?.length || 0), 0) > {before}""",
        timeout=CHANGES_MS,
    )
    assert page.evaluate("window.isThisStillTheSamePage")
    other.close()
    result = walk.lab.result(running, Experiment.attach(NAME))
    assert set(result.failures()) == {"m02"}


def change_scheduler(walk: Walk) -> None:
    """By the form of the schedule's tab."""
    walk.go(f"/experiments/{NAME}/schedule")
    walk.page.get_by_label("Scheduler of fit-1").select_option("fifo")
    walk.page.get_by_role("button", name="Change").click()
    walk.says(walk.page.locator(".tile", has_text="Scheduler"), "fifo")


def find_the_mistake(walk: Walk) -> None:
    """From the list of models to the traceback in the log of the unit that failed, and by searching all logs."""
    page = walk.page
    walk.tab("Models")
    walk.says(walk.row("m02"), "failed")
    walk.row("m02").get_by_role("link", name="m02").click()
    walk.shows("ZeroDivisionError: a mistake in user code", "#model-failure")
    page.get_by_role("link", name="Logs", exact=True).last.click()
    walk.shows("about to divide by zero", "#log")
    walk.shows("in misbehave", "#log")
    page.get_by_label("Find").fill("about to divide")
    page.get_by_role("button", name="Show").click()
    walk.shows("about to divide", "table.hits mark")


def go_on(walk: Walk) -> None:
    """The run has ended; a stopped model is resumed and a mended one retried, and both train to their end."""
    page = walk.page
    (walk.folder / "mended").touch()
    walk.go(f"/experiments/{NAME}/models/m00")
    page.get_by_role("button", name="Resume model").click()
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
    for what in ("stopped model m00", "resumed model m00", "retried model m02"):
        walk.says(page.locator("tr", has_text=what), USER)
    walk.lab.check(Experiment.attach(NAME), "fit-1")  # as if nobody had interfered, to the last bit


def take_a_checkpoint(walk: Walk) -> None:
    """The file that comes is the one on the volume, with the checksum that the page shows."""
    page = walk.page
    walk.tab("Checkpoints")
    row = page.locator("tr.best").first
    with page.expect_download() as waiting:
        row.get_by_role("link", name="Download").click()
    content = Path(waiting.value.path()).read_bytes()
    assert row.locator("code").inner_text() == f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}"
    path = walk.lab.volumes.checkpoints / row.locator(".path").inner_text()
    assert hashlib.sha256(content).digest() == hashlib.sha256(path.read_bytes()).digest()


def read_the_report(walk: Walk, browser: Browser) -> None:
    """One file, which draws its figures where there is no network."""
    with walk.page.expect_download() as waiting:
        walk.page.get_by_role("link", name="Report", exact=True).click()
    report = walk.folder / "report.html"
    waiting.value.save_as(report)
    with window(browser, offline=True) as context:
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        complaints = Complaints()
        page = complaints.listen(context.new_page())
        page.goto(report.as_uri())
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        assert page.locator("h1").inner_text().startswith(NAME) or NAME in page.title()
        assert "m02" in page.inner_text("body")
        assert violations(page) == []
        page.screenshot(path=walk.folder / "report.png", full_page=True)
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        complaints.check()


def archive(walk: Walk) -> None:
    """It leaves the list, is found in the archive, and comes back."""
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
    page.get_by_role("button", name="Bring back").click()
    page.wait_for_function("() => !document.querySelector('.heading').innerText.includes('archived')")


def delete(walk: Walk) -> None:
    """With its name typed: its page, its data and its log are gone, its name is free; what was done is on record."""
    page, volumes = walk.page, walk.lab.volumes
    state = walk.lab.log(Experiment.attach(NAME)).state()
    (dataset,) = state.datasets
    held = [
        volumes.checkpoints / NAME, volumes.metrics / NAME, volumes.logs / "tasks" / NAME,
        volumes.shared / "datasets" / dataset,
    ]  # fmt: skip
    assert [path for path in held if not path.exists()] == []
    walk.go(f"/experiments/{NAME}")
    page.locator("#more summary").click()
    page.get_by_role("link", name="Delete with its data").click()
    page.get_by_role("textbox").fill("something else")
    page.get_by_role("button", name="Delete").click()
    walk.shows("give exactly its name")
    page.get_by_role("textbox").fill(NAME)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/experiments")
    page.wait_for_function(f"() => !document.querySelector('tr[data-key={NAME}]')", timeout=CHANGES_MS)
    walk.go(f"/experiments/{NAME}")
    walk.shows("Status 404")
    with pytest.raises(NotFoundError):
        Experiment.attach(NAME)
    assert [path for path in held if path.exists()] == []
    walk.go("/cluster")
    walk.says(page.locator("tr", has_text=f"deleted experiment {NAME}"), USER)
    assert Experiment(NAME, locators=walk.lab.tables(train=4)).state().runs == {}


def test_from_the_sign_in_to_the_deletion(lab: Lab, browser: Browser, tmp_path: Path) -> None:
    """Everything that the page is for, in the order in which a user does it; pictures stay in the test's folder."""
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


@pytest.fixture(scope="module")
def trained(home: Path, names: Iterator[str], prepared: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of an experiment with a fit of which one model failed, and a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEREBRO_HOME", str(home))
        patch.delenv("CEREBRO_SERVER", raising=False)
        lab = Lab(home, tmp_path_factory.mktemp("trained"), names)
        experiment = lab.attach(prepared)
        lab.result(lab.fit(experiment, TinyTraining(trouble={"c": "raise"}), tags="abc"), experiment)
        experiment.run_test(split="valid", progress=False)
        lab.end()
    return prepared


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_of_a_real_run(
    lab: Lab, trained: str, browser: Browser, size: tuple[int, int], scheme: Scheme, tmp_path: Path
) -> None:
    """No serious fault, nothing wider than the window, nothing on the console; pictures stay in the test's folder."""
    wrong: list[str] = []
    complaints, info = Complaints(), lab.info()
    failed = [
        m for m in lab.log(Experiment.attach(trained)).state().runs["fit-1"].models.values() if m.failure
    ]
    with window(browser, size, scheme) as context:
        page = complaints.listen(context.new_page())
        sign_in(page, info.dispatcher, info.token())
        own = [
            f"/experiments/{trained}{tab}"
            for tab in (*TABS, "/models/m00", f"/models/{failed[0].id}", "/delete")
        ]
        for path in ("/experiments", "/start", "/cluster", *own):
            page.goto(info.dispatcher + path)
            settle(page)
            page.screenshot(path=tmp_path / f"{path.strip('/').replace('/', '-')}.png", full_page=True)
            wrong += [f"{path}: {each}" for each in violations(page)]
            if wider := overflow(page):
                wrong.append(f"{path}: {wider} px wider than the window")
    assert not wrong, "\n".join(wrong)
    complaints.check()
