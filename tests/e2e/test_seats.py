"""Units that take turns at a device: the weights of a run without seats, whatever befalls."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.tasks import FailureKind
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_replay import replay

pytestmark = pytest.mark.slow


def test_units_take_turns_at_one_device_and_a_killed_one_disturbs_no_other(own_lab: MakeLab) -> None:
    """Four at once at one device of one worker. One of them is killed and done again; the other three go on. The
    weights are those of a training in one process, to the bit."""
    lab = own_lab(workers=1, CEREBRO_SEATS="4", CEREBRO_QUANTUM_S="0.01")
    (status,) = lab.kvs.workers()
    assert (len(status.record.devices), status.record.seats, status.record.weight) == (4, 4, 1.0)
    experiment = lab.prepared()
    spec = TinyTraining(gate=lab.gate.port, holds=[(tag, 1) for tag in "abcd"])
    fit = lab.fit(experiment, spec, tags="abcdef")
    knocks = [lab.gate.knock() for _ in range(4)]
    assert len({knock.pid for knock in knocks}) == 4
    lab.kill(knocks[0].pid)
    log = lab.log(experiment)
    lost = log.until_type("TaskFailed", worker="worker-0")
    assert isinstance(lost, TaskFailed)
    assert lost.failure.kind is FailureKind.CRASH
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    lab.check(experiment)
    events = log.read()
    starts = Counter(e.task for e in events if isinstance(e, TaskStarted) and "/train/m" in e.task)
    assert {task for task, number in starts.items() if number > 1} == {lost.task}
    given = {e.devices for e in events if isinstance(e, TaskAssigned) and "/train/m" in e.task}
    assert given == {(0,), (1,), (2,), (3,)}
    units = [e.result for e in events if isinstance(e, TaskCommitted) and "/train/m" in e.task]
    assert all(0 < unit.turn_s <= unit.timings.compute_s for unit in units)
    code, told = replay(experiment.name)
    assert (code, told.count("equal to the bit")) == (0, 6)
