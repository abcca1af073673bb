"""The start page: takes code and locators, checks them as they are entered, creates the experiment.

A good archive is stored at once, so that a form sent back for another field does not lose it; archives are
named by their content, so storing one again is harmless. What an experiment file asks for is requested right after the
experiment is created: the first run of each kind, so that a form sent twice has one effect. The script's check
(`start_check`) is the form's own, of the same fields, answered in pieces: without scripts the button does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from flask import Flask, g, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import FileStorage

from cerebro.errors import ArchiveError, BadRequestError, ConflictError, NotFoundError, StoreUnavailableError
from cerebro.usercode.archive import DEFAULT_LIMITS, ArchiveListing, human_bytes, inspect
from dispatcher.access.guard import LONGEST_NAME
from dispatcher.sandbox.slots import BusyError
from dispatcher.services import Services
from dispatcher.start.experiment_file import (
    MOST_BYTES,
    AskedByFile,
    FileReader,
    archive_problem,
    shown_runs,
)
from dispatcher.start.form import FIELDS, StartForm
from dispatcher.start.locator_check import LocatorCheck, LocatorFinding

FILES_SHOWN = 200


@dataclass(kw_only=True)
class _Try:
    """One sending of the form: what it has come to so far."""

    form: StartForm
    problems: dict[str, str] = field(default_factory=dict)
    listing: ArchiveListing | None = None
    findings: dict[str, list[LocatorFinding]] = field(default_factory=dict)
    """By field; several for miscellaneous files."""
    conflict: str = ""
    """Name of an experiment that is in the way."""
    asked: AskedByFile | None = None
    """What the experiment file asks for, if there is a good one."""

    def page(self, status: int, note: str = "") -> ResponseReturnValue:
        page = render_template(
            "start/start.html",
            form=self.form,
            problems=self.problems,
            listing=self.listing,
            findings=self.findings,
            runs=list(shown_runs(self.asked)) if self.asked else [],
            conflict=self.conflict,
            note=note,
            files_shown=FILES_SHOWN,
            limit=human_bytes(DEFAULT_LIMITS.archive_bytes),
            limit_bytes=DEFAULT_LIMITS.archive_bytes,
            longest_name=LONGEST_NAME,
        )
        return page, status

    def take(self, found: Iterable[LocatorFinding]) -> None:
        """Keep what was found; what is certainly wrong is a problem of its field."""
        for finding in found:
            self.findings.setdefault(finding.field, []).append(finding)
            if finding.state == "wrong":
                where = f"Line {finding.line}: " if finding.line else ""
                self.problems.setdefault(finding.field, f"{where}{finding.message}.")


def register(app: Flask, services: Services) -> None:
    """Add the routes."""
    check, reader = LocatorCheck(services.settings), FileReader()

    @app.route("/start", methods=["GET", "POST"])
    def start() -> ResponseReturnValue:
        if request.method == "GET":
            return _Try(form=StartForm.parse({"author": g.name})).page(200)
        sent = _Try(form=StartForm.parse(request.form))
        if not g.is_form_ours:
            sent.problems["form"] = (
                "This page was older than your session, so nothing was done. What you typed is still here: "
                "choose the archive again, if there was one, and send it once more."
            )
            return sent.page(400)
        try:
            return _handle(sent, services, check, reader)
        except StoreUnavailableError as error:
            sent.problems["form"] = (
                f"Nothing was created: {error}. What you typed is still here: send it again."
            )
            return sent.page(503)

    @app.post("/start/check")
    def start_check() -> ResponseReturnValue:
        """Of the fields that were sent: what is wrong, what was found; and the archive's hash if one came."""
        sent = _Try(form=StartForm.parse(request.form))
        if "file" in request.form:
            _look(sent, services, reader)  # the fields that it fills are checked each by itself
        else:
            _check(sent, services, check, reader)
        pieces = {
            name: {
                "problem": sent.problems.get(name, ""),
                "html": render_template(
                    "start/_found.html", findings=sent.findings.get(name, []), listing=None
                ),
            }
            for name in request.form
            if name in FIELDS
        }
        if sent.listing or "archive" in sent.problems:
            html = render_template(
                "start/_found.html", findings=[], listing=sent.listing, files_shown=FILES_SHOWN
            )
            pieces["archive"] = {"problem": sent.problems.get("archive", ""), "html": html}
        if "file" in pieces:
            pieces["file"]["html"] = render_template(
                "start/_runs.html", runs=list(shown_runs(sent.asked)) if sent.asked else []
            )
        return jsonify(
            fields=pieces,
            archive=sent.form.archive,
            archive_name=sent.form.archive_name,
            filled=sent.form.fields if sent.asked else {},
        )

    @app.get("/start/<name:name>")
    def started(name: str) -> ResponseReturnValue:
        return render_template("start/started.html", record=services.reader.record(name))


def _handle(sent: _Try, services: Services, check: LocatorCheck, files: FileReader) -> ResponseReturnValue:
    reader = services.reader
    if request.form.get("action") == "check":
        _check(sent, services, check, files)
        note = "Nothing is wrong with this form. Nothing was created yet."
        return sent.page(422) if sent.problems else sent.page(200, note=note)
    _look(sent, services, files)
    if sent.problems:
        return sent.page(422)
    try:
        record = reader.ask(lambda: reader.store.create_experiment(sent.form.record()), is_command=True)
    except ConflictError as error:
        sent.problems["name"], sent.conflict = f"{error}.", sent.form.fields["name"]
        return sent.page(409)
    except BadRequestError as error:
        sent.problems["form"] = f"The store refused it: {error}."
        return sent.page(422)
    if sent.asked is None:
        return redirect(url_for("started", name=record.name), 303)
    asked, started = sent.asked, list[str]()
    try:
        for code in asked.codes:
            reader.ask(partial(reader.store.put_code, code), is_command=True)
        for run in asked.runs:
            reader.ask(partial(reader.store.append, record.name, run), is_command=True)
            started.append(run.run)
    except ConflictError as error:
        sent.problems["name"] = f"{error}. Nothing was started: name another experiment in the file."
        sent.conflict = record.name
        return sent.page(409)
    except (StoreUnavailableError, BadRequestError) as error:
        there = ", ".join([record.name, *started])
        sent.problems["form"] = (
            f"The store was there for {there} alone: {error}. Send it again: what is there is not done twice."
        )
        return sent.page(503 if isinstance(error, StoreUnavailableError) else 422)
    return redirect(url_for("pages.experiment", name=record.name), 303)


def _look(sent: _Try, services: Services, files: FileReader) -> None:
    """What can be said without reading data: all mistakes of form, the archive and the experiment file."""
    found: dict[str, str] = {}
    try:
        _take_archive(sent, services)
    except ArchiveError as error:
        found["archive"] = f"{error}."
    except NotFoundError:
        sent.form = replace(sent.form, archive="", archive_name="")
        found["archive"] = "The store no longer has the archive sent before: choose the file again."
    if problem := _take_file(sent, files):
        found["file"] = problem
    elif sent.asked and (problem := archive_problem(sent.asked, sent.listing)):
        found.setdefault("archive", problem)
    sent.problems = found if "file" in found else {**sent.form.problems(), **found}


def _take_file(sent: _Try, files: FileReader) -> str:
    """Read the experiment file, if there is one, and fill the form from it; what is wrong with it."""
    upload = request.files.get("file_upload")
    if upload is not None and upload.filename:
        content = upload.stream.read(MOST_BYTES + 1)
        text = content.decode(errors="replace").replace("\r\n", "\n")
        sent.form = replace(sent.form, fields={**sent.form.fields, "file": text})
    text = sent.form.fields["file"]
    if not text:
        return ""
    if len(text) > MOST_BYTES:
        return f"Larger than {human_bytes(MOST_BYTES)}."
    author = sent.form.fields["author"][:LONGEST_NAME]
    try:
        sent.asked, mistakes = files.read(text, archive=sent.form.archive, author=author)
    except BusyError as error:
        return f"It was not read: {error}."
    if sent.asked is not None:
        sent.form = sent.form.filled(sent.asked.name, sent.asked.locators)
    return mistakes


def _check(sent: _Try, services: Services, check: LocatorCheck, files: FileReader) -> None:
    """All that can be said."""
    _look(sent, services, files)
    locators = sent.form.locators(sent.problems)
    if locators is None:
        return
    try:
        sent.take(check.check(locators))
    except BusyError as error:
        sent.problems.setdefault("form", f"The locators were not looked at: {error}.")


def _take_archive(sent: _Try, services: Services) -> None:
    """Inspect the uploaded archive, or else the one that an earlier try has stored."""
    reader = services.reader
    if request.form.get("drop_archive"):
        sent.form = replace(sent.form, archive="", archive_name="")
    upload = request.files.get("archive")
    if upload is not None and upload.filename:
        name, content = upload.filename[-200:], _content(upload)
        sent.listing = inspect(content, name=name)
        sha256 = sent.listing.sha256
        reader.ask(lambda: reader.store.put_archive(sha256, content), is_command=True)
        sent.form = replace(sent.form, archive=sha256, archive_name=name)
    elif sent.form.archive:
        content = reader.ask(lambda: reader.store.archive(sent.form.archive), is_command=True)
        sent.listing = inspect(content, name=sent.form.archive_name or "the archive sent before")


def _content(upload: FileStorage) -> bytes:
    # One byte past the limit is enough for `inspect` to name the limit.
    return upload.stream.read(DEFAULT_LIMITS.archive_bytes + 1)
