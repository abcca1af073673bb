"""The start page: takes code and locators, says all that is wrong, creates the experiment.

A good archive is stored at once, so that a form sent back for another field does not lose it; archives are
named by their content, so storing one again is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flask import Flask, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import FileStorage

from cerebro.archive import DEFAULT_LIMITS, ArchiveListing, human_bytes, inspect
from cerebro.errors import ArchiveError, BadRequestError, ConflictError, NotFoundError, StoreUnavailableError
from dispatcher.form import StartForm
from dispatcher.reading import Reader

FILES_SHOWN = 200


@dataclass(kw_only=True)
class _Try:
    """One sending of the form: what it has come to so far."""

    form: StartForm
    problems: dict[str, str] = field(default_factory=dict)
    listing: ArchiveListing | None = None
    conflict: str = ""
    """Name of an experiment that is in the way."""

    def page(self, status: int, note: str = "") -> ResponseReturnValue:
        page = render_template(
            "start.html",
            form=self.form,
            problems=self.problems,
            listing=self.listing,
            conflict=self.conflict,
            note=note,
            files_shown=FILES_SHOWN,
            limit=human_bytes(DEFAULT_LIMITS.archive_bytes),
            limit_bytes=DEFAULT_LIMITS.archive_bytes,
        )
        return page, status


def register(app: Flask, reader: Reader) -> None:
    """Add the route."""

    @app.route("/start", methods=["GET", "POST"])
    def start() -> ResponseReturnValue:
        if request.method == "GET":
            return _Try(form=StartForm()).page(200)
        sent = _Try(form=StartForm.parse(request.form))
        if not g.is_form_ours:
            sent.problems["form"] = (
                "This page was older than your session, so nothing was done. What you typed is still here: "
                "choose the archive again, if there was one, and send it once more."
            )
            return sent.page(400)
        try:
            return _handle(sent, reader)
        except StoreUnavailableError as error:
            sent.problems["form"] = (
                f"Nothing was created: {error}. What you typed is still here: send it again."
            )
            return sent.page(503)


def _handle(sent: _Try, reader: Reader) -> ResponseReturnValue:
    sent.problems = sent.form.problems()
    try:
        _take_archive(sent, reader)
    except ArchiveError as error:
        sent.problems["archive"] = f"{error}."
    except NotFoundError:
        sent.form = replace(sent.form, archive="", archive_name="")
        sent.problems["archive"] = "The store no longer has the archive sent before: choose the file again."
    if sent.problems:
        return sent.page(422)
    if request.form.get("action") == "check":
        return sent.page(200, note="Nothing is wrong with this form. Nothing was created yet.")
    try:
        record = reader.ask(lambda: reader.store.create_experiment(sent.form.record()), is_wish=True)
    except ConflictError as error:
        sent.problems["name"], sent.conflict = f"{error}.", sent.form.name
        return sent.page(409)
    except BadRequestError as error:
        sent.problems["form"] = f"The store refused it: {error}."
        return sent.page(422)
    return redirect(url_for("experiment", name=record.name), 303)


def _take_archive(sent: _Try, reader: Reader) -> None:
    """Inspect the uploaded archive, or else the one that an earlier try has stored."""
    if request.form.get("drop_archive"):
        sent.form = replace(sent.form, archive="", archive_name="")
    upload = request.files.get("archive")
    if upload is not None and upload.filename:
        name, content = upload.filename[-200:], _content(upload)
        sent.listing = inspect(content, name=name)
        sha256 = sent.listing.sha256
        reader.ask(lambda: reader.store.put_archive(sha256, content), is_wish=True)
        sent.form = replace(sent.form, archive=sha256, archive_name=name)
    elif sent.form.archive:
        content = reader.ask(lambda: reader.store.archive(sent.form.archive), is_wish=True)
        sent.listing = inspect(content, name=sent.form.archive_name or "the archive sent before")


def _content(upload: FileStorage) -> bytes:
    # One byte past the limit is enough for `inspect` to name the limit.
    return upload.stream.read(DEFAULT_LIMITS.archive_bytes + 1)
