"""Marks of sub-epochs in a schedule: bars, merged bars, and the line of busy devices, as Plotly traces. Pure.

`cerebro.figures.schedule.drawing` calls it; `surroundings` shares `Canvas`. It computes no times: `spans` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro.figures.frame import Duration, lines
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, colour, faint
from cerebro.figures.schedule.buckets import Bucket
from cerebro.figures.schedule.planned import PlannedSpan
from cerebro.figures.schedule.spans import Outcome, Span

_BAR = 0.8
"""Height of a bar, as a share of its row."""

_DIMMED = 0.2

MAX_MARKS = 2000
"""Maximum number of drawn marks of one kind."""

_PATTERNS: dict[Outcome, str] = {"committed": "", "running": "", "failed": "x", "revoked": "/"}


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Coordinates of marks: row of a worker or device, position of a model, time scale, slices of bars."""

    rows: dict[str, int]
    indices: dict[str, int]
    scale: Duration
    theme: Theme
    slices: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(fused group, model) -> number of its slice of the group's bar, from the top."""

    @property
    def colors(self) -> ThemeColors:
        """Colours of the theme."""
        return THEME_COLORS[self.theme]

    def colour(self, model: str) -> str:
        """Return the colour of a model."""
        return colour(self.indices.get(model, 0), self.theme)

    def horizontal(self, bars: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
        """Return a trace of bars from (worker, start, seconds)."""
        return {
            "type": "bar",
            "orientation": "h",
            "y": [self.rows[worker] for worker, _, _ in bars],
            "base": [self.scale.of(start) for _, start, _ in bars],
            "x": [self.scale.of(seconds) for _, _, seconds in bars],
            "width": _BAR,
        }

    def of_spans(self, spans: Sequence[Span], bars: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
        """Return `horizontal` of bars that belong to spans. Those of a fused group share the height of one bar."""
        trace = self.horizontal(bars)
        if any(span.sharing > 1 for span in spans):
            heights = [_BAR / span.sharing for span in spans]
            trace["width"] = heights
            trace["offset"] = [
                height * self.slices.get((span.group, span.model), 0) - _BAR / 2
                for span, height in zip(spans, heights, strict=True)
            ]
        return trace


def sub_epoch_bars(spans: Sequence[Span], canvas: Canvas, highlight: str) -> Iterator[dict[str, Any]]:
    """Yield a trace for each outcome, and traces that shade loading, saving and process starts."""
    for outcome, pattern in _PATTERNS.items():
        shown = [span for span in spans if span.outcome == outcome]
        if shown:
            is_open = outcome == "running"
            tints = [canvas.colour(span.model) for span in shown]
            marker = _marker(tints, canvas, pattern, is_open=is_open)
            if highlight:
                marker["opacity"] = [1.0 if span.model == highlight else _DIMMED for span in shown]
            yield _key(outcome, canvas, pattern, is_open=is_open)
            yield canvas.of_spans(shown, [(s.worker, s.start_s, s.end_s - s.start_s) for s in shown]) | {
                "name": outcome,
                "legendgroup": outcome,
                "marker": marker,
                "hoverinfo": "text",
                "hovertext": [hover(span) for span in shown],
                "customdata": [_identity(span) for span in shown],
                "showlegend": False,
            }
    shades = [(s, s.start_s + s.process_s, s.load_s) for s in spans if s.load_s]
    shades += [(s, s.end_s - s.save_s, s.save_s) for s in spans if s.save_s]
    starts = [(s, s.start_s, s.process_s) for s in spans if s.process_s]
    for name, segments, strength in (
        ("loading, saving", shades, 0.35),
        ("start of the process", starts, 0.6),
    ):
        if segments:
            bars = [(span.worker, start, length) for span, start, length in segments]
            yield canvas.of_spans([span for span, _, _ in segments], bars) | {
                "name": name,
                "marker": {"color": faint(canvas.colors.ink, strength)},
                "hoverinfo": "skip",
                "showlegend": True,
            }


def slices_of(spans: Sequence[Span]) -> dict[tuple[str, str], int]:
    """Return (fused group, model) -> number of its slice, in the order of the models."""
    models: dict[str, set[str]] = {}
    for span in spans:
        if span.group:
            models.setdefault(span.group, set()).add(span.model)
    return {
        (group, model): number
        for group, names in models.items()
        for number, model in enumerate(sorted(names))
    }


def planned_bars(planned: Sequence[PlannedSpan], canvas: Canvas, highlight: str) -> Iterator[dict[str, Any]]:
    """Yield outlines of planned sub-epochs."""
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
        # In the model's colour: strokes of the ground on the model's colour make Plotly warn for each bar.
        marker["pattern"] = {"shape": pattern, "bgcolor": ground, "size": 6, "solidity": 0.6}
    return marker


def _key(outcome: str, canvas: Canvas, pattern: str, *, is_open: bool) -> dict[str, Any]:
    """Return the legend entry of an outcome: an invisible bar in a neutral colour."""
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


def merged_bars(buckets: Sequence[Bucket], canvas: Canvas) -> dict[str, Any]:
    """Return a bar for each worker and bucket, as high as the worker's busy share."""
    return canvas.horizontal([(b.worker, b.start_s, b.seconds) for b in buckets]) | {
        "name": "busy",
        # From the bottom of the row: the axis points downwards.
        "width": [_BAR * bucket.busy for bucket in buckets],
        "offset": [_BAR / 2 - _BAR * bucket.busy for bucket in buckets],
        "marker": {"color": [canvas.colour(bucket.model) for bucket in buckets], "line": {"width": 0}},
        "hoverinfo": "text",
        "hovertext": [
            lines(
                f"{b.worker}: training {b.busy:.0%} of the time",
                f"{seconds(b.start_s)} to {seconds(b.start_s + b.seconds)}",
                f"{b.sub_epochs} sub-epochs of {b.models} models, most time for {b.model}",
            )
            for b in buckets
        ],
        "customdata": [[bucket.model] for bucket in buckets],
        "showlegend": False,
    }


def failure_marks(spans: Sequence[Span], canvas: Canvas) -> Iterator[dict[str, Any]]:
    """Yield marks of the newest failed and revoked attempts, which merged bars would hide."""
    shown = [span for span in spans if span.outcome in ("failed", "revoked")][-MAX_MARKS:]
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
    """Return the line of the busy share of devices over time, on its own axis."""
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
    """Return the hover text of a bar."""
    until = "now" if span.outcome == "running" else seconds(span.end_s)
    moves = f"loading {seconds(span.load_s)}, saving {seconds(span.save_s)}"
    return lines(
        f"{span.model}, epoch {span.epoch}, partition {span.partition}",
        f"on {span.worker}, attempt {span.attempt}: {span.note or span.outcome}",
        _plan_text(span),
        f"{seconds(span.start_s)} to {until}: {seconds(span.end_s - span.start_s)}",
        f"of these {seconds(span.process_s)} to start its process" if span.process_s else "",
        moves if span.load_s or span.save_s else "",
    )


def _plan_text(span: Span) -> str:
    """Describe the parallel plan and the devices, unless it is a single device."""
    if not span.parallel_plan:
        return ""
    if span.sharing > 1:
        return f"in a group of {span.sharing} models, by {span.parallel_plan}"
    many = f" on devices {', '.join(map(str, span.devices))}" if len(span.devices) > 1 else ""
    return f"by {span.parallel_plan}{many}"


def seconds(value: float) -> str:
    """Format a duration in seconds."""
    return f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"


def _identity(span: Span) -> list[str | int]:
    return [span.model, span.epoch, span.partition, span.attempt, span.task]
