"""Read experiment logs and pass new rows to an exporter, once (`ExperimentExport`) or until stopped (`ExportLoop`).

``cerebro export`` runs it, in a user's process or the chart's export pod. The exporter (`MlflowExport`, `WandbExport`)
talks to the tracker and remembers the last event sent; nothing is written to the cluster. An unreachable tracker is
retried every 5 s; an experiment that fails otherwise is skipped until its log grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, ExperimentSummary
from cerebro.errors import CerebroError, NotFoundError, RetryableError, UnreadableError
from cerebro.exports.projection import PageKey, Projection, Row

log = logging.getLogger(__name__)

POLL_S = 5.0
"""Seconds between two reads of the logs; commits of this time are sent together."""


class Store(Protocol):
    """The part of the store that exports read."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments."""
        ...

    def experiment(self, name: str) -> ExperimentRecord:
        """Return the record of one experiment."""
        ...

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Return the next events after a cursor; empty if there are no more."""
        ...


class Export(Protocol):
    """A tracker that receives the rows; sending a row twice has no effect."""

    def cursor(self, page_key: PageKey) -> int:
        """Return the number of the last event whose rows the tracker has for a page."""
        ...

    def send(self, rows: Mapping[PageKey, Sequence[Row]]) -> None:
        """Add rows to pages."""
        ...

    def settle(self) -> None:
        """Update the status of each page after the end of the log was read."""
        ...


class ExperimentExport:
    """Export of one experiment; not thread-safe.

    Args:
        export: creates the exporter for a projection.
    """

    def __init__(
        self, store: Store, record: ExperimentRecord, export: Callable[[Projection], Export]
    ) -> None:
        self._store, self.projection = store, Projection(record)
        self._export = export(self.projection)
        self._rows: dict[PageKey, list[Row]] = {}
        """Rows to send. After a failure they are sent before more events are read."""
        self._is_settled = False
        self.sent = 0
        """Number of rows sent."""

    @property
    def seq(self) -> int:
        """Number of the last event read."""
        return self.projection.state.seq

    def catch_up(self) -> None:
        """Read the rest of the log and send its rows.

        If part of the log is unreadable, the rows before that part are sent.

        Raises:
            RetryableError, ExportError: some rows were not sent. Calling again is safe.
            UnreadableError: an event cannot be read.
            NotFoundError: the experiment was deleted.
        """
        self._send()
        problem: UnreadableError | None = None
        while problem is None:
            try:
                events: Sequence[Event] = self._store.events(self.projection.record.name, self.seq)
            except UnreadableError as error:
                events, problem = error.readable, error
            try:
                self._collect(events)
            except UnreadableError as error:
                problem = error
            self._is_settled &= not events
            self._send()
            if not events:
                break
        if not self._is_settled:
            self._export.settle()
            self._is_settled = True
        if problem is not None:
            raise problem

    def _collect(self, events: Sequence[Event]) -> None:
        for event in events:
            for page_key, row in self.projection.apply(event):
                if row.seq > self._export.cursor(page_key):
                    self._rows.setdefault(page_key, []).append(row)

    def _send(self) -> None:
        if self._rows:
            self._export.send(self._rows)
            self.sent += sum(map(len, self._rows.values()))
            self._rows = {}


class ExportLoop:
    """Loop that exports several experiments until `stop` is set.

    Args:
        names: experiments to export; all by default.
        push_models: sends registered models after the experiments. Raises the same errors as
            `ExperimentExport.catch_up`.
    """

    def __init__(
        self,
        store: Store,
        export: Callable[[Projection], Export],
        names: Collection[str] = (),
        push_models: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._export, self._names, self._push_models = store, export, names, push_models
        self._problem = ""
        """Last error of `push_models`, to log each error once."""
        self._followed: dict[str, ExperimentExport] = {}
        self._failed_at: dict[str, int] = {}
        """Experiment -> number of its newest event when its export failed."""
        self.stop = threading.Event()
        self.last_progress = time.monotonic()
        """Monotonic time of the last progress, for a liveness check."""

    def run(self) -> None:
        """Export until `stop` is set; wait while the tracker or the store is unreachable."""
        while not self.stop.is_set():
            try:
                self.poll()
            except RetryableError as error:
                log.warning("exports wait: %s", error)
            self.stop.wait(POLL_S)
            self.last_progress = time.monotonic()

    def poll(self) -> None:
        """Send all events written since the last call.

        Raises:
            RetryableError: the store or the tracker is unreachable; the next call continues.
        """
        summaries = {summary.experiment.name: summary for summary in self._store.experiments()}
        for name in [name for name in self._followed if name not in summaries]:
            del self._followed[name]
        for name, summary in summaries.items():
            if (self._names and name not in self._names) or summary.is_deleting:
                continue
            followed = self._followed.get(name)
            if followed is None or followed.projection.record.created != summary.experiment.created:
                if summary.unreadable is not None and not summary.unreadable.seq:
                    continue  # Its record is unreadable.
                followed = self._followed[name] = ExperimentExport(
                    self._store, summary.experiment, self._export
                )
            self._export_one(followed, summary)
        self._send_models()

    def _send_models(self) -> None:
        self.last_progress, problem = time.monotonic(), ""
        try:
            self._push_models()
        except RetryableError:
            raise
        except CerebroError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("registered models were not exported: %s", problem)
        self._problem = problem

    def _export_one(self, followed: ExperimentExport, summary: ExperimentSummary) -> None:
        name, self.last_progress = summary.experiment.name, time.monotonic()
        if self._failed_at.get(name) == summary.last_seq:
            return
        try:
            followed.catch_up()
            self._failed_at.pop(name, None)
        except RetryableError:
            raise
        except NotFoundError:
            self._followed.pop(name)
        except CerebroError as error:
            log.warning("the export of %s stopped at event %d: %s", name, followed.seq, error)
            self._followed.pop(name)
            self._failed_at[name] = summary.last_seq
