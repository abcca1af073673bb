"""Conversion of an experiment file into requests, without importing its code.

The web page receives the file from a browser and must not run user code, so it starts `main` in a sandboxed process.
Workers import the code from the archive.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from cerebro.client.experiment_file.schema import ExperimentFile, Options, WithModels, parsed
from cerebro.client.limits import goal, wait_limit_s
from cerebro.client.requests.run_requests import (
    FitOptions,
    check_columns,
    check_shares,
    checked_failure_rules,
    fit_request,
    resolve_fit,
)
from cerebro.client.requests.techniques import resolve_techniques
from cerebro.client.search.requests import BuiltIn
from cerebro.contract import priority
from cerebro.contract.base import Contract
from cerebro.contract.events import RunRequested
from cerebro.contract.records import CodeRecord, Locators
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest, Request
from cerebro.data.tables.locators import parse_locators
from cerebro.errors import ExperimentFileError, PermanentError, SearchError, SpecError
from cerebro.runtime.checked_yaml import located_message
from cerebro.usercode.named import Named, encoded

_SOURCE = "experiment file"


class ReadRequest(Contract):
    """A file to read."""

    text: str
    """Content of the file."""
    archive: str = ""
    """SHA-256 of the code archive; empty without one."""
    author: str = ""


class Submission(Contract):
    """An experiment with its first run of each kind.

    Attributes:
        name: name of the experiment.
        locators: dataset locators.
        code: folder or archive named in the file.
        modules: top-level modules of user code, in the archive or installed.
        codes: encoded specs, stored before the runs are sent.
        runs: runs in order, each waiting for the previous one.
    """

    name: str
    locators: Locators
    code: str | None = None
    modules: tuple[str, ...] = ()
    codes: tuple[CodeRecord, ...] = ()
    runs: tuple[RunRequested, ...] = ()


class ReadAnswer(Contract):
    """The submission, or mistakes in the file."""

    submission: Submission | None = None
    mistakes: str = ""


def read_submission(request: ReadRequest) -> Submission:
    """Read a file and check everything that needs neither its code nor a cluster.

    Raises:
        ExperimentFileError: one line for each mistake.
    """
    return _Reader(request).submission()


class _Reader:
    def __init__(self, request: ReadRequest) -> None:
        self._request = request
        self._file = parsed(request.text, _SOURCE)
        self._codes: list[CodeRecord] = []
        self._modules: set[str] = set()

    def submission(self) -> Submission:
        file = self._file
        locators = parse_locators(file.locators)
        runs = [self._run("etl", file.etl, self._etl(file))]
        if file.fit is not None:
            runs.append(
                self._run("fit", file.fit, self._fit(file, has_validation_split=locators.valid is not None))
            )
        if file.test is not None:
            runs.append(self._run("test", file.test, _evaluation("test", file.test)))
        if file.predict is not None:
            runs.append(self._run("predict", file.predict, _evaluation("predict", file.predict)))
        return Submission(
            name=file.name,
            locators=locators,
            code=file.code,
            modules=tuple(sorted(self._modules)),
            codes=tuple(self._codes),
            runs=tuple(runs),
        )

    def _run(self, kind: str, part: Options, request: Request) -> RunRequested:
        with self._located_errors(kind, "priority"):
            number = priority.parse(part.with_defaults["priority"])
        # pydantic checks the project.
        with self._located_errors(kind):
            return RunRequested.model_validate(
                {
                    "run": f"{kind}-1",
                    "request": request,
                    "author": self._request.author,
                    "priority": number,
                    "project": part.with_defaults["project"],
                }
            )

    def _etl(self, file: ExperimentFile) -> EtlRequest:
        options = file.etl.with_defaults
        shares = {name: options[name] for name in ("fraction", "max_failed")}
        with self._located_errors("etl"):
            check_shares(**shares)
            columns = {name: options[name] for name in ("stratify", "group")}
            check_columns(parse_locators(file.locators), is_remote=True, **columns)
            rules = checked_failure_rules(options["failure_rules"])
            wait_limit = wait_limit_s(options["wait_limit"])
        code = self._encoded(file.etl.spec)
        return EtlRequest(
            code=code.sha256,
            code_fingerprint=code.fingerprint,
            seed=options["seed"],
            fits=True,  # unknown here, because the class is not imported; the worker finds out
            failure_rules=rules,
            wait_limit_s=wait_limit,
            **shares,
            **columns,
        )

    def _fit(self, file: ExperimentFile, *, has_validation_split: bool) -> FitRequest:
        assert file.fit is not None
        flat = file.fit.explicit
        with self._located_errors("fit", "search"):
            if isinstance(procedure := flat.get("search"), Named):
                raise SearchError(_not_here(f"{procedure.text} is a search procedure of your own"))
            if procedure is not None and not isinstance(procedure, BuiltIn):
                raise SearchError(_not_here(f"{type(procedure).__name__} is a search procedure of a package"))
        with self._located_errors("fit"):
            options = FitOptions.from_flat(flat)
            fit_goal = goal(options.limits, now=time.time())
            search_request, models = resolve_fit(
                None,
                file.fit.space,
                options,
                has_validation_split=has_validation_split,
                put_code=lambda code: _refuse("sampler", code),
            )
            technique_fields = resolve_techniques(
                options.parallelism, workers={}, put_code=lambda code: _refuse("technique", code)
            )
        code = self._encoded(file.fit.spec).sha256
        return fit_request(
            code,
            search_request,
            models,
            options,
            space=file.fit.space,
            technique_fields=technique_fields,
            goal=fit_goal,
        )

    def _encoded(self, text: str) -> CodeRecord:
        named = Named.parse(text)
        code = encoded(named, self._request.archive, author=self._request.author)
        self._codes.append(code)
        self._modules.add(named.module.partition(".")[0])
        return code

    @contextmanager
    def _located_errors(self, *place: str) -> Iterator[None]:
        """Add line and field to errors."""
        try:
            yield
        except (PermanentError, ValueError) as problem:
            raise ExperimentFileError(
                located_message(self._request.text, _SOURCE, place, problem)
            ) from problem


def _refuse(what: str, code: CodeRecord) -> CodeRecord:
    raise SpecError(_not_here(f"{code.class_name} is a {what} of a package"))


def _not_here(what: str) -> str:
    return (
        f"{what}, which the web page cannot send: start the experiment with `cerebro run` or from a notebook"
    )


def _evaluation(kind: Literal["test", "predict"], part: WithModels) -> EvaluateRequest:
    options: dict[str, Any] = part.with_defaults
    return EvaluateRequest(
        kind=kind,
        fit="fit-1",
        models=tuple(options["models"]),
        split=options["split"],
        wait_limit_s=wait_limit_s(options["wait_limit"]),
    )


def main() -> None:
    """Read one `ReadRequest` as JSON from standard input and write a `ReadAnswer` to standard output."""
    request = ReadRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        answer = ReadAnswer(submission=read_submission(request))
    except ExperimentFileError as problem:
        answer = ReadAnswer(mistakes=str(problem))
    except MemoryError:
        answer = ReadAnswer(mistakes="The file needs more memory than is available.")
    sys.stdout.write(answer.model_dump_json())
