"""The queue as ``cerebro status`` shows it, and the same and all else of the status as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cerebro.cli.text import duration, table
from cerebro.contract.api import QueueAnswer
from cerebro.contract.health import HealthAnswer
from cerebro.contract.records import ExperimentSummary, WorkerStatus
from cerebro.contract.tasks import KINDS
from cerebro.state import (
    ExperimentState,
    Run,
    Standing,
    explained,
    reason_to_wait,
    schedule_now,
    standing_of,
    standings,
    waiting_for,
    wording,
)
from cerebro.state.quarantine import health_words
from cerebro.state.throughput import ThroughputMeter


@dataclass(frozen=True, kw_only=True)
class FollowedLog:
    """An experiment's log, folded, and how fast its open run goes."""

    state: ExperimentState
    meter: ThroughputMeter

    def left_s(self, run: str, now: float) -> float | None:
        """Seconds that a run will probably take yet; `None` while that is not known."""
        known = self.state.runs.get(run)
        if known is None or not known.is_open:
            return None
        left = self.meter.throughput(known, now).left
        return left.seconds if left is not None else None


def queue_lines(
    queue: QueueAnswer, logs: Mapping[str, FollowedLog], troubles: Mapping[str, str], now: float
) -> list[str]:
    """A line for each open run: where it stands, what it is due and has, and why it waits.

    Args:
        logs: of experiments, as far as they were read.
        troubles: why pods do not start, for runs that wait for workers.
    """
    rows = [_row(each, logs.get(each.experiment), troubles, now) for each in _standings(queue, logs)]
    heads = ("EXPERIMENT", "RUN", "POSITION", "DUE", "DEVICES", "PRIORITY", "LEFT", "WAITS")
    return table(heads, rows) or ["  no run is open"]


def _standings(queue: QueueAnswer, logs: Mapping[str, FollowedLog]) -> list[Standing]:
    """What runs have is told by their logs, as far as these were read."""
    return [
        each.as_logged(logs[each.experiment].state) if each.experiment in logs else each
        for each in standings(queue)
    ]


def _row(
    standing: Standing, log: FollowedLog | None, troubles: Mapping[str, str], now: float
) -> tuple[str, ...]:
    left_s = log.left_s(standing.run, now) if log is not None else None
    return (
        standing.experiment,
        standing.run,
        standing.position,
        "-" if standing.due is None else f"{standing.due:.0%}",
        standing.has if standing.is_attended else "-",
        " ".join(filter(None, [standing.priority or "-", standing.project])),
        "-" if left_s is None else duration(left_s),
        _reason(standing, log, troubles),
    )


def _reason(standing: Standing, log: FollowedLog | None, troubles: Mapping[str, str]) -> str:
    run = log.state.runs.get(standing.run) if log is not None else None
    told = waiting_for(log.state, run) if log is not None and run is not None else ""
    return explained(reason_to_wait(told, standing), troubles)


# --- as JSON ------------------------------------------------------------------------------------


def cluster_json(
    *,
    workers: Sequence[WorkerStatus],
    experiments: Sequence[ExperimentSummary],
    states: Mapping[str, str],
    queue: QueueAnswer,
    logs: Mapping[str, FollowedLog],
    troubles: Mapping[str, str],
    now: float,
    health: HealthAnswer | None = None,
) -> dict[str, Any]:
    """The cluster: what `queue_lines` and the other tables say, as one object. Times are in seconds."""
    return {
        "workers": [
            {
                "name": status.record.worker,
                "silent_s": status.silent_s,
                "is_lost": status.is_lost,
                "devices": max(1, len(status.record.devices)),
                "kinds": [kind for kind in status.record.kinds if kind in KINDS],
                "tasks": list(status.tasks),
                "health": health_words(status, health or HealthAnswer()),
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
            _standing_json(standing, logs.get(standing.experiment), troubles, now)
            for standing in _standings(queue, logs)
        ],
    }


def experiment_json(
    log: FollowedLog, queue: QueueAnswer, troubles: Mapping[str, str], now: float
) -> dict[str, Any]:
    """One experiment: its runs, oldest first; those that are open with where they stand."""
    return {
        "name": log.state.name,
        "runs": [_run_json(log, run, queue, troubles, now) for run in log.state.runs.values()],
    }


def _run_json(
    log: FollowedLog, run: Run, queue: QueueAnswer, troubles: Mapping[str, str], now: float
) -> dict[str, Any]:
    done, total = run.progress()
    found = schedule_now(log.state, run, run.ended or now)
    told = standing_of(queue, log.state.name, run.id) if run.is_open else None
    standing = told.as_logged(log.state) if told is not None else None
    return {
        "run": run.id,
        "kind": run.kind,
        "state": wording.run(run),
        "done": done,
        "total": total if run.has_known_end else None,
        "error": run.error,
        "schedule": asdict(found) | {"gap": found.gap} if found is not None else None,
        "standing": _standing_json(standing, log, troubles, now) if standing is not None else None,
    }


def _standing_json(
    standing: Standing, log: FollowedLog | None, troubles: Mapping[str, str], now: float
) -> dict[str, Any]:
    return asdict(standing) | {
        "position": standing.position,
        "left_s": log.left_s(standing.run, now) if log is not None else None,
        "reason": _reason(standing, log, troubles),
    }
