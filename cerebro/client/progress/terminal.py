"""Bars in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cerebro.client.progress.bars import NOT_SHOWN, ProgressBar, ShownQueuePosition, bars
from cerebro.state import ExperimentState, Run
from cerebro.state.goals import short

_STEADY_S = 1.0
"""Time a bar has been there before it shows a rate. What was done by then does not count: it was done before this
client looked, or there was nothing to do."""


class TerminalScreen:
    """One of tqdm's bars per bar, and a line whenever the run waits for something else.

    What a run has of the cluster beside others changes with every sub-epoch: it is said once, and then beside the bar.
    Why it waits for its turn is said once, too.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._bars: dict[str, Any] = {}
        self._said = ""
        self._place: tuple[bool, int, bool] | None = None
        self._has_told_of_turns = self._has_told_of_goal = False

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        shown: ShownQueuePosition = NOT_SHOWN,
    ) -> None:
        """Draw a planned run, or one that waits."""
        import tqdm

        queue_position = shown.queue_position
        for bar in bars(state, run, rows):
            self._draw(bar, queue_position.brief if queue_position is not None else "")
        place = (
            None
            if queue_position is None
            else (queue_position.is_attended, queue_position.place, queue_position.has_to_wait)
        )
        if place != self._place:
            self._place = place
            if queue_position is not None:
                tqdm.tqdm.write(f"{run.id} {shown.line}", file=sys.stderr)
        if (told := short(run, time.time())) and not self._has_told_of_goal:
            self._has_told_of_goal = True
            tqdm.tqdm.write(f"{run.id}: {told}", file=sys.stderr)
        if reason != self._said:
            is_turn = (
                queue_position is not None and queue_position.is_attended and reason == queue_position.reason
            )
            if reason and not (is_turn and self._has_told_of_turns):
                tqdm.tqdm.write(f"{run.id}: {reason}", file=sys.stderr)
            self._said, self._has_told_of_turns = (
                reason,
                self._has_told_of_turns or (is_turn and bool(reason)),
            )

    def close(self) -> None:
        """Nothing more will be drawn."""
        for drawn in self._bars.values():
            drawn.close()

    def _draw(self, bar: ProgressBar, share: str) -> None:
        import tqdm

        drawn = self._bars.get(bar.name)
        if drawn is None:
            self._begun[bar.name] = self._clock()
            drawn = self._bars[bar.name] = tqdm.tqdm(
                total=bar.total or None,
                desc=bar.name,
                unit=bar.label,
                initial=bar.done,
                file=sys.stderr,
                dynamic_ncols=True,
                mininterval=0.2,
            )
        if self._clock() - self._begun[bar.name] < _STEADY_S:
            drawn.initial = bar.done
        note = ", ".join(filter(None, [bar.note, share]))
        if (drawn.n, drawn.total or 0, drawn.postfix or "") != (bar.done, bar.total, note):
            drawn.n, drawn.total = bar.done, bar.total or None
            drawn.set_postfix_str(note, refresh=False)
            drawn.refresh()
