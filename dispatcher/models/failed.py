"""Causes of a model's failure: the line of user code, and common hyperparameters of models with this failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cerebro.contract.records import Hyperparameters
from cerebro.figures.models import ModelSummary, failure_groups
from dispatcher.read_models.model_table import ModelTable

_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?\n(?P<code>    .*)?', re.M
)
_LIBRARIES = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]|^<(frozen|__array_function__)"
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a traceback. `code` may be empty."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, kw_only=True)
class SameFailure:
    """Models of a run that failed for the same reason.

    Attributes:
        models: their ids, in the order of their failures.
        shared: hyperparameters with equal values in these models, but not in the whole run.
    """

    models: tuple[str, ...]
    shared: Hyperparameters


def user_frame(traceback: str) -> Frame | None:
    """Return the innermost frame in user code; `None` if the traceback has none."""
    frames = [each for each in _frames(traceback) if not _LIBRARIES.search(each.file)]
    return frames[-1] if frames else None


def _frames(traceback: str) -> Iterator[Frame]:
    for found in _FRAME.finditer(traceback):
        yield Frame(
            file=found["file"],
            line=int(found["line"]),
            function=found["function"] or "",
            code=(found["code"] or "").strip(),
        )


def same_failure(table: ModelTable, model: str) -> SameFailure | None:
    """Return the models that failed for the same reason as `model`; `None` if it has not failed."""
    groups = (rows for _, rows in failure_groups(table.failed()))
    rows = next((rows for rows in groups if any(row.id == model for row in rows)), None)
    if rows is None:
        return None
    return SameFailure(
        models=tuple(row.id for row in rows), shared=_shared(rows, table.varying) if len(rows) > 1 else {}
    )


def _shared(rows: Sequence[ModelSummary], varying: Sequence[str]) -> Hyperparameters:
    first = rows[0].hyperparams
    return {
        name: first[name]
        for name in varying
        if name in first and all(repr(row.hyperparams.get(name)) == repr(first[name]) for row in rows)
    }
