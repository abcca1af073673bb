"""Progress on standard error, for `Progress`: tqdm bars in a terminal, plain lines in a file or pipe.

`bars.py` computes the numbers.
"""

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

_LINE_S = 10.0
"""Minimum time between two lines of a bar outside a terminal."""


class TerminalScreen:
    """Draws bars, and a line for each new reason to wait.

    The share of the cluster changes with every sub-epoch, so it gets one line and then appears next to the bar. The
    reason "waits for its turn" is printed once.

    Args:
        clock: monotonic seconds.
        is_terminal: True to draw bars, False to write lines without control codes. Default: as standard error.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, is_terminal: bool | None = None
    ) -> None:
        self._clock = clock
        self._bar_type = _Bar if (sys.stderr.isatty() if is_terminal is None else is_terminal) else _Lines
        self._bars: dict[str, _Bar | _Lines] = {}
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
            if bar.name not in self._bars:
                self._bars[bar.name] = self._bar_type(bar, self._clock)
            share = queue_position.brief if queue_position is not None else ""
            self._bars[bar.name].draw(bar, ", ".join(filter(None, [bar.note, share])))
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


class _Bar:
    """A tqdm bar."""

    def __init__(self, bar: ProgressBar, clock: Callable[[], float]) -> None:
        import tqdm

        self._clock, self._started = clock, clock()
        self._widget: Any = tqdm.tqdm(
            total=bar.total or None,
            desc=bar.name,
            unit=bar.label,
            initial=bar.done,
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.2,
        )

    def draw(self, bar: ProgressBar, note: str) -> None:
        widget = self._widget
        if self._clock() - self._started < _WARM_UP_S:
            widget.initial = bar.done
        if (widget.n, widget.total or 0, widget.postfix or "") != (bar.done, bar.total, note):
            widget.n, widget.total = bar.done, bar.total or None
            widget.set_postfix_str(note, refresh=False)
            widget.refresh()

    def close(self) -> None:
        self._widget.close()


class _Lines:
    """A bar as plain lines: the first state, changes at most every 10 s, and the last state."""

    def __init__(self, _: ProgressBar, clock: Callable[[], float]) -> None:
        self._clock, self._next_s = clock, clock()
        self._line = self._written = ""

    def draw(self, bar: ProgressBar, note: str) -> None:
        total = f"/{bar.total:,}" if bar.total else ""
        self._line = f"{bar.name}: {bar.done:,}{total} {bar.label}s{f', {note}' * bool(note)}"
        if self._clock() >= self._next_s:
            self.close()

    def close(self) -> None:
        if self._line != self._written:
            sys.stderr.write(f"{self._line}\n")
            sys.stderr.flush()
        self._written, self._next_s = self._line, self._clock() + _LINE_S
