"""Fill a real store's log with given events through the calls of client, controller and workers."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.events import (
    ClientEvent,
    Event,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.rest import api
from cerebro.runtime.kvs.client import KvsClient
from tests.kvs_api.bench import LONG_S, body, note, worker

_CLIENTS: TypeAdapter[ClientEvent] = TypeAdapter(ClientEvent)


def replay(kvs: KvsClient, experiment: str, events: Iterable[Event]) -> None:
    """Replay events of an existing experiment, with workers of incarnation ``a``."""
    term = kvs.lead("controller-0", LONG_S).term
    for seq, event in enumerate(events):
        step = _step_of_worker(experiment, event)
        if step is not None:
            request = api.ReportRequest(incarnation="a", lease_s=LONG_S, steps=(step,))
            assert isinstance(event, TaskStarted | TaskCommitted | TaskFailed)
            outcome = kvs.report(event.worker, request).outcomes[0].outcome
        elif _is_clients(event):
            kvs.append(experiment, _CLIENTS.validate_python(event.model_copy(update={"seq": 0, "time": 0.0})))
            outcome = "done"
        elif isinstance(event, WorkerJoined):
            kvs.register(worker("a", event.worker))
            entry = event.model_copy(update={"seq": 0, "time": 0.0})
            cluster_log = api.ClusterLogRequest(term=term, after=len(kvs.cluster_log()), events=(entry,))
            outcome = "done" if kvs.write_cluster_log(cluster_log).is_written else "refused"
        else:
            decision = api.DecideRequest(term=term, after=seq, steps=(_step_of_controller(event),))
            outcome = kvs.decide(experiment, decision).outcomes[0].outcome
        assert outcome == "done", event


def _step_of_worker(experiment: str, event: Event) -> api.Report | None:
    if isinstance(event, TaskStarted):
        return api.Start(experiment=experiment, task=event.task, attempt=event.attempt)
    if isinstance(event, TaskCommitted):
        return api.Commit(experiment=experiment, task=event.task, attempt=event.attempt, result=event.result)
    if isinstance(event, TaskFailed):
        return api.Fail(experiment=experiment, task=event.task, attempt=event.attempt, failure=event.failure)
    return None


def _step_of_controller(event: Event) -> api.Decision:
    assert not isinstance(event, TaskRevoked)
    if isinstance(event, TaskAssigned):
        return api.Assign(
            task=event.task,
            attempt=event.attempt,
            worker=event.worker,
            incarnation="a",
            body=body(event.task),
        )
    return note(event.model_copy(update={"seq": 0, "time": 0.0}))  # type: ignore[arg-type]


def _is_clients(event: Event) -> bool:
    try:
        _CLIENTS.validate_python(event)
    except ValidationError:
        return False
    return True
