"""Gantt charts of planned and simulated schedules, as self-contained SVG.

One drawing serves notebooks, which show it by `_repr_svg_`, and the documentation, as a file. So it has no script,
style sheet or external font, and its grey text is readable on light and dark. Empty space is idle time.
`cerebro.figures` draws the runs of a cluster.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule

# Okabe and Ito's colours, then Tol's muted ones, which colour-blind readers can distinguish. No black and no white: one
# of the two would be invisible on light or dark.
PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"),
    *("#5A4FCF", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255"),
    *("#AA4499", "#B8860B", "#6699CC", "#994F00"),
)

_TITLED = 1000
"""Maximum bars with separate tooltips.

With more bars, all bars of a model are one path with the model's name, so the drawing stays small.
"""
_WIDTH, _TOP, _SIDE, _GAP = 960, 36, 10, 5
_TALL, _LOW, _MANY_LANES = 18, 10, 32
"""Height of a lane, the lower height in a chart with many lanes, and the maximum lanes of other charts."""
_CHARACTER = 6.6
"""Approximate width of a character; fonts differ between readers."""
_LONGEST_NAME = 24
_SUB_EPOCHS = ((20_000.0, 1.0, "s"), (500_000.0, 3600.0, "h"), (math.inf, 86_400.0, "d"))
"""(chart length in seconds up to which the row applies, seconds per unit, unit)."""


class Drawing(str):
    """SVG text that a notebook draws when a cell ends with it."""

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        # A notebook stores this text with the picture.
        return f"<Drawing: {len(self):,} characters of SVG>"


def draw(
    problem: Problem, schedule: Schedule, *, lower_bound: float | None = None, title: str = ""
) -> Drawing:
    """Draw a schedule with a row for each worker, a lane for each of its GPUs, and a colour per model.

    Args:
        problem: gives names and the order of rows and colours.
        schedule: times in seconds from now.
        lower_bound: seconds, drawn as a dashed line.
        title: heading, which screen readers read out.
    """
    return Drawing("\n".join(_Chart(problem, schedule, lower_bound).lines(title)) + "\n")


def devices(sub_epochs: Iterable[Placement]) -> dict[Placement, tuple[int, ...]]:
    """Assign GPU numbers (from 0) of its worker to each sub-epoch.

    First fit in the order of start. This needs no more GPUs than the largest number in use at once, because a
    sub-epoch may take any free GPUs. Ignores `others`: of a gang only the first worker's GPUs are assigned.
    """
    free_at: dict[int, list[float]] = defaultdict(list)
    found: dict[Placement, tuple[int, ...]] = {}
    for sub_epoch in sorted(sub_epochs, key=lambda u: (u.start, u.end)):
        ends = free_at[sub_epoch.worker]
        # Ends and starts may be sums in a different order of addition.
        free = [
            gpu for gpu, end in enumerate(ends) if end <= sub_epoch.start + 1e-9 * max(1.0, sub_epoch.start)
        ]
        while len(free) < sub_epoch.gpus:
            ends.append(0.0)
            free.append(len(ends) - 1)
        found[sub_epoch] = tuple(free[: sub_epoch.gpus])
        for gpu in found[sub_epoch]:
            ends[gpu] = sub_epoch.end
    return found


class _Chart:
    """The geometry of one chart, and its parts as lines of SVG, in pixels from the top left."""

    def __init__(self, problem: Problem, schedule: Schedule, lower_bound: float | None) -> None:
        self.problem, self.sub_epochs, self.lower_bound = problem, schedule.sub_epochs, lower_bound
        self.lanes = devices(schedule.sub_epochs)
        self.makespan = schedule.makespan
        self.span = max(self.makespan, lower_bound or 0.0) or 1.0
        self.left = _SIDE + _CHARACTER * max(len(_short(worker)) for worker in problem.workers) + 8
        self.scale = (_WIDTH - self.left - 2 * _SIDE) / self.span
        self.lane = _TALL if sum(problem.gpus) <= _MANY_LANES else _LOW
        self.top: list[float] = []
        self.bottom = float(_TOP)
        for gpus in problem.gpus:
            self.top.append(self.bottom)
            self.bottom += gpus * self.lane + _GAP
        self.named = problem.models if problem.num_models <= len(PALETTE) else ()
        self.column = 28 + _CHARACTER * max((len(_short(model)) for model in self.named), default=0)
        self.columns = max(1, int((_WIDTH - self.left - _SIDE) // self.column))
        self.height = self.bottom + 30 + 18 * math.ceil(len(self.named) / self.columns)

    def x(self, seconds: float) -> float:
        return self.left + seconds * self.scale

    def lines(self, title: str) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="gantt" role="img" width="{_WIDTH}"'
            f' height="{self.height:g}" viewBox="0 0 {_WIDTH} {self.height:g}" color="#777" fill="currentColor"'
            ' font-family="sans-serif" font-size="12">'
        )
        yield _tooltip(title or "Schedule")
        yield f'<text x="{_SIDE}" y="16" font-size="14" font-weight="bold">{_safe(title)}</text>'
        yield f'<text x="{_WIDTH - _SIDE}" y="16" text-anchor="end">{self._summary()}</text>'
        yield from self._rows()
        yield from self._axis()
        yield from self._models() if len(self.sub_epochs) > _TITLED else self._bars()
        if self.lower_bound is not None:
            yield self._mark(self.lower_bound, "lower bound", 'stroke-dasharray="5 3"')
        yield self._mark(self.makespan, "makespan", "")
        yield from self._legend()
        yield "</svg>"

    def _summary(self) -> str:
        text = f"makespan {_digits(self.makespan)} s"
        if self.lower_bound:
            ratio = self.makespan / self.lower_bound
            text += f", lower bound {_digits(self.lower_bound)} s (dashed), ratio {ratio:.3f}"
        return text

    def _rows(self) -> Iterator[str]:
        """Yield names and empty lanes, which the bars cover."""
        wide = self.makespan * self.scale
        for worker, gpus, top in zip(self.problem.workers, self.problem.gpus, self.top, strict=True):
            high = gpus * self.lane
            yield (
                f'<text x="{self.left - 6:g}" y="{top + high / 2 + 4:g}" text-anchor="end">{_safe(_short(worker))}'
                f"{_tooltip(worker)}</text>"
                f'<rect x="{self.left:g}" y="{top:g}" width="{wide:.1f}" height="{high:g}" fill-opacity="0.12"/>'
            )

    def _axis(self) -> Iterator[str]:
        """Yield about ten round numbers."""
        sub_epoch, name = next(
            (sub_epoch, name) for limit, sub_epoch, name in _SUB_EPOCHS if self.span < limit
        )
        power = 10.0 ** math.floor(math.log10(self.span / sub_epoch / 5))
        step = next(
            step for step in (power, 2 * power, 5 * power, 10 * power) if self.span / sub_epoch / step <= 10
        )
        for number in range(int(self.span / sub_epoch / step + 1e-9) + 1):
            x = self.x(number * step * sub_epoch)
            label = f"{number * step:g}" if number else f"0 {name}"
            yield (
                f'<path d="M{x:.1f} {_TOP}V{self.bottom:g}" stroke="currentColor" stroke-opacity="0.25"/>'
                f'<text x="{x:.1f}" y="{self.bottom + 14:g}" text-anchor="middle">{label}</text>'
            )

    def _bars(self) -> Iterator[str]:
        """Yield a path with a tooltip per sub-epoch, and its model's name if it fits."""
        for sub_epoch in self.sub_epochs:
            model, wide = self.problem.models[sub_epoch.model], (sub_epoch.end - sub_epoch.start) * self.scale
            gpus = f", {sub_epoch.gpus} GPUs" if sub_epoch.gpus > 1 else ""
            times = f"{_digits(sub_epoch.start)} to {_digits(sub_epoch.end)} s"
            label = f"{model}, partition {sub_epoch.partition}, epoch {sub_epoch.epoch}, {times}{gpus}"
            yield f'<path d="{self._outline(sub_epoch)}" {_paint(sub_epoch)}>{_tooltip(label)}</path>'
            if self.lane == _TALL and wide > _CHARACTER * len(_short(model)) + 4:
                middle = self.top[sub_epoch.worker] + (min(self.lanes[sub_epoch]) + 0.5) * self.lane + 4
                yield (
                    f'<text x="{self.x((sub_epoch.start + sub_epoch.end) / 2):.1f}" y="{middle:g}" text-anchor="middle"'
                    f' fill="{_ink(_colour(sub_epoch.model))}" font-size="11" pointer-events="none">'
                    f"{_safe(_short(model))}</text>"
                )

    def _models(self) -> Iterator[str]:
        """Yield a path for all equal-looking sub-epochs of a model."""
        groups: dict[tuple[int, str], list[Placement]] = defaultdict(list)
        for sub_epoch in self.sub_epochs:
            groups[sub_epoch.model, _paint(sub_epoch)].append(sub_epoch)
        for (model, paint), sub_epochs in groups.items():
            outlines = "".join(map(self._outline, sub_epochs))
            yield f'<path d="{outlines}" {paint}>{_tooltip(self.problem.models[model])}</path>'

    def _outline(self, sub_epoch: Placement) -> str:
        """Return a rectangle for each sequence of adjacent lanes."""
        left, wide = self.x(sub_epoch.start), (sub_epoch.end - sub_epoch.start) * self.scale
        wide = max(wide - 0.6 if wide > 2 else wide, 0.3)  # a gap between adjacent bars of one colour
        parts = []
        for first, last in _runs(sorted(self.lanes[sub_epoch])):
            top = self.top[sub_epoch.worker] + first * self.lane + 0.5
            high = (last - first + 1) * self.lane - 1
            parts.append(f"M{left:.1f} {top:g}h{wide:.1f}v{high:g}h-{wide:.1f}z")
        return "".join(parts)

    def _mark(self, seconds: float, name: str, extra: str) -> str:
        return (
            f'<path d="M{self.x(seconds):.1f} {_TOP - 8}V{self.bottom:g}" stroke="currentColor" stroke-width="1.5"'
            f" {extra}>{_tooltip(f'{name} {_digits(seconds)} s')}</path>"
        )

    def _legend(self) -> Iterator[str]:
        for place, model in enumerate(self.named):
            x = self.left + place % self.columns * self.column
            y = self.bottom + 26 + place // self.columns * 18
            yield (
                f'<rect x="{x:g}" y="{y:g}" width="12" height="12" fill="{_colour(place)}"/>'
                f'<text x="{x + 17:g}" y="{y + 10:g}">{_safe(_short(model))}</text>'
            )


def _runs(lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each consecutive sequence in ascending numbers."""
    first = 0
    for place, lane in enumerate(lanes):
        if place + 1 == len(lanes) or lanes[place + 1] != lane + 1:
            yield lanes[first], lane
            first = place + 1


def _paint(sub_epoch: Placement) -> str:
    """Return the colour of a sub-epoch; even epochs are paler."""
    return f'fill="{_colour(sub_epoch.model)}"' + (' fill-opacity="0.6"' if sub_epoch.epoch % 2 == 0 else "")


def _colour(model: int) -> str:
    return PALETTE[model % len(PALETTE)]


def _ink(colour: str) -> str:
    """Return black or white, whichever has more contrast on the colour (relative luminance, WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in parts)
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"


def _digits(value: float) -> str:
    """Format with four significant digits, without an exponent."""
    places = max(0, 3 - math.floor(math.log10(value))) if value > 0 else 0
    found = f"{value:.{places}f}"
    return found.rstrip("0").rstrip(".") if "." in found else found


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _tooltip(text: str) -> str:
    """Return a tooltip as a child element."""
    return f"<title>{_safe(text)}</title>"


def _safe(text: str) -> str:
    """Escape text for HTML and XML; XML forbids control characters even when escaped."""
    return escape(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text))
