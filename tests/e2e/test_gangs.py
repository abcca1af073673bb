"""Gangs: workers that train one sub-epoch together, each on its own partition."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import Experiment, Parallelism
from cerebro.contract.events import TaskAssigned
from cerebro.contract.runs import FitPlan
from cerebro.data.loader import Batch, MergedLoader
from cerebro.state import Run
from cerebro.worker.training.checkpoints import checkpoint
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import order_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import knock
from tests.e2e.test_parallel_plans import SETTINGS, SPACE, Descent
from tests.e2e.test_replay import replay

pytestmark = pytest.mark.slow


def folder_of(lab: Lab, dataset: str, partition: int) -> Path:
    """Return the folder of a partition on the volume of the worker that made it."""
    (found,) = lab.volumes.shards.glob(f"*/datasets/{dataset}/train/partition-{partition:04d}")
    return found


class Gated(Descent):
    """Each rank stops at the gate in the middle of the second sub-epoch, after one step with the others."""

    def __init__(self, gate: int) -> None:
        super().__init__()
        self.gate = gate

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        feed = dataloader if dataloader.sub_epoch != 1 else _Held(dataloader, self.gate)
        return super().train(models, checkpoint, feed, hyperparams)


class _Held:
    def __init__(self, feed: Any, gate: int) -> None:
        self._feed, self._gate = feed, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._feed):
            if number == 1:
                knock(self._gate, f"rank {self._feed.rank}")
            yield batch


def alone(lab: Lab, run: Run, model: str, folder: Path) -> dict[str, torch.Tensor]:
    """Train in one process on the run's logged partition sets and return the weights."""
    assert isinstance(run.plan, FitPlan)
    known, state = run.models[model], None
    hyperparams: dict[str, Any] = {**known.hyperparams}
    for number, sub_epoch in enumerate(known.sub_epochs):
        loader = MergedLoader(
            [folder_of(lab, run.plan.dataset, partition) for partition in sub_epoch.partitions],
            batch_size=hyperparams["batch_size"],
            seeds=[
                order_seed(SETTINGS["seed"], model, sub_epoch.epoch, partition, is_shared=True)
                for partition in sub_epoch.partitions
            ],
        )
        trainee = create(
            Descent(), hyperparams, seed=SETTINGS["seed"], model=model, device=torch.device("cpu")
        )
        if state is not None:
            restore(trainee, state)
        feed = InstrumentedLoader(loader, epoch=sub_epoch.epoch, sub_epoch=number)
        where: dict[str, Any] = {"model": model, "epoch": sub_epoch.epoch, "partition": sub_epoch.partition}
        train_sub_epoch(Descent(), trainee, feed, hyperparams, seed=SETTINGS["seed"], **where)
        name = f"{model}-{number}.pt"
        trainee.save(folder, name)
        state = torch.load(folder / name, weights_only=True)
    assert state is not None
    trained: dict[str, torch.Tensor] = state["models"][0]
    return trained


def test_a_gang_of_two_workers_trains_the_weights_of_one_process(own_lab: MakeLab, tmp_path: Path) -> None:
    """Each sub-epoch uses two partitions on two workers, and no worker is in two sub-epochs.

    An epoch trains on each partition once; with an odd number the last one is trained alone. The weights equal a
    training in one process.
    """
    lab = own_lab(workers=5)
    experiment = lab.prepared()
    result = experiment.run_fit(
        Descent(), SPACE, parallelism=Parallelism(gang=2, techniques=["ddp"], trials="never"), **SETTINGS
    )
    assert result.failures() == {}
    log = lab.log(experiment)
    given = [e for e in log.read() if isinstance(e, TaskAssigned) and "/train/" in e.task]
    sets = [e for e in given if e.other_members]
    assert {e.parallel_plan.label for e in sets if e.parallel_plan} == {"ddp-2x1"}
    assert {len(e.other_members) for e in sets} == {1}
    run = log.state().runs["fit-1"]
    for model in run.models.values():
        assert [len(sub_epoch.partitions) for sub_epoch in model.sub_epochs].count(2) == 4
    check_weights(lab, run, tmp_path)
    for more in ((), ("--tolerance", "1e-4")):
        status, said = replay(experiment.name, *more)
        assert status == 0, said


def newest(lab: Lab, experiment: Experiment) -> Run:
    """Return its newest fit run."""
    return [run for run in lab.log(experiment).state().runs.values() if run.kind == "fit"][-1]


def check_weights(lab: Lab, run: Run, folder: Path) -> None:
    """Check that each model's weights equal a training in one process on the same partitions."""
    assert isinstance(run.plan, FitPlan)
    for model in run.models.values():
        for epoch in (1, 2):
            trained = [
                p for sub_epoch in model.sub_epochs if sub_epoch.epoch == epoch for p in sub_epoch.partitions
            ]
            assert sorted(trained) == sorted(run.plan.partitions)
        trained = checkpoint.load(lab.volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), "cpu")[
            "models"
        ][0]
        for name, tensor in alone(lab, run, model.id, folder).items():
            torch.testing.assert_close(trained[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rank", "victim"), [(0, "its worker"), (1, "its process")])
def test_a_killed_member_ends_only_the_attempt(
    lab: Lab, prepared: str, tmp_path: Path, rank: int, victim: str
) -> None:
    """For each rank, kill the process or the worker: the sub-epoch is done again once, with the same weights."""
    experiment = lab.attach(prepared)
    fit = lab.spawn(
        lambda: experiment.run_fit(
            Gated(lab.gate.port),
            SPACE,
            parallelism=Parallelism(gang=2, techniques=["ddp"], trials="never"),
            **SETTINGS,
        )
    )
    knocks = {each.what: each for each in (lab.gate.knock(), lab.gate.knock())}
    killed = knocks[f"rank {rank}"]
    lab.kill(killed.pid if victim == "its process" else killed.worker)
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    check_weights(lab, newest(lab, experiment), tmp_path)


def test_a_terminated_worker_uses_up_no_attempt_of_its_gang(lab: Lab, prepared: str, tmp_path: Path) -> None:
    """Rank 0 gets the request, and all ranks leave at the same batch. The attempt does not count."""
    experiment = lab.attach(prepared)
    fit = lab.spawn(
        lambda: experiment.run_fit(
            Gated(lab.gate.port),
            SPACE,
            parallelism=Parallelism(gang=2, techniques=["ddp"], trials="never"),
            **SETTINGS,
        )
    )
    knocks = {each.what: each for each in (lab.gate.knock(), lab.gate.knock())}
    lab.send(knocks["rank 1"].worker, signal.SIGTERM)
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    run = newest(lab, experiment)
    assert not any(task.failures for task in run.tasks.by_key.values())
    check_weights(lab, run, tmp_path)
