"""Progress of a run, drawn from the state and the live points: bars in a terminal, bars and a table in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cerebro.client.progress.bars import NOT_SHOWN, ShownQueuePosition
from cerebro.client.progress.notebook import NotebookScreen
from cerebro.client.progress.terminal import TerminalScreen
from cerebro.contract.events import LivePoint
from cerebro.state import ExperimentState, Run

_PAUSE_S = 0.3
"""Between two drawings: a run may have hundreds of events a second, and eyes do not see as many pictures."""

_SHARE = 0.1
"""Most of this process's time that drawing takes: a run of thousands of models is drawn less often."""


class Screen(Protocol):
    """Where progress is drawn. Used by one thread."""

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        shown: ShownQueuePosition,
    ) -> None:
        """Draw a planned run, or one that waits.

        Args:
            rows: task key -> rows gone through by now, for tasks of an ETL run.
            reason: why nothing happens; empty if something does.
            shown: where it stands among other runs.
        """

    def close(self) -> None:
        """Nothing more will be drawn; what was stays."""


class Progress:
    """What a run does, as it does it. Used as a context manager by one thread.

    Args:
        run: its id.
        is_shown: whether anything is drawn at all.
        screen: where; the notebook's output if this is a notebook, else the standard error stream.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        run: str,
        *,
        is_shown: bool,
        screen: Screen | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._is_shown, self._clock = run, is_shown, clock
        self._screen = screen or (NotebookScreen() if is_notebook() else TerminalScreen())
        self._rows: dict[str, int] = {}
        self._next = self._clock()
        self._pending: tuple[ExperimentState, Run, str, ShownQueuePosition] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        self._screen.close()

    def live(self, points: Iterable[LivePoint]) -> None:
        """Take in live points; only rows of ETL tasks are drawn."""
        for point in points:
            self._rows[point.task] = point.rows

    def show(
        self,
        state: ExperimentState,
        reason: str = "",
        shown: ShownQueuePosition = NOT_SHOWN,
    ) -> None:
        """Draw the state; `reason` says why nothing happens."""
        run = state.runs.get(self._run)
        if run is None or not self._is_shown:
            return
        self._pending = state, run, reason, shown
        if self._clock() >= self._next:
            self._draw()

    def _draw(self) -> None:
        if self._pending is not None:
            state, run, reason, shown = self._pending
            began = self._clock()
            self._screen.draw(state, run, self._rows, reason, shown)
            ended = self._clock()
            self._next, self._pending = ended + max(_PAUSE_S, (ended - began) / _SHARE), None


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # A kernel has loaded IPython long ago; nobody else needs it.
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None
