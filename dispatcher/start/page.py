"""Routes of the page Start, which creates experiments and requests their first runs.

A valid archive is stored immediately, so the form keeps it when another field has an error. Archives are stored by
content hash, so repeating is harmless. Runs of an experiment file are requested right after the experiment is
created, only the first of each kind, so a form sent twice has one effect. The script checks single fields with
`start_check`; the button Check does the same without scripts. User code never runs here.
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
from dispatcher.access.guard import MAX_NAME_LENGTH
from dispatcher.sandbox.slots import BusyError
from dispatcher.services import Services
from dispatcher.start.experiment_file import (
    MAX_BYTES,
    FileContent,
    FileReader,
    archive_problem,
    shown_runs,
)
from dispatcher.start.form import FIELDS, StartForm
from dispatcher.start.locator_check import LocatorCheck, LocatorFinding

FILES_SHOWN = 200


@dataclass(kw_only=True)
class _Submission:
    """One submission of the form, and its results so far."""

    form: StartForm
    problems: dict[str, str] = field(default_factory=dict)
    listing: ArchiveListing | None = None
    findings: dict[str, list[LocatorFinding]] = field(default_factory=dict)
    """By field. The field for miscellaneous files has several."""
    conflict: str = ""
    """Name of an existing experiment that conflicts."""
    content: FileContent | None = None
    """Content of a valid experiment file."""

    def page(self, status: int, note: str = "") -> ResponseReturnValue:
        page = render_template(
            "start/start.html",
            form=self.form,
            problems=self.problems,
            listing=self.listing,
            findings=self.findings,
            runs=list(shown_runs(self.content)) if self.content else [],
            conflict=self.conflict,
            note=note,
            files_shown=FILES_SHOWN,
            limit=human_bytes(DEFAULT_LIMITS.archive_bytes),
            limit_bytes=DEFAULT_LIMITS.archive_bytes,
            longest_name=MAX_NAME_LENGTH,
        )
        return page, status

    def add_findings(self, found: Iterable[LocatorFinding]) -> None:
        """Store results. A definite error becomes a problem of its field."""
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
            return _Submission(form=StartForm.parse({"author": g.name})).page(200)
        sent = _Submission(form=StartForm.parse(request.form))
        if not g.is_form_ours:
            sent.problems["form"] = (
                "The form is older than your session, so it had no effect. Your input is still here: select the "
                "archive again if you need one, and send the form again."
            )
            return sent.page(400)
        try:
            return _handle(sent, services, check, reader)
        except StoreUnavailableError as error:
            sent.problems["form"] = (
                f"The experiment was not created: {error}. Your input is still here: send the form again."
            )
            return sent.page(503)

    @app.post("/start/check")
    def start_check() -> ResponseReturnValue:
        """Answer problems and results of the sent fields, and the hash of a sent archive."""
        sent = _Submission(form=StartForm.parse(request.form))
        if "file" in request.form:
            _check_form(sent, services, reader)  # the fields that the file fills are checked separately
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
                "start/_runs.html", runs=list(shown_runs(sent.content)) if sent.content else []
            )
        return jsonify(
            fields=pieces,
            archive=sent.form.archive,
            archive_name=sent.form.archive_name,
            filled=sent.form.fields if sent.content else {},
        )

    @app.get("/start/<name:name>")
    def started(name: str) -> ResponseReturnValue:
        return render_template("start/started.html", record=services.reader.record(name))


def _handle(
    sent: _Submission, services: Services, check: LocatorCheck, files: FileReader
) -> ResponseReturnValue:
    reader = services.reader
    if request.form.get("action") == "check":
        _check(sent, services, check, files)
        note = "The form is valid. Press Create experiment to create it."
        return sent.page(422) if sent.problems else sent.page(200, note=note)
    _check_form(sent, services, files)
    if sent.problems:
        return sent.page(422)
    try:
        record = reader.call(lambda: reader.store.create_experiment(sent.form.record()), is_command=True)
    except ConflictError as error:
        sent.problems["name"], sent.conflict = f"{error}.", sent.form.fields["name"]
        return sent.page(409)
    except BadRequestError as error:
        sent.problems["form"] = f"The store refused the experiment: {error}."
        return sent.page(422)
    if sent.content is None:
        return redirect(url_for("started", name=record.name), 303)
    content, started = sent.content, list[str]()
    try:
        for code in content.codes:
            reader.call(partial(reader.store.put_code, code), is_command=True)
        for run in content.runs:
            reader.call(partial(reader.store.append, record.name, run), is_command=True)
            started.append(run.run)
    except ConflictError as error:
        sent.problems["name"] = f"{error}. No run was started: use another name in the file."
        sent.conflict = record.name
        return sent.page(409)
    except (StoreUnavailableError, BadRequestError) as error:
        created = ", ".join([record.name, *started])
        sent.problems["form"] = (
            f"Only {created} was created: {error}. Send the form again to create the rest; repeating is safe."
        )
        return sent.page(503 if isinstance(error, StoreUnavailableError) else 422)
    return redirect(url_for("pages.experiment", name=record.name), 303)


def _check_form(sent: _Submission, services: Services, files: FileReader) -> None:
    """Check everything that needs no data: fields, archive and experiment file."""
    found: dict[str, str] = {}
    try:
        _take_archive(sent, services)
    except ArchiveError as error:
        found["archive"] = f"{error}."
    except NotFoundError:
        sent.form = replace(sent.form, archive="", archive_name="")
        found["archive"] = "The store has deleted the archive: select the file again."
    if problem := _take_file(sent, files):
        found["file"] = problem
    elif sent.content and (problem := archive_problem(sent.content, sent.listing)):
        found.setdefault("archive", problem)
    sent.problems = found if "file" in found else {**sent.form.problems(), **found}


def _take_file(sent: _Submission, files: FileReader) -> str:
    """Read the experiment file, fill the form from it, and return its errors."""
    upload = request.files.get("file_upload")
    if upload is not None and upload.filename:
        content = upload.stream.read(MAX_BYTES + 1)
        text = content.decode(errors="replace").replace("\r\n", "\n")
        sent.form = replace(sent.form, fields={**sent.form.fields, "file": text})
    text = sent.form.fields["file"]
    if not text:
        return ""
    if len(text) > MAX_BYTES:
        return f"Larger than {human_bytes(MAX_BYTES)}."
    author = sent.form.fields["author"][:MAX_NAME_LENGTH]
    try:
        sent.content, mistakes = files.read(text, archive=sent.form.archive, author=author)
    except BusyError as error:
        return f"The file was not read: {error}."
    if sent.content is not None:
        sent.form = sent.form.filled(sent.content.name, sent.content.locators)
    return mistakes


def _check(sent: _Submission, services: Services, check: LocatorCheck, files: FileReader) -> None:
    """Check everything, including the data."""
    _check_form(sent, services, files)
    locators = sent.form.locators(sent.problems)
    if locators is None:
        return
    try:
        sent.add_findings(check.check(locators))
    except BusyError as error:
        sent.problems.setdefault("form", f"The locators were not checked: {error}.")


def _take_archive(sent: _Submission, services: Services) -> None:
    """Inspect the uploaded archive, else the archive that an earlier attempt stored."""
    reader = services.reader
    if request.form.get("drop_archive"):
        sent.form = replace(sent.form, archive="", archive_name="")
    upload = request.files.get("archive")
    if upload is not None and upload.filename:
        name, content = upload.filename[-200:], _content(upload)
        sent.listing = inspect(content, name=name)
        sha256 = sent.listing.sha256
        reader.call(lambda: reader.store.put_archive(sha256, content), is_command=True)
        sent.form = replace(sent.form, archive=sha256, archive_name=name)
    elif sent.form.archive:
        content = reader.call(lambda: reader.store.archive(sent.form.archive), is_command=True)
        sent.listing = inspect(content, name=sent.form.archive_name or "the archive sent before")


def _content(upload: FileStorage) -> bytes:
    # One byte above the limit lets `inspect` report the limit.
    return upload.stream.read(DEFAULT_LIMITS.archive_bytes + 1)
