"""``cerebro simulate``: schedulers side by side on named scenarios, as tables, as JSON and as pictures.

Words and files only; what is compared, and how, is the matter of `cerebro.research.comparison`, and who prints the
lines that of `cerebro.cli`.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.errors import InstanceError

if TYPE_CHECKING:
    from cerebro.research.comparison import Engine, Row

DEFAULT_FAMILIES = ("thesis-", "paper-")
"""What is simulated if nothing is named: what the thesis and the paper did."""


def catalogue() -> Iterator[str]:
    """A line for each scenario."""
    from cerebro.research.scenarios import SCENARIOS

    width = max(map(len, SCENARIOS))
    for scenario in SCENARIOS.values():
        yield f"{scenario.name:<{width}}  {scenario.about}"


def lines(
    names: Sequence[str],
    *,
    policies: Sequence[str] = (),
    seeds: str = "1",
    sigma: str | None = None,
    by_core: bool = False,
    as_json: bool = False,
    pictures: Path | None = None,
) -> Iterator[str]:
    """What to print, scenario by scenario, as it is found.

    Args:
        names: of scenarios; the thesis's and the paper's if there are none.
        policies: names of schedulers; those that suit the scenario if there are none.
        seeds: runs of each, as it was typed.
        sigma: noise of the unit times, as it was typed.
        by_core: dispatch policies run in the controller's own core.
        as_json: a JSON object per scenario instead of a table.
        pictures: folder to write a Gantt chart of each scheduler's first run to.

    Raises:
        CerebroError: an argument cannot be used.
    """
    from cerebro.research.comparison import compare, schedulers
    from cerebro.research.scenarios import SCENARIOS, find

    chosen = [find(name) for name in names or SCENARIOS if names or name.startswith(DEFAULT_FAMILIES)]
    runs, noise = _runs(seeds), None if sigma is None else _noise(sigma)
    engine = _core() if by_core else None
    for scenario in chosen:
        rows = compare(scenario, policies or schedulers(scenario), seeds=runs, sigma=noise, engine=engine)
        if pictures:
            _draw(scenario.name, rows, pictures)
        if as_json:
            yield json.dumps({"scenario": scenario.name, "about": scenario.about, "rows": [*map(_row, rows)]})
        else:
            yield f"{scenario.name}: {scenario.about}"
            yield from _table(rows)
            yield ""


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InstanceError(f"the number of seeds is {text!r}, expected a whole number from 1")
    return int(text)


def _noise(text: str) -> float:
    try:
        return float(text)
    except ValueError as problem:
        raise InstanceError(f"sigma is {text!r}, expected a number such as 0.1") from problem


def _core() -> Engine:
    # By name: the controller is a service, and the shared package imports none.
    engine: Engine = importlib.import_module("controller.study").run
    return engine


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [("", "makespan s", "bound s", "ratio", "min", "max", "", "made in s")]
    for row in rows:
        ratio = row.ratio
        cells.append(
            (
                row.scheduler,
                f"{row.makespan.mean:.6g}",
                f"{row.lower_bound:.6g}",
                f"{ratio.mean:.4f}",
                f"{ratio.min:.4f}",
                f"{ratio.max:.4f}",
                "optimal" if row.is_optimal else "",
                f"{row.seconds.mean:.2f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *numbers in cells:
        yield "  ".join(
            [f"  {name:<{widths[0]}}", *(n.rjust(w) for n, w in zip(numbers, widths[1:], strict=True))]
        )


def _row(row: Row) -> dict[str, Any]:
    return {
        "scheduler": row.scheduler,
        "makespan": row.makespan._asdict(),
        "lower_bound": row.lower_bound,
        "ratio": row.ratio._asdict(),
        "seconds": row.seconds._asdict(),
        "optimal": row.is_optimal,
    }


def _draw(scenario: str, rows: Sequence[Row], folder: Path) -> None:
    from cerebro.research.gantt import draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for row in rows:
            trial = row.first
            drawing = draw(
                trial.problem,
                trial.schedule,
                lower_bound=trial.lower_bound,
                title=f"{scenario}: {row.scheduler}",
            )
            (folder / f"{scenario}-{slug(row.scheduler)}.svg").write_text(drawing)
    except OSError as problem:
        raise InstanceError(f"cannot write pictures to {folder}: {problem.strerror or problem}") from problem


def slug(name: str) -> str:
    """A scheduler's name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
