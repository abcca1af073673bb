"""A fit run as a Gantt chart, the same in a notebook and on the web page. Pure: state in, SVG out."""

from __future__ import annotations

import re

from cerebro.scheduling.gantt import Drawing, svg
from cerebro.state.experiment import ExperimentState
from cerebro.state.report import lower_bound
from cerebro.state.runs import Run
from cerebro.state.timeline import bars


def chart(state: ExperimentState, run: Run, now: float, *, newest: int) -> Drawing:
    """Which model is where when: a row per worker, a bar per unit, up to `now` (the store's clock, seconds).

    Args:
        state: of the experiment; all its workers that train get a row, as do those that did.
        run: one of its fit runs.
        newest: most units drawn. Of a run that has more, the newest are, and the heading says so.
    """
    units = bars(run, now)
    shown = units[-newest:]
    title = f"Units of {state.name}/{run.id}"
    if len(shown) < len(units):
        title += f": the newest {len(shown):,} of {len(units):,}"
    places = {worker.name for worker in state.workers.values() if worker.trains and not worker.is_removed}
    return svg(
        shown,
        rows=dict.fromkeys(sorted(places.union(bar.worker for bar in shown), key=_by_number), 1),
        models=tuple(run.models),
        lower_bound=lower_bound(run, now) if units else None,
        begin=shown[0].start if len(shown) < len(units) else 0.0,
        title=title,
    )


def _by_number(name: str) -> list[tuple[int, str]]:
    """worker-2 before worker-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
