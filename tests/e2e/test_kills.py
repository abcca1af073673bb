"""kill -9 of any process in the middle of a run: it is started again and nothing shows in the result."""

from __future__ import annotations

import pytest

from tests.e2e.harness import DEADLINE_S, SPLITS, Lab
from tests.e2e.specs import TinyETL, TinyTraining

SERVICES = ("redis", "kvs_api", "controller", "dispatcher")


@pytest.mark.parametrize("victim", [*SERVICES, "worker", "child"])
def test_a_killed_process_leaves_no_trace_in_the_weights(lab: Lab, victim: str) -> None:
    """While a unit is in its middle a process is killed; the run ends by itself, each unit committed once."""
    experiment = lab.prepared()
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("b", 2)]))
    knock = lab.gate.knock()
    target = {"worker": knock.worker, "child": knock.pid}.get(victim, victim)
    before = lab.kill(target)
    lab.gate.open()
    result = fit.result(DEADLINE_S)
    assert result.failures() == {}
    assert lab.recovered().state == "ready"
    if victim != "child":
        assert lab.process(str(target)) != before
    run = lab.check(experiment)
    assert run.state == "finished"


def test_kills_at_any_moment_of_one_run(lab: Lab) -> None:
    """One process after the other is killed as the run advances, wherever it is at that moment."""
    experiment = lab.prepared()
    fit = lab.fit(experiment, TinyTraining(), tags="abcd", epochs=3)
    log = lab.log(experiment)
    for victim in ("redis", "worker-0", "kvs_api", "controller", "worker-1", "redis", "controller"):
        log.until_type("TaskCommitted")
        lab.kill(victim)
    assert fit.result(DEADLINE_S).failures() == {}
    lab.check(experiment)


@pytest.mark.parametrize("victim", ["redis", "kvs_api", "controller", "worker", "child"])
def test_a_killed_process_leaves_no_trace_in_the_data(lab: Lab, victim: str) -> None:
    """Preprocessing is interrupted in the middle of a shard; every row is there once in the end."""
    experiment = lab.experiment()
    etl = lab.spawn(lambda: experiment.run_etl(TinyETL(gate=lab.gate.port, held=7), progress=False))
    knock = lab.gate.knock()
    lab.kill({"worker": knock.worker, "child": knock.pid}.get(victim, victim))
    lab.gate.open()
    result = etl.result(DEADLINE_S)
    assert result.kept == result.rows == SPLITS
    lab.fit(experiment, TinyTraining(), tags="a", epochs=1).result(DEADLINE_S)
    lab.check(experiment)
