"""The history contains each sub-epoch once, also when the controller restarts."""

from __future__ import annotations

from functools import partial

import pytest

from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.waiting import until


def counted(lab: Lab) -> int:
    """Return the number of sub-epochs in the history."""
    return round(sum(row.sub_epochs for row in lab.kvs.history().sub_epochs.values()))


def has_counted(lab: Lab, expected: int) -> bool:
    """Return True if the history has at least `number` sub-epochs."""
    return counted(lab) >= expected


@pytest.mark.slow
def test_a_killed_controller_counts_each_sub_epoch_once_in_the_history(own_lab: MakeLab) -> None:
    """The new controller continues reading the log at the history's end; a second fit adds to the same rows."""
    lab = own_lab()
    experiment = lab.prepared()
    models, partitions, epochs = 3, 2, 2
    for run in (1, 2):
        lab.gate.close()
        fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("c", 2)]), epochs=epochs)
        lab.gate.knock()
        lab.kill("controller")
        lab.gate.open()
        assert lab.result(fit, experiment).failures() == {}
        expected = run * models * partitions * epochs
        until(partial(has_counted, lab, expected), f"{expected} sub-epochs are in the history")
        assert counted(lab) == expected
        assert len(lab.kvs.history().sub_epochs) == models
