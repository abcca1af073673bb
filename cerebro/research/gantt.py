"""Gantt charts: who trained what when, as a self-contained SVG.

One drawing serves notebooks (they show it by `_repr_svg_`), the web page (inline) and the documentation (as a file).
That dictates its form: no script, no handler, no style attribute or element (the page's security policy forbids them),
no font from elsewhere, and a grey text colour that reads on light and dark alike, which a page's style sheet may
overrule (``svg.gantt { color: inherit }``). Idle time is what is left empty.

Draws bars, of a planned or simulated `Schedule` (`draw`), or of any other (`svg`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.research.svg import PALETTE, digits, ink, safe, short, ticks, titled
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule, devices

_TITLED = 1000
"""Most bars that each have a tooltip. Beyond, bars of a model are one path, whose tooltip names the model: so the
drawing stays small enough for a page that reloads it."""
_NAMED = len(PALETTE)
"""Most models a legend names: as many as there are colours."""
_TALL, _LOW, _MANY_LANES = 18, 10, 32
"""Height of a lane, and of one where there are many."""
_CHARACTER = 6.6
"""Width of a character, about: fonts differ from reader to reader."""
_TOP, _SIDE, _GAP = 36, 10, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A unit to be drawn.

    Attributes:
        worker: names its row.
        model: chooses its colour.
        partition, epoch: for its tooltip; units of even epochs are paler.
        start, end: seconds since the chart's zero.
        lanes: GPUs of the worker it runs on, from 0.
    """

    worker: str
    model: str
    partition: int
    start: float
    end: float
    epoch: int = 1
    lanes: tuple[int, ...] = (0,)


class Drawing(str):
    """SVG text that a notebook draws when a cell ends with it."""

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        # A notebook keeps this beside the picture.
        return f"<Drawing: {len(self):,} characters of SVG>"


def bars_of(problem: Problem, schedule: Schedule) -> tuple[Bar, ...]:
    """The units of a schedule as bars, GPUs chosen by first fit (`devices`)."""
    lanes = devices(schedule.units)
    return tuple(
        Bar(
            worker=problem.workers[unit.worker],
            model=problem.models[unit.model],
            partition=unit.partition,
            start=unit.start,
            end=unit.end,
            epoch=unit.epoch,
            lanes=lanes[unit],
        )
        for unit in schedule.units
    )


def draw(
    problem: Problem, schedule: Schedule, *, lower_bound: float | None = None, title: str = ""
) -> Drawing:
    """A schedule with a row for each worker of the problem, a lane for each of its GPUs.

    Args:
        problem: gives names and the order of rows and colours.
        schedule: seconds from now.
        lower_bound: seconds, drawn as a dashed line.
        title: heading.
    """
    rows = dict(zip(problem.workers, problem.gpus, strict=True))
    bars = bars_of(problem, schedule)
    return svg(bars, rows=rows, models=problem.models, lower_bound=lower_bound, title=title)


def svg(
    bars: Sequence[Bar],
    *,
    rows: Mapping[str, int],
    models: Sequence[str],
    lower_bound: float | None = None,
    begin: float = 0.0,
    title: str = "",
    width: int = 960,
) -> Drawing:
    """Bars as a Gantt chart: a row per worker, a colour per model, lines at the makespan and the lower bound.

    Args:
        bars: the same seconds for all, in any order.
        rows: worker -> number of its lanes (GPUs), from top to bottom: all workers of `bars`, and those that idled.
        models: all models of `bars`, in the order of their colours: a chart that is drawn again keeps them if this
            does not change.
        lower_bound: seconds, drawn as a dashed line.
        begin: seconds at which the chart begins: before it there are no bars, or none that are to be shown.
        title: heading; a screen reader reads it out.
        width: pixels, which a page may scale.
    """
    chart = _Chart(bars, rows, models, lower_bound=lower_bound, begin=begin, width=width)
    return Drawing("\n".join(chart.lines(title)) + "\n")


class _Chart:
    """The geometry of one chart, and its parts as lines of SVG. Pixels, from the top left."""

    def __init__(
        self,
        bars: Sequence[Bar],
        rows: Mapping[str, int],
        models: Sequence[str],
        *,
        lower_bound: float | None,
        begin: float,
        width: int,
    ) -> None:
        self.bars, self.rows, self.lower_bound, self.width = bars, rows, lower_bound, width
        self.begin, self.makespan = begin, max((bar.end for bar in bars), default=begin)
        self.span = max(self.makespan, lower_bound or 0.0) - begin or 1.0
        self.left = _SIDE + _CHARACTER * max((len(short(worker)) for worker in rows), default=0) + 8
        self.scale = (width - self.left - 2 * _SIDE) / self.span
        self.lane = _TALL if sum(rows.values()) <= _MANY_LANES else _LOW
        self.top: dict[str, float] = {}
        self.bottom = float(_TOP)
        for worker, lanes in rows.items():
            self.top[worker] = self.bottom
            self.bottom += lanes * self.lane + _GAP
        self.colours = {model: PALETTE[place % len(PALETTE)] for place, model in enumerate(models)}
        self.named = models if len(models) <= _NAMED else ()
        self.column = 28 + _CHARACTER * max((len(short(model)) for model in self.named), default=0)
        self.columns = max(1, int((width - self.left - _SIDE) // self.column))
        self.height = self.bottom + 30 + 18 * math.ceil(len(self.named) / self.columns)

    def x(self, seconds: float) -> float:
        return self.left + (seconds - self.begin) * self.scale

    def lines(self, title: str) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="gantt" role="img" width="{self.width}"'
            f' height="{self.height:g}" viewBox="0 0 {self.width} {self.height:g}" color="#777" fill="currentColor"'
            ' font-family="sans-serif" font-size="12">'
        )
        yield f"<title>{safe(title or 'Schedule')}</title>"
        yield f'<text x="{_SIDE}" y="16" font-size="14" font-weight="bold">{safe(title)}</text>'
        yield f'<text x="{self.width - _SIDE}" y="16" text-anchor="end">{self._summary()}</text>'
        yield from self._lanes()
        yield from self._axis()
        yield from self._paths() if len(self.bars) > _TITLED else self._shapes()
        if self.lower_bound is not None and self.lower_bound >= self.begin:
            yield self._mark(self.lower_bound, "lower bound", 'stroke-dasharray="5 3"')
        yield self._mark(self.makespan, "makespan", "")
        yield from self._legend()
        yield "</svg>"

    def _summary(self) -> str:
        text = f"makespan {digits(self.makespan)} s"
        if self.lower_bound:
            ratio = self.makespan / self.lower_bound
            text += f", lower bound {digits(self.lower_bound)} s (dashed), ratio {ratio:.3f}"
        return text

    def _lanes(self) -> Iterator[str]:
        """Names, and the empty lanes that bars cover where there is work."""
        wide = self.x(self.makespan) - self.left
        for worker, lanes in self.rows.items():
            top, high = self.top[worker], lanes * self.lane
            yield (
                f'<text x="{self.left - 6:g}" y="{top + high / 2 + 4:g}" text-anchor="end">{safe(short(worker))}'
                f"{titled(worker) if worker != short(worker) else ''}</text>"
            )
            yield (
                f'<rect x="{self.left:g}" y="{top:g}" width="{wide:.1f}" height="{high:g}" fill-opacity="0.12"/>'
            )

    def _axis(self) -> Iterator[str]:
        step, unit, name = ticks(self.span, self.begin + self.span)
        first, last = math.ceil(self.begin / step - 1e-9), int((self.begin + self.span) / step + 1e-9)
        for number in range(first, last + 1):
            x = self.x(number * step)
            label = f"{number * step / unit:g}" + (f" {name}" if number == first else "")
            yield (
                f'<path d="M{x:.1f} {_TOP}V{self.bottom:g}" stroke="currentColor" stroke-opacity="0.25"/>'
                f'<text x="{x:.1f}" y="{self.bottom + 14:g}" text-anchor="middle">{label}</text>'
            )

    def _shapes(self) -> Iterator[str]:
        """A path per bar, with a tooltip, and its model's name where there is room."""
        for bar in self.bars:
            colour = self.colours[bar.model]
            yield f'<path d="{self._outline(bar)}" {_paint(bar, colour)}>{titled(_tooltip(bar))}</path>'
            name, wide = short(bar.model), (bar.end - bar.start) * self.scale
            if self.lane == _TALL and wide > _CHARACTER * len(name) + 4:
                middle = self.top[bar.worker] + (min(bar.lanes) + 0.5) * self.lane + 4
                yield (
                    f'<text x="{self.x((bar.start + bar.end) / 2):.1f}" y="{middle:g}" text-anchor="middle"'
                    f' fill="{ink(colour)}" font-size="11" pointer-events="none">'
                    f"{safe(name)}</text>"
                )

    def _paths(self) -> Iterator[str]:
        """A path for all bars of a model that look alike."""
        groups: dict[tuple[str, str], list[Bar]] = defaultdict(list)
        for bar in self.bars:
            groups[bar.model, _paint(bar, self.colours[bar.model])].append(bar)
        for (model, paint), bars in groups.items():
            yield f'<path d="{"".join(map(self._outline, bars))}" {paint}>{titled(model)}</path>'

    def _outline(self, bar: Bar) -> str:
        """A rectangle for each run of neighbouring lanes."""
        left, wide = self.x(bar.start), (bar.end - bar.start) * self.scale
        wide = max(wide - 0.6 if wide > 2 else wide, 0.3)  # so that neighbours of one colour stay apart
        parts = []
        lanes = sorted(bar.lanes)
        for first, last in _runs(lanes):
            top = self.top[bar.worker] + first * self.lane + 0.5
            high = (last - first + 1) * self.lane - 1
            parts.append(f"M{left:.1f} {top:g}h{wide:.1f}v{high:g}h-{wide:.1f}z")
        return "".join(parts)

    def _mark(self, seconds: float, name: str, extra: str) -> str:
        x = self.x(seconds)
        return (
            f'<path d="M{x:.1f} {_TOP - 8}V{self.bottom:g}" stroke="currentColor" stroke-width="1.5" {extra}>'
            f"{titled(f'{name} {digits(seconds)} s')}</path>"
        )

    def _legend(self) -> Iterator[str]:
        for place, model in enumerate(self.named):
            x = self.left + place % self.columns * self.column
            y = self.bottom + 26 + place // self.columns * 18
            yield (
                f'<rect x="{x:g}" y="{y:g}" width="12" height="12" fill="{self.colours[model]}"/>'
                f'<text x="{x + 17:g}" y="{y + 10:g}">{safe(short(model))}</text>'
            )


def _paint(bar: Bar, colour: str) -> str:
    return f'fill="{colour}"' + (' fill-opacity="0.6"' if bar.epoch % 2 == 0 else "")


def _tooltip(bar: Bar) -> str:
    start, end = digits(bar.start), digits(bar.end)
    gpus = f", {len(bar.lanes)} GPUs" if len(bar.lanes) > 1 else ""
    return f"{bar.model}, partition {bar.partition}, epoch {bar.epoch}, {start} to {end} s{gpus}"


def _runs(lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers among ascending ones."""
    first = 0
    for place, lane in enumerate(lanes):
        if place + 1 == len(lanes) or lanes[place + 1] != lane + 1:
            yield lanes[first], lane
            first = place + 1
