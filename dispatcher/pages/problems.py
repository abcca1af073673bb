"""Error pages. Each states the problem, the affected object and the next step.

`register` adds handlers for all exceptions of pages: browsers get HTML, programs JSON. The read API has its own
handlers (`api.views`), and `access.refusals` answers requests without identity.
"""

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
from dispatcher.read_models.read_model import ReadModel
from dispatcher.read_models.reader import Reader
from dispatcher.sandbox.slots import BusyError
from dispatcher.tabs.runs import RunRow, run_row

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Unread:
    """An experiment whose log is partly unreadable.

    Attributes:
        summary: entry of the list of experiments. It is not marked as unreadable until the controller notices.
        events: number of readable events.
        runs: state of its runs after these events.
    """

    summary: ExperimentSummary
    events: int = 0
    runs: tuple[RunRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Content of an error page."""

    status: int
    title: str
    what: str
    do: str
    unreadable: Unread | None = None
    """The unreadable experiment, which the user may delete or restore."""


_HTTP = {
    400: ("Invalid request", "The browser sent an invalid request.", "Go back and try again."),
    401: (
        "Signed out",
        "Your session has ended, so the request had no effect.",
        "Sign in in a new tab, come back to this one and reload it: the browser then sends the form again.",
    ),
    403: (
        "Form refused",
        "The form came from another site, or from a page older than your session. It had no effect.",
        "Go back, reload the page and send the form again.",
    ),
    404: (
        "Not found",
        "This page does not exist.",
        "Check the address, or start from the list of experiments.",
    ),
    405: ("Wrong method", "This address does not accept this kind of request.", "Go back and try again."),
    413: (
        "Too large",
        f"The form is larger than {MAX_UPLOAD_BYTES // 2**20} MiB (archives: 32 MiB). It was not saved.",
        "Go back, your input is still there. Put only code into the archive, and use locators for data.",
    ),
    421: (
        "Unknown host",
        "The browser used a host name that this page does not accept.",
        "Open the page under its normal address, or add the name to the dispatcher's CEREBRO_PUBLIC_HOSTS.",
    ),
    429: (
        "Too many attempts",
        "Too many wrong tokens came from this address.",
        "Wait a minute, then try again.",
    ),
}


def register(app: Flask, reader: Reader) -> None:
    """Add the error handlers."""

    @app.errorhandler(errors.UnreadableError)
    def on_unreadable(error: errors.UnreadableError) -> ResponseReturnValue:
        name = (request.view_args or {}).get("name", "")
        problem = Problem(
            status=409,
            title="This experiment cannot be read",
            what=_sentence(error),
            do="Install a version that can read it and restore it, or delete it with its data.",
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
        what = (
            "An internal error occurred in the dispatcher. Runs are not affected: they do not depend on it."
        )
        do = f"Reload the page. If the error persists, look for {g.get('request_id')} in `cerebro logs dispatcher`."
        return _answer(Problem(status=500, title="Internal error", what=what, do=do), "InternalError")


def _problem(error: errors.CerebroError) -> Problem:
    what = _sentence(error)
    if isinstance(error, errors.StoreUnavailableError):
        title = "The store does not answer"
        do = "Reload this page in a moment. Workers continue their tasks, and committed results are safe."
        return Problem(status=503, title=title, what=what, do=do)
    if isinstance(error, errors.NotFoundError):
        do = "Check the address, or start from the list of experiments."
        return Problem(status=404, title="Not found", what=what, do=do)
    if isinstance(error, errors.PartlyDoneError):
        do = "Go back to the list: it shows the current state of each experiment."
        return Problem(status=409, title="Partly done", what=what, do=do)
    if isinstance(error, errors.ConflictError):
        do = "The command had no effect. Go back and reload the page to see the possible commands."
        return Problem(status=409, title="Not possible now", what=what, do=do)
    if isinstance(error, errors.BadRequestError | errors.SearchSpaceError):
        do = "The request had no effect. Go back, correct it and send it again."
        return Problem(status=400, title="Invalid request", what=what, do=do)
    if isinstance(error, BusyError):
        do = "Reload this page in a moment. Runs are not affected."
        return Problem(status=503, title="Busy", what=what, do=do)
    if isinstance(error, errors.ForbiddenError):
        do = "The request had no effect. The page Account shows your rights and projects."
        return Problem(status=403, title="Not allowed", what=what, do=do)
    if isinstance(error, IdTokenError):
        do = "Sign in again. If the error persists, contact the admin: the dispatcher's log has the reason."
        return Problem(status=401, title="Not signed in", what=what, do=do)
    if isinstance(error, errors.UnauthorizedError):
        title = "The store refuses the dispatcher's token"
        do = "The dispatcher's CEREBRO_TOKEN differs from kvs_api's: set the same for both and restart them."
        return Problem(status=502, title=title, what=what, do=do)
    if isinstance(error, errors.IllegalEventError):
        title = "The event log cannot be read"
        do = "kvs_api and dispatcher may have different versions: install the same version of both."
        return Problem(status=500, title=title, what=what, do=do)
    return Problem(status=502, title="The store answered with an error", what=what, do="Reload the page.")


def _unread(reader: Reader, name: str) -> Unread | None:
    """Return the readable part of an experiment; `None` if it does not exist."""
    try:
        summary = next((each for each in reader.summaries() if each.experiment.name == name), None)
    except errors.CerebroError:
        return None
    if summary is None:
        return None

    def with_log(read_model: ReadModel) -> Unread:
        runs = tuple(run_row(read_model, run) for run in read_model.state.runs.values())
        return Unread(summary=summary, events=read_model.state.seq, runs=runs)

    return reader.readable_part(name, with_log) or Unread(summary=summary)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _answer(problem: Problem, kind: str) -> ResponseReturnValue:
    if not is_browser():
        return jsonify(error=kind, message=f"{problem.what} {problem.do}"), problem.status
    return render_template("pages/problem.html", problem=problem), problem.status
