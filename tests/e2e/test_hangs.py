"""A process frozen by SIGSTOP is replaced, and the run continues."""

from __future__ import annotations

import signal

import pytest

from cerebro.cli import main
from cerebro.local.supervision import processes
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.waiting import HANG_S


@pytest.mark.slow
def test_a_process_that_hangs_is_replaced(lab: Lab, prepared: str) -> None:
    """For each service and a worker: its children end with it, and the run has no failures."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("b", 2)]))
    knock = lab.gate.knock()
    child = processes.identify(knock.pid)
    assert child is not None
    names = (knock.worker, "kvs_api", "controller", "dispatcher", "redis")
    stopped = {name: lab.send(name, signal.SIGSTOP) for name in names}
    assert all(processes.wait_gone(process, HANG_S) for process in (*stopped.values(), child))
    assert lab.recovered().state == "ready"
    assert not [name for name in names if lab.process(name) == stopped[name]]
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    assert lab.check(experiment).state == "finished"
    assert "did not answer for" in lab.home.log("supervisor").read_text()


@pytest.mark.slow
def test_a_running_sub_epoch_reports_its_stacks(
    lab: Lab, prepared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cerebro stacks` returns the stack from the process; the sub-epoch continues, and its log has the same stack."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("b", 1)]))
    lab.gate.knock()
    assert main(["stacks", prepared, "m01", "--home", str(lab.home.path)]) == 0
    head, *said = capsys.readouterr().out.rstrip().splitlines()
    assert "/train/m01/" in head
    assert any("in knock" in line for line in said)
    assert any("in train" in line for line in said)
    log = next((lab.volumes.logs / "tasks" / prepared).glob(f"{head.split(',')[0].replace('/', '.')}.a*.log"))
    assert said[-1] in log.read_text()
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
