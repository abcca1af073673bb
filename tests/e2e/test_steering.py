"""Stop, resume, retry, reschedule and delete do not change the weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro.contract.events import PreemptionRequested, TaskStarted
from cerebro.errors import ConflictError, NotFoundError
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow


def test_a_stopped_and_resumed_model_has_the_same_weights(lab: Lab, prepared: str) -> None:
    """The sub-epoch is preempted and the worker trains other models; resumed, the model ends with the weights of a
    plain training.
    """
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("b", 2)]))
    knock = lab.gate.knock()
    log = lab.log(experiment)
    log.skip()
    experiment.stop_model("m01")
    log.until(
        lambda event: isinstance(event, PreemptionRequested) and "m01" in event.task,
        "its sub-epoch is asked for",
    )
    knock.let_through()
    log.until(
        lambda event: isinstance(event, TaskStarted) and event.worker == knock.worker,
        "its worker goes on with another model",
    )
    lab.gate.open()
    result = lab.result(fit, experiment)
    run = experiment.result().run
    assert result.failures() == {}
    assert experiment.state().runs[run].models["m01"].state == "stopped"
    experiment.resume_model("m01")
    assert experiment.watch(run, progress=False).state == "finished"
    assert lab.check(experiment).models["m01"].state == "finished"


def test_a_stopped_run_resumes_under_another_scheduler(lab: Lab, prepared: str) -> None:
    """Each model continues from its last checkpoint; the log names the user of each command."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 1)]))
    lab.gate.knock()
    log = lab.log(experiment)
    log.skip()
    experiment.stop()
    log.until_type("PreemptionRequested")
    lab.gate.open()
    with pytest.warns(UserWarning, match="was stopped by"):
        assert lab.result(fit, experiment)
    run = experiment.result().run
    assert experiment.state().runs[run].state == "stopped"
    experiment.set_scheduler("fifo", planner=False)
    experiment.resume()
    assert experiment.watch(progress=False).state == "finished"
    assert lab.check(experiment).scheduling.scheduler == "fifo"
    done = [command.what for command in experiment.state().commands if command.run == run]
    assert done[-3:] == [
        f"stopped {run}",
        f"changed the scheduler of {run} to fifo, without a planner",
        f"resumed {run}",
    ]


def test_a_failed_model_is_retried_after_its_cause_is_fixed(lab: Lab, prepared: str, tmp_path: Path) -> None:
    """Its run had ended and reopens for this model only."""
    experiment = lab.attach(prepared)
    mended = tmp_path / "mended"
    spec = TinyTraining(trouble={"b": f"raise until {mended}"})
    result = lab.result(lab.fit(experiment, spec), experiment)
    assert set(result.failures()) == {"m01"}
    with pytest.raises(ConflictError, match=r"model m01 .* is failed; possible now: retry the model"):
        experiment.resume_model("m01")
    with pytest.raises(NotFoundError, match=r"no model .m1.: did you mean m01"):
        experiment.retry_model("m1")
    mended.touch()
    experiment.retry_model("m01")
    assert experiment.watch(progress=False).state == "finished"
    assert experiment.result().failures() == {}
    lab.check(experiment)


def test_a_deleted_experiment_leaves_nothing_and_its_name_is_free(lab: Lab) -> None:
    """Files, shards and log are deleted; a new experiment with that name starts fresh."""
    locators = lab.tables()
    experiment = lab.experiment(locators)
    name = experiment.name
    dataset = experiment.run_etl(TinyETL(), progress=False).dataset
    lab.result(lab.fit(experiment, TinyTraining(), tags="a"), experiment)
    with pytest.raises(ConflictError, match="nothing was deleted"):
        experiment.delete(confirm="something else")
    experiment.delete(confirm=name)
    until(lambda: name not in {each.experiment.name for each in lab.kvs.experiments()}, lab)
    until(lambda: not left(lab, name), lab)
    until(lambda: all(h.dataset != dataset for w in lab.kvs.workers() for h in w.record.replicas), lab)
    assert [entry.what for entry in lab.kvs.audit()][-1] == f"deleted experiment {name}"
    again = type(experiment)(name, locators=locators)
    assert again.run_etl(TinyETL(), progress=False).dataset == dataset
    assert dataset not in lab.kvs.reclaim().datasets
    assert lab.result(lab.fit(again, TinyTraining(), tags="a"), again).failures() == {}
    assert lab.check(again).id == "fit-1"


def left(lab: Lab, name: str) -> list[str]:
    """List folders and files below the cluster's home named after an experiment."""
    return [
        found
        for root in (lab.home.volumes, lab.home.logs)
        for _, folders, files in os.walk(root)
        for found in (*folders, *files)
        if found == name or found.startswith((f"{name}-", f"{name}."))
    ]


def until(holds: Callable[[], bool], lab: Lab) -> None:
    """Wait for a condition by the cluster's notifications."""
    for _ in range(600):
        if holds():
            return
        lab.kvs.watch({}, lab.kvs.watch({}, 0, 0.0).cluster, 0.1)
    pytest.fail("never happened")
