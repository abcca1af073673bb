"""The report is one self-contained file that starts with the best model and escapes user text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cerebro.client.reporting import Drawings, report_html
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.failures import FailureKind
from tests.client.reporting.stories import NASTY, RECORD, evaluated, reported
from tests.e2e.browser import SCHEMES, Scheme, window
from tests.state.stories import Story, sub_epoch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext


@pytest.fixture(scope="module")
def story() -> Story:
    return reported()


@pytest.fixture(scope="module")
def report(story: Story) -> str:
    return report_html(story.state, story.run, record=RECORD, now=story.time)


def prose(report: str) -> str:
    """Return the visible text, without scripts, styles and tags."""
    bare = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", report, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", bare))


def test_the_report_starts_with_the_best_model(report: str, story: Story) -> None:
    """Best model, value, hyperparameters, checkpoint and loading code precede all tables and figures."""
    best = story.run.best_model()
    assert best is not None
    words = prose(report)
    answer = words[: words.index("Models, best first")]
    checkpoint = best.epoch_checkpoint(2)
    assert checkpoint is not None
    for expected in (
        f"Best model: {best.id}",
        "at epoch 2 of 2",
        "smaller is better",
        f"{best.hyperparams['lr']:.6g}",
        checkpoint.name,
        "Experiment.attach('one').result('fit-1').best",
        "best.modules()",
    ):
        assert expected in answer


def test_the_report_has_the_results_of_test_runs() -> None:
    """Per test run: each model's metrics and tested epoch.

    Means over parts, as in logs of older versions, are marked.
    """
    story = evaluated()
    words = prose(report_html(story.state, story.run, record=None, now=story.time)).split()
    shown = " ".join(words)
    assert "running) model epoch rows accuracy m00 1 400 0.8 m01 1 400 0.1" in shown
    assert (
        "test-1, on the split test (means over 2 parts of the split, weighted by rows: the same as of the whole split "
        "for accuracy or a mean loss, but not for F1, AUC or BLEU." in shown
    )
    assert words.index("Test") < shown.split().index("Models,")


def test_the_loading_code_is_valid_python(report: str) -> None:
    (code,) = re.findall(r"<pre[^>]*><code>(from cerebro.*?)</code></pre>", report, re.DOTALL)
    compile(unescape(code), "report", "exec")


def test_the_report_names_hashes_locators_and_users(report: str, story: Story) -> None:
    """Hashes, locators, seeds, times, versions, and the user of each request."""
    words = prose(report)
    for expected in (
        "0" * 64,
        "/data/valid.csv",
        "s3://bucket/images",
        "one-d",
        "lrptw",
        "2023-11-14 22:13:20Z",
    ):
        assert expected in words
    assert f"{story.state.seq:,} events" in words
    assert "requested fit-1" in words or "fit-1" in words[words.index("Commands") :]


def test_names_are_escaped(report: str) -> None:
    """Metrics, hyperparameters, messages and addresses are escaped."""
    assert NASTY not in report
    assert prose(report).count(NASTY) >= 3
    data = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', report, re.DOTALL)[0]
    assert "<" not in data
    assert len(json.loads(data)["drawn"]) == 6


def test_the_report_loads_no_external_resource(report: str) -> None:
    """No attribute has an external address, and the policy would block it."""
    outside = re.sub(r"<script[^>]*>.*?</script>", "", report, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', outside)
    policy = unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', report)[0])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_a_report_without_a_best_model_states_the_reason() -> None:
    """It opens with the failures."""
    story = Story()
    run = story.fit()
    report = report_html(story.state, run, record=None, now=story.time)
    assert "there is no best model" in prose(report)
    assert "<script" not in report


def test_a_heat_map_shows_the_most_important_hyperparameters(story: Story) -> None:
    """A named hyperparameter takes precedence; with fewer than two there is no heat map."""
    drawn = Drawings(state=story.state, run=story.run, now=story.time).heatmap(y="width")
    assert drawn is not None
    assert drawn["layout"]["title"]["text"] == "Best loss by lr and width"
    other = Story()
    run = other.fit(models=1)
    assert Drawings(state=other.state, run=run, now=0.0).heatmap() is None


# --- in a browser ------------------------------------------------------------------------------------


@pytest.fixture
def offline(browser: Browser) -> Iterator[BrowserContext]:
    """A browser without a network, as wide as a phone."""
    with window(browser, (390, 800), offline=True) as context:
        yield context


@pytest.mark.slow
@pytest.mark.parametrize("theme", SCHEMES)
def test_the_file_works_offline_prints_and_is_accessible(
    offline: BrowserContext, story: Story, tmp_path: Path, theme: Scheme
) -> None:
    """Six figures, no script error, no alert from user text, no axe-core violation, and a short PDF."""
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "report.html"
    file.write_text(report_html(story.state, story.run, record=RECORD, now=story.time), encoding="utf-8")
    page, said = offline.new_page(), list[str]()
    page.emulate_media(color_scheme=theme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(file.as_uri())
    page.wait_for_selector("#figure-schedule .main-svg")
    assert page.locator(".js-plotly-plot").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    pdf = page.pdf(format="A4", print_background=True)
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
    assert said == []


@pytest.mark.slow
def test_without_scripts_each_figure_names_its_table(browser: Browser, report: str, tmp_path: Path) -> None:
    """Each figure names its data table."""
    file = tmp_path / "report.html"
    file.write_text(report, encoding="utf-8")
    with window(browser, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        assert page.locator(".plot >> text=Its data are in the table below").count() == 6


def test_parallel_plans_and_ruled_out_plans_are_listed() -> None:
    """Only if a model used another plan than its default; else the table is absent."""
    story = Story(devices=2)
    ddp = ParallelPlan(technique="ddp", size=2)
    story.fit(models=2, partitions=1, epochs=1, parallel_plans=(SINGLE, ddp))
    assert "Parallel plans" not in prose(report_html(story.state, story.run, record=RECORD, now=story.time))
    story.break_off(
        sub_epoch(1, 0), 0, story.start(sub_epoch(1, 0), 0), FailureKind.NOT_APPLICABLE, "no blocks"
    )
    story.start(sub_epoch(1, 0), 0, (0, 1), ddp)
    story.commit(sub_epoch(1, 0), 0)
    words = " ".join(prose(report_html(story.state, story.run, record=RECORD, now=story.time)).split())
    assert "Parallel plans" in words
    assert re.search(r"m00 single 1 0 no blocks m00 ddp-2 2 1 1", words), words[words.index("Ways to") :][
        :300
    ]
