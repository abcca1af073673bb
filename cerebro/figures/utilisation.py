"""Utilisation of workers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from cerebro.figures.frame import Cell, Figure, axis, cut, empty, figure, number, text
from cerebro.figures.palette import LOOKS, Theme, colour, dash

Sample = tuple[float, float | None]
"""(seconds since the epoch, share from 0 to 1); `None` where it was not measured, which is not 0."""

_NAMED = 20


def utilisation(lines: Mapping[str, Sequence[Sample]], *, what: str, theme: Theme = "light") -> Figure:
    """A line per worker: how much of its processor, GPU or memory is used. Gaps where nothing was measured.

    Args:
        lines: worker -> samples in the order of time.
        what: what is used, such as ``GPU``.
    """
    title = f"{what} used"
    measured = {
        worker: [share for _, share in samples if share is not None] for worker, samples in lines.items()
    }
    if not any(measured.values()):
        return empty("utilisation", f"{what}: not measured", theme=theme, title=title)
    look = LOOKS[theme]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [_moment(time) for time, _ in samples],
            "y": [None if share is None else 100 * share for _, share in samples],
            "line": {"color": colour(place, theme), "dash": dash(place), "width": 1.5},
            "connectgaps": False,
            "name": text(worker),
            "meta": {"worker": worker},
            "hovertemplate": f"{text(worker)}: %{{y:.0f}} %<br>%{{x}}<extra></extra>",
        }
        for place, (worker, samples) in enumerate(lines.items())
    ]
    return figure(
        "utilisation",
        traces,
        theme=theme,
        title=title,
        description=f"{what} used by {len(lines)} workers over time, in percent. Now: "
        + ", ".join(f"{worker} {_newest(samples)}" for worker, samples in lines.items())
        + ".",
        table=cut(
            (_row(worker, found) for worker, found in measured.items()), ("worker", "least", "mean", "most")
        ),
        layout={
            "xaxis": axis(look, "time (UTC)", type="date"),
            "yaxis": axis(look, f"{what} used, %", range=[0, 105]),
            "showlegend": len(lines) <= _NAMED,
        },
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _newest(samples: Sequence[Sample]) -> str:
    share = samples[-1][1] if samples else None
    return "not measured" if share is None else f"{share:.0%}"


def _row(worker: str, shares: Sequence[float]) -> tuple[Cell, ...]:
    if not shares:
        return (worker, "not measured", "not measured", "not measured")
    ends = (min(shares), sum(shares) / len(shares), max(shares))
    return (worker, *(f"{number(round(100 * share, 1))} %" for share in ends))
