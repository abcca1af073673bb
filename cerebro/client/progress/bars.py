"""Progress bars of a run, computed from its state. Pure functions.

`terminal.py` and `notebook.py` draw them. Rows of running ETL tasks come from live points, not from the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.contract.runs import EtlPlan, FitRequest
from cerebro.figures import etl_progress
from cerebro.state import ExperimentState, Model, QueuePosition, Run, RunState, TaskKey, TaskState
from cerebro.state.models.best import best_in
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import TimeLeft


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressBar:
    """A progress bar: `done` of `total` items named `label`, and a note. `total` 0 means unknown."""

    name: str
    done: int
    total: int
    label: str
    note: str = ""


class QueueDisplay(NamedTuple):
    """Queue position and time left of a run, shown while other runs are open."""

    queue_position: QueuePosition | None = None
    time_left: TimeLeft | None = None
    """Estimated time left."""

    @property
    def line(self) -> str:
        """Text of both; empty without a queue position."""
        if self.queue_position is None:
            return ""
        return ", ".join(
            filter(None, [self.queue_position.line, self.time_left.words if self.time_left else ""])
        )


NOT_SHOWN = QueueDisplay()


def bars(state: ExperimentState, run: Run, rows: Mapping[str, int]) -> Iterator[ProgressBar]:
    """Yield one bar per split for ETL, otherwise one for all tasks of a planned run."""
    if isinstance(run.plan, EtlPlan):
        yield from _fitting(run, run.plan, rows)
        for split in etl_progress(state.datasets[run.plan.dataset], run, rows):
            note = f"{split.failed:,} failed" if split.failed else ""
            yield ProgressBar(name=split.split, done=split.done, total=split.rows, label="row", note=note)
    elif run.plan is not None:
        done, total = run.progress()
        total = total if run.has_known_end else 0
        yield ProgressBar(
            name=run.id,
            done=done,
            total=total,
            label="sub-epoch" if run.kind == "fit" else "task",
            note=outcome(run),
        )


def _fitting(run: Run, plan: EtlPlan, rows: Mapping[str, int]) -> Iterator[ProgressBar]:
    key = str(TaskKey(run=run.id, kind="fitting"))
    task = run.tasks.by_key.get(key)
    if task is not None:
        total = sum(part.rows for part in plan.splits.get("train", ()))
        done = total if task.state is TaskState.COMMITTED else min(rows.get(key, 0), total)
        yield ProgressBar(name="fitting", done=done, total=total, label="row")


def epoch_bars(run: Run) -> list[ProgressBar]:
    """Return one bar per epoch of a fit without a search.

    Missing sub-epochs of failed and stopped models don't count.
    """
    models = list(run.models.values())
    if not models or not run.has_known_models:
        return []
    cut_short = [model for model in models if model.is_cut_short]
    due = sum(len(model.partitions) for model in models if not model.is_cut_short)
    epochs = models[0].epochs
    counts = zip(_sub_epochs_done(models, epochs), _sub_epochs_done(cut_short, epochs), strict=True)
    return [
        ProgressBar(name=f"epoch {epoch}", done=done, total=due + extra, label="sub-epoch")
        for epoch, (done, extra) in enumerate(counts, start=1)
    ]


def _sub_epochs_done(models: Sequence[Model], epochs: int) -> list[int]:
    counts: Counter[int] = Counter()
    for model in models:
        counts.update(dict.fromkeys(range(model.completed_epochs), len(model.partitions)))
        counts[model.completed_epochs] += model.progress.trained % len(model.partitions)
    return [counts[epoch] for epoch in range(epochs)]


def outcome(run: Run) -> str:
    """Return the best model and the number of failed models of a fit as text."""
    if not isinstance(run.request, FitRequest):
        return ""
    best = best_in(run)
    failed = sum(model.failures.final is not None for model in run.models.values())
    parts = []
    if best is not None:
        parts.append(f"best {run.request.metric} {best.value:.4g} ({best.model.id}, epoch {best.epoch})")
    if not run.has_known_models:
        parts.insert(0, state_words.trained(run))
    if failed:
        parts.append(f"{failed} failed")
    if run.state is RunState.STOPPING:
        parts.append("stopping")
    return ", ".join(parts)
