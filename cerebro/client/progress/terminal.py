"""Progress in a terminal, with tqdm on standard error, for `Progress`. `bars.py` computes the numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cerebro.client.progress.bars import NOT_SHOWN, ProgressBar, QueueDisplay, bars
from cerebro.state import ExperimentState, Run
from cerebro.state.runs.goals import short

_WARM_UP_S = 1.0
"""Time before a bar shows a rate. Earlier items don't count, because they were done before this client started."""


class TerminalScreen:
    """Draws tqdm bars, and a line for each new reason to wait.

    The share of the cluster changes with every sub-epoch, so it gets one line and then appears next to the bar. The
    reason "waits for its turn" is printed once.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[str, float] = {}
        self._bars: dict[str, Any] = {}
        self._last_reason = ""
        self._last_position: tuple[bool, int, bool] | None = None
        self._has_shown_turn = self._has_shown_goal = False

    def draw(
        self,
        state: ExperimentState,
        run: Run,
        rows: Mapping[str, int],
        reason: str,
        queue: QueueDisplay = NOT_SHOWN,
    ) -> None:
        """Draw a planned or waiting run."""
        import tqdm

        queue_position = queue.queue_position
        for bar in bars(state, run, rows):
            self._draw(bar, queue_position.brief if queue_position is not None else "")
        position = (
            None
            if queue_position is None
            else (queue_position.is_attended, queue_position.place, queue_position.has_to_wait)
        )
        if position != self._last_position:
            self._last_position = position
            if queue_position is not None:
                tqdm.tqdm.write(f"{run.id} {queue.line}", file=sys.stderr)
        if (goal := short(run, time.time())) and not self._has_shown_goal:
            self._has_shown_goal = True
            tqdm.tqdm.write(f"{run.id}: {goal}", file=sys.stderr)
        if reason != self._last_reason:
            is_turn = (
                queue_position is not None and queue_position.is_attended and reason == queue_position.reason
            )
            if reason and not (is_turn and self._has_shown_turn):
                tqdm.tqdm.write(f"{run.id}: {reason}", file=sys.stderr)
            self._last_reason, self._has_shown_turn = (
                reason,
                self._has_shown_turn or (is_turn and bool(reason)),
            )

    def close(self) -> None:
        """End drawing; the last output stays."""
        for bar in self._bars.values():
            bar.close()

    def _draw(self, bar: ProgressBar, share: str) -> None:
        import tqdm

        widget = self._bars.get(bar.name)
        if widget is None:
            self._started[bar.name] = self._clock()
            widget = self._bars[bar.name] = tqdm.tqdm(
                total=bar.total or None,
                desc=bar.name,
                unit=bar.label,
                initial=bar.done,
                file=sys.stderr,
                dynamic_ncols=True,
                mininterval=0.2,
            )
        if self._clock() - self._started[bar.name] < _WARM_UP_S:
            widget.initial = bar.done
        note = ", ".join(filter(None, [bar.note, share]))
        if (widget.n, widget.total or 0, widget.postfix or "") != (bar.done, bar.total, note):
            widget.n, widget.total = bar.done, bar.total or None
            widget.set_postfix_str(note, refresh=False)
            widget.refresh()
