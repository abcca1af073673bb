"""The history on a real cluster: each sub-epoch is in it once, whatever becomes of the controller."""

from __future__ import annotations

import time

import pytest

from cerebro.contract.events import TaskCommitted
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import DEADLINE_S
from tests.e2e.test_forecasts import Slow


@pytest.mark.slow
def test_sub_epochs_are_in_the_history_once_although_the_controller_is_killed(own_lab: MakeLab) -> None:
    """The next one reads on in the log where the history ends; a second fit of the same models adds to its rows."""
    lab = own_lab()
    experiment = lab.prepared()
    log, kvs = lab.log(experiment), lab.kvs
    models, partitions, epochs = 6, 2, 2
    for run in (1, 2):
        fit = lab.fit(experiment, Slow(), tags="abcdef", epochs=epochs)
        log.until(lambda event: isinstance(event, TaskCommitted) and "/train/" in event.task, "a sub-epoch")
        lab.kill("controller")
        assert lab.result(fit, experiment).failures() == {}
        sub_epochs = run * models * partitions * epochs
        until = time.monotonic() + DEADLINE_S
        while round(sum(row.sub_epochs for row in kvs.history().sub_epochs.values())) < sub_epochs:
            assert time.monotonic() < until, kvs.history()
            time.sleep(0.2)
        found = kvs.history().sub_epochs
        assert round(sum(row.sub_epochs for row in found.values())) == sub_epochs
        assert len(found) == models
