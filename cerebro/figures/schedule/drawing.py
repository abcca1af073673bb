"""Drawing of a fit run's schedule: a row for each device, a bar for each attempt. Pure.

Notebooks, reports and `dispatcher.schedule.figure` call `schedule` with the data of `spans` and `planned`. It combines
the traces of `bars`, `surroundings` and `buckets`, and adds layout, description and data table.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro.figures.frame import Cell, Figure, annotation, axis, cut, duration, empty, figure, text
from cerebro.figures.palette import Theme, ThemeColors, faint
from cerebro.figures.schedule import buckets
from cerebro.figures.schedule.bars import (
    Canvas,
    failure_marks,
    merged_bars,
    planned_bars,
    seconds,
    slices_of,
    strip,
    sub_epoch_bars,
)
from cerebro.figures.schedule.planned import PlannedSpan
from cerebro.figures.schedule.spans import Landmarks, Span, TakenBar
from cerebro.figures.schedule.surroundings import (
    absence_bars,
    absence_words,
    counted,
    taken_bars,
    task_bars,
    task_words,
)
from cerebro.figures.schedule.time_range import cut_off

MAX_BARS = 2000
"""Maximum number of bars; more are merged for each row and bucket of time."""

_ROW_PX, _LEAST_ROW_PX, _ROWS_PX = 28, 9, 900
"""Height of a row in pixels; smaller, at least 9, if all rows would exceed 900."""

_STRIP_PX = 70
_FRAME_PX = 130
_MAX_EPOCH_LINES = 30
_MAX_EPOCH_LABELS = 6
_LABEL_SHARE = 0.14
"""Distance between labels of epochs, as a share of the width: the length of a label on a phone."""
_MAX_BREAKS = 30
_COLUMNS = (
    *(
        "worker or device",
        "sub-epochs",
        "failed or revoked",
        "training, s",
        "not training, s",
        "not training, %",
    ),
    *("sub-epochs planned next", "other runs, s"),
)
"""Columns of the data table."""


def schedule(
    spans: Sequence[Span],
    *,
    workers: Mapping[str, int],
    models: Sequence[str],
    landmarks: Landmarks,
    planned: Sequence[PlannedSpan] = (),
    other_tasks: Sequence[Span] = (),
    highlight: str = "",
    theme: Theme = "light",
) -> Figure:
    """Draw a row for each device and a bar for each attempt at a sub-epoch.

    An attempt on several devices has a bar in each of their rows. Empty space is time without a sub-epoch. Bars have
    their model's colour: committed ones are plain, failed ones crossed, revoked ones hatched, running ones outlines.
    Loading, saving, process starts and breaks are shaded. The line on top is the share of busy devices. With more than
    `MAX_BARS` attempts, bars are merged into buckets of time; their height is the device's busy share. Planned
    sub-epochs are hollow, right of the line that marks now. Before the first sub-epoch only the plan is shown.

    Args:
        spans: see `cerebro.figures.schedule.spans`.
        workers: worker -> number of devices, from top to bottom, with idle ones. Each device has a row.
        models: all models of the fit, in order, which decides their colours.
        landmarks: epochs, breaks, other runs (hatched), absences (shaded), and the lower bound (dashed). Values beyond
            their `window` are cut, also in sums.
        planned: see `cerebro.figures.schedule.planned`; empty without a plan.
        other_tasks: see `cerebro.figures.schedule.other_tasks`. Tasks without a device get their worker's own row.
        highlight: id of a model whose bars stand out.
    """
    if not spans and not planned and not other_tasks:
        reason = "no sub-epoch has started yet, and no plan is followed"
        return empty("schedule", reason, theme=theme, title="Schedule")
    end = max([landmarks.now_s, *(span.end_s for span in (*spans, *other_tasks))])
    begin = min([0.0, *(span.start_s for span in other_tasks)])
    until = max([end, *(sub_epoch.end_s for sub_epoch in planned)])
    first, window = 0.0, landmarks.window
    if window is not None:
        first = begin = window[0]
        if math.isfinite(window[1]):
            end = until = window[1]
        other_tasks = cut_off(other_tasks, begin, end)
    breaks = [(since, min(until, end)) for since, until in landmarks.breaks if since < end]
    counts, taken = dict(workers), landmarks.taken
    for worker in [s.worker for group in (spans, planned, taken) for s in group]:
        counts.setdefault(worker, 1)
    rows = {worker: row_names(worker, count) for worker, count in counts.items()}
    names = [row_name for worker_names in rows.values() for row_name in worker_names]
    attempts = spans
    spans = [
        replace(s, worker=row_name) for s in attempts for row_name in _rows_of(s.worker, s.devices, counts)
    ]
    planned = [
        replace(u, worker=row_name) for u in planned for row_name in _rows_of(u.worker, (u.device,), counts)
    ]
    taken = tuple(
        replace(b, worker=row_name) for b in taken for row_name in _rows_of(b.worker, b.devices, counts)
    )
    all_spans = spans
    if window is not None:
        spans, attempts = cut_off(spans, begin, end), cut_off(attempts, begin, end)
    all_other_tasks = other_tasks
    other_tasks = [replace(s, worker=row_name) for s in other_tasks for row_name in _rows_of_task(s, counts)]
    canvas = Canvas(
        rows={
            row_name: row
            for row, row_name in enumerate(dict.fromkeys([*names, *(s.worker for s in other_tasks)]))
        },
        indices={model: index for index, model in enumerate(models)},
        scale=duration(max(until, landmarks.bound_at_s) - begin),
        theme=theme,
        slices=slices_of(all_spans),
    )
    what = "Schedule" if spans or other_tasks else "Plan"
    title = f"{what} of {counted(len(models), 'model')} on {counted(len(counts), 'worker')}"
    if len(spans) > MAX_BARS:
        merged = buckets.merged(spans, tuple(names), end, max_bars=MAX_BARS, begin_s=first)
        title += (
            f": {len(attempts):,} sub-epochs and attempts, in time ranges of {seconds(merged[0].seconds)}"
        )
        traces = [merged_bars(merged, canvas), *failure_marks(spans, canvas)]
    else:
        traces = list(sub_epoch_bars(all_spans, canvas, highlight))
    traces += taken_bars(taken, canvas)
    traces += planned_bars(planned, canvas, highlight)
    traces += task_bars(other_tasks, canvas)
    traces = [*absence_bars(landmarks.absences, rows, end, canvas), *traces]
    open_s = end - first - _total(breaks)
    if spans:
        traces.append(strip(buckets.busy_share(spans, len(names), end, begin_s=first), canvas))
    return figure(
        "schedule",
        traces,
        theme=theme,
        title=title,
        description=_description(attempts, planned, len(counts), open_s, breaks=breaks, landmarks=landmarks)
        + task_words(all_other_tasks)
        + absence_words(landmarks.absences),
        table=cut(_rows(spans, planned, taken, names, open_s), _COLUMNS),
        layout=_layout(canvas, begin, until, breaks, landmarks, now=end if spans else None),
    )


def row_names(worker: str, devices: int) -> list[str]:
    """Return the names of a worker's rows."""
    return [worker] if devices == 1 else [f"{worker} · {device}" for device in range(devices)]


def _rows_of(worker: str, devices: tuple[int, ...], counts: Mapping[str, int]) -> list[str]:
    """Return the rows of devices."""
    rows = row_names(worker, counts[worker])
    return list(dict.fromkeys(rows[min(device, len(rows) - 1)] for device in devices or (0,)))


def _rows_of_task(span: Span, counts: Mapping[str, int]) -> list[str]:
    """Return the rows of a task that is not a sub-epoch."""
    if span.worker not in counts:
        return [span.worker]
    if span.devices:
        return _rows_of(span.worker, span.devices, counts)
    return [f"{span.worker} · {'ETL' if span.kind == 'etl' else 'inspection'}"]


def _layout(
    canvas: Canvas,
    begin: float,
    end: float,
    breaks: Sequence[tuple[float, float]],
    landmarks: Landmarks,
    *,
    now: float | None,
) -> dict[str, Any]:
    """Return the layout; `now` is the current time on the axis, or `None` before the first sub-epoch."""
    colors, scale, rows = canvas.colors, canvas.scale, canvas.rows
    row = max(_LEAST_ROW_PX, min(_ROW_PX, _ROWS_PX // len(rows)))
    strip_px = 0 if now is None else _STRIP_PX
    height = _FRAME_PX + strip_px + row * len(rows)
    share = strip_px / (height - _FRAME_PX)
    named = landmarks.epochs[-_MAX_EPOCH_LINES:]
    shapes = [_shade(scale.of(since), scale.of(until), colors) for since, until in breaks[-_MAX_BREAKS:]]
    shapes += [_line(scale.of(at), colors, dash="dot") for _, at in named]
    bound = scale.of(landmarks.bound_at_s)
    begun = max(0.0, scale.of(begin))
    reach = begun + 1.02 * (max(scale.of(end), bound) - begun)
    labelled = _without_overlap(
        [(epoch, scale.of(at)) for epoch, at in named], (reach - begun) * _LABEL_SHARE
    )
    notes = [_label(f"epoch {epoch}", at, colors, yanchor="bottom") for epoch, at in labelled]
    if breaks:
        # Label the longest one; the others look the same.
        since, until = max(breaks, key=lambda pause: pause[1] - pause[0])
        middle = scale.of((since + until) / 2)
        notes.append(_label("break", middle, colors, xanchor="center", yanchor="bottom"))
    if bound:
        shapes.append(_line(bound, colors, dash="dash", color=colors.ink, width=1.5))
        # On the side with room, below the labels of epochs.
        side = "left" if bound < reach / 2 else "right"
        notes.append(_label("lower bound", bound, colors, xanchor=side, yanchor="top"))
    if now is not None and now < end:
        shapes.append(_line(scale.of(now), colors, dash="solid"))
        # On the right of the line: labels of epochs are on its left.
        notes.append(_label("now", scale.of(now), colors, xanchor="left", yanchor="bottom"))
    positions, labels = list(rows.values()), [text(worker) for worker in rows]
    counted = "from now" if now is None else "since the first sub-epoch"
    axes = {
        "barmode": "overlay",
        "height": height,
        "xaxis": axis(colors, f"time {counted}, {scale.name}", anchor="y", range=[scale.of(begin), reach]),
        "yaxis": axis(
            colors,
            tickvals=positions,
            ticktext=labels,
            range=[len(rows) - 0.5, -0.5],
            domain=[0, 1 - share - 0.02 if share else 1],
            showgrid=False,
            fixedrange=len(rows) * row <= _ROWS_PX,
        ),
        "shapes": shapes,
        "annotations": notes,
        "showlegend": True,
    }
    if share:
        position = {"domain": [1 - share * 0.8, 1], "range": [0, 105]}
        axes["yaxis2"] = axis(colors, "busy, %", tickvals=[0, 50, 100], fixedrange=True, **position)
    return axes


def _without_overlap(named: Sequence[tuple[int, float]], distance: float) -> Sequence[tuple[int, float]]:
    """Select the newest (epoch, position) whose labels do not overlap."""
    found: list[tuple[int, float]] = []
    for epoch, at in reversed(named):
        if not found or found[-1][1] - at >= distance:
            found.append((epoch, at))
    return found[:_MAX_EPOCH_LABELS][::-1]


def _line(x: float, colors: ThemeColors, **style: Any) -> dict[str, Any]:
    line = {"color": colors.quiet, "width": 1, **style}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _shade(x0: float, x1: float, colors: ThemeColors) -> dict[str, Any]:
    position = {"x0": x0, "x1": x1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return {"type": "rect", "fillcolor": faint(colors.ink, 0.12), "line": {"width": 0}, **position}


def _label(
    words: str, x: float, colors: ThemeColors, *, yanchor: str, xanchor: str = "right"
) -> dict[str, Any]:
    """Return words at the upper end of a line."""
    position = {"x": x, "y": 1, "yref": "paper", "yanchor": yanchor, "xanchor": xanchor}
    font = {"size": 10, "color": colors.quiet}
    return annotation(words, colors, font=font, bgcolor=faint(colors.ground, 0.7), **position)


def _rows(
    spans: Sequence[Span],
    planned: Iterable[PlannedSpan],
    taken: Iterable[TakenBar],
    workers: Iterable[str],
    open_s: float,
) -> Iterable[Sequence[Cell]]:
    num_planned = Counter(sub_epoch.worker for sub_epoch in planned)
    other_runs_s: Counter[str] = Counter()
    for bar in taken:
        other_runs_s[bar.worker] += bar.end_s - bar.start_s  # type: ignore[assignment]
    positions: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        positions[span.worker].append(span)
    for worker in workers:
        attempts_here = positions[worker]
        busy = sum((span.end_s - span.start_s) / span.sharing for span in attempts_here)
        available_s = max(0.0, open_s - other_runs_s[worker])
        rest = max(0.0, available_s - busy)
        sub_epochs = sum(span.outcome == "committed" for span in attempts_here)
        share = round(100 * rest / available_s, 1) if available_s else 0.0
        times = round(busy, 2), round(rest, 2), share
        yield (
            worker,
            sub_epochs,
            _num_failed(attempts_here),
            *times,
            num_planned[worker],
            round(other_runs_s[worker], 2),
        )


def _description(
    spans: Sequence[Span],
    planned: Sequence[PlannedSpan],
    workers: int,
    open_s: float,
    *,
    breaks: Sequence[tuple[float, float]],
    landmarks: Landmarks,
) -> str:
    are = "is" if len(planned) == 1 else "are"
    plan = (
        f" {counted(len(planned), 'sub-epoch')} {are} planned next; how long that takes is estimated."
        if planned
        else ""
    )
    if not spans:
        return f"No sub-epoch has started yet.{plan}"
    summary = (
        f"{counted(len(spans), 'attempt')} at sub-epochs on {counted(workers, 'worker')} in {seconds(open_s)}"
    )
    if breaks:
        summary += f", and {seconds(_total(breaks))} in which the run had ended or no worker was there"
    summary += "."
    if landmarks.idle_share is not None:
        summary += f" The workers were idle for {landmarks.idle_share:.1%} of their time."
    if landmarks.lower_bound_s:
        summary += (
            f" No order of these sub-epochs could have taken less than {seconds(landmarks.lower_bound_s)}."
        )
    if landmarks.taken:
        taken_s = sum(bar.end_s - bar.start_s for bar in landmarks.taken)
        summary += f" Other runs had {seconds(taken_s)} of their devices, which count as absence."
    num_failed = _num_failed(spans)
    were = "was" if num_failed == 1 else "were"
    return (
        summary
        + (f" {counted(num_failed, 'attempt')} failed or {were} revoked." if num_failed else "")
        + plan
    )


def _total(breaks: Iterable[tuple[float, float]]) -> float:
    return sum(until - since for since, until in breaks)


def _num_failed(spans: Sequence[Span]) -> int:
    return sum(span.outcome in ("failed", "revoked") for span in spans)
