"""Cached rows of the list of experiments, for the page and the read API.

Records are shown at once. The rest of a row needs the experiment's log: rows of the requested page are read within
0.15 s, the others in the background. Keeps the rows of 20,000 experiments in memory. The state of an experiment
without open runs is discarded after its row is computed. `dispatcher.experiments.view` computes the rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from cerebro.contract.records import ExperimentSummary
from cerebro.errors import IllegalEventError, NotFoundError, StoreUnavailableError, UnreadableError
from dispatcher.experiments.view import (
    UNREADABLE,
    ExperimentRow,
    ExperimentsView,
    ListQuery,
    blank_row,
    listing,
    row_of,
)
from dispatcher.read_models.read_model import ReadModel
from dispatcher.read_models.reader import Reader
from dispatcher.read_models.store import ENTRIES_PER_READ

PAGE_READ_S = 0.15
"""Maximum seconds that one request spends on unread logs of its page."""

UPDATE_S = 2.0
"""Minimum seconds between two updates of an open list while rows are read in the background."""

_MAX_CACHED = 20_000
_JOB = "experiments"


class Catalogue:
    """Builds the list. Safe for several threads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, tuple[int, ExperimentRow]] = OrderedDict()
        """Name -> (sequence number of the log's newest event, row)."""
        self._revision = 0
        self._published = 0, float("-inf")
        """`_revision` as last published by `version`, and the time."""
        self._progress: Iterator[bool] | None = None

    def version(self) -> tuple[object, ...]:
        """Return a value that changes whenever `view` would change.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        listed = self._reader.summaries.version()
        shown, at = self._published
        if shown != self._revision and self._reader.monotonic() >= at + UPDATE_S:
            shown = self._revision
            self._published = shown, self._reader.monotonic()
        return listed, shown, self._reader.outage is not None

    def view(self, query: ListQuery) -> ExperimentsView:
        """Return one page.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        summaries = {summary.experiment.name: summary for summary in self._reader.summaries()}
        found = listing([self._row(summary) for summary in summaries.values()], query)
        deadline = self._reader.monotonic() + PAGE_READ_S
        rows = tuple(self._read(summaries[row.name], row, deadline) for row in found.rows)
        if not all(map(self._is_current, islice(summaries.values(), _MAX_CACHED))):
            self._reader.background.submit(_JOB, self._fill)
        read = sum(self._row(summary).is_read for summary in summaries.values())
        return replace(found, rows=rows, read=read)

    # --- rows ------------------------------------------------------------------------------------

    def _row(self, summary: ExperimentSummary) -> ExperimentRow:
        if summary.unreadable:
            found = summary.unreadable
            why = str(UnreadableError.for_event(summary.experiment.name, found.seq, found.reason))
            return replace(blank_row(summary), state=UNREADABLE, problem=why, is_read=True)
        _, row = self._cached.get(summary.experiment.name, (0, None))
        if row is None or row.created != summary.experiment.created:
            return blank_row(summary)
        # The summary is newer than the cached row.
        return replace(row, is_archived=summary.is_archived, is_deleting=summary.is_deleting)

    def _is_current(self, summary: ExperimentSummary) -> bool:
        seq, row = self._cached.get(summary.experiment.name, (-1, None))
        if summary.unreadable:
            return True
        return row is not None and row.created == summary.experiment.created and seq >= summary.last_seq

    def _cache(self, summary: ExperimentSummary, seq: int, row: ExperimentRow) -> None:
        with self._lock:
            _, known = self._cached.get(summary.experiment.name, (0, None))
            self._revision += row != known
            self._cached[summary.experiment.name] = seq, row
            self._cached.move_to_end(summary.experiment.name)
            while len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)

    def _read(self, summary: ExperimentSummary, row: ExperimentRow, deadline: float) -> ExperimentRow:
        """Return the current row if it can be read before the deadline, else the cached one."""
        remaining_s = deadline - self._reader.monotonic()
        if self._is_current(summary) or remaining_s <= 0:
            return self._row(summary)
        try:
            found = self._reader.read_log(
                summary.experiment,
                lambda read_model: self._update(read_model, summary),
                timeout_s=remaining_s,
            )
        except (StoreUnavailableError, NotFoundError):
            return row
        except IllegalEventError as error:
            found = self._unreadable(summary, error)
        return found or row

    def _update(self, read_model: ReadModel, summary: ExperimentSummary) -> ExperimentRow | None:
        if not read_model.is_complete:
            return None
        row = row_of(read_model, summary, self._reader.now())
        self._cache(summary, read_model.state.seq, row)
        return row

    def _unreadable(self, summary: ExperimentSummary, error: IllegalEventError) -> ExperimentRow:
        row = replace(blank_row(summary), state=UNREADABLE, problem=str(error), is_read=True)
        self._cache(summary, summary.last_seq, row)
        return row

    # --- in the background -----------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read one piece of a log whose row is outdated. Returns True when all rows are current."""
        if self._progress is None:
            # More rows than the cache holds would evict each other forever.
            self._progress = self._rows(self._reader.summaries()[:_MAX_CACHED])
        try:
            is_done = next(self._progress, True)
        except StoreUnavailableError:
            self._progress = None
            raise
        self._progress = None if is_done else self._progress
        return is_done

    def _rows(self, summaries: Sequence[ExperimentSummary]) -> Iterator[bool]:
        """Yield False after each piece."""
        for summary in summaries:
            read_model = self._reader.from_snapshot(summary.experiment)
            while not self._is_current(summary):
                is_done = self._step(summary, read_model)
                yield False
                if is_done:
                    break

    def _step(self, summary: ExperimentSummary, read_model: ReadModel) -> bool:
        """Read one piece of a log. Returns True when its row is current."""
        try:
            if summary.open_runs:
                # The log is growing, so keep its read model: later updates are cheap.
                row = self._reader.read_log(
                    summary.experiment, lambda found: self._update(found, summary), timeout_s=0.0
                )
                return row is not None
            events = self._reader.call(
                lambda: self._reader.store.events(summary.experiment.name, after=read_model.state.seq)
            )
            read_model.apply(events)
            read_model.is_complete = len(events) < ENTRIES_PER_READ
            return self._update(read_model, summary) is not None
        except IllegalEventError as error:
            self._unreadable(summary, error)
        except NotFoundError:
            # The experiment was deleted. Until the next list, show its last row.
            self._cache(summary, summary.last_seq, self._row(summary))
        return True
