"""Conversion of typed steps to the tables of ``steps.lua``.

`decide` of the store calls `decision` for the controller's steps; `report` calls `report` for workers' steps. Each
table gets the step's keys and its event. Only this module creates a step's event, so a change of state and its
event cannot differ. Pure; the script decides whether a step is still valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from cerebro.contract.events import (
    PreemptionRequested,
    RunFinished,
    RunStarted,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.rest import api
from cerebro.contract.tasks.gangs import Member
from kvs_api.store import keys

UNNUMBERED = {"seq", "time"}
"""Event fields that the store sets."""


def decision(experiment: str, step: api.Decision) -> dict[str, Any]:
    """Convert a controller's step."""
    if isinstance(step, api.Note):
        table: dict[str, Any] = {"op": "note", "log": keys.log(experiment), "event": _json(step.event)}
        if isinstance(step.event, RunFinished):
            ended = f"{experiment}/{step.event.run}"
            table |= {"ended": ended, "queue": keys.QUEUE, "cluster": keys.CLUSTER}
        if isinstance(step.event, RunStarted):
            dataset = step.event.plan.dataset
            table |= {"dataset": dataset, "dataset_key": keys.DATASET + dataset}
            table |= {"name": experiment, "reclaim": keys.RECLAIM}
        return table
    if isinstance(step, api.Dequeue):
        return {
            "op": step.op,
            "entry": f"{experiment}/{step.run}",
            "log": keys.log(experiment),
            "queue": keys.QUEUE,
            "cluster": keys.CLUSTER,
        }
    named: Any = {"task": step.task, "attempt": step.attempt, "worker": step.worker}
    table = {
        **named,
        "op": step.op,
        "key": keys.task(experiment, step.task),
        "log": keys.log(experiment),
        "inbox": keys.inbox(step.worker),
        "worker_key": keys.worker(step.worker),
        "entry": _entry(experiment, step),
    }
    if isinstance(step, api.Assign):
        members = tuple(
            Member(worker=each.worker, partition=each.partition, devices=each.devices)
            for each in step.other_members
        )
        event = TaskAssigned(
            **named,
            devices=step.devices,
            parallel_plan=step.parallel_plan,
            other_members=members,
            config_version=step.config_version,
            group=step.group,
        )
        return table | {
            "incarnation": step.incarnation,
            "devices": _listed(step.devices),
            "depth": step.depth,
            "body": step.inbox_body.model_dump_json(),
            "others": [_other(experiment, step, number) for number in range(1, len(step.other_members) + 1)],
            "tasks": [_assigned(experiment, event), *_fused(experiment, step, event)],
            **({"group": keys.task(experiment, step.group.id)} if step.group else {}),
        }
    if isinstance(step, api.Preempt):
        return table | {"event": _json(PreemptionRequested(**named, reason=step.reason))}
    return table | {
        "force": step.force,
        "event": _json(
            TaskRevoked(**named, reason=step.reason, loss=step.loss, limit_bytes=step.limit_bytes)
        ),
    }


def report(worker: str, step: api.Report) -> dict[str, Any]:
    """Convert a worker's step."""
    table: dict[str, Any] = {
        "op": step.op,
        "key": keys.task(step.experiment, step.task),
        "log": keys.log(step.experiment),
        "attempt": step.attempt,
    }
    named: Any = {"task": step.task, "attempt": step.attempt, "worker": worker}
    if isinstance(step, api.Start):
        return table | {"event": _json(TaskStarted(**named)), "becomes": "running"}
    if isinstance(step, api.Save):
        event = _json(SubEpochSaved(**named, savepoint=step.savepoint))
        return table | {"batch": step.savepoint.batch, "event": event}
    if isinstance(step, api.Commit):
        return table | {"event": _json(TaskCommitted(**named, result=step.result)), "becomes": "committed"}
    if isinstance(step, api.Fail):
        return table | {"event": _json(TaskFailed(**named, failure=step.failure)), "becomes": "failed"}
    return table


def _fused(experiment: str, step: api.Assign, first: TaskAssigned) -> Iterator[dict[str, Any]]:
    """Convert the other tasks of a fused group."""
    for other in step.fused:
        named = {"task": other.task, "attempt": other.attempt, "config_version": other.config_version}
        yield _assigned(experiment, first.model_copy(update=named))


def _assigned(experiment: str, event: TaskAssigned) -> dict[str, Any]:
    """Convert one task of an assignment."""
    return {
        "key": keys.task(experiment, event.task),
        "attempt": event.attempt,
        **_model(event.task),
        "event": _json(event),
    }


def _other(experiment: str, step: api.Assign, number: int) -> dict[str, Any]:
    """Convert member `number` of a gang."""
    other = step.other_members[number - 1]
    return {
        "worker": other.worker,
        "incarnation": other.incarnation,
        "devices": _listed(other.devices),
        "worker_key": keys.worker(other.worker),
        "inbox": keys.inbox(other.worker),
        "entry": _entry(experiment, step.model_copy(update={"devices": other.devices}), number),
    }


def _model(task: str) -> dict[str, str]:
    """Return the model that a task trains, as RUN/MODEL; {} for other tasks."""
    match task.split("/"):
        case [run, "train", model, *_]:
            return {"model": f"{run}/{model}"}
    return {}


def _listed(devices: tuple[int, ...]) -> str:
    return ",".join(map(str, devices))


def _entry(experiment: str, step: api.Assign | api.Revoke | api.Preempt, member: int = 0) -> str:
    fields = {"experiment": experiment, "task": step.task, "attempt": step.attempt}
    if isinstance(step, api.Revoke):
        return json.dumps(fields | {"cancel": True})
    if isinstance(step, api.Preempt):
        return json.dumps(fields | {"preempt": step.reason})
    return json.dumps(
        fields | {"cancel": False, "devices": step.devices} | ({"member": member} if member else {})
    )


def _json(event: BaseModel) -> str:
    return event.model_dump_json(exclude=UNNUMBERED)
