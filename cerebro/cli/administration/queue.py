"""The queue as lines for ``cerebro status``, and the whole status as an object for ``--json``. Pure.

`cluster_status` and `cerebro.cli.experiments.status` read the store and pass the data. Positions and reasons to wait
come from `cerebro.state`; this module only formats them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cerebro.cli.text import duration, table
from cerebro.contract.records import ExperimentSummary, WorkerStatus
from cerebro.contract.rest.api import QueueAnswer
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.tasks.bodies import KINDS
from cerebro.figures.ranking.folds import fold_rows
from cerebro.figures.ranking.repeats import repeat_rows
from cerebro.state import (
    ExperimentState,
    QueuePosition,
    Run,
    explained,
    queue_position_of,
    queue_positions,
    reason_to_wait,
    schedule_now,
    waiting_for,
)
from cerebro.state.models.best import RankedModel, ranked_models
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import ThroughputMeter
from cerebro.state.runs.compared_values import compared_values
from cerebro.state.worker_quarantine import health_words


@dataclass(frozen=True, kw_only=True)
class ExperimentLog:
    """State of an experiment's log, and the throughput of its open run."""

    state: ExperimentState
    meter: ThroughputMeter

    def remaining_s(self, run: str, now: float) -> float | None:
        """Return the estimated seconds until a run ends, or `None` if unknown."""
        known = self.state.runs.get(run)
        if known is None or not known.is_open:
            return None
        remaining = self.meter.throughput(known, now).time_left
        return remaining.seconds if remaining is not None else None


def queue_lines(
    queue: QueueAnswer, logs: Mapping[str, ExperimentLog], pod_problems: Mapping[str, str], now: float
) -> list[str]:
    """Format one line for each open run: position, share, devices and reason to wait.

    Args:
        logs: experiment -> its log; experiments whose log was not read are missing.
        pod_problems: pod -> reason why it does not start.
    """
    rows = [
        _row(each, logs.get(each.experiment), pod_problems, now) for each in _queue_positions(queue, logs)
    ]
    heads = ("EXPERIMENT", "RUN", "POSITION", "DUE", "DEVICES", "PRIORITY", "LEFT", "WAITS")
    return table(heads, rows) or ["  no run is open"]


def _queue_positions(queue: QueueAnswer, logs: Mapping[str, ExperimentLog]) -> list[QueuePosition]:
    return [
        each.as_logged(logs[each.experiment].state) if each.experiment in logs else each
        for each in queue_positions(queue)
    ]


def _row(
    queue_position: QueuePosition, log: ExperimentLog | None, pod_problems: Mapping[str, str], now: float
) -> tuple[str, ...]:
    remaining_s = log.remaining_s(queue_position.run, now) if log is not None else None
    return (
        queue_position.experiment,
        queue_position.run,
        queue_position.position,
        "-" if queue_position.due is None else f"{queue_position.due:.0%}",
        queue_position.has if queue_position.is_attended else "-",
        " ".join(filter(None, [queue_position.priority or "-", queue_position.project])),
        "-" if remaining_s is None else duration(remaining_s),
        _reason(queue_position, log, pod_problems),
    )


def _reason(queue_position: QueuePosition, log: ExperimentLog | None, pod_problems: Mapping[str, str]) -> str:
    run = log.state.runs.get(queue_position.run) if log is not None else None
    reason = waiting_for(log.state, run) if log is not None and run is not None else ""
    return explained(reason_to_wait(reason, queue_position), pod_problems)


# --- JSON ---------------------------------------------------------------------------------------


def cluster_json(
    *,
    workers: Sequence[WorkerStatus],
    experiments: Sequence[ExperimentSummary],
    states: Mapping[str, str],
    queue: QueueAnswer,
    logs: Mapping[str, ExperimentLog],
    pod_problems: Mapping[str, str],
    now: float,
    health: HealthAnswer | None = None,
) -> dict[str, Any]:
    """Return the cluster's status as one object; times in seconds."""
    machines = health_words(workers, health or HealthAnswer(), now)
    return {
        "workers": [
            {
                "name": status.record.worker,
                "silent_s": status.silent_s,
                "is_lost": status.is_lost,
                "devices": max(1, len(status.record.devices)),
                "kinds": [kind for kind in status.record.kinds if kind in KINDS],
                "tasks": list(status.tasks),
                "health": machines[status.record.worker],
            }
            for status in workers
        ],
        "experiments": [
            {
                "name": summary.experiment.name,
                "state": states.get(summary.experiment.name, ""),
                "author": summary.experiment.author,
                "last_event": summary.last_event,
                "is_archived": summary.is_archived,
                "is_deleting": summary.is_deleting,
            }
            for summary in experiments
        ],
        "queue": [
            _queue_position_json(queue_position, logs.get(queue_position.experiment), pod_problems, now)
            for queue_position in _queue_positions(queue, logs)
        ],
    }


def experiment_json(
    log: ExperimentLog,
    queue: QueueAnswer,
    pod_problems: Mapping[str, str],
    now: float,
    *,
    top: int | None = None,
) -> dict[str, Any]:
    """Return one experiment as an object: runs, oldest first, with queue positions of open ones, and models of fits.

    Args:
        top: most models of a fit, the best first. Default: all.
    """
    return {
        "name": log.state.name,
        "runs": [
            _run_json(log, run, queue, pod_problems, now) | _models_json(run, top)
            for run in log.state.runs.values()
        ],
    }


def _standing_json(run: Run, row: RankedModel) -> dict[str, Any]:
    """Return rank and values of a model in a fit with several objectives or constraints, else an empty object."""
    if not run.fit_request.is_multi_objective:
        return {}
    values = compared_values(run, row.model, row.epoch) if row.epoch else {}
    return {
        "rank": row.rank or None,
        "is_feasible": row.point.is_feasible if row.rank else None,
        "values": values,
    }


def _models_json(run: Run, top: int | None) -> dict[str, Any]:
    """Return the models of a fit, best first; an empty object for other runs."""
    if not run.is_planned_fit:
        return {}
    return {
        "metric": run.fit_request.metric,
        "mode": run.fit_request.mode,
        "models": [
            {
                "model": row.model.id,
                "state": state_words.model(row.model, run),
                "value": row.value,
                "best_epoch": row.epoch,
                "completed_epochs": row.model.completed_epochs,
                "epochs": row.model.epochs,
                "hyperparameters": dict(row.model.hyperparams),
                "error": row.model.failures.final.line if row.model.failures.final else "",
            }
            | _standing_json(run, row)
            for row in ranked_models(run)[:top]
        ],
        "repeats": [asdict(row) for row in repeat_rows(run)],
        "folds": [asdict(row) for row in fold_rows(run)],
    }


def _run_json(
    log: ExperimentLog, run: Run, queue: QueueAnswer, pod_problems: Mapping[str, str], now: float
) -> dict[str, Any]:
    done, total = run.progress()
    found = schedule_now(log.state, run, run.clock.ended or now)
    in_queue = queue_position_of(queue, log.state.name, run.id) if run.is_open else None
    queue_position = in_queue.as_logged(log.state) if in_queue is not None else None
    return {
        "run": run.id,
        "kind": run.kind,
        "state": state_words.run(run),
        "done": done,
        "total": total if run.has_known_end else None,
        "error": run.failures.error,
        "schedule": asdict(found) | {"gap": found.gap} if found is not None else None,
        "queue_position": _queue_position_json(queue_position, log, pod_problems, now)
        if queue_position is not None
        else None,
    }


def _queue_position_json(
    queue_position: QueuePosition, log: ExperimentLog | None, pod_problems: Mapping[str, str], now: float
) -> dict[str, Any]:
    return asdict(queue_position) | {
        "position": queue_position.position,
        "left_s": log.remaining_s(queue_position.run, now) if log is not None else None,
        "reason": _reason(queue_position, log, pod_problems),
    }
