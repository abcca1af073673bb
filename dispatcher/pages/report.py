"""The final report of a fit run as one file, to send around."""

from __future__ import annotations

from flask import Blueprint, Response, request, url_for

from cerebro.errors import NotFoundError
from cerebro.reporting import report_html
from dispatcher.followed import Followed
from dispatcher.pages.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @pages.get("/experiments/<name:name>/report")
    def report(name: str) -> Response:
        reader, fit = tabs.services.reader, request.args.get("fit", "")
        address = url_for("pages.experiment", name=name, _external=True)

        def build(followed: Followed) -> tuple[str, str]:
            run = followed.fit(fit)
            if run is None:
                raise NotFoundError(f"no fit run of {name!r} is planned yet, so there is nothing to report")
            record, now = followed.record, reader.now()
            return run.id, report_html(followed.state, run, record=record, now=now, page=address)

        run, content = reader.look(name, build)
        response = Response(content, mimetype="text/html")
        response.headers["Content-Disposition"] = f'attachment; filename="{name}-{run}.html"'
        return response
