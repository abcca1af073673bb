"""Background check for missing final checkpoints. Deletes and repairs nothing.

The tabs Overview and Checkpoints show the result. `LostFiles` compares the files that an experiment's log names with
the checkpoint volume. No page waits for a check. It covers the newest 5,000 files of an experiment (`MAX_FILES`),
repeats after 5 minutes if a page asks, and keeps the results of 200 experiments in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from cerebro.data.files.lost_files import lost_files
from cerebro.runtime.background_query import BackgroundQuery
from cerebro.state import ExperimentState
from cerebro.state.models.final_checkpoints import FinalFile, final_files
from dispatcher.read_models.reader import Reader

FRESH_S = 300.0
"""Seconds until a result is checked again."""
MAX_FILES = 5_000
"""Maximum number of files per experiment; the newest are checked."""
_MAX_EXPERIMENTS = 200


class LostFiles:
    """Newest results per experiment. Safe for several threads; one check runs at a time."""

    def __init__(self, root: Path, reader: Reader, clock: Callable[[], float]) -> None:
        self._root, self._reader, self._clock = root, reader, clock
        self._lock = threading.Lock()
        self._wanted: dict[str, Sequence[FinalFile]] = {}
        self._known: OrderedDict[str, tuple[float, tuple[FinalFile, ...]]] = OrderedDict()
        self._query = BackgroundQuery("final-checkpoints", self._check_all)

    def newest(self, name: str) -> tuple[FinalFile, ...]:
        """Return an experiment's missing final checkpoints. Starts another check if the result is old."""
        with self._lock:
            checked, lost = self._known.get(name, (float("-inf"), ()))
            is_due = name not in self._wanted and self._clock() - checked > FRESH_S
        if is_due:
            wanted = self._reader.read(name, lambda read_model: _newest(read_model.state))
            with self._lock:
                self._wanted[name] = wanted
            self._query.request()
        return lost

    def wait(self, timeout_s: float) -> None:
        """Wait until all requested checks have ended."""
        self._query.wait(self._query.request(), timeout_s)

    def _check_all(self) -> None:
        while True:
            with self._lock:
                name = next(iter(self._wanted), None)
                if name is None:
                    return
                wanted = self._wanted[name]
            try:
                # An empty folder means that the volume is not mounted here.
                lost = tuple(lost_files(self._root, wanted)) if any(self._root.iterdir()) else ()
            except OSError:
                lost = ()  # not mounted here; the section Volumes of the cluster page reports it
            with self._lock:
                del self._wanted[name]
                self._known[name] = self._clock(), lost
                self._known.move_to_end(name)
                while len(self._known) > _MAX_EXPERIMENTS:
                    self._known.popitem(last=False)


def _newest(state: ExperimentState) -> list[FinalFile]:
    return list(islice(final_files(state), MAX_FILES))
