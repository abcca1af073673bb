"""What an experiment file asks for, without its code: for whoever has the file and must not run what it names.

The web page has the file from a browser and sends what is asked for to the cluster, where workers import the code from
the archive. It has `main` answer in a process of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from cerebro.client.asking import asked_fit, check_shares, fit_request, rules_of_run
from cerebro.client.experiment_file.form import ExperimentFile, Options, WithModels, parsed
from cerebro.client.goals import goal
from cerebro.client.techniques import chosen
from cerebro.contract import priority
from cerebro.contract.base import Contract
from cerebro.contract.events import RunRequested
from cerebro.contract.records import CodeRecord, Locators
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest, Request
from cerebro.data.locators import parse_locators
from cerebro.errors import ExperimentFileError, PermanentError, SearchError
from cerebro.runtime.checked_yaml import told
from cerebro.usercode.named import Named, encoded

_SOURCE = "experiment file"


class Question(Contract):
    """What is sent."""

    text: str
    """Of the file."""
    archive: str = ""
    """SHA-256 of the code archive; empty without one."""
    author: str = ""


class Asked(Contract):
    """What the file asks for: an experiment with the first runs of their kinds, one waiting for the other.

    Attributes:
        code: the folder or archive that the file names.
        modules: of the user's, by the names at their top; in the code archive, or installed.
        codes: to be stored before the runs are asked for.
    """

    name: str
    locators: Locators
    code: str | None = None
    modules: tuple[str, ...] = ()
    codes: tuple[CodeRecord, ...] = ()
    runs: tuple[RunRequested, ...] = ()


class Answer(Contract):
    """What comes back: either is empty."""

    asked: Asked | None = None
    mistakes: str = ""


def asked(question: Question) -> Asked:
    """Read the file, and check what can be checked without its code and without a cluster.

    Raises:
        ExperimentFileError: what is wrong, a line for each.
    """
    return _Reader(question).asked()


class _Reader:
    """Reads one file."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._file = parsed(question.text, _SOURCE)
        self._codes: list[CodeRecord] = []
        self._modules: set[str] = set()

    def asked(self) -> Asked:
        file = self._file
        locators = parse_locators(file.locators)
        runs = [self._run("etl", file.etl, self._etl(file))]
        if file.fit is not None:
            runs.append(self._run("fit", file.fit, self._fit(file, is_validated=locators.valid is not None)))
        if file.test is not None:
            runs.append(self._run("test", file.test, _evaluation("test", file.test)))
        if file.predict is not None:
            runs.append(self._run("predict", file.predict, _evaluation("predict", file.predict)))
        return Asked(
            name=file.name,
            locators=locators,
            code=file.code,
            modules=tuple(sorted(self._modules)),
            codes=tuple(self._codes),
            runs=tuple(runs),
        )

    def _run(self, kind: str, part: Options, request: Request) -> RunRequested:
        with self._told(kind, "priority"):
            number = priority.parse(part.whole["priority"])
        # Checked once more, by pydantic: the project.
        with self._told(kind):
            return RunRequested.model_validate(
                {
                    "run": f"{kind}-1",
                    "request": request,
                    "author": self._question.author,
                    "priority": number,
                    "project": part.whole["project"],
                }
            )

    def _etl(self, file: ExperimentFile) -> EtlRequest:
        options = file.etl.whole
        shares = {name: options[name] for name in ("fraction", "max_failed")}
        with self._told("etl"):
            check_shares(**shares)
            rules = rules_of_run(options["failure_rules"])
        code = self._encoded(file.etl.spec)
        return EtlRequest(
            code=code.sha256,
            code_fingerprint=code.fingerprint,
            seed=options["seed"],
            fits=True,  # perhaps: the class is not opened here, so the worker tells
            failure_rules=rules,
            **shares,
        )

    def _fit(self, file: ExperimentFile, *, is_validated: bool) -> FitRequest:
        assert file.fit is not None
        options = file.fit.whole
        with self._told("fit", "search"):
            if isinstance(options["search"], Named):
                raise SearchError(
                    f"{options['search'].text} is a search procedure of your own, and says itself which sampler draws: "
                    "only `cerebro run`, or a notebook, can ask it"
                )
        with self._told("fit"):
            options["goal"] = goal(
                *(options[name] for name in ("finish_by", "budget", "workers")), now=time.time()
            )
            searched, models = asked_fit(None, file.fit.space, options, is_validated=is_validated)
            named = chosen(
                *(options[name] for name in ("techniques", "gpus", "trials", "gang")),
                workers={},
                put_code=lambda code: code,
            )
        return fit_request(self._encoded(file.fit.spec).sha256, searched, models, options, named)

    def _encoded(self, text: str) -> CodeRecord:
        named = Named.parse(text)
        code = encoded(named, self._question.archive, author=self._question.author)
        self._codes.append(code)
        self._modules.add(named.module.partition(".")[0])
        return code

    @contextmanager
    def _told(self, *place: str) -> Iterator[None]:
        """What is wrong is told with the line of the place."""
        try:
            yield
        except (PermanentError, ValueError) as problem:
            raise ExperimentFileError(told(self._question.text, _SOURCE, place, problem)) from problem


def _evaluation(kind: Literal["test", "predict"], part: WithModels) -> EvaluateRequest:
    options: dict[str, Any] = part.whole
    return EvaluateRequest(kind=kind, fit="fit-1", models=tuple(options["models"]), split=options["split"])


def main() -> None:
    """Answer one question: JSON from standard input, to standard output."""
    question = Question.model_validate_json(sys.stdin.buffer.read())
    try:
        answer = Answer(asked=asked(question))
    except ExperimentFileError as problem:
        answer = Answer(mistakes=str(problem))
    except MemoryError:
        answer = Answer(mistakes="It takes more memory to read than there is for it.")
    sys.stdout.write(answer.model_dump_json())
