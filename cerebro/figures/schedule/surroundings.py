"""The marks of a schedule that are no sub-epochs: what is done beside them, what other runs had, and workers that came
and went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cerebro.figures.frame import lines
from cerebro.figures.palette import faint
from cerebro.figures.schedule.bars import MOST_MARKS, Canvas, seconds
from cerebro.figures.schedule.spans import Absence, Span, TakenBar

_BESIDE = {
    "etl": ("making a partition", ""),
    "inspect": ("inspecting models", "."),
    "trial": ("trying a way", "+"),
    "search": ("answering for the search", "/"),
    "audit": ("doing a sub-epoch once more", "x"),
}
"""Kind of task -> its name in the legend, and the pattern of its bars."""

_EDGE = 0.44
"""From the middle of a row to where marks of its worker are, of the row's height."""


def beside_bars(spans: Sequence[Span], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """What was done beside sub-epochs: in no model's colour."""
    for kind, (name, pattern) in _BESIDE.items():
        shown = [span for span in spans if span.kind == kind][-MOST_MARKS:]
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
    # A partition is made again: it was made in an ETL run.
    what = f"{span.what} again" if span.kind == "etl" else span.what
    until = "now" if span.outcome == "running" else seconds(span.end_s)
    return lines(
        f"{span.worker}: {what}",
        f"attempt {span.attempt}: {': '.join(filter(None, [span.outcome, _news(span)]))}",
        f"{seconds(span.start_s)} to {until}: {seconds(span.end_s - span.start_s)}",
    )


def _news(span: Span) -> str:
    """What the note tells beyond the outcome."""
    return span.note.removeprefix(span.outcome).removeprefix(": ")


def beside_words(spans: Sequence[Span]) -> str:
    """How much was done beside sub-epochs, and for how long; empty if nothing was."""
    counts = Counter(span.kind for span in spans)
    nouns = {
        "etl": "partition made again",
        "inspect": "inspection",
        "trial": "trial",
        "search": "question of the search",
        "audit": "audit",
    }
    told = [counted(counts[kind], noun) for kind, noun in nouns.items() if counts[kind]]
    if not told:
        return ""
    return f" Beside the sub-epochs: {', '.join(told)}, {seconds(sum(s.end_s - s.start_s for s in spans))} together."


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form: ``1 partition made again``, ``2 partitions made again``."""
    first, _, rest = noun.partition(" ")
    return f"{number:,} {first}{'' if number == 1 else 's'}{' ' if rest else ''}{rest}"


def taken_bars(found: Sequence[TakenBar], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """What other runs had: a hatch, quieter than any bar. The newest, if there are many."""
    shown = found[-MOST_MARKS:]
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


def away_bars(
    absences: Sequence[Absence], lanes: Mapping[str, Sequence[str]], end_s: float, canvas: Canvas
) -> Iterator[dict[str, Any]]:
    """Shades on all rows of a worker while it was not there, a mark above them where it was lost, and one below them
    where it came: one does not hide the other. The newest, if there are many.

    Args:
        lanes: worker -> its rows. end_s: of the time that is drawn.
    """
    here = [away for away in absences if away.worker in lanes and away.start_s <= end_s][-MOST_MARKS:]
    shades = [
        (away, lane, (end_s if away.end_s is None else away.end_s) - away.start_s)
        for away in here
        for lane in lanes[away.worker]
    ]
    if shades:
        yield canvas.horizontal([(lane, away.start_s, length) for away, lane, length in shades]) | {
            "name": "worker not there",
            "width": 0.96,
            "marker": {"color": faint(canvas.colors.ink, 0.16), "line": {"width": 0}},
            "hoverinfo": "text",
            "hovertext": [_away(away, length) for away, _, length in shades],
            "showlegend": True,
        }
    rows = {
        worker: [canvas.rows[lane] for lane in lanes[worker]] for worker in {away.worker for away in here}
    }
    lost = [(away.worker, away.start_s, f"lost: {away.lost}") for away in here if away.lost]
    came = [
        (away.worker, away.end_s, f"{'came back' if away.lost else 'joined'}")
        for away in here
        if away.end_s is not None
    ]
    bad, good = canvas.colors.bad, canvas.colors.good
    above = {worker: min(places) - _EDGE for worker, places in rows.items()}
    below = {worker: max(places) + _EDGE for worker, places in rows.items()}
    marks = (
        ("worker lost", lost, "triangle-down", bad, above),
        ("worker came", came, "triangle-up", good, below),
    )
    for name, found, symbol, tint, places in marks:
        if found:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [canvas.scale.of(at) for _, at, _ in found],
                "y": [places[worker] for worker, _, _ in found],
                "marker": {
                    "symbol": symbol,
                    "size": 9,
                    "color": tint,
                    "line": {"color": canvas.colors.ground, "width": 1},
                },
                "cliponaxis": False,
                "hoverinfo": "text",
                "hovertext": [lines(f"{worker} {words}", seconds(at)) for worker, at, words in found],
                "showlegend": True,
            }


def _away(away: Absence, length: float) -> str:
    why = f"lost: {away.lost}" if away.lost else "it came later"
    return lines(
        f"{away.worker} was not there",
        why,
        f"{seconds(away.start_s)}, for {seconds(length)}{'' if away.end_s is not None else ' so far'}",
    )


def away_words(absences: Sequence[Absence]) -> str:
    """How often workers were lost, and how often they came; empty if all were always there."""
    lost, back = sum(bool(a.lost) for a in absences), sum(a.end_s is not None for a in absences)
    if not absences:
        return ""
    return f" Workers were lost {_times(lost)} and came {_times(back)} while it ran."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
