"""The list of experiments: rows, and their search, filter, order and pages. Pure.

`experiments.catalogue` calls `row_of` under an experiment's lock, and `listing` for each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

from pydantic import Field, field_validator

from cerebro.commands.rules import resumable
from cerebro.contract.base import Contract
from cerebro.contract.records import ExperimentSummary
from cerebro.state import ExperimentState, Run
from cerebro.state.reports import state_words
from dispatcher.pages.tables import Paged, ordered, page_of, sort_keys
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.models import Best, best
from dispatcher.tabs.runs import ShownRun, shown_run

READING = "reading"
"""State of an experiment whose log is not read yet."""
UNREADABLE = "unreadable"
"""State of an experiment whose log this version cannot read."""


class ListQuery(Contract):
    """Selection and order of experiments.

    Attributes:
        q: part of a name, author, project, tag or note; case-insensitive.
        state: states separated by commas, by default all.
        archived: ``no`` hides archived experiments, ``yes`` shows only them, ``all`` shows both.
        sort: keys of `SORTS` separated by commas; a leading ``-`` means descending.
    """

    q: str = Field("", max_length=100)
    state: str = Field("", max_length=200)
    archived: Literal["no", "yes", "all"] = "no"
    sort: str = Field("-last_event", max_length=200)
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(50, ge=1, le=500)

    @field_validator("sort")
    @classmethod
    def _is_known(cls, sort: str) -> str:
        unknown = [key for key, _ in sort_keys(sort) if key not in SORTS]
        if unknown:
            raise ValueError(f"cannot sort by {', '.join(unknown)}; known keys: {', '.join(SORTS)}")
        return sort


@dataclass(frozen=True, kw_only=True)
class ModelCounts:
    """Number of models of an experiment's newest planned fit.

    Attributes:
        done: trained completely or stopped by the search.
        stopped: stopped by users.
        failed: failed for good.
    """

    total: int = 0
    done: int = 0
    stopped: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkingTime:
    """Time that an experiment's runs worked. Times are seconds since the epoch, `None` if unknown.

    Attributes:
        started: start of the first run.
        begun: start of the first run, plus the time without a run in progress. So `ended - begun` is the working time.
        ended: end of the last run; `None` while a run is open.
    """

    started: float | None = None
    begun: float | None = None
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One experiment. Times are seconds since the epoch.

    Attributes:
        state: a word of `cerebro.state.reports.state_words`, `READING` or `UNREADABLE`.
        run: progress at the experiment's newest event.
        best: best model of all fits with the same metric and data set.
        problem: why `run` failed or waits, which later run failed or was stopped, or why the log is unreadable.
        tags: tags with the note.
        is_read: True if the log is read; otherwise only the record's fields are known.
    """

    name: str
    author: str
    created: float
    last_event: float
    project: str = ""
    owner: str = ""
    state: str = READING
    run: ShownRun = field(default_factory=ShownRun)
    models: ModelCounts = field(default_factory=ModelCounts)
    best: Best | None = None
    worked: WorkingTime = field(default_factory=WorkingTime)
    problem: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    is_archived: bool = False
    is_deleting: bool = False
    is_read: bool = False


@dataclass(frozen=True, kw_only=True)
class ExperimentsView(Paged):
    """One page of rows.

    Attributes:
        read: number of experiments whose log is read.
        counts: number of experiments per state, over all that match the query without its `state`.
    """

    rows: tuple[ExperimentRow, ...]
    query: ListQuery
    read: int
    counts: tuple[tuple[str, int], ...]

    @property
    def is_running(self) -> bool:
        """True if a row of this page may change soon."""
        return any(
            row.state in state_words.IN_PROGRESS or row.state == READING or row.is_deleting
            for row in self.rows
        )


SORTS: dict[str, Callable[[ExperimentRow], Any]] = {
    "name": lambda row: row.name,
    "author": lambda row: row.author.casefold() or None,
    "created": lambda row: row.created,
    "last_event": lambda row: row.last_event,
    "state": lambda row: row.state,
    "progress": lambda row: row.run.done / row.run.total if row.run.total else None,
    "left": lambda row: row.run.time_left.ends_at if row.run.time_left else None,
    "best": lambda row: row.best.value if row.best else None,
    "models": lambda row: row.models.total or None,
    "started": lambda row: row.worked.started,
    "duration": lambda row: (
        (row.worked.ended or row.last_event) - row.worked.begun if row.worked.begun else None
    ),
}
"""Key -> sort value. `None` sorts last in both directions."""


def listing(rows: Sequence[ExperimentRow], query: ListQuery) -> ExperimentsView:
    """Return one page of `rows`."""
    fitting = _matching(rows, query)
    states = {word.strip() for word in query.state.split(",") if word.strip()}
    found = [row for row in fitting if not states or row.state in states]
    for key, is_descending in reversed(sort_keys(query.sort)):
        found = ordered(found, SORTS[key], is_descending=is_descending)
    page = page_of(found, query.page, query.size)
    return ExperimentsView(
        rows=tuple(page.rows),
        query=query,
        read=sum(row.is_read for row in rows),
        counts=tuple(Counter(row.state for row in fitting).most_common()),
        **page.fields(len(rows)),
    )


def blank_row(summary: ExperimentSummary) -> ExperimentRow:
    """Return the row of an experiment whose log is not read."""
    record = summary.experiment
    return ExperimentRow(
        name=record.name,
        author=record.author,
        project=record.project,
        owner=record.owner,
        created=record.created,
        last_event=summary.last_event,
        is_archived=summary.is_archived,
        is_deleting=summary.is_deleting,
    )


def row_of(read_model: ReadModel, summary: ExperimentSummary, now: float) -> ExperimentRow:
    """Return the row of an experiment whose log is read, at `now` (seconds since the epoch)."""
    state, record = read_model.state, summary.experiment
    run, fit = state_words.shown_run(state), read_model.fit()
    ends = state_words.model_ends(fit) if fit else state_words.ModelEnds()
    return ExperimentRow(
        name=record.name,
        author=record.author,
        project=record.project,
        owner=record.owner,
        created=record.created,
        last_event=summary.last_event,
        state=state_words.experiment(state),
        run=shown_run(read_model, now),
        models=ModelCounts(
            total=len(fit.models) if fit else 0,
            done=ends.trained + ends.early,
            stopped=ends.stopped,
            failed=ends.failed,
        ),
        best=best(read_model, fit),
        worked=_working_time(state),
        problem=_problem(read_model, run) if run else "",
        tags=state.tags,
        is_archived=state.is_archived,
        is_deleting=state.deletion is not None,
        is_read=True,
    )


def _working_time(state: ExperimentState) -> WorkingTime:
    started = min((each.clock.started for each in state.runs.values() if each.clock.started), default=None)
    begun = sorted(
        ((run.clock.begun, run) for run in state.runs.values() if run.clock.started), key=itemgetter(0)
    )
    took, until = 0.0, 0.0
    for at, run in begun:
        since = max(at, until)  # runs may overlap
        if run.is_open:
            return WorkingTime(started=started, begun=since - took)
        took, until = took + max(0.0, run.clock.ended - since), max(until, run.clock.ended)
    return WorkingTime(started=started, begun=until - took, ended=until) if begun else WorkingTime()


def _problem(read_model: ReadModel, run: Run) -> str:
    halted = resumable(read_model.state)
    problem = run.failures.error or run.pause.reason or state_words.failed_since(read_model.state)
    if problem or halted is None or halted is run:
        return problem
    done, total = read_model.progress(halted)
    return f"{halted.id} was stopped after {done:,}{f' of {total:,}' if total else ''} tasks"


def _matching(rows: Sequence[ExperimentRow], query: ListQuery) -> list[ExperimentRow]:
    wanted = query.q.strip().casefold()
    return [
        row
        for row in rows
        if (query.archived == "all" or row.is_archived == (query.archived == "yes"))
        and (not wanted or _has_text(row, wanted))
    ]


def _has_text(row: ExperimentRow, wanted: str) -> bool:
    tags = (f"{key}={value}".casefold() for key, value in row.tags.items())
    return any(wanted in text for text in (row.name, row.author.casefold(), row.project, *tags))
