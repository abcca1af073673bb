"""Route that downloads the final report of a fit run as one HTML file.

`cerebro.client.reporting` builds the report; this module reads the log and the code from the store. One report is
built at a time; up to four requests wait for at most 20 s, others are refused. Nothing is cached.
"""

from __future__ import annotations

from flask import Blueprint, Response, request, url_for

from cerebro.client.reporting import report_html
from cerebro.errors import NotFoundError
from dispatcher.sandbox.slots import Slots
from dispatcher.tabs.tabs import Tabs

_WAIT_S = 20.0


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    slots = Slots("reports", at_once=1)

    @pages.get("/experiments/<name:name>/report")
    def report(name: str) -> Response:
        with slots.taken(wait_s=_WAIT_S):
            run, content = _build_report(tabs, name)
        response = Response(content, mimetype="text/html")
        response.headers.set("Content-Disposition", "attachment", filename=f"{name}-{run}.html")
        return response


def _build_report(tabs: Tabs, name: str) -> tuple[str, str]:
    """Return the run's id and its report.

    A large run takes seconds, so the log is folded separately: other requests for the experiment do not wait.
    """
    reader, fit = tabs.services.reader, request.args.get("fit", "")
    read_model = reader.read_separately(name)
    run = read_model.fit(fit)
    if run is None:
        raise NotFoundError(f"{name!r} has no planned fit run: start one to get a report")
    return run.id, report_html(
        read_model.state,
        run,
        record=read_model.record,
        now=reader.now(),
        page=url_for("pages.experiment", name=name, _external=True),
        code=lambda sha256: reader.call(lambda: tabs.services.store.code(sha256)),
    )
