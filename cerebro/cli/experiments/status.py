"""Output of ``cerebro status EXPERIMENT``: its runs, and the newest fit's models, schedule and epochs.

`cerebro.cli.administration.local` prints it. The state is folded here from the log, starting at the newest snapshot
(`load_readable`, which other commands use too); of a damaged log, only the readable part. Nothing is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from cerebro.cli.administration.queue import ExperimentLog, experiment_json
from cerebro.cli.text import duration, table
from cerebro.contract.events import Event
from cerebro.contract.rest.api import QueueAnswer
from cerebro.contract.runs import EtlPlan
from cerebro.contract.texts import first_line
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.figures.ranking.folds import fold_rows
from cerebro.figures.ranking.repeats import repeat_rows
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import (
    Dataset,
    ExperimentState,
    QueuePosition,
    Run,
    explained,
    gap,
    queue_positions,
    reason_to_wait,
    repair_state,
    schedule_lines,
    waiting_for,
)
from cerebro.state.models.best import RankedModel, best_model, ranked_models
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import ThroughputMeter
from cerebro.state.runs import rungs
from cerebro.state.runs.compared_values import compared_values
from cerebro.state.runs.goals import forecast_lines
from cerebro.state.snapshots import restored
from cerebro.state.tasks import verification_texts

TOP = 20
"""Most models of a fit to print by default."""


def load_readable(
    kvs: KvsClient, name: str, meter: ThroughputMeter | None = None
) -> tuple[ExperimentState, UnreadableError | None]:
    """Compute an experiment's state from the readable part of its log.

    Args:
        meter: observes the events.

    Returns:
        The state, and the error that ends the readable part or `None`.

    Raises:
        NotFoundError: the experiment does not exist.
        UnreadableError: its record cannot be read.
    """
    state, problem = restored(kvs, kvs.experiment(name).name), None
    if meter is not None:
        meter.recall(state)
    try:
        while problem is None:
            try:
                events: Sequence[Event] = kvs.events(name, after=state.seq)
            except UnreadableError as error:
                events, problem = error.readable, error
            for event in events:
                if meter is not None:
                    meter.observe(state, event)
                state.apply(event)
            if not events:
                break
    except IllegalEventError as cause:
        problem = UnreadableError.for_event(name, state.seq + 1, str(cause))
        state = repair_state(state, lambda after: kvs.events(name, after), lambda name: restored(kvs, name))
    return state, problem


def state_lines(
    state: ExperimentState,
    *,
    pod_problems: Mapping[str, str] | None = None,
    now: float | None = None,
    queue: QueueAnswer | None = None,
    meter: ThroughputMeter | None = None,
    top: int = TOP,
) -> list[str]:
    """Format an experiment: its runs, and the newest fit's models, schedule and epochs.

    Args:
        pod_problems: pod -> reason why it does not start, for runs that wait for workers.
        now: seconds since 1970; default: the current time.
        queue: the queue of all runs.
        meter: has observed the log.
        top: most models to show, the best first.
    """
    now = time.time() if now is None else now
    known = queue_positions(queue) if queue else []
    positions = {each.run: each.as_logged(state) for each in known if each.experiment == state.name}
    rows = [
        _run_row(state, run, positions.get(run.id), pod_problems or {}, now) for run in state.runs.values()
    ]
    lines = [f"Experiment {state.name}", ""]
    lines += table(("RUN", "STATE", "TASKS", "TIME", ""), rows) or ["  no runs yet"]
    log = ExperimentLog(state=state, meter=meter or ThroughputMeter())
    for each in positions.values():
        remaining_s = log.remaining_s(each.run, now)
        remaining = f", about {duration(remaining_s)} left" if remaining_s is not None else ""
        lines += ["", f"  {each.run} {each.line}{remaining}"]
    fits = [run for run in state.runs.values() if run.is_planned_fit]
    if not fits:
        return lines
    repeats = _repeat_lines(fits[-1])
    schedule = [f"  {line}" for line in schedule_lines(state, fits[-1], now)]
    schedule += [f"  {line}" for line in forecast_lines(fits[-1], now)]
    schedule += [f"  {line}" for line in verification_texts.lines(fits[-1].verifications)]
    search = [f"  {line}" for line in rungs.lines(fits[-1])]
    compared = [*repeats, *_fold_lines(fits[-1])]
    for part in (_model_lines(state, fits[-1], top), compared, search, schedule, _epoch_lines(fits[-1])):
        lines += ["", *part] if part else []
    return lines


def print_experiment(
    kvs: KvsClient,
    name: str,
    *,
    is_json: bool,
    top: int | None = None,
    data_warning: Callable[[EtlPlan], str] = lambda _: "",
) -> None:
    """Print one experiment, as lines or as JSON.

    Args:
        data_warning: returns a line about the warnings of a data set. Default: none.
        top: most models of a fit to print, the best first. Default: `TOP`; in JSON all.

    Raises:
        NotFoundError: the experiment does not exist.
        UnreadableError: part of its log cannot be read; the readable part was printed.
    """
    meter = ThroughputMeter()
    state, problem = load_readable(kvs, name, meter)
    queue, pod_problems = kvs.queued(), kvs.worker_set_status().pods
    if is_json:
        log = ExperimentLog(state=state, meter=meter)
        print(json.dumps(experiment_json(log, queue, pod_problems, time.time(), top=top), indent=2))
    else:
        lines = state_lines(state, pod_problems=pod_problems, queue=queue, meter=meter, top=top or TOP)
        dataset = complete_dataset(state)
        warning = data_warning(dataset.plan) if dataset else ""
        print(*lines, *(["", f"  {warning}"] if warning else []), sep="\n")
    if problem is not None:
        raise problem


def complete_dataset(state: ExperimentState) -> Dataset | None:
    """Return the newest data set if all its partitions are complete."""
    dataset = next(reversed(state.datasets.values()), None)
    if dataset is None:
        return None
    parts = [(split, part.partition) for split, parts in dataset.plan.splits.items() for part in parts]
    return dataset if all(part in dataset.rows for part in parts) else None


def _run_row(
    state: ExperimentState,
    run: Run,
    queue_position: QueuePosition | None,
    pod_problems: Mapping[str, str],
    now: float,
) -> tuple[str, ...]:
    done, total = run.progress()
    share = f"{done}/{total}" if run.has_known_end else f"{done} so far"
    note = (
        explained(reason_to_wait(waiting_for(state, run), queue_position), pod_problems) or run.failures.error
    )
    spent = duration((run.clock.ended or now) - run.clock.begun) if run.clock.started else "-"
    return (run.id, state_words.run(run), share, spent, first_line(note))


def _epoch_lines(fit: Run) -> list[str]:
    rows = [
        (
            str(report.epoch),
            f"{report.makespan_s:.1f} s",
            f"{report.lower_bound_s:.1f} s",
            f"{100 * gap(report.makespan_s, report.lower_bound_s):.1f} %",
            f"{report.start_s:.1f} s",
            f"{sum(report.idle_s.values()):.1f} s",
        )
        for report in fit.scheduling.epochs
    ]
    return table((f"EPOCHS OF {fit.id}", "ENDED AFTER", "AT BEST", "GAP", "STARTS", "IDLE"), rows)


def _model_lines(state: ExperimentState, fit: Run, top: int) -> list[str]:
    best, ranked = best_model(state, fit), ranked_models(fit)
    rows = [
        _model_row(fit, row, is_best=best is not None and row.model is best.model) for row in ranked[:top]
    ]
    request = fit.fit_request
    names = request.compared_names if request.is_multi_objective else (request.metric,)
    heads = (f"MODEL OF {fit.id}", "STATE", "EPOCHS", *map(str.upper, names), "HYPERPARAMETERS", "")
    lines = [*([f"  {best.line}"] if best else []), *table(heads, rows)]
    if len(ranked) > top:
        lines.append(f"  the best {top:,} of {len(ranked):,} models; `--top {len(ranked)}` shows all")
    return lines


def _repeat_lines(fit: Run) -> list[str]:
    rows = [
        (
            "-" if row.rank is None else str(row.rank),
            row.model,
            row.text,
            "-" if row.value is None else f"{row.value:.4g}",
        )
        for row in repeat_rows(fit)
    ]
    metric = fit.fit_request.metric.upper()
    return table(
        (f"REPEATS OF {fit.id}: RANK", "MODEL", f"{metric} WITH NEW SEEDS", "WITH THE FIRST SEED"), rows
    )


def _fold_lines(fit: Run) -> list[str]:
    rows = [
        (
            "-" if row.rank is None else str(row.rank),
            row.configuration,
            row.text,
            "-" if row.epoch is None else str(row.epoch),
            row.state,
        )
        for row in fold_rows(fit)
    ]
    metric = fit.fit_request.metric.upper()
    return table((f"FOLDS OF {fit.id}: RANK", "CONFIGURATION", metric, "AT EPOCH", "STATE"), rows)


def _model_row(fit: Run, row: RankedModel, *, is_best: bool) -> tuple[str, ...]:
    model, request = row.model, fit.fit_request
    shown = [row.value]
    if request.is_multi_objective:
        values = compared_values(fit, model, row.epoch) if row.epoch else {}
        shown = [values.get(name) for name in request.compared_names]
    origin = (
        f"from {model.lineage.parent} at epoch {model.inherited_epochs}" if model.lineage.sub_epochs else ""
    )
    reason = fit.search.verdicts.get(model.id, "") if fit.search is not None else ""
    note = ", ".join(filter(None, ["best" if is_best else "", row.words, origin, first_line(reason)]))
    note = (
        model.failures.final.line
        if model.failures.final
        else model.failures.warning(model.own_sub_epochs) or note
    )
    return (
        model.id,
        state_words.model(model, fit),
        f"{model.completed_epochs}/{model.epochs}",
        *("-" if value is None else f"{value:.4g}" for value in shown),
        ", ".join(f"{key}={value}" for key, value in model.hyperparams.items()),
        note,
    )
