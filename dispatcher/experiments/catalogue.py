"""The rows of the list of experiments, kept while their logs grow.

What the record says is shown at once. What only the log knows takes reading it: rows that somebody looks at are read as
far as time allows, all others in the background. Logs in which nothing runs are folded for their row alone and
forgotten.
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
from dispatcher.reading.read_model import ReadModel
from dispatcher.reading.reader import Reader
from dispatcher.reading.store import ENTRIES_PER_READ

GLANCE_S = 0.15
"""How long one page may spend on logs that it shows and that are not read yet."""

FILLED_S = 2.0
"""While rows are read in the background an open list is made anew at most this often."""

_MAX_KEPT = 20_000
_JOB = "experiments"


class Catalogue:
    """Makes the list. Safe for several threads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, ExperimentRow]] = OrderedDict()
        """Name -> seq of the log's newest event, and the row."""
        self._filled = 0
        self._shown = 0, float("-inf")
        """`_filled` as `version` said it, and when."""
        self._filling: Iterator[bool] | None = None

    def version(self) -> tuple[object, ...]:
        """What `view` would show, as something to compare: equal means that nothing has changed.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        listed = self._reader.summaries.version()
        shown, at = self._shown
        if shown != self._filled and self._reader.monotonic() >= at + FILLED_S:
            shown = self._filled
            self._shown = shown, self._reader.monotonic()
        return listed, shown, self._reader.outage is not None

    def view(self, asked: ListQuery) -> ExperimentsView:
        """One page.

        Raises:
            StoreUnavailableError: the store is away and was never read.
        """
        summaries = {summary.experiment.name: summary for summary in self._reader.summaries()}
        found = listing([self._known(summary) for summary in summaries.values()], asked)
        deadline = self._reader.monotonic() + GLANCE_S
        rows = tuple(self._read(summaries[row.name], row, deadline) for row in found.rows)
        if not all(map(self._is_current, islice(summaries.values(), _MAX_KEPT))):
            self._reader.background.submit(_JOB, self._fill)
        read = sum(self._known(summary).is_read for summary in summaries.values())
        return replace(found, rows=rows, read=read)

    # --- rows ------------------------------------------------------------------------------------

    def _known(self, summary: ExperimentSummary) -> ExperimentRow:
        if summary.unreadable:
            found = summary.unreadable
            why = str(UnreadableError.of(summary.experiment.name, found.seq, found.reason))
            return replace(blank_row(summary), state=UNREADABLE, problem=why, is_read=True)
        _, row = self._kept.get(summary.experiment.name, (0, None))
        if row is None or row.created != summary.experiment.created:
            return blank_row(summary)
        # What the list itself says is as new as the list.
        return replace(row, is_archived=summary.is_archived, is_deleting=summary.is_deleting)

    def _is_current(self, summary: ExperimentSummary) -> bool:
        seq, row = self._kept.get(summary.experiment.name, (-1, None))
        if summary.unreadable:
            return True
        return row is not None and row.created == summary.experiment.created and seq >= summary.last_seq

    def _keep(self, summary: ExperimentSummary, seq: int, row: ExperimentRow) -> None:
        with self._lock:
            _, known = self._kept.get(summary.experiment.name, (0, None))
            self._filled += row != known
            self._kept[summary.experiment.name] = seq, row
            self._kept.move_to_end(summary.experiment.name)
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)

    def _read(self, summary: ExperimentSummary, row: ExperimentRow, deadline: float) -> ExperimentRow:
        """The row as it is now, if there is time to find out."""
        left_s = deadline - self._reader.monotonic()
        if self._is_current(summary) or left_s <= 0:
            return self._known(summary)
        try:
            found = self._reader.glance(
                summary.experiment, lambda read_model: self._made(read_model, summary), timeout_s=left_s
            )
        except (StoreUnavailableError, NotFoundError):
            return row
        except IllegalEventError as error:
            found = self._unreadable(summary, error)
        return found or row

    def _made(self, read_model: ReadModel, summary: ExperimentSummary) -> ExperimentRow | None:
        if not read_model.is_complete:
            return None
        row = row_of(read_model, summary, self._reader.now())
        self._keep(summary, read_model.state.seq, row)
        return row

    def _unreadable(self, summary: ExperimentSummary, error: IllegalEventError) -> ExperimentRow:
        row = replace(blank_row(summary), state=UNREADABLE, problem=str(error), is_read=True)
        self._keep(summary, summary.last_seq, row)
        return row

    # --- in the background -----------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read a page of a log whose row is not current; whether there is none."""
        if self._filling is None:
            # More rows than are kept would push each other out for ever.
            self._filling = self._rows(self._reader.summaries()[:_MAX_KEPT])
        try:
            is_done = next(self._filling, True)
        except StoreUnavailableError:
            self._filling = None
            raise
        self._filling = None if is_done else self._filling
        return is_done

    def _rows(self, summaries: Sequence[ExperimentSummary]) -> Iterator[bool]:
        """A step between two yields, each of which says that it is not the last."""
        for summary in summaries:
            read_model = self._reader.begun(summary.experiment)
            while not self._is_current(summary):
                is_done = self._step(summary, read_model)
                yield False
                if is_done:
                    break

    def _step(self, summary: ExperimentSummary, read_model: ReadModel) -> bool:
        """Whether no more is to be read for this row."""
        try:
            if summary.open_runs:
                # Its log grows: it is followed, so that the next row costs the news only.
                row = self._reader.glance(
                    summary.experiment, lambda found: self._made(found, summary), timeout_s=0.0
                )
                return row is not None
            events = self._reader.ask(
                lambda: self._reader.store.events(summary.experiment.name, after=read_model.state.seq)
            )
            read_model.apply(events)
            read_model.is_complete = len(events) < ENTRIES_PER_READ
            return self._made(read_model, summary) is not None
        except IllegalEventError as error:
            self._unreadable(summary, error)
        except NotFoundError:
            # Deleted since: the next list is without it. Until then its row says what is known.
            self._keep(summary, summary.last_seq, self._known(summary))
        return True
