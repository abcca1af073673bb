"""Reader of uploaded experiment files, in a child process (`file_process`) with 20 s at most.

Only `start.page` uses it. No user code runs here: the file only names modules, which workers import from the code
archive.
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
from cerebro.contract.search import SearchRequest
from cerebro.usercode.archive import ArchiveListing
from dispatcher.sandbox.bounded_processes import BoundedProcesses

READ_S = 20.0
MAX_BYTES = 256 << 10
"""Maximum size of a file."""
_LINE = re.compile(r"^experiment file:(\d+): ", re.M)
_REQUIREMENTS = "requirements.txt"


class FileContent(BaseModel):
    """Content of a file, in the format of `cerebro.client.experiment_file.submission`."""

    name: str
    locators: Locators
    code: str | None
    modules: tuple[str, ...]
    codes: tuple[CodeRecord, ...]
    runs: tuple[RunRequested, ...]


class _Answer(BaseModel):
    submission: FileContent | None
    mistakes: str


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run to start, described for people."""

    name: str
    what: str


class FileReader:
    """Reads experiment files. Safe for several threads."""

    def __init__(self) -> None:
        self._processes = BoundedProcesses("dispatcher.start.file_process", at_once=2)

    def read(self, text: str, *, archive: str, author: str) -> tuple[FileContent | None, str]:
        """Return the content of a file, or its errors, one per line.

        Args:
            archive: SHA-256 of the code archive, or an empty text.

        Raises:
            BusyError: too many files are being read.
        """
        request = {"text": text, "archive": archive, "author": author}
        result = self._processes.run(json.dumps(request).encode(), timeout_s=READ_S)
        try:
            answer = _Answer.model_validate_json(result.output)
        except ValidationError:
            if result.is_late:
                return (
                    None,
                    "Reading the file took too long, maybe because the machine is busy. Send it again.",
                )
            if result.error.rstrip().endswith("MemoryError"):
                return None, "Reading the file needs too much memory. Make it smaller."
            return None, (
                f"Reading the file failed because of an error in this installation, not in your file: {result.ending}. "
                "Contact the admin, or start the experiment with `cerebro run`."
            )
        return answer.submission, _LINE.sub(r"Line \1: ", answer.mistakes)


def archive_problem(content: FileContent, listing: ArchiveListing | None) -> str:
    """Return why workers would not find the modules that the file names, with a remedy, or an empty text."""
    if not content.modules:
        return ""
    if listing is None:
        folder = (
            f"the folder {content.code!r}" if content.code else f"the modules {', '.join(content.modules)}"
        )
        return f"The experiment file needs code: upload {folder} as an archive."
    for name in content.modules:
        if name in sys.stdlib_module_names:
            return f"The experiment file names the module {name}, which is also a module of Python: rename yours."
    names = {member.name.partition("/")[0].removesuffix(".py") for member in listing.members}
    missing = [name for name in content.modules if name not in names]
    if missing and _REQUIREMENTS not in {member.name for member in listing.members}:
        return (
            f"The experiment file names the module {missing[0]}, which is missing in the root of the archive: add it, "
            f"or list its package in a {_REQUIREMENTS}."
        )
    return ""


def _shown_search(search: SearchRequest) -> str:
    names = ", ".join(each.run for each in search.start_from)
    return f"a search ({search.procedure.kind}{f', starts from {names}' if names else ''})"


def shown_runs(content: FileContent) -> Iterator[ShownRun]:
    """Describe the runs, in their order."""
    classes = {code.sha256: code.class_name for code in content.codes}
    for run in content.runs:
        match run.request:
            case EtlRequest() as etl:
                share = "" if etl.fraction == 1 else f", {etl.fraction:.3g} of the rows"
                share += f", stratified by {etl.stratify}" * bool(etl.stratify)
                share += f", grouped by {etl.group}" * bool(etl.group)
                yield ShownRun(name=run.run, what=f"preprocess by {classes[etl.code]}{share}")
            case FitRequest() as fit:
                if fit.models:
                    found = f"{len(fit.models)} model{'' if len(fit.models) == 1 else 's'}"
                    found += f" with {fit.folds} folds" * bool(fit.folds)
                else:
                    found = _shown_search(fit.search) if fit.search else ""
                epochs = f"{fit.epochs} epoch{'' if fit.epochs == 1 else 's'}"
                best = f"{'highest' if fit.mode == 'max' else 'lowest'} {fit.metric}"
                yield ShownRun(
                    name=run.run, what=f"train by {classes[fit.code]}: {found}, {epochs}, {best} first"
                )
            case EvaluateRequest() as evaluation:
                models = ", ".join(evaluation.models) or "the best model"
                yield ShownRun(name=run.run, what=f"{evaluation.kind} {models} on {evaluation.split}")
