"""SIGKILL of any process during a run: it restarts and the result is the same."""

from __future__ import annotations

import pytest

from cerebro.data.mapped import MappedRows
from tests.e2e.harness import ROWS, Lab
from tests.e2e.specs import TinyETL, TinyTraining

SERVICES = ("redis", "kvs_api", "controller", "dispatcher")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["services", "worker", "child"])
def test_a_killed_process_leaves_no_trace_in_the_weights(lab: Lab, prepared: str, victim: str) -> None:
    """A process, or each service in turn, is killed in the middle of a sub-epoch.

    The run completes, with each sub-epoch committed once.
    """
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("b", 2)]))
    knock = lab.gate.knock()
    chosen: dict[str, tuple[str | int, ...]] = {"worker": (knock.worker,), "child": (knock.pid,)}
    targets = chosen.get(victim, SERVICES)
    before = {target: lab.kill(target) for target in targets}
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    assert lab.recovered().state == "ready"
    assert not [name for name in before if isinstance(name, str) and lab.process(name) == before[name]]
    run = lab.check(experiment)
    assert run.state == "finished"


@pytest.mark.slow
def test_a_run_survives_kills_at_any_moment(lab: Lab, prepared: str) -> None:
    """Each process is killed in turn at an arbitrary moment."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(), tags="abcd", epochs=2)
    log = lab.log(experiment)
    log.skip()
    for victim in ("redis", "worker-0", "dispatcher", "kvs_api", "controller", "redis"):
        log.until_type("TaskCommitted")
        lab.kill(victim)
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["redis", "worker", "child"])
def test_a_killed_process_leaves_no_trace_in_the_data(lab: Lab, victim: str) -> None:
    """Preprocessing is interrupted within a shard; in the end every row exists once."""
    experiment = lab.experiment()
    etl = lab.spawn(lambda: experiment.run_etl(TinyETL(gate=lab.gate.port, held=7), progress=False))
    knock = lab.gate.knock()
    lab.kill(knock.pid if victim == "child" else knock.worker if victim == "worker" else victim)
    lab.gate.open()
    result = lab.result(etl, experiment)
    assert result.kept_rows == result.rows == ROWS
    partitions = lab.home.path.glob(f"volumes/shards/*/datasets/{result.dataset}/train/partition-*")
    ids = [identity for folder in partitions for identity in MappedRows.open([folder]).ids()]
    assert sorted(map(int, ids)) == list(range(ROWS["train"]))
