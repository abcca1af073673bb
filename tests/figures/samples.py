"""Models, curves and spans to draw, with hostile names."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from random import Random

from cerebro import figures
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.figures import (
    Absence,
    Curve,
    Figure,
    Landmarks,
    ModelSummary,
    Observation,
    Outcome,
    PlannedSpan,
    Span,
    SplitProgress,
    Theme,
)
from cerebro.figures import importance_of as importance
from cerebro.figures.models import Effort, ModelProgress
from cerebro.state.runs.rungs import AtRung, Rung

NASTY = "<script>alert(1)</script>%{x}"
"""Text with HTML markup and a Plotly template."""

METRIC = "loss <b>"


def row(
    index: int,
    best: float | None,
    hyperparams: Hyperparameters | None = None,
    *,
    is_failed: bool = False,
    name: str = "",
) -> ModelSummary:
    """A model of a run of 4 epochs on 2 partitions."""
    return ModelSummary(
        id=name or f"m{index:02}",
        index=index,
        state="failed" if is_failed else "finished",
        progress=ModelProgress(epoch=4, epochs=4, done=8, total=8),
        latest=best,
        latest_epoch=4 if best is not None else None,
        best=best,
        best_epoch=3 if best is not None else None,
        metrics={} if best is None else {METRIC: best},
        hyperparams=hyperparams or {"lr": 0.1 * (index + 1), "batch_size": 32},
        worker="",
        effort=Effort(redone=0, compute_s=1.0, started=1.0, ended=2.0),
        failure=Failure(kind=FailureKind.USER_ERROR, message="boom") if is_failed else None,
    )


def rows(count: int = 32, seed: int = 1) -> list[ModelSummary]:
    """Models of a random search; a few failed."""
    random = Random(seed)
    found = []
    for index in range(count):
        lr = 10 ** random.uniform(-4, -1)
        width = random.choice([16, 32, 64, 128, 256])
        activation = random.choice(["relu", "gelu", NASTY])
        loss = abs(math.log10(lr) + 2.5) * 0.3 + 20 / width + random.random() * 0.05
        is_failed = index % 11 == 10
        found.append(
            row(
                index,
                None if is_failed else loss,
                {"lr": lr, "width": width, "activation": activation, "batch_size": 32},
                is_failed=is_failed,
            )
        )
    return found


def curve(index: int, epochs: int = 12, *, model: str = "", broke_at: float | None = None) -> Curve:
    """A falling loss with noise."""
    random = Random(index)
    y = tuple(2 / (1 + 0.3 * e) + 0.1 * random.random() + 0.05 * index for e in range(epochs))
    return Curve(
        model=model or f"m{index:02}",
        index=index,
        x=tuple(float(epoch) for epoch in range(1, epochs + 1)),
        y=y,
        best_at=y.index(min(y)) if y else None,
        broke_at=broke_at,
    )


def spans(workers: int = 4, models: int = 6, epochs: int = 2, *, last_runs: bool = True) -> list[Span]:
    """Consecutive sub-epochs per worker, some idle time, one failure and one revocation."""
    random = Random(3)
    clock = [0.0] * workers
    free = [0.0] * models
    found: list[Span] = []
    for epoch in range(1, epochs + 1):
        for turn in range(models):
            for worker in range(workers):
                model = (turn + worker) % models
                start = max(clock[worker], free[model])
                seconds = 1.0 + 0.4 * model + random.random()
                number = len(found)
                outcome: Outcome = {5: "failed", 9: "revoked"}.get(number, "committed")  # type: ignore[assignment]
                found.append(
                    Span(
                        task=f"fit-1/train/m{model:02}/e{epoch}/p{worker}",
                        model=f"m{model:02}",
                        epoch=epoch,
                        partition=worker,
                        worker=f"worker-{worker}",
                        attempt=1,
                        start_s=start,
                        end_s=start + seconds,
                        outcome=outcome,
                        note={"failed": f"crash {NASTY}", "revoked": "revoked: silent"}.get(outcome, ""),
                        load_s=0.15 if outcome == "committed" else 0.0,
                        save_s=0.1 if outcome == "committed" else 0.0,
                    )
                )
                clock[worker] = free[model] = start + seconds
    if last_runs:
        now = max(clock)
        for worker in range(workers):
            model = worker % models
            name = f"worker-{worker}"
            found.append(
                Span(
                    task=f"fit-1/train/m{model:02}/e9/p{worker}", model=f"m{model:02}", epoch=9, partition=worker,
                    worker=name, attempt=2, start_s=now, end_s=now + 1.5, outcome="running",
                )
            )  # fmt: skip
    return sorted(found, key=lambda span: span.start_s)


def ahead(since_s: float = 40.0) -> list[PlannedSpan]:
    """Two planned sub-epochs on each of four workers."""
    return [
        PlannedSpan(
            model=f"m{(worker + turn) % 16:02}",
            epoch=9,
            partition=worker,
            worker=f"worker-{worker}",
            start_s=since_s + 3.0 * turn,
            end_s=since_s + 3.0 * (turn + 1),
        )
        for turn in range(2)
        for worker in range(4)
    ]


@cache
def gallery(theme: Theme) -> dict[str, Figure]:
    """One figure of each kind, plus variants with very many and with no data."""
    models = rows()
    few = [curve(i) for i in range(9)] + [curve(9, 5, broke_at=6.0, model=NASTY), curve(10, 0, broke_at=1.0)]
    many = [curve(i, 300) for i in range(40)]
    names = tuple(f"m{i:02}" for i in range(16))
    workers = tuple(f"worker-{i}" for i in range(8))
    splits = (
        SplitProgress(split="train", rows=1000, kept_rows=500, failed=20, done=700),
        SplitProgress(split="valid", rows=50, kept_rows=50, failed=0, done=50),
    )
    return {
        "curves": figures.curves(few, metric=METRIC, mode="min", split="valid", smoothing=0.6, theme=theme),
        "curves-many": figures.curves(
            many, metric="loss", mode="min", axis="time", is_log=True, total=900, theme=theme
        ),
        "parallel": figures.parallel(models, metric=METRIC, mode="min", theme=theme),
        "scatter": figures.scatter(models, metric=METRIC, mode="min", theme=theme),
        "heatmap": figures.heatmap(models, metric=METRIC, mode="min", x="lr", y="activation", theme=theme),
        "contour": figures.contour(models, metric=METRIC, mode="min", x="lr", y="activation", theme=theme),
        "best-so-far": figures.best_so_far(
            [
                Observation(model=each.id, index=each.index, epoch=3, x=each.index + 1.0, value=each.best)
                for each in models
                if each.best is not None
            ],
            metric=METRIC,
            mode="min",
            theme=theme,
        ),
        "rungs": figures.rungs(
            [
                Rung(
                    epochs=3, models=(AtRung(NASTY, 0.2, "trained"), AtRung("m01", None, "failed", why=NASTY))
                ),
                Rung(epochs=1, models=(AtRung(NASTY, 0.4, "goes on", 3), AtRung("m02", 0.9, "stopped"))),
            ],
            metric=METRIC,
            mode="min",
            theme=theme,
        ),
        "importance": figures.importance(importance(models, mode="min"), theme=theme),
        "importance-declined": figures.importance(importance(models[:5], mode="min"), theme=theme),
        "schedule": figures.schedule(
            spans(),
            workers=dict.fromkeys(workers[:5], 1),
            models=names[:6],
            landmarks=Landmarks(
                now_s=33.0,
                breaks=((15.0, 18.0),),
                epochs=((1, 14.0), (2, 27.0)),
                lower_bound_s=22.0,
                bound_at_s=25.0,
                idle_share=0.2,
                absences=(Absence(worker="worker-1", start_s=20.0, end_s=22.0, lost=f"silent {NASTY}"),),
            ),
            theme=theme,
        ),
        "schedule-merged": figures.schedule(
            spans(8, 16, 20),
            workers=dict.fromkeys(workers, 1),
            models=names,
            landmarks=Landmarks(now_s=0.0),
            theme=theme,
        ),
        "schedule-planned": figures.schedule(
            spans(),
            workers=dict.fromkeys(workers[:4], 1),
            models=names,
            landmarks=Landmarks(now_s=33.0),
            planned=ahead(),
            theme=theme,
        ),
        "schedule-plan": figures.schedule(
            [],
            workers=dict.fromkeys(workers[:4], 1),
            models=names,
            landmarks=Landmarks(now_s=0.0),
            planned=ahead(),
            theme=theme,
        ),
        "schedule-devices": figures.schedule(
            [replace(span, devices=(number % 2,)) for number, span in enumerate(spans())],
            workers=dict.fromkeys(workers[:4], 2),
            models=names[:6],
            landmarks=Landmarks(now_s=33.0),
            other_tasks=[
                replace(spans()[0], model="", devices=(), kind="etl", what="preprocesses train, partition 0")
            ],
            theme=theme,
        ),
        "etl": figures.etl(splits, theme=theme),
    }
