"""Further marks of a schedule: other tasks, other runs, and absent workers, as Plotly traces and sentences. Pure.

`cerebro.figures.schedule.drawing` calls it. At most 2,000 marks of a kind are drawn, the newest ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cerebro.figures.frame import lines
from cerebro.figures.palette import faint
from cerebro.figures.schedule.bars import MAX_MARKS, Canvas, seconds
from cerebro.figures.schedule.spans import Absence, Span, TakenBar

_TASKS = {
    "valid": ("validation", "|"),
    "etl": ("making a partition", ""),
    "inspect": ("inspecting models", "."),
    "trial": ("measuring a parallel plan", "+"),
    "search": ("search action", "/"),
    "verify": ("re-executing a sub-epoch", "x"),
}
"""Kind of task -> name in the legend, pattern of its bars."""

_EDGE = 0.44
"""Distance of a worker's marks from the middle of its row, as a share of the row's height."""


def task_bars(spans: Sequence[Span], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """Yield bars of other tasks, in a neutral colour."""
    for kind, (name, pattern) in _TASKS.items():
        shown = [span for span in spans if span.kind == kind][-MAX_MARKS:]
        if not shown:
            continue
        tint = faint(canvas.colors.ink, 0.5)
        marker: dict[str, Any] = {"color": tint, "line": {"color": canvas.colors.ground, "width": 0.5}}
        if pattern:
            marker["pattern"] = {
                "shape": pattern,
                "bgcolor": canvas.colors.ground,
                "size": 6,
                "solidity": 0.5,
            }
            marker["line"] = {"color": tint, "width": 1}
        yield canvas.horizontal([(s.worker, s.start_s, s.end_s - s.start_s) for s in shown]) | {
            "name": name,
            "marker": marker,
            "hoverinfo": "text",
            "hovertext": [_hover(span) for span in shown],
            "showlegend": True,
        }


def _hover(span: Span) -> str:
    # An ETL run had prepared the partition before.
    what = f"{span.what} again" if span.kind == "etl" else span.what
    until = "now" if span.outcome == "running" else seconds(span.end_s)
    return lines(
        f"{span.worker}: {what}",
        f"attempt {span.attempt}: {': '.join(filter(None, [span.outcome, _details(span)]))}",
        f"{seconds(span.start_s)} to {until}: {seconds(span.end_s - span.start_s)}",
    )


def _details(span: Span) -> str:
    """Return the part of the note after the outcome."""
    return span.note.removeprefix(span.outcome).removeprefix(": ")


def task_words(spans: Sequence[Span]) -> str:
    """Summarize the other tasks and their time; empty without any."""
    counts = Counter(span.kind for span in spans)
    nouns = {
        "valid": "validation",
        "etl": "partition made again",
        "inspect": "inspection",
        "trial": "trial",
        "search": "search action",
        "verify": "re-execution",
    }
    summary = [counted(counts[kind], noun) for kind, noun in nouns.items() if counts[kind]]
    if not summary:
        return ""
    return f" Other tasks: {', '.join(summary)}, {seconds(sum(s.end_s - s.start_s for s in spans))} together."


def counted(number: int, noun: str) -> str:
    """Format a number and its noun: ``1 partition made again``, ``2 partitions made again``."""
    first, _, rest = noun.partition(" ")
    return f"{number:,} {first}{'' if number == 1 else 's'}{' ' if rest else ''}{rest}"


def taken_bars(bars: Sequence[TakenBar], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """Yield hatched bars of other runs' use, the newest ones if there are many."""
    shown = bars[-MAX_MARKS:]
    if shown:
        tint = faint(canvas.colors.ink, 0.3)
        yield canvas.horizontal([(bar.worker, bar.start_s, bar.end_s - bar.start_s) for bar in shown]) | {
            "name": "another experiment",
            "marker": {
                "color": tint,
                "line": {"width": 0},
                "pattern": {"shape": "\\", "bgcolor": canvas.colors.ground, "size": 8, "solidity": 0.15},
            },
            "hoverinfo": "text",
            "hovertext": [
                lines(
                    f"{bar.worker}: another experiment had it",
                    f"{seconds(bar.start_s)}, for {seconds(bar.end_s - bar.start_s)}",
                )
                for bar in shown
            ],
            "showlegend": True,
        }


def absence_bars(
    absences: Sequence[Absence], rows_of: Mapping[str, Sequence[str]], end_s: float, canvas: Canvas
) -> Iterator[dict[str, Any]]:
    """Yield shades on the rows of absent workers, and marks of losses and arrivals.

    Marks of losses are above the rows and marks of arrivals below, so that none hides another. The newest are drawn if
    there are many.

    Args:
        rows_of: worker -> its rows.
        end_s: end of the drawn time.
    """
    shown = [absence for absence in absences if absence.worker in rows_of and absence.start_s <= end_s][
        -MAX_MARKS:
    ]
    shades = [
        (absence, row, (end_s if absence.end_s is None else absence.end_s) - absence.start_s)
        for absence in shown
        for row in rows_of[absence.worker]
    ]
    if shades:
        yield canvas.horizontal([(row, absence.start_s, length) for absence, row, length in shades]) | {
            "name": "worker not there",
            "width": 0.96,
            "marker": {"color": faint(canvas.colors.ink, 0.16), "line": {"width": 0}},
            "hoverinfo": "text",
            "hovertext": [_absence_text(absence, length) for absence, _, length in shades],
            "showlegend": True,
        }
    rows = {
        worker: [canvas.rows[row] for row in rows_of[worker]]
        for worker in {absence.worker for absence in shown}
    }
    lost = [(absence.worker, absence.start_s, f"lost: {absence.lost}") for absence in shown if absence.lost]
    came = [
        (absence.worker, absence.end_s, f"{'came back' if absence.lost else 'joined'}")
        for absence in shown
        if absence.end_s is not None
    ]
    bad, good = canvas.colors.bad, canvas.colors.good
    above = {worker: min(heights) - _EDGE for worker, heights in rows.items()}
    below = {worker: max(heights) + _EDGE for worker, heights in rows.items()}
    marks = (
        ("worker lost", lost, "triangle-down", bad, above),
        ("worker came", came, "triangle-up", good, below),
    )
    for name, events, symbol, tint, heights in marks:
        if events:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [canvas.scale.of(at) for _, at, _ in events],
                "y": [heights[worker] for worker, _, _ in events],
                "marker": {
                    "symbol": symbol,
                    "size": 9,
                    "color": tint,
                    "line": {"color": canvas.colors.ground, "width": 1},
                },
                "cliponaxis": False,
                "hoverinfo": "text",
                "hovertext": [lines(f"{worker} {words}", seconds(at)) for worker, at, words in events],
                "showlegend": True,
            }


def _absence_text(absence: Absence, length: float) -> str:
    why = f"lost: {absence.lost}" if absence.lost else "it came later"
    return lines(
        f"{absence.worker} was not there",
        why,
        f"{seconds(absence.start_s)}, for {seconds(length)}{'' if absence.end_s is not None else ' so far'}",
    )


def absence_words(absences: Sequence[Absence]) -> str:
    """Summarize losses and arrivals of workers; empty without any."""
    lost, back = sum(bool(a.lost) for a in absences), sum(a.end_s is not None for a in absences)
    if not absences:
        return ""
    return f" Workers were lost {_times(lost)} and came {_times(back)} while it ran."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
