"""Final checkpoints that are gone: looked for beside the pages, some thousand files at a time, once in five minutes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from cerebro.data.lost_files import lost_files
from cerebro.runtime.background_query import BackgroundQuery
from cerebro.state import ExperimentState
from cerebro.state.final_files import FinalFile, final_files
from dispatcher.reading.reader import Reader

FRESH_S = 300.0
"""A look is used for so long before there is another."""
MOST_FILES = 5_000
"""Of an experiment, the newest."""
_MOST_EXPERIMENTS = 200


class LostFiles:
    """What the newest looks have found. Safe for several threads; one looks at a time, and no page waits for it."""

    def __init__(self, root: Path, reader: Reader, clock: Callable[[], float]) -> None:
        self._root, self._reader, self._clock = root, reader, clock
        self._lock = threading.Lock()
        self._wanted: dict[str, Sequence[FinalFile]] = {}
        self._known: OrderedDict[str, tuple[float, tuple[FinalFile, ...]]] = OrderedDict()
        self._query = BackgroundQuery("final-checkpoints", self._look)

    def newest(self, name: str) -> tuple[FinalFile, ...]:
        """Those of an experiment that were gone at the newest look; has another one begin if that is old."""
        with self._lock:
            looked, lost = self._known.get(name, (float("-inf"), ()))
            is_due = name not in self._wanted and self._clock() - looked > FRESH_S
        if is_due:
            wanted = self._reader.look(name, lambda read_model: _newest(read_model.state))
            with self._lock:
                self._wanted[name] = wanted
            self._query.ask()
        return lost

    def wait(self, timeout_s: float) -> None:
        """Until all looks that were asked for have ended."""
        self._query.wait(self._query.ask(), timeout_s)

    def _look(self) -> None:
        while True:
            with self._lock:
                name = next(iter(self._wanted), None)
                if name is None:
                    return
                wanted = self._wanted[name]
            try:
                # One without anything is not mounted here.
                lost = tuple(lost_files(self._root, wanted)) if any(self._root.iterdir()) else ()
            except OSError:
                lost = ()  # the volume is not mounted here, which the page of the volumes tells
            with self._lock:
                del self._wanted[name]
                self._known[name] = self._clock(), lost
                self._known.move_to_end(name)
                while len(self._known) > _MOST_EXPERIMENTS:
                    self._known.popitem(last=False)


def _newest(state: ExperimentState) -> list[FinalFile]:
    return list(islice(final_files(state), MOST_FILES))
