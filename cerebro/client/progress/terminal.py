"""Bars in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cerebro.client.progress.bars import NOT_SHOWN, ProgressBar, ShownStanding, bars
from cerebro.state import ExperimentState, Run

_STEADY_S = 1.0
"""Time a bar has been there before it shows a rate. What was done by then does not count: it was done before this
client looked, or there was nothing to do."""


class TerminalScreen:
    """One of tqdm's bars per bar, and a line whenever the run waits for something else.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._bars: dict[str, Any] = {}
        self._said = ""
        self._due: tuple[str, float | None] | None = None

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        shown: ShownStanding = NOT_SHOWN,
    ) -> None:
        """Draw a planned run, or one that waits."""
        import tqdm

        for bar in bars(state, run, rows):
            self._draw(bar)
        if reason != self._said:
            self._said = reason
            if reason:
                tqdm.tqdm.write(f"{run.id}: {reason}", file=sys.stderr)
        standing = shown.standing
        # What it has changes with every unit: that is no news.
        due = (standing.position, standing.due) if standing is not None else None
        if due != self._due:
            self._due = due
            if standing is not None:
                tqdm.tqdm.write(f"{run.id} {shown.line}", file=sys.stderr)

    def close(self) -> None:
        """Nothing more will be drawn."""
        for drawn in self._bars.values():
            drawn.close()

    def _draw(self, bar: ProgressBar) -> None:
        import tqdm

        drawn = self._bars.get(bar.name)
        if drawn is None:
            self._begun[bar.name] = self._clock()
            drawn = self._bars[bar.name] = tqdm.tqdm(
                total=bar.total,
                desc=bar.name,
                unit=bar.unit,
                initial=bar.done,
                file=sys.stderr,
                dynamic_ncols=True,
                mininterval=0.2,
            )
        if self._clock() - self._begun[bar.name] < _STEADY_S:
            drawn.initial = bar.done
        if (drawn.n, drawn.postfix or "") != (bar.done, bar.note):
            drawn.n = bar.done
            drawn.set_postfix_str(bar.note, refresh=False)
            drawn.refresh()
