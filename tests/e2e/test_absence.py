"""A worker that is silent longer than its lease: other workers continue, and the run names it."""

from __future__ import annotations

import signal

import pytest

from cerebro.local.supervision import processes
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining


@pytest.mark.slow
def test_the_late_commit_of_a_frozen_worker_is_refused(lab: Lab, prepared: str) -> None:
    """The worker loses its sub-epoch, and no newer checkpoint changes."""
    experiment = lab.attach(prepared)
    log = lab.log(experiment)
    log.skip()
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 0), ("b", 0)]), tags="ab")
    knocks = {knock.worker: knock for knock in (lab.gate.knock(), lab.gate.knock())}
    frozen = knocks["worker-0"]
    lab.send(lab.info().supervisor.pid, signal.SIGSTOP)  # it would restart the agent
    agent = lab.send("worker-0", signal.SIGSTOP)
    lab.send(frozen.pid, signal.SIGSTOP)
    lab.gate.open()

    log.until_type("WorkerLost", worker="worker-0")
    lost = log.state().active_run()
    assert lost is not None
    late = next(task for task in lost.tasks.by_key.values() if task.attempts[0].worker == "worker-0")
    # The other worker trains both models on its partition; then it has no work.
    while sum(len(model.sub_epochs) for model in log.state().runs[lost.id].models.values()) < 2:
        log.until_type("TaskCommitted", worker="worker-1")
    status = experiment.status()
    assert f"{lost.id}: running, 2/8 done" in status
    assert "waiting for worker-0 (it has not reported for longer than its lease)" in status
    assert "which alone holds partition" in status

    # Continue the child first, so it saves its sub-epoch before the worker learns that it lost the lease.
    lab.send(frozen.pid, signal.SIGCONT)
    folder = lab.volumes.model_checkpoints(experiment.name, lost.id, str(late.key.model))
    saved = f"u00000-e001-p{late.key.partition:04d}-a1.pt"
    child = processes.identify(frozen.pid)
    assert child is not None
    while not (folder / saved).exists():
        assert not processes.wait_gone(child, 0.05) or (folder / saved).exists()
    lab.send("worker-0", signal.SIGCONT)
    lab.send(lab.info().supervisor.pid, signal.SIGCONT)

    assert lab.result(fit, experiment).failures() == {}
    assert processes.is_alive(agent)
    assert "refused" in lab.home.log("worker-0").read_text()
    lab.check(experiment)
