"""Progress of a run, in a terminal or a notebook, drawn while `Session.follow` waits.

`bars.py` computes the bars from the state, `terminal.py` and `notebook.py` draw them. `Progress` limits how often.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cerebro.client.progress.bars import NOT_SHOWN, QueueDisplay
from cerebro.client.progress.notebook import NotebookScreen
from cerebro.client.progress.terminal import TerminalScreen
from cerebro.contract.events import LivePoint
from cerebro.state import ExperimentState, Run

_MIN_INTERVAL_S = 0.3
"""Minimum time between two drawings; runs may have hundreds of events per second."""

_MAX_LOAD = 0.1
"""Maximum fraction of this process's time for drawing; runs with thousands of models are drawn less often."""


class Screen(Protocol):
    """Output of progress. Used by one thread."""

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        queue: QueueDisplay,
    ) -> None:
        """Draw the run: its bars, or why it waits.

        Args:
            state: state of the experiment.
            run: run to draw.
            rows: processed rows of each ETL task, by task key.
            reason: reason for waiting, or empty.
            queue: queue position and time left, if other runs are open.
        """

    def close(self) -> None:
        """End drawing; the last output stays."""


class Progress:
    """Draws the progress of a run. A context manager, used by one thread.

    Args:
        run: run id.
        is_shown: True to draw.
        screen: output. Default: the notebook cell, or standard error outside notebooks.
        clock: monotonic seconds.
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
        self._next_draw = self._clock()
        self._pending: tuple[ExperimentState, Run, str, QueueDisplay] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        self._screen.close()

    def update_rows(self, points: Iterable[LivePoint]) -> None:
        """Update processed rows of ETL tasks from live points."""
        for point in points:
            self._rows[point.task] = point.rows

    def show(
        self,
        state: ExperimentState,
        reason: str = "",
        queue: QueueDisplay = NOT_SHOWN,
    ) -> None:
        """Draw the state, at most every 0.3 s; the last state is drawn at exit. `reason`: why the run waits."""
        run = state.runs.get(self._run)
        if run is None or not self._is_shown:
            return
        self._pending = state, run, reason, queue
        if self._clock() >= self._next_draw:
            self._draw()

    def _draw(self) -> None:
        if self._pending is not None:
            state, run, reason, queue = self._pending
            began = self._clock()
            self._screen.draw(state, run, self._rows, reason, queue)
            ended = self._clock()
            self._next_draw, self._pending = ended + max(_MIN_INTERVAL_S, (ended - began) / _MAX_LOAD), None


def is_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    # A kernel has IPython loaded already, so look only there.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
