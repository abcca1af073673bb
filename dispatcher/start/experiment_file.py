"""An experiment file that a browser sent: what it asks for, or what is wrong with it, told by a process of its own.

No code of the user's runs here: what the file names is imported by workers, from the code archive.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from cerebro.contract.events import RunRequested
from cerebro.contract.records import CodeRecord, Locators
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest
from cerebro.usercode.archive import ArchiveListing
from dispatcher.sandbox.bounded_processes import BoundedProcesses

READ_S = 20.0
MOST_BYTES = 256 << 10
"""Of a file."""
_LINE = re.compile(r"^experiment file:(\d+): ", re.M)
_REQUIREMENTS = "requirements.txt"


class AskedByFile(BaseModel):
    """What a file asks for, as `cerebro.client.experiment_file.asked` has it."""

    name: str
    locators: Locators
    code: str | None
    modules: tuple[str, ...]
    codes: tuple[CodeRecord, ...]
    runs: tuple[RunRequested, ...]


class _Answer(BaseModel):
    asked: AskedByFile | None
    mistakes: str


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run that is to be started, for people."""

    name: str
    what: str


class FileReader:
    """Reads experiment files. Safe for several threads."""

    def __init__(self) -> None:
        self._processes = BoundedProcesses("dispatcher.start.file_process", at_once=2)

    def read(self, text: str, *, archive: str, author: str) -> tuple[AskedByFile | None, str]:
        """What the file asks for, or its mistakes, a line for each.

        Args:
            archive: SHA-256 of the code archive; empty without one.

        Raises:
            BusyError: others read already.
        """
        question = {"text": text, "archive": archive, "author": author}
        said = self._processes.ask(json.dumps(question).encode(), timeout_s=READ_S)
        try:
            answer = _Answer.model_validate_json(said.output)
        except ValidationError:
            if said.is_late:
                return None, "It could not be read in time: others may keep the machine busy. Send it again."
            if said.error.rstrip().endswith("MemoryError"):
                return None, "It could not be read: it takes more memory than a file may."
            return None, (
                f"It could not be read: {said.ending}. That is a fault of this installation, not of your file: "
                "tell its operator, or start the experiment with `cerebro run`."
            )
        return answer.asked, _LINE.sub(r"Line \1: ", answer.mistakes)


def archive_problem(asked: AskedByFile, listing: ArchiveListing | None) -> str:
    """Why workers would not find the code that the file names, and what to do; empty if they may."""
    if not asked.modules:
        return ""
    if listing is None:
        folder = f"the folder {asked.code!r}" if asked.code else f"the modules {', '.join(asked.modules)}"
        return f"The experiment file names code: give {folder} as an archive."
    for name in asked.modules:
        if name in sys.stdlib_module_names:
            return f"The experiment file names the module {name}, as one of Python's own is called: rename yours."
    names = {member.name.partition("/")[0].removesuffix(".py") for member in listing.members}
    missing = [name for name in asked.modules if name not in names]
    if missing and _REQUIREMENTS not in {member.name for member in listing.members}:
        return (
            f"The experiment file names the module {missing[0]}, which is not at the top of the archive: put it there, "
            f"or name the package that has it in a {_REQUIREMENTS}."
        )
    return ""


def shown_runs(asked: AskedByFile) -> Iterator[ShownRun]:
    """The runs in words, in their order."""
    classes = {code.sha256: code.class_name for code in asked.codes}
    for run in asked.runs:
        match run.request:
            case EtlRequest() as etl:
                share = "" if etl.fraction == 1 else f", {etl.fraction:.3g} of the rows"
                yield ShownRun(name=run.run, what=f"preprocess by {classes[etl.code]}{share}")
            case FitRequest() as fit:
                if fit.models:
                    found = f"{len(fit.models)} model{'' if len(fit.models) == 1 else 's'}"
                else:
                    found = f"a search ({fit.search.procedure.kind})" if fit.search else ""
                epochs = f"{fit.epochs} epoch{'' if fit.epochs == 1 else 's'}"
                best = f"{'highest' if fit.mode == 'max' else 'lowest'} {fit.metric}"
                yield ShownRun(
                    name=run.run, what=f"train by {classes[fit.code]}: {found}, {epochs}, {best} first"
                )
            case EvaluateRequest() as evaluation:
                models = ", ".join(evaluation.models) or "the best model"
                yield ShownRun(name=run.run, what=f"{evaluation.kind} {models} on {evaluation.split}")
