"""The marks of a schedule: bars of sub-epochs, bars of merged stretches, and the line of busy devices. What is drawn
beside them is in `cerebro.figures.schedule.surroundings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.figures.frame import Duration, lines
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, colour, faint
from cerebro.figures.schedule.buckets import Bucket
from cerebro.figures.schedule.planned import PlannedSpan
from cerebro.figures.schedule.spans import Outcome, Span

_BAR = 0.8
"""Height of a bar, of its row."""

_DIMMED = 0.2

MOST_MARKS = 2000
"""Of one kind that is drawn."""

_PATTERNS: dict[Outcome, str] = {"committed": "", "running": "", "failed": "x", "revoked": "/"}


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Where marks go: worker, or device of one -> row, model -> position in the plan, the scale of the time axis."""

    rows: dict[str, int]
    indices: dict[str, int]
    scale: Duration
    theme: Theme

    @property
    def colors(self) -> ThemeColors:
        """Of the theme."""
        return THEME_COLORS[self.theme]

    def colour(self, model: str) -> str:
        """Of a model."""
        return colour(self.indices.get(model, 0), self.theme)

    def horizontal(self, bars: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
        """Bars of (worker, start, seconds)."""
        return {
            "type": "bar",
            "orientation": "h",
            "y": [self.rows[worker] for worker, _, _ in bars],
            "base": [self.scale.of(start) for _, start, _ in bars],
            "x": [self.scale.of(seconds) for _, _, seconds in bars],
            "width": _BAR,
        }


def sub_epoch_bars(spans: Sequence[Span], canvas: Canvas, highlight: str) -> Iterator[dict[str, Any]]:
    """A trace per outcome, one that shades loading and saving, and one that shades the start of processes."""
    for outcome, pattern in _PATTERNS.items():
        shown = [span for span in spans if span.outcome == outcome]
        if shown:
            is_open = outcome == "running"
            tints = [canvas.colour(span.model) for span in shown]
            marker = _marker(tints, canvas, pattern, is_open=is_open)
            if highlight:
                marker["opacity"] = [1.0 if span.model == highlight else _DIMMED for span in shown]
            yield _key(outcome, canvas, pattern, is_open=is_open)
            yield canvas.horizontal([(s.worker, s.start_s, s.end_s - s.start_s) for s in shown]) | {
                "name": outcome,
                "legendgroup": outcome,
                "marker": marker,
                "hoverinfo": "text",
                "hovertext": [hover(span) for span in shown],
                "customdata": [_identity(span) for span in shown],
                "showlegend": False,
            }
    shades = [(s.worker, s.start_s + s.process_s, s.load_s) for s in spans if s.load_s]
    shades += [(s.worker, s.end_s - s.save_s, s.save_s) for s in spans if s.save_s]
    starts = [(s.worker, s.start_s, s.process_s) for s in spans if s.process_s]
    for name, found, strength in (("loading, saving", shades, 0.35), ("start of the process", starts, 0.6)):
        if found:
            yield canvas.horizontal(found) | {
                "name": name,
                "marker": {"color": faint(canvas.colors.ink, strength)},
                "hoverinfo": "skip",
                "showlegend": True,
            }


def planned_bars(planned: Sequence[PlannedSpan], canvas: Canvas, highlight: str) -> Iterator[dict[str, Any]]:
    """Outlines of sub-epochs that are to come."""
    if not planned:
        return
    marker = _hollow([canvas.colour(sub_epoch.model) for sub_epoch in planned])
    if highlight:
        marker["opacity"] = [1.0 if sub_epoch.model == highlight else _DIMMED for sub_epoch in planned]
    yield _legend("planned", _hollow(canvas.colors.quiet))
    yield canvas.horizontal([(u.worker, u.start_s, u.end_s - u.start_s) for u in planned]) | {
        "name": "planned",
        "legendgroup": "planned",
        "marker": marker,
        "hoverinfo": "text",
        "hovertext": [
            lines(
                f"{sub_epoch.model}, epoch {sub_epoch.epoch}, partition {sub_epoch.partition}",
                f"planned on {sub_epoch.worker}",
                f"from about {seconds(sub_epoch.start_s)}, for about {seconds(sub_epoch.end_s - sub_epoch.start_s)}",
            )
            for sub_epoch in planned
        ],
        "customdata": [[sub_epoch.model, sub_epoch.epoch, sub_epoch.partition] for sub_epoch in planned],
        "showlegend": False,
    }


def _hollow(tint: str | list[str]) -> dict[str, Any]:
    return {"color": "rgba(0,0,0,0)", "line": {"color": tint, "width": 1.5}}


def _marker(tints: Sequence[str], canvas: Canvas, pattern: str, *, is_open: bool) -> dict[str, Any]:
    ground = canvas.colors.ground
    marker: dict[str, Any] = {
        "color": [faint(tint, 0.25) for tint in tints] if is_open else list(tints),
        "line": {"color": list(tints) if is_open else ground, "width": 1.5 if is_open else 0.5},
    }
    if pattern:
        # Strokes of the model's colour; the ground as strokes on the colour would make Plotly warn of every bar.
        marker["pattern"] = {"shape": pattern, "bgcolor": ground, "size": 6, "solidity": 0.6}
    return marker


def _key(outcome: str, canvas: Canvas, pattern: str, *, is_open: bool) -> dict[str, Any]:
    """What stands for an outcome in the legend: a bar of no model's colour that is nowhere."""
    tint = canvas.colors.quiet
    marker = _marker([tint], canvas, pattern, is_open=is_open)
    marker |= {"color": faint(tint, 0.25) if is_open else tint}
    marker["line"] |= {"color": tint}
    return _legend(outcome, marker)


def _legend(name: str, marker: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [None],
        "y": [None],
        "name": name,
        "legendgroup": name,
        "marker": dict(marker),
        "showlegend": True,
    }


def merged_bars(found: Sequence[Bucket], canvas: Canvas) -> dict[str, Any]:
    """A bar per worker and stretch of time, which fills as much of the row's height as the worker was busy."""
    return canvas.horizontal([(b.worker, b.start_s, b.seconds) for b in found]) | {
        "name": "busy",
        # From the foot of the row: the axis counts downwards.
        "width": [_BAR * bucket.busy for bucket in found],
        "offset": [_BAR / 2 - _BAR * bucket.busy for bucket in found],
        "marker": {"color": [canvas.colour(bucket.model) for bucket in found], "line": {"width": 0}},
        "hoverinfo": "text",
        "hovertext": [
            lines(
                f"{b.worker}: training {b.busy:.0%} of the time",
                f"{seconds(b.start_s)} to {seconds(b.start_s + b.seconds)}",
                f"{b.sub_epochs} sub-epochs of {b.models} models, most time for {b.model}",
            )
            for b in found
        ],
        "customdata": [[bucket.model] for bucket in found],
        "showlegend": False,
    }


def vain_marks(spans: Sequence[Span], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """Where attempts came to nothing: they must not vanish among merged bars. The newest, if there are many."""
    shown = [span for span in spans if span.outcome in ("failed", "revoked")][-MOST_MARKS:]
    if shown:
        line = {"color": canvas.colors.ground, "width": 1}
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "failed or revoked",
            "x": [canvas.scale.of(span.end_s) for span in shown],
            "y": [canvas.rows[span.worker] for span in shown],
            "marker": {"symbol": "x", "size": 7, "color": canvas.colors.bad, "line": line},
            "hoverinfo": "text",
            "hovertext": [hover(span) for span in shown],
            "customdata": [_identity(span) for span in shown],
            "showlegend": True,
        }


def strip(busy: Sequence[tuple[float, float]], canvas: Canvas) -> dict[str, Any]:
    """The share of the devices that is busy, over time, on an axis of its own."""
    tint = colour(0, canvas.theme)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "busy devices",
        "x": [canvas.scale.of(at) for at, _ in busy],
        "y": [100 * share for _, share in busy],
        "yaxis": "y2",
        "line": {"color": tint, "width": 1, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": faint(tint, 0.25),
        "hovertemplate": "%{y:.0f} % busy<extra></extra>",
        "showlegend": False,
    }


def hover(span: Span) -> str:
    """What a bar says when it is pointed at."""
    until = "now" if span.outcome == "running" else seconds(span.end_s)
    moves = f"loading {seconds(span.load_s)}, saving {seconds(span.save_s)}"
    return lines(
        f"{span.model}, epoch {span.epoch}, partition {span.partition}",
        f"on {span.worker}, attempt {span.attempt}: {span.note or span.outcome}",
        _used(span),
        f"{seconds(span.start_s)} to {until}: {seconds(span.end_s - span.start_s)}",
        f"of these {seconds(span.process_s)} until its process had started" if span.process_s else "",
        moves if span.load_s or span.save_s else "",
    )


def _used(span: Span) -> str:
    """How an attempt used which devices, where there is something to say."""
    if not span.parallel_plan:
        return ""
    many = f" on devices {', '.join(map(str, span.devices))}" if len(span.devices) > 1 else ""
    return f"by {span.parallel_plan}{many}"


def seconds(value: float) -> str:
    """A duration, in seconds."""
    return f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"


def _identity(span: Span) -> list[str | int]:
    return [span.model, span.epoch, span.partition, span.attempt, span.task]
