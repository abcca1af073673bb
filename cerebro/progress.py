"""Progress of a run as bars in a terminal or notebook, drawn from the state and the live points."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from cerebro.contract.events import LivePoint
from cerebro.contract.runs import EtlPlan, FitRequest
from cerebro.state import ExperimentState, Run, RunState, TaskKey, TaskState, explained, waiting_for


class Progress:
    """Bars of one run: per split for ETL, else one over all tasks. Used as a context manager by one thread."""

    def __init__(self, run: str, *, is_shown: bool) -> None:
        self._run, self._is_shown = run, is_shown
        self._bars: dict[str, Any] = {}
        self._rows: dict[str, int] = {}
        self._said = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def live(self, points: Iterable[LivePoint]) -> None:
        """Take in live points; only rows of ETL tasks are drawn."""
        for point in points:
            self._rows[point.task] = point.rows

    def show(
        self, state: ExperimentState, queued: str = "", troubles: Mapping[str, str] | None = None
    ) -> None:
        """Draw the state; `queued` says what a queued run waits for, `troubles` why workers do not start."""
        run = state.runs.get(self._run)
        if run is None or not self._is_shown:
            return
        if isinstance(run.plan, EtlPlan):
            self._show_etl(state, run, run.plan)
        elif run.plan is not None:
            done, total = run.progress()
            self._draw(run.id, done, total, "unit" if run.kind == "fit" else "task", _postfix(run))
        reason = explained(waiting_for(state, run) or queued, troubles or {})
        if reason != self._said:
            self._said = reason
            if reason:
                self._write(f"{run.id}: {reason}")

    def _show_etl(self, state: ExperimentState, run: Run, plan: EtlPlan) -> None:
        dataset = state.datasets[plan.dataset]
        for split, parts in plan.splits.items():
            done = 0
            for part in parts:
                key = str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
                task = run.tasks.get(key)
                is_made = task is None or task.state is TaskState.COMMITTED
                done += part.rows if is_made else min(self._rows.get(key, 0), part.rows)
            failed = sum(dataset.failed_rows.get((split, p.partition), 0) for p in parts)
            self._draw(split, done, sum(p.rows for p in parts), "row", f"{failed} failed" if failed else "")

    def _draw(self, name: str, done: int, total: int, unit: str, postfix: str) -> None:
        bar = self._bars.get(name)
        if bar is None:
            from tqdm.auto import tqdm

            bar = self._bars[name] = tqdm(
                total=total, desc=name, unit=unit, file=sys.stderr, dynamic_ncols=True, mininterval=0.2
            )
        if (bar.n, bar.postfix or "") != (done, postfix):
            bar.n = done
            bar.set_postfix_str(postfix, refresh=False)
            bar.refresh()

    def _write(self, text: str) -> None:
        from tqdm.auto import tqdm

        tqdm.write(text, file=sys.stderr)


def _postfix(run: Run) -> str:
    if not isinstance(run.request, FitRequest):
        return ""
    best = run.best_model()
    failed = sum(model.failure is not None for model in run.models.values())
    parts = []
    if best is not None:
        name = run.request.metric
        epoch = best.best_epoch(name, run.request.mode, validated=run.is_validated) or 0
        value = best.metric(name, epoch, validated=run.is_validated)
        parts.append(f"best {name} {value:.4g} ({best.id}, epoch {epoch})")
    if failed:
        parts.append(f"{failed} failed")
    if run.state is RunState.STOPPING:
        parts.append("stopping")
    return ", ".join(parts)
