"""Runs with stacks under kills, searches and replays, and runs that choose between stacks and separate training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cerebro import ASHA, PBT, Parallelism, loguniform
from cerebro.contract.events import TaskAssigned, TaskCommitted
from cerebro.state import TaskKey
from cerebro.techniques import Fused
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import knock
from tests.e2e.test_fused_groups import SETTINGS, SPACE, Descent, weights
from tests.e2e.test_replay import replay
from tests.e2e.test_search import check_complete, run_of

pytestmark = pytest.mark.slow

FUSED = Parallelism(techniques=["fused"], trials="never")


class Held(Descent):
    """Stops at the gate in the third batch of each sub-epoch."""

    def __init__(self, *, gate: int) -> None:
        super().__init__()
        self.gate, self.steps = gate, 0

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            knock(self.gate, "batch 3")
        return super().training_step(models, batch, hyperparams)


def group_sizes(lab: Lab, experiment: Any, run: str) -> list[int]:
    """Return the size of the group of each assigned sub-epoch; 1 without a group."""
    assigned = [event for event in lab.log(experiment).read() if isinstance(event, TaskAssigned)]
    keys = [(TaskKey.parse(event.task), event.group) for event in assigned]
    return [group.size if group else 1 for key, group in keys if (key.run, key.kind) == (run, "train")]


@pytest.mark.parametrize("victim", ["worker", "child"])
def test_a_kill_in_a_group_leaves_no_trace_in_the_weights(own_lab: MakeLab, victim: str) -> None:
    """The worker or the group's process is killed within a sub-epoch; each sub-epoch is committed once."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    undisturbed = experiment.run_fit(Descent(), SPACE, parallelism=FUSED, **SETTINGS)
    spec = Held(gate=lab.gate.port)
    attached = type(experiment).attach(experiment.name)
    fit = lab.spawn(lambda: attached.run_fit(spec, SPACE, parallelism=FUSED, **SETTINGS))
    held = lab.gate.knock()
    lab.kill(held.worker if victim == "worker" else held.pid)
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    assert max(group_sizes(lab, experiment, "fit-2")) == 4
    for model in ("m00", "m01", "m02", "m03"):
        for one, other in zip(weights(undisturbed, model), weights(result, model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    committed = [e.task for e in lab.log(experiment).read() if isinstance(e, TaskCommitted)]
    sub_epochs = [task for task in committed if task.startswith("fit-2/train/")]
    assert len(sub_epochs) == len(set(sub_epochs)) == 8


def test_a_fused_run_is_replayed_up_to_rounding(own_lab: MakeLab) -> None:
    """`cerebro replay` trains each model of the groups alone and compares up to its tolerance."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    assert experiment.run_fit(Descent(), SPACE, parallelism=FUSED, **SETTINGS).failures() == {}
    assert set(group_sizes(lab, experiment, "fit-1")) == {4}
    status, output = replay(experiment.name)
    assert status == 0, output
    assert output.count("2 sub-epochs replayed, final state equal up to") == 4


def test_asha_stops_and_promotes_models_of_groups(own_lab: MakeLab) -> None:
    """Each model trains to its own resource, in groups and alone."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    settings = SETTINGS | {"epochs": 4, "samples": 12, "search": ASHA(eta=2), "parallelism": FUSED}
    result = experiment.run_fit(Descent(), {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}, **settings)
    assert result.failures() == {}
    check_complete(run_of(lab, experiment))
    assert max(group_sizes(lab, experiment, "fit-1")) > 1


def test_clones_of_a_population_train_in_groups(own_lab: MakeLab) -> None:
    """A clone has its parent's checkpoint and another learning rate; alone it gets the same weights up to rounding."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    search = PBT(population=6, perturb={"lr": (0.5, 2.0)})
    settings = SETTINGS | {"epochs": 3, "search": search, "parallelism": FUSED}
    result = experiment.run_fit(Descent(), {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}, **settings)
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    assigned = [event for event in lab.log(experiment).read() if isinstance(event, TaskAssigned)]
    grouped = {TaskKey.parse(event.task).model or "" for event in assigned if event.group is not None}
    assert any(run.models[name].lineage.sub_epochs for name in grouped)
    status, output = replay(experiment.name)
    assert status == 0, output


def test_a_run_measures_stacks_and_separate_training(own_lab: MakeLab) -> None:
    """Both were named: both have a measured time, and the weights are equal up to rounding."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    settings = SETTINGS | {"epochs": 8}
    separate = experiment.run_fit(Descent(), SPACE, parallelism=Parallelism(trials="never"), **settings)
    spec, attached = Held(gate=lab.gate.port), type(experiment).attach(experiment.name)
    both = Parallelism(techniques=["single", Fused(models=4)], trials="never")
    fit = lab.spawn(lambda: attached.run_fit(spec, SPACE, parallelism=both, **settings))
    lab.log(experiment).until_type("TaskCommitted", task="fit-2/inspect")
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    sizes = group_sizes(lab, experiment, "fit-2")
    assert (min(sizes), max(sizes) > 1) == (1, True)  # a stack takes the models that are free then
    plans = result.parallel_plans()
    assert (plans["seconds"] > 0).all()
    assert [*plans["parallel_plan"]] == ["fused(models=4)", "single"] * 4
    assert "in a stack of" in str(experiment.status())
    for model in ("m00", "m01", "m02", "m03"):
        for one, other in zip(weights(separate, model), weights(result, model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
