"""Reads logs and hands what they add to an export, experiment by experiment."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, ExperimentSummary
from cerebro.errors import CerebroError, NotFoundError, RetryableError, UnreadableError
from cerebro.exports.projection import Place, Projection, Row

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks at the logs: commits of so long are sent together."""


class Store(Protocol):
    """What is read."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """All experiments."""
        ...

    def experiment(self, name: str) -> ExperimentRecord:
        """One of them."""
        ...

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Of its log, some that come after a cursor; none at its end."""
        ...


class Export(Protocol):
    """Where it goes to. What is sent twice is there once."""

    def cursor(self, place: Place) -> int:
        """Up to which event a page has its rows."""
        ...

    def send(self, rows: Mapping[Place, Sequence[Row]]) -> None:
        """Add rows."""
        ...

    def settle(self) -> None:
        """Tell how each page stands; the log was read to its end."""
        ...


class Followed:
    """One experiment on its way; not thread-safe.

    Args:
        export: made for its projection.
    """

    def __init__(
        self, store: Store, record: ExperimentRecord, export: Callable[[Projection], Export]
    ) -> None:
        self._store, self.projection = store, Projection(record)
        self._export = export(self.projection)
        self._rows: dict[Place, list[Row]] = {}
        """Not taken yet: after a failure they are sent again before anything else is read."""
        self._is_settled = False
        self.sent = 0
        """Rows that were handed on."""

    @property
    def seq(self) -> int:
        """Number of the newest event that was read."""
        return self.projection.state.seq

    def catch_up(self) -> None:
        """Send what the log has, to its end. What cannot be read ends it; what comes before is sent.

        Raises:
            RetryableError, ExportError: not all was sent. To call it again is safe.
            UnreadableError: the log cannot be read to its end.
            NotFoundError: the experiment is gone.
        """
        self._send()
        problem: UnreadableError | None = None
        while problem is None:
            try:
                events: Sequence[Event] = self._store.events(self.projection.record.name, self.seq)
            except UnreadableError as error:
                events, problem = error.readable, error
            try:
                self._take(events)
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

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            for place, row in self.projection.apply(event):
                if row.seq > self._export.cursor(place):
                    self._rows.setdefault(place, []).append(row)

    def _send(self) -> None:
        if self._rows:
            self._export.send(self._rows)
            self.sent += sum(map(len, self._rows.values()))
            self._rows = {}


class Follower:
    """Any number of experiments, as they come and go, until it is stopped.

    Args:
        names: of the experiments; none: all that there are.
        also: called at each look, behind the experiments: what else is to be sent. Raises as `Followed.catch_up`.
    """

    def __init__(
        self,
        store: Store,
        export: Callable[[Projection], Export],
        names: Collection[str] = (),
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._export, self._names, self._also = store, export, names, also
        self._problem = ""
        """Of `also`, as it was last told."""
        self._followed: dict[str, Followed] = {}
        self._left: dict[str, int] = {}
        """Experiments that cannot be exported -> number of the newest event then."""
        self.stop = threading.Event()
        self.turned = time.monotonic()
        """When something was last done: an experiment looked at, or waited."""

    def run(self) -> None:
        """Look again and again. A tracker or a store that is away is waited for."""
        while not self.stop.is_set():
            try:
                self.look()
            except RetryableError as error:
                log.warning("exports wait: %s", error)
            self.stop.wait(LOOK_S)
            self.turned = time.monotonic()

    def look(self) -> None:
        """Send what has come since the last look.

        Raises:
            RetryableError: the store or the tracker is away; the next look goes on.
        """
        there = {summary.experiment.name: summary for summary in self._store.experiments()}
        for name in [name for name in self._followed if name not in there]:
            del self._followed[name]
        for name, summary in there.items():
            if (self._names and name not in self._names) or summary.is_deleting:
                continue
            followed = self._followed.get(name)
            if followed is None or followed.projection.record.created != summary.experiment.created:
                if summary.unreadable is not None and not summary.unreadable.seq:
                    continue  # not even its record can be read
                followed = self._followed[name] = Followed(self._store, summary.experiment, self._export)
            self._catch_up(followed, summary)
        self._send_also()

    def _send_also(self) -> None:
        self.turned, problem = time.monotonic(), ""
        try:
            self._also()
        except RetryableError:
            raise
        except CerebroError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("registered models are not sent: %s", problem)
        self._problem = problem

    def _catch_up(self, followed: Followed, summary: ExperimentSummary) -> None:
        name, self.turned = summary.experiment.name, time.monotonic()
        if self._left.get(name) == summary.last_seq:
            return
        try:
            followed.catch_up()
            self._left.pop(name, None)
        except RetryableError:
            raise
        except NotFoundError:
            self._followed.pop(name)
        except CerebroError as error:
            log.warning("the export of %s stops at event %d: %s", name, followed.seq, error)
            self._followed.pop(name)
            self._left[name] = summary.last_seq
