"""The list of experiments as the page shows it: one row per experiment, filtered, counted and paged here."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial

from cerebro.contract.records import ExperimentSummary
from cerebro.contract.runs import FitRequest
from cerebro.errors import IllegalEventError, StoreUnavailableError
from cerebro.state import ExperimentState, ModelState, Run, wording
from dispatcher.reading import Reader

PAGE = 50
READING_S = 1.5
"""How long one page may spend on logs it has not read yet; the rest comes with the next refresh."""

_MAX_KEPT = 5_000


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best objective value of a fit run."""

    value: float
    metric: str
    mode: str
    model: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One experiment. `ended` is None while something runs; times are seconds since the epoch, None if
    unknown."""

    name: str
    author: str
    created: float
    state: str
    run: str = ""
    done: int = 0
    total: int = 0
    models_done: int = 0
    models_failed: int = 0
    models: int = 0
    best: Best | None = None
    started: float | None = None
    ended: float | None = None
    problem: str = ""

    def duration_s(self, now: float) -> float | None:
        """Of the shown run, so far."""
        return (self.ended or now) - self.started if self.started else None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One page of rows; `matching` of `total` experiments fit the filter."""

    rows: tuple[Row, ...]
    query: str
    page: int
    pages: int
    matching: int
    total: int

    @property
    def is_running(self) -> bool:
        """Whether anything on this page may change by itself soon."""
        return any(row.state in wording.IN_PROGRESS or row.state == "reading" for row in self.rows)


class Lister:
    """Makes listings, keeping the rows of experiments in which nothing runs. Safe for several threads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._kept: OrderedDict[str, tuple[int, Row]] = OrderedDict()

    def listing(self, query: str, page: int) -> Listing:
        """Page number `page` (from 1; past the end: the last) of the experiments whose name or author has
        `query`.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        summaries = self._reader.summaries()
        wanted = query.strip().casefold()
        matching = [
            summary
            for summary in summaries
            if wanted in summary.experiment.name or wanted in summary.experiment.author.casefold()
        ]
        pages = max(1, -(-len(matching) // PAGE))
        page = min(max(1, page), pages)
        deadline = self._reader.monotonic() + READING_S
        shown = matching[(page - 1) * PAGE : page * PAGE]
        return Listing(
            rows=tuple(self._row(summary, deadline) for summary in shown),
            query=query,
            page=page,
            pages=pages,
            matching=len(matching),
            total=len(summaries),
        )

    def _row(self, summary: ExperimentSummary, deadline: float) -> Row:
        record = summary.experiment
        blank = Row(name=record.name, author=record.author, created=record.created, state="reading")
        seq, kept = self._kept.get(record.name, (-1, blank))
        if seq == summary.last_seq and kept.created == record.created:
            return kept
        left_s = deadline - self._reader.monotonic()
        if left_s <= 0:
            return blank
        try:
            row = self._reader.folded(record, partial(row_of, blank=blank), patience_s=left_s)
        except IllegalEventError as error:
            row = replace(blank, state="unreadable", problem=str(error))
        except StoreUnavailableError:
            row = kept
        if row.state not in wording.IN_PROGRESS and row.state not in ("reading", "unreadable"):
            self._kept[record.name] = (summary.last_seq, row)
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return row


def row_of(state: ExperimentState, is_complete: bool, *, blank: Row) -> Row:
    """The row of a folded log; `blank` carries what the record says."""
    if not is_complete:
        return blank
    run = wording.shown_run(state)
    if run is None:
        return replace(blank, state="new")
    done, total = run.progress()
    fit = newest_fit(state)
    models = list(fit.models.values()) if fit else []
    return replace(
        blank,
        state=wording.experiment(state),
        run=run.id,
        done=done,
        total=total,
        models_done=sum(model.state is ModelState.FINISHED for model in models),
        models_failed=sum(model.state is ModelState.FAILED for model in models),
        models=len(models),
        best=best_of(fit) if fit else None,
        started=run.started or run.requested or None,
        ended=run.ended or None,
        problem=run.error or run.reason,
    )


def newest_fit(state: ExperimentState) -> Run | None:
    """The newest fit run that was planned."""
    fits = [run for run in state.runs.values() if run.kind == "fit" and run.models]
    return fits[-1] if fits else None


def best_of(run: Run) -> Best | None:
    """The best model's value at its best epoch, or None while there is none."""
    model = run.best_model()
    if model is None or not isinstance(run.request, FitRequest):
        return None
    name, mode = run.request.metric, run.request.mode
    epoch = model.best_epoch(name, mode, validated=run.is_validated)
    value = model.metric(name, epoch, validated=run.is_validated) if epoch else None
    return Best(value=value, metric=name, mode=mode, model=model.id) if value is not None else None
