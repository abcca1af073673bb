"""Every error as a page that says what happened, what it does not touch, and what to do."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flask import Flask, g, jsonify, render_template, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from cerebro import errors
from cerebro.contract.records import ExperimentSummary
from dispatcher.access.guard import MAX_UPLOAD_BYTES
from dispatcher.access.oidc import IdTokenError
from dispatcher.access.refusals import is_browser
from dispatcher.reading.read_model import ReadModel
from dispatcher.reading.reader import Reader
from dispatcher.sandbox.slots import BusyError
from dispatcher.tabs.runs import RunRow, run_row

_log = logging.getLogger(__name__)


class PartlyDoneError(errors.CerebroError):
    """Of several things that were asked for at once some were done; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """An experiment that cannot be read to its end, and what is known of it all the same.

    Attributes:
        summary: what the list of experiments has of it; its mark is missing until the controller has noticed.
        events: how many of its events can be read.
        runs: as these events leave them.
    """

    summary: ExperimentSummary
    events: int = 0
    runs: tuple[RunRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a problem page says."""

    status: int
    title: str
    what: str
    do: str
    unreadable: Unread | None = None
    """The experiment that cannot be read: it can be deleted, or tried again."""


_HTTP = {
    400: ("Not understood", "The browser sent something this page does not take.", "Go back and try again."),
    401: (
        "Signed out",
        "Your session has ended, so nothing was done.",
        "Sign in in a new tab, come back to this one and reload it: the browser then sends the form again.",
    ),
    403: (
        "Not from this page",
        "The form came from another site, or from a page older than your session. Nothing was done.",
        "Go back, reload the page and send the form again.",
    ),
    404: ("Not found", "There is no such page.", "Check the address, or start from the list of experiments."),
    405: ("Not possible here", "This address does not take that kind of request.", "Go back and try again."),
    413: (
        "Too large",
        f"The form is larger than {MAX_UPLOAD_BYTES // 2**20} MiB; an archive may have 32. Nothing is kept.",
        "Go back: what you typed is still there. Pack code only, and name data by locators.",
    ),
    421: (
        "Unknown host",
        "This page does not answer under the name that the browser used.",
        "Open it under its own address, or add the name to the dispatcher's CEREBRO_PUBLIC_HOSTS.",
    ),
    429: (
        "Too many tries",
        "Too many wrong tokens came from this address.",
        "Wait a minute, then try again.",
    ),
}


def register(app: Flask, reader: Reader) -> None:
    """Add the handlers."""

    @app.errorhandler(errors.UnreadableError)
    def on_unreadable(error: errors.UnreadableError) -> ResponseReturnValue:
        name = (request.view_args or {}).get("name", "")
        problem = Problem(
            status=409,
            title="This experiment cannot be read",
            what=_sentence(error),
            do="Restore it once a version is installed that can read it, or delete it with its data.",
            unreadable=_unread(reader, name) if name and is_browser() else None,
        )
        return _answer(problem, type(error).__name__)

    @app.errorhandler(errors.CerebroError)
    def on_error(error: errors.CerebroError) -> ResponseReturnValue:
        return _answer(_problem(error), type(error).__name__)

    @app.errorhandler(HTTPException)
    def on_http(error: HTTPException) -> ResponseReturnValue:
        status = error.code or 500
        title, what, do = _HTTP.get(status, (error.name, error.description or "", "Go back and try again."))
        return _answer(Problem(status=status, title=title, what=what, do=do), type(error).__name__)

    @app.errorhandler(Exception)
    def on_bug(error: Exception) -> ResponseReturnValue:
        _log.exception("request failed request=%s path=%s", g.get("request_id"), request.path, exc_info=error)
        what = "This page has a fault of its own. Runs are not affected: they do not depend on it."
        do = f"Reload it. If it stays, `cerebro logs dispatcher` has the cause under {g.get('request_id')}."
        return _answer(Problem(status=500, title="Fault in this page", what=what, do=do), "InternalError")


def _problem(error: errors.CerebroError) -> Problem:
    what = _sentence(error)
    if isinstance(error, errors.StoreUnavailableError):
        title = "The store does not answer"
        do = "Reload this page in a moment. Workers go on with what they have; what was committed is safe."
        return Problem(status=503, title=title, what=what, do=do)
    if isinstance(error, errors.NotFoundError):
        do = "Check the address, or choose from the list of experiments."
        return Problem(status=404, title="Not found", what=what, do=do)
    if isinstance(error, PartlyDoneError):
        do = "Go back to the list: it says how each stands now, and what is possible."
        return Problem(status=409, title="Not done for all", what=what, do=do)
    if isinstance(error, errors.ConflictError):
        do = "Nothing was done. Go back and reload the page: it offers what is possible now."
        return Problem(status=409, title="Not possible now", what=what, do=do)
    if isinstance(error, errors.BadRequestError | errors.SearchSpaceError):
        do = "Nothing was done. Go back, change what is wrong and send it again."
        return Problem(status=400, title="Not understood", what=what, do=do)
    if isinstance(error, BusyError):
        do = "Reload this page in a moment. Runs are not affected."
        return Problem(status=503, title="Busy", what=what, do=do)
    if isinstance(error, errors.ForbiddenError):
        do = "Nothing was done. The page Account says what you may, and in which projects you are."
        return Problem(status=403, title="Not yours to do", what=what, do=do)
    if isinstance(error, IdTokenError):
        do = "Sign in again. If it stays, tell whoever runs the cluster: the dispatcher's log has the reason, too."
        return Problem(status=401, title="Not signed in", what=what, do=do)
    if isinstance(error, errors.UnauthorizedError):
        title = "The store refuses this page's token"
        do = "The dispatcher's CEREBRO_TOKEN differs from kvs_api's: set the same for both and restart them."
        return Problem(status=502, title=title, what=what, do=do)
    if isinstance(error, errors.IllegalEventError):
        title = "The event log cannot be read"
        do = "Store and page may be of different versions: run the same version of Cerebro everywhere."
        return Problem(status=500, title=title, what=what, do=do)
    return Problem(status=502, title="The store answered with an error", what=what, do="Reload the page.")


def _unread(reader: Reader, name: str) -> Unread | None:
    """What is known of an experiment that cannot be read; `None` if it is gone."""
    try:
        summary = next((each for each in reader.summaries() if each.experiment.name == name), None)
    except errors.CerebroError:
        return None
    if summary is None:
        return None

    def with_log(read_model: ReadModel) -> Unread:
        runs = tuple(run_row(read_model, run) for run in read_model.state.runs.values())
        return Unread(summary=summary, events=read_model.state.seq, runs=runs)

    return reader.before_fault(name, with_log) or Unread(summary=summary)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _answer(problem: Problem, kind: str) -> ResponseReturnValue:
    if not is_browser():
        return jsonify(error=kind, message=f"{problem.what} {problem.do}"), problem.status
    return render_template("pages/problem.html", problem=problem), problem.status
