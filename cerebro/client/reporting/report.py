"""The final report of a fit run: one HTML file to send around, the answer first.

It needs nothing from anywhere: no network, no cluster, no second file. It prints. It is light or dark as the reader's
system is. It reads without scripts, because each figure's data are a table as well.
"""

from __future__ import annotations

from collections.abc import Callable

from cerebro.client.reporting import outcome, plotting, provenance
from cerebro.client.reporting.drawings import Drawings
from cerebro.client.reporting.html import Html, element, joined, moment, paragraph, section, text
from cerebro.client.reporting.style import STYLE_SHEET
from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.contract.runs import FitRequest
from cerebro.errors import BadRequestError
from cerebro.figures import Figure
from cerebro.state import ExperimentState, Run

_CONTENTS = {"models": "Models", "drawn": "Figures", "data": "Data", "provenance": "How it was made"}


def report_html(
    state: ExperimentState,
    run: Run,
    *,
    record: ExperimentRecord | None,
    now: float,
    page: str = "",
    code: Callable[[str], CodeRecord] | None = None,
) -> str:
    """The whole report as one HTML document.

    Args:
        state: of the experiment.
        run: one of its fit runs, ended or not; the report says which.
        record: what the experiment is, for its locators and its code archive.
        now: the store's clock, seconds since the epoch.
        page: address of the experiment's web page.
        code: gives the code of a hash, so that the report says what it is called; `NotFoundError` if it is gone.

    Raises:
        BadRequestError: `run` is no fit run.
        DataError: the plotly package is not installed.
    """
    if not isinstance(run.request, FitRequest):
        raise BadRequestError(f"{run.id} is not a fit run, expected one: a report shows a fit run")
    drawings = Drawings(state=state, run=run, now=now)
    figures = _figures(drawings)
    links = [element("li", element("a", text(name), href=f"#{place}")) for place, name in _CONTENTS.items()]
    drawn = (plotting.shown(place, heading, figure) for place, (heading, figure) in figures.items())
    main = element(
        "main",
        element("header", element("h1", text(f"{state.name}, {run.id}")), _standing(run, now, page)),
        outcome.answer(drawings),
        element("nav", element("ul", *links), aria_label="Contents"),
        section("Test", *outcome.tests(drawings), id_="test"),
        section("Models", outcome.models(drawings), id_="models"),
        section("Figures", *drawn, id_="drawn"),
        section("Failures", *outcome.failures(drawings.rows), id_="failures"),
        section("Data", *provenance.data(drawings), id_="data"),
        section("How it was made", *provenance.provenance(drawings, record, code), id_="provenance"),
    )
    head = _head(f"{state.name}, {run.id}: report")
    scripts = plotting.scripts({place: figure for place, (_, figure) in figures.items() if figure})
    size = sum(len(part.encode()) for part in (head, main, scripts))
    return _document(head, joined([main, _footer(size)]), scripts)


def _standing(run: Run, now: float, page: str) -> Html:
    asked = f"requested by {run.author or 'somebody'}, {moment(run.requested)}"
    stands = f"{run.state} {moment(run.ended)}" if run.ended else f"{run.state}, as of {moment(now)}"
    live = [text(" Live at "), element("a", text(page), href=page), text(".")] if page else []
    return element("p", text(f"Fit run, {asked}; {stands}."), *live, class_="quiet")


def _figures(drawings: Drawings) -> dict[str, tuple[str, Figure | None]]:
    """Position -> heading and figure."""
    metric = drawings.request.metric
    return {
        "figure-curves": (f"Learning curves of {metric}", drawings.curves()),
        "figure-parallel": ("Hyper-parameters side by side", drawings.parallel()),
        "figure-scatter": (f"{metric} over each hyper-parameter", drawings.scatter()),
        "figure-heatmap": (f"Best {metric} by two hyper-parameters", drawings.heatmap()),
        "figure-importance": ("Importance of hyper-parameters", drawings.importance()),
        "figure-schedule": ("Schedule", drawings.schedule()),
    }


def _head(title: str) -> Html:
    return joined(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{text(plotting.policy())}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", text(title)),
            Html(f"<style>{STYLE_SHEET}</style>"),
        ]
    )


def _footer(size: int) -> Html:
    script = len(plotting.plotly_script().encode())
    said = f"One file of {size / 2**20:.1f} MiB, {script / 2**20:.1f} MiB of which draw the figures."
    return element("footer", paragraph(f"{said} It loads nothing from elsewhere.", class_="quiet"))


def _document(head: Html, main: Html, scripts: Html) -> str:
    body = element("body", main, scripts)
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n{body}\n</html>\n'
