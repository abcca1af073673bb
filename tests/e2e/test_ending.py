"""SIGTERM to a busy worker, as from drains, spot notices and rollouts, does not change results."""

from __future__ import annotations

import signal
import time

import pytest

from cerebro import Limits
from cerebro.contract.events import Event, TaskAssigned, TaskFailed
from cerebro.contract.tasks.failures import FailureKind
from cerebro.data.mapped import MappedRows
from cerebro.local.supervision import processes
from etl_worker.shard_counts import REPORT_S
from tests.e2e.harness import ROWS, Lab, Log
from tests.e2e.specs import TinyETL, TinyTraining
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.slow


def preempted(log: Log, worker: str, part: str) -> TaskFailed:
    """Return the preemption event of the task with this part in its key."""

    def is_it(event: Event) -> bool:
        return isinstance(event, TaskFailed) and part in event.task

    event = log.until(is_it, f"the end of {part} at {worker}")
    assert isinstance(event, TaskFailed)
    assert (event.worker, event.failure.kind) == (worker, FailureKind.PREEMPTED)
    assert event.failure.message.startswith(f"SIGTERM: {worker} was asked to end")
    return event


def count_leaves(lab: Lab, worker: str) -> int:
    """Count the leave requests in the worker's log."""
    return (lab.home.logs / f"{worker}.log").read_text().count("was asked to leave")


def until_leaving(lab: Lab, worker: str, before: int) -> None:
    """Wait until a worker has reported that it leaves and has asked its tasks to leave.

    Args:
        before: the value of `asked` before the SIGTERM.
    """

    def is_leaving() -> bool:
        leaving = {status.record.worker for status in lab.kvs.workers() if status.leaving}
        return count_leaves(lab, worker) > before and worker in leaving

    until(is_leaving, f"{worker} reports that it leaves")


def test_sigterm_preempts_a_sub_epoch_and_it_is_repeated(lab: Lab, prepared: str) -> None:
    """No attempt is used up and no file remains; the weights equal a replay."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    spec = TinyTraining(gate=lab.gate.port, holds=[("b", 2)])
    fit = lab.fit(experiment, spec, limits=Limits(max_attempts=1))
    knock = lab.gate.knock()
    before = count_leaves(lab, knock.worker)
    old = lab.send(knock.worker, signal.SIGTERM)
    until_leaving(lab, knock.worker, before)
    lab.gate.open()
    event = preempted(log, knock.worker, "/train/m01/")
    assert processes.wait_gone(old, HANG_S)
    assert "between two batches" in event.failure.message
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment, result.run)
    task = run.tasks.by_key[event.task]
    assert (task.failures, task.losses, len(task.attempts)) == (0, 0, 2)
    assert [path for path in lab.volumes.checkpoints.rglob(".*") if path.is_file()] == []


def test_queued_tasks_of_a_leaving_worker_move_immediately(lab: Lab, prepared: str) -> None:
    """Before the running sub-epoch ends; the leaving worker gets no task until it is back."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 0)]), tags="abcd")
    knock = lab.gate.knock()
    count, before = len(log.read()), count_leaves(lab, knock.worker)
    old = lab.send(knock.worker, signal.SIGTERM)
    until_leaving(lab, knock.worker, before)
    lab.gate.open()
    ended = preempted(log, knock.worker, "/train/m00/")
    assert processes.wait_gone(old, HANG_S)
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    lab.check(experiment, result.run)
    events = log.read()
    back = next(e.seq for e in events[count:] if e.type == "WorkerJoined" and e.worker == knock.worker)
    meanwhile = [e for e in events if count < e.seq < back]
    given = [e for e in meanwhile if isinstance(e, TaskAssigned) and e.worker == knock.worker]
    assert [e for e in given if e.seq > ended.seq] == []
    assert len(given) <= 1, "one may have been on its way when the signal came"


def test_sigterm_preempts_preprocessing_and_it_is_repeated(lab: Lab) -> None:
    """Preprocessing stops at its next row; in the end every row exists once."""
    experiment = lab.experiment()
    log = lab.log(experiment)
    etl = lab.spawn(lambda: experiment.run_etl(TinyETL(gate=lab.gate.port, held=7), progress=False))
    knock = lab.gate.knock()
    came, before = time.monotonic(), count_leaves(lab, knock.worker)
    old = lab.send(knock.worker, signal.SIGTERM)
    until_leaving(lab, knock.worker, before)
    # A preprocessing process checks for a leave request at this interval.
    until(lambda: time.monotonic() - came > REPORT_S, "it looks at its next row")
    lab.gate.open()
    event = preempted(log, knock.worker, "/etl/train/")
    assert "between two batches" in event.failure.message
    assert processes.wait_gone(old, HANG_S)
    result = lab.result(etl, experiment)
    assert result.kept_rows == result.rows == ROWS
    folders = [*lab.home.path.glob(f"volumes/shards/*/datasets/{result.dataset}/train/partition-*")]
    ids = [identity for folder in folders for identity in MappedRows.open([folder]).ids()]
    assert sorted(map(int, ids)) == list(range(ROWS["train"]))
    assert [path for folder in folders for path in folder.rglob("*.aside")] == []
