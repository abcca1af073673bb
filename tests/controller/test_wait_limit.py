"""A run that waits for workers longer than its `wait_limit` pauses, with the reason."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    RunPaused,
    RunRequested,
    RunResumed,
    TaskAssigned,
    TaskStarted,
    WorkerJoined,
    WorkerLost,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlRequest, Request
from cerebro.state import RunState, TaskKey, waiting_for
from cerebro.state.exclusions import Exclusion, Scope
from controller.decisions.core import Core
from controller.scaling.cluster_snapshot import ClusterSnapshot
from tests.controller.test_core import plan, request
from tests.controller.test_growth import RECORD, joined, snapshot

LIMIT_S = 7200.0
SHA = "0" * 64


def limited(asked: Request) -> Request:
    return asked.model_copy(update={"wait_limit_s": LIMIT_S})


def fit(workers: int, *, limit_s: float | None = LIMIT_S) -> Core:
    """A fit over two partitions that starts at time 10, with workers from time 0."""
    core = Core(RECORD)
    asked = request(1, 1).model_copy(update={"wait_limit_s": limit_s})
    for number in range(workers):
        core.apply(joined(number))
    core.apply(RunRequested(run="fit-1", request=asked, time=10.0))
    core.apply(plan(1, 2).model_copy(update={"time": 10.0}))
    return core


def pauses(core: Core, now: float, *exclusions: Exclusion) -> list[str]:
    """Decide at this time with the workers that are alive; return the reasons of pauses."""
    alive = {name: view for name, view in snapshot(core).workers.items() if core.state.workers[name].is_alive}
    steps = core.decide(ClusterSnapshot(workers=alive, now=now, exclusions=exclusions))
    return [
        step.event.reason
        for step in steps
        if isinstance(step, api.Note) and isinstance(step.event, RunPaused)
    ]


@pytest.mark.parametrize("asked", [request(1, 1), EtlRequest(code=SHA, code_fingerprint=SHA)])
def test_a_run_without_any_worker_pauses_at_its_limit(asked: Request) -> None:
    """The time counts from the request, also before the run has a plan."""
    core = Core(RECORD)
    core.apply(RunRequested(run="one-1", request=limited(asked), time=10.0))
    assert pauses(core, 10.0 + LIMIT_S - 1) == []
    (reason,) = pauses(core, 10.0 + LIMIT_S)
    assert reason.startswith(
        "it waited for workers longer than its wait_limit of 2 h; it is waiting for a worker"
    )


def test_the_wait_begins_when_the_worker_with_the_partition_leaves() -> None:
    """Other workers are of no use. The reason names the worker."""
    core = fit(2)
    core.apply(WorkerLost(worker="worker-0", incarnation="a", reason="no lease", time=5000.0))
    core.apply(WorkerLost(worker="worker-1", incarnation="a", reason="no lease", time=6000.0))
    assert pauses(core, 6000.0 + LIMIT_S - 1) == []
    (reason,) = pauses(core, 6000.0 + LIMIT_S)
    assert "worker-0 (no lease)" in reason
    assert reason.endswith("Add workers, then resume it: its models keep their state")


def test_a_resumed_run_waits_for_the_whole_limit_again() -> None:
    """`Experiment.resume` gives it new time; the page and `status` show the pause until then."""
    core = fit(1)
    core.apply(WorkerLost(worker="worker-0", incarnation="a", reason="no lease", time=20.0))
    now = 20.0 + LIMIT_S
    core.apply(RunPaused(run="fit-1", reason=pauses(core, now)[0], time=now))
    run = core.state.runs["fit-1"]
    assert run.state is RunState.PAUSED
    assert waiting_for(core.state, run).startswith("paused: it waited for workers longer")
    assert pauses(core, now + LIMIT_S) == []
    core.apply(RunResumed(run="fit-1", by="ada", time=now + 1000))
    assert pauses(core, now + 1000 + LIMIT_S - 1) == []
    assert len(pauses(core, now + 1000 + LIMIT_S)) == 1


def test_a_run_with_a_running_task_does_not_wait() -> None:
    """A sub-epoch longer than the limit is work."""
    core = fit(2)
    key = TaskKey(run="fit-1", kind="train", model="m00", epoch=1, partition=0)
    task = {"task": str(key), "attempt": 1, "worker": "worker-0"}
    core.apply(TaskAssigned.model_validate({**task, "time": 20.0}))
    core.apply(TaskStarted.model_validate({**task, "time": 20.0}))
    core.apply(WorkerLost(worker="worker-1", incarnation="a", reason="no lease", time=30.0))
    assert pauses(core, 30.0 + 2 * LIMIT_S) == []


def test_runs_without_a_limit_wait_for_ever() -> None:
    """It is the default."""
    core = fit(0, limit_s=None)
    assert pauses(core, 1e9) == []


def test_a_returning_worker_ends_the_wait() -> None:
    """A run with a worker that can train does not pause."""
    core = fit(2)
    core.apply(WorkerLost(worker="worker-0", incarnation="a", reason="no lease", time=20.0))
    core.apply(WorkerJoined(**joined(0).model_dump(exclude={"incarnation", "time", "seq"}), incarnation="b"))
    assert pauses(core, 20.0 + LIMIT_S) == []


def test_workers_without_use_for_the_run_change_nothing() -> None:
    """A worker without its partitions leaves, and a removed worker returns as another one."""
    core = fit(2)
    core.apply(joined(2))
    core.apply(WorkerLost(worker="worker-0", incarnation="a", reason="no lease", time=20.0))
    core.apply(WorkerLost(worker="worker-2", incarnation="a", reason="scaled in", time=6000.0))
    assert pauses(core, 20.0 + LIMIT_S - 1) == []
    (reason,) = pauses(core, 20.0 + LIMIT_S)
    assert "worker-0 (no lease)" in reason
    assert "worker-2" not in reason


def test_a_quarantined_worker_counts_as_absent() -> None:
    """It is alive but gets no task; the reason says so."""
    core = fit(2)
    away = Exclusion("worker-0", Scope.EVERYTHING, "quarantined: 3 sub-epochs failed")
    assert pauses(core, 10.0 + LIMIT_S) == []
    assert pauses(core, 10.0 + LIMIT_S - 1, away) == []
    (reason,) = pauses(core, 10.0 + LIMIT_S, away)
    assert "worker-0 (quarantined: 3 sub-epochs failed), which alone holds partition 0" in reason
    busy = Exclusion("worker-0", Scope.NEW_TASKS, "drains")
    assert pauses(core, 10.0 + LIMIT_S, busy) == []
