"""Progress of an ETL run, and its figure: a bar for each split. Pure.

`etl_progress` also feeds progress bars and reports. `EtlResult.plot_rows` and `dispatcher.data.figure` draw `etl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.base import Split
from cerebro.contract.runs import PartitionPlan
from cerebro.figures.frame import Figure, axis, cut, empty, figure, lines, text
from cerebro.figures.palette import THEME_COLORS, Theme, colour
from cerebro.state import Dataset, Run, Task, TaskKey, TaskState


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitProgress:
    """Numbers of rows of one split. When it is complete, ``rows == kept + failed``.

    Attributes:
        rows: input rows.
        kept_rows: output rows of complete partitions.
        failed: failed rows of complete partitions, and of partitions that failed permanently.
        done: `kept_rows`, `failed`, and processed rows of other partitions.
    """

    split: Split
    rows: int
    kept_rows: int
    failed: int
    done: int


def etl_progress(
    dataset: Dataset, run: Run, live: Mapping[str, int] | None = None
) -> tuple[SplitProgress, ...]:
    """Return the progress of each split of a data set.

    Args:
        live: task key -> rows that its attempt has processed.
    """
    progress = []
    for split, parts in dataset.plan.splits.items():
        kept_rows = failed = done = 0
        for part in parts:
            key = str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
            counts = partition_rows(dataset, split, part, run.tasks.by_key.get(key), (live or {}).get(key, 0))
            kept_rows, failed, done = kept_rows + counts[0], failed + counts[1], done + counts[2]
        rows = sum(part.rows for part in parts)
        progress.append(SplitProgress(split=split, rows=rows, kept_rows=kept_rows, failed=failed, done=done))
    return tuple(progress)


def partition_rows(
    dataset: Dataset, split: Split, part: PartitionPlan, task: Task | None, live: int
) -> tuple[int, int, int]:
    """Return the output, failed and processed rows of a partition, as `SplitProgress` counts them.

    Args:
        task: its task in the ETL run; `None` if the partition existed before this run.
        live: rows that the task's attempt has processed.
    """
    if task is None or task.state is TaskState.COMMITTED:
        kept_rows = dataset.rows.get((split, part.partition), 0)
        failed = dataset.failed_rows.get((split, part.partition), 0)
        return kept_rows, failed, kept_rows + failed
    failed = task.failure.rows_failed if task.state is TaskState.FAILED and task.failure else 0
    return 0, failed, max(failed, min(live, part.rows))


# --- drawing ------------------------------------------------------------------------------------

_BAR_PX = 34


def etl(splits: Sequence[SplitProgress], *, theme: Theme = "light") -> Figure:
    """Draw a bar for each split: shares of preprocessed, failed, current and remaining rows."""
    title = "Rows preprocessed"
    if not splits:
        return empty("etl", "nothing is planned yet", theme=theme, title=title)
    colors = THEME_COLORS[theme]
    parts = (
        ("preprocessed", [split.kept_rows for split in splits], {"color": colour(2, theme)}),
        ("failed", [split.failed for split in splits], _hatched(colors.bad, colors.ground, "x")),
        (
            "under way",
            [split.done - split.kept_rows - split.failed for split in splits],
            _hatched(colour(0, theme), colors.ground, "/"),
        ),
        (
            "left",
            [split.rows - split.done for split in splits],
            {"color": colors.ground, "line": {"color": colors.quiet, "width": 1}},
        ),
    )
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(range(len(splits))),
            "x": [
                100 * rows / split.rows if split.rows else 0
                for rows, split in zip(counts, splits, strict=True)
            ],
            "marker": marker,
            "hoverinfo": "text",
            "hovertext": [
                lines(f"{split.split}: {rows:,} of {split.rows:,} rows {name}", _equation(split))
                for rows, split in zip(counts, splits, strict=True)
            ],
        }
        for name, counts, marker in parts
        if any(counts)
    ]
    return figure(
        "etl",
        traces,
        theme=theme,
        title=title,
        description=" ".join(f"{split.split}: {_equation(split)}." for split in splits),
        table=cut(
            ((s.split, s.rows, s.kept_rows, s.failed, s.rows - s.kept_rows - s.failed) for s in splits),
            ("split", "rows in", "preprocessed", "failed", "to do"),
        ),
        layout={
            "barmode": "stack",
            "height": 160 + _BAR_PX * len(splits),
            "xaxis": axis(colors, "rows, % of the split", range=[0, 100]),
            "yaxis": axis(
                colors,
                tickvals=list(range(len(splits))),
                ticktext=[text(split.split) for split in splits],
                autorange="reversed",
            ),
            "showlegend": True,
            "legend": {"traceorder": "normal"},
        },
    )


def _equation(split: SplitProgress) -> str:
    to_do = split.rows - split.kept_rows - split.failed
    return f"{split.rows:,} in = {split.kept_rows:,} out + {split.failed:,} failed" + (
        f" + {to_do:,} to do" if to_do else ""
    )


def _hatched(colour: str, ground: str, shape: str) -> dict[str, Any]:
    return {
        "color": colour,
        "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": ground, "size": 7, "solidity": 0.25},
    }
