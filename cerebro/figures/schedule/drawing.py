"""The schedule of a fit run: which model was on which worker when, and how busy the workers were."""

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
    merged_bars,
    planned_bars,
    seconds,
    strip,
    sub_epoch_bars,
    vain_marks,
)
from cerebro.figures.schedule.planned import PlannedSpan
from cerebro.figures.schedule.spans import Landmarks, Span, TakenBar
from cerebro.figures.schedule.surroundings import (
    away_bars,
    away_words,
    beside_bars,
    beside_words,
    counted,
    taken_bars,
)
from cerebro.figures.schedule.windows import cut_off

MOST_BARS = 2000
"""Beyond, bars are put together per row and stretch of time."""

_ROW_PX, _LEAST_ROW_PX, _ROWS_PX = 28, 9, 900
"""Height of a row: so much, less if the rows would be higher than so much together."""

_STRIP_PX = 70
_FRAME_PX = 130
_MOST_EPOCH_LINES = 30
_MOST_EPOCH_LABELS = 6
_LABEL_SHARE = 0.14
"""Of the width, that a name of an epoch takes on a phone: the next one keeps so far away."""
_MOST_BREAKS = 30
_COLUMNS = (
    *(
        "worker or device",
        "sub_epochs",
        "failed or revoked",
        "training, s",
        "not training, s",
        "not training, %",
    ),
    *("sub-epochs planned next", "other runs, s"),
)
"""Of the table."""


def schedule(
    spans: Sequence[Span],
    *,
    workers: Mapping[str, int],
    models: Sequence[str],
    landmarks: Landmarks,
    planned: Sequence[PlannedSpan] = (),
    beside: Sequence[Span] = (),
    highlight: str = "",
    theme: Theme = "light",
) -> Figure:
    """A row per device and a bar per attempt at a sub-epoch, in its model's colour, on each row of one that takes
    several devices; what is left empty is time without one, in which its worker was there.

    Committed bars are plain, failed ones crossed, revoked ones hatched, those that run an outline up to now. Loading,
    saving and the start of processes are shaded, and so are breaks, in which the run had ended or no worker was there.
    Above, the share of the devices that is busy. Of more than `MOST_BARS` attempts each device's are put together by
    stretches of time: a bar then fills as much of its row's height as the device was busy. Sub-epochs that are to come
    by the plan are hollow, behind a line that is now; before the first sub-epoch there is nothing but them.

    Args:
        spans: see `cerebro.figures.schedule.spans`.
        workers: from top to bottom, those that idled as well -> devices; a worker with several has a row for each.
        models: all of the plan, in order: they have the colours.
        landmarks: epochs, breaks, and what other runs had, which is hatched; the lower bound is a dashed line where the
            run would have ended. While a worker was absent its rows are shaded. What reaches beyond their `window` is
            cut, in sums, too.
        planned: see `cerebro.figures.schedule.planned`; empty if no plan is followed.
        beside: see `cerebro.figures.schedule.beside_sub_epochs`; what takes no device has a row of its worker's.
        highlight: a model whose way across the workers stands out.
    """
    if not spans and not planned and not beside:
        reason = "no sub-epoch has started yet, and no plan is followed"
        return empty("schedule", reason, theme=theme, title="Schedule")
    end = max([landmarks.now_s, *(span.end_s for span in (*spans, *beside))])
    begin = min([0.0, *(span.start_s for span in beside)])
    until = max([end, *(sub_epoch.end_s for sub_epoch in planned)])
    first, window = 0.0, landmarks.window
    if window is not None:
        first = begin = window[0]
        if math.isfinite(window[1]):
            end = until = window[1]
        beside = cut_off(beside, begin, end)
    breaks = [(since, min(until, end)) for since, until in landmarks.breaks if since < end]
    counts, taken = dict(workers), landmarks.taken
    for worker in [s.worker for found in (spans, planned, taken) for s in found]:
        counts.setdefault(worker, 1)
    rows = {worker: lanes(worker, count) for worker, count in counts.items()}
    names = [lane for found in rows.values() for lane in found]
    attempts = spans
    spans = [replace(s, worker=lane) for s in attempts for lane in _lanes(s.worker, s.devices, counts)]
    planned = [replace(u, worker=lane) for u in planned for lane in _lanes(u.worker, (u.device,), counts)]
    taken = tuple(replace(b, worker=lane) for b in taken for lane in _lanes(b.worker, b.devices, counts))
    whole = spans
    if window is not None:
        spans, attempts = cut_off(spans, begin, end), cut_off(attempts, begin, end)
    done_beside = beside
    beside = [replace(s, worker=lane) for s in beside for lane in _beside_lanes(s, counts)]
    canvas = Canvas(
        rows={lane: row for row, lane in enumerate(dict.fromkeys([*names, *(s.worker for s in beside)]))},
        indices={model: index for index, model in enumerate(models)},
        scale=duration(max(until, landmarks.bound_at_s) - begin),
        theme=theme,
    )
    what = "Schedule" if spans or beside else "Plan"
    title = f"{what} of {counted(len(models), 'model')} on {counted(len(counts), 'worker')}"
    if len(spans) > MOST_BARS:
        found = buckets.merged(spans, tuple(names), end, most=MOST_BARS, begin_s=first)
        title += f": {len(attempts):,} sub-epochs and attempts, in stretches of {seconds(found[0].seconds)}"
        traces = [merged_bars(found, canvas), *vain_marks(spans, canvas)]
    else:
        traces = list(sub_epoch_bars(whole, canvas, highlight))
    traces += taken_bars(taken, canvas)
    traces += planned_bars(planned, canvas, highlight)
    traces += beside_bars(beside, canvas)
    traces = [*away_bars(landmarks.absences, rows, end, canvas), *traces]
    open_s = end - first - _total(breaks)
    if spans:
        traces.append(strip(buckets.busy_share(spans, len(names), end, begin_s=first), canvas))
    return figure(
        "schedule",
        traces,
        theme=theme,
        title=title,
        description=_description(attempts, planned, len(counts), open_s, breaks=breaks, landmarks=landmarks)
        + beside_words(done_beside)
        + away_words(landmarks.absences),
        table=cut(_rows(spans, planned, taken, names, open_s), _COLUMNS),
        layout=_layout(canvas, begin, until, breaks, landmarks, now=end if spans else None),
    )


def lanes(worker: str, devices: int) -> list[str]:
    """What a worker's rows are called."""
    return [worker] if devices == 1 else [f"{worker} · {device}" for device in range(devices)]


def _lanes(worker: str, devices: tuple[int, ...], counts: Mapping[str, int]) -> list[str]:
    """The rows of what took these devices."""
    rows = lanes(worker, counts[worker])
    return list(dict.fromkeys(rows[min(device, len(rows) - 1)] for device in devices or (0,)))


def _beside_lanes(span: Span, counts: Mapping[str, int]) -> list[str]:
    """The rows of what was done beside sub-epochs."""
    if span.worker not in counts:
        return [span.worker]
    if span.devices:
        return _lanes(span.worker, span.devices, counts)
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
    """`now`: where that is on the axis; `None` before the first sub-epoch."""
    colors, scale, rows = canvas.colors, canvas.scale, canvas.rows
    row = max(_LEAST_ROW_PX, min(_ROW_PX, _ROWS_PX // len(rows)))
    strip_px = 0 if now is None else _STRIP_PX
    height = _FRAME_PX + strip_px + row * len(rows)
    share = strip_px / (height - _FRAME_PX)
    named = landmarks.epochs[-_MOST_EPOCH_LINES:]
    shapes = [_shade(scale.of(since), scale.of(until), colors) for since, until in breaks[-_MOST_BREAKS:]]
    shapes += [_line(scale.of(at), colors, dash="dot") for _, at in named]
    bound = scale.of(landmarks.bound_at_s)
    begun = max(0.0, scale.of(begin))
    reach = begun + 1.02 * (max(scale.of(end), bound) - begun)
    apart = _apart([(epoch, scale.of(at)) for epoch, at in named], (reach - begun) * _LABEL_SHARE)
    notes = [_label(f"epoch {epoch}", at, colors, yanchor="bottom") for epoch, at in apart]
    if breaks:
        # Where the longest one is; the others look the same.
        since, until = max(breaks, key=lambda found: found[1] - found[0])
        middle = scale.of((since + until) / 2)
        notes.append(_label("break", middle, colors, xanchor="center", yanchor="bottom"))
    if bound:
        shapes.append(_line(bound, colors, dash="dash", color=colors.ink, width=1.5))
        # On the side where there is room, and below the names of epochs.
        side = "left" if bound < reach / 2 else "right"
        notes.append(_label("lower bound", bound, colors, xanchor=side, yanchor="top"))
    if now is not None and now < end:
        shapes.append(_line(scale.of(now), colors, dash="solid"))
        # On the other side of the line than names of epochs, of which none is later.
        notes.append(_label("now", scale.of(now), colors, xanchor="left", yanchor="bottom"))
    places, labels = list(rows.values()), [text(worker) for worker in rows]
    counted = "from now" if now is None else "since the first sub-epoch"
    found = {
        "barmode": "overlay",
        "height": height,
        "xaxis": axis(colors, f"time {counted}, {scale.name}", anchor="y", range=[scale.of(begin), reach]),
        "yaxis": axis(
            colors,
            tickvals=places,
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
        place = {"domain": [1 - share * 0.8, 1], "range": [0, 105]}
        found["yaxis2"] = axis(colors, "busy, %", tickvals=[0, 50, 100], fixedrange=True, **place)
    return found


def _apart(named: Sequence[tuple[int, float]], distance: float) -> Sequence[tuple[int, float]]:
    """Those (epoch, place) that can be named without one being printed over another, the newest first."""
    found: list[tuple[int, float]] = []
    for epoch, at in reversed(named):
        if not found or found[-1][1] - at >= distance:
            found.append((epoch, at))
    return found[:_MOST_EPOCH_LABELS][::-1]


def _line(x: float, colors: ThemeColors, **style: Any) -> dict[str, Any]:
    line = {"color": colors.quiet, "width": 1, **style}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _shade(x0: float, x1: float, colors: ThemeColors) -> dict[str, Any]:
    place = {"x0": x0, "x1": x1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return {"type": "rect", "fillcolor": faint(colors.ink, 0.12), "line": {"width": 0}, **place}


def _label(
    words: str, x: float, colors: ThemeColors, *, yanchor: str, xanchor: str = "right"
) -> dict[str, Any]:
    """Words at the upper end of a line."""
    place = {"x": x, "y": 1, "yref": "paper", "yanchor": yanchor, "xanchor": xanchor}
    font = {"size": 10, "color": colors.quiet}
    return annotation(words, colors, font=font, bgcolor=faint(colors.ground, 0.7), **place)


def _rows(
    spans: Sequence[Span],
    planned: Iterable[PlannedSpan],
    taken: Iterable[TakenBar],
    workers: Iterable[str],
    open_s: float,
) -> Iterable[Sequence[Cell]]:
    ahead = Counter(sub_epoch.worker for sub_epoch in planned)
    others: Counter[str] = Counter()
    for bar in taken:
        others[bar.worker] += bar.end_s - bar.start_s  # type: ignore[assignment]
    places: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        places[span.worker].append(span)
    for worker in workers:
        here = places[worker]
        busy = sum(span.end_s - span.start_s for span in here)
        there_s = max(0.0, open_s - others[worker])
        rest = max(0.0, there_s - busy)
        sub_epochs = sum(span.outcome == "committed" for span in here)
        share = round(100 * rest / there_s, 1) if there_s else 0.0
        times = round(busy, 2), round(rest, 2), share
        yield (worker, sub_epochs, _vain(here), *times, ahead[worker], round(others[worker], 2))


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
    said = (
        f"{counted(len(spans), 'attempt')} at sub-epochs on {counted(workers, 'worker')} in {seconds(open_s)}"
    )
    if breaks:
        said += f", and {seconds(_total(breaks))} in which the run had ended or no worker was there"
    said += "."
    if landmarks.idle_share is not None:
        said += f" The workers were idle for {landmarks.idle_share:.1%} of their time."
    if landmarks.lower_bound_s:
        said += (
            f" No order of these sub-epochs could have taken less than {seconds(landmarks.lower_bound_s)}."
        )
    if landmarks.taken:
        taken_s = sum(bar.end_s - bar.start_s for bar in landmarks.taken)
        said += f" Other runs had {seconds(taken_s)} of their devices, which count as absence."
    vain = _vain(spans)
    were = "was" if vain == 1 else "were"
    return said + (f" {counted(vain, 'attempt')} failed or {were} taken back." if vain else "") + plan


def _total(breaks: Iterable[tuple[float, float]]) -> float:
    return sum(until - since for since, until in breaks)


def _vain(spans: Sequence[Span]) -> int:
    return sum(span.outcome in ("failed", "revoked") for span in spans)
