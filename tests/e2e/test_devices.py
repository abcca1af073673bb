"""Workers with several devices train sub-epochs in parallel on one partition."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro.contract.events import TaskAssigned, TaskFailed, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.usage import cores
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining

pytestmark = pytest.mark.slow


def test_a_crash_disturbs_no_sub_epoch_on_other_devices(own_lab: MakeLab) -> None:
    """Four sub-epochs on two workers with two devices each.

    One is killed and done again while three continue. The weights equal a training in one process, bit by bit.
    """
    if cores.available() < 2:
        pytest.skip("two devices need two cores")
    lab = own_lab(CEREBRO_DEVICES="2")
    assert lab.info().devices == 2
    experiment = lab.prepared()
    spec = TinyTraining(gate=lab.gate.port, holds=[(tag, 0) for tag in "abcd"])
    fit = lab.fit(experiment, spec, tags="abcdef")
    knocks = [lab.gate.knock() for _ in range(4)]
    assert Counter(knock.worker for knock in knocks) == {"worker-0": 2, "worker-1": 2}
    assert len({knock.pid for knock in knocks}) == 4
    lab.kill(knocks[0].pid)
    log = lab.log(experiment)
    lost = log.until_type("TaskFailed", worker=knocks[0].worker)
    assert isinstance(lost, TaskFailed)
    assert lost.failure.kind is FailureKind.CRASH
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment)
    events = log.read()
    starts = Counter(e.task for e in events if isinstance(e, TaskStarted) and "/train/m" in e.task)
    assert {task for task, number in starts.items() if number > 1} == {lost.task}
    given = {e.devices for e in events if isinstance(e, TaskAssigned) and "/train/m" in e.task}
    assert given == {(0,), (1,)}
    threads = max(2, cores.available() // 2) // 2
    assert {sub_epoch.cores for model in run.models.values() for sub_epoch in model.sub_epochs} == {threads}
