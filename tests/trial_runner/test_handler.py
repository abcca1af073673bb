"""The handler of inspections and trials."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.bodies import InspectTask, TrialTask
from cerebro.contract.trials import AvailableDevices, DeviceKind
from cerebro.runtime.volumes import Volumes
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.usercode.encoding import encode
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_CHILD
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import Linear, learn_from, volumes_in, write_split
from trial_runner.handler import Handler

DEVICE = DeviceKind(kind="cpu", name="1 core")


class Trained(Linear):
    """A linear model with a training loop."""

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.Adam(models[0].parameters(), lr=0.01)
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            learn_from((models[0](inputs).squeeze(1) - labels).pow(2).mean(), optimizer)
        return {"loss": 0.0}


@contextmanager
def handler_of(spec: SubEpochSpec, volumes: Volumes) -> Iterator[Handler]:
    """Return a worker's handler that has the spec."""
    ours, theirs = socket.socketpair()
    context = Context(Channel(theirs, TO_CHILD), volumes, cores=1)
    context.user_code.learn({SHA: encode(spec).encoded})
    with ours, theirs:
        yield Handler(context)


def trial(parallel_plan: ParallelPlan = SINGLE, **fields: Any) -> TrialTask:
    """A trial of the linear model."""
    return TrialTask.model_validate(
        {
            "key": "fit-1/trial/g00/single",
            "experiment": "one",
            "run": "fit-1",
            "model": "m00",
            "hyperparams": {"batch_size": 4},
            "code": SHA,
            "dataset": DATASET,
            "seed": 1,
            "hang_timeout_s": 60.0,
            "group": "g00",
            "id": "single",
            "parallel_plan": parallel_plan,
            "device": DEVICE,
            "partition": 0,
            **fields,
        }
    )


def inspection() -> InspectTask:
    """Of the linear model."""
    return InspectTask(
        key="fit-1/inspect",
        experiment="one",
        run="fit-1",
        code=SHA,
        dataset=DATASET,
        seed=1,
        models={"m00": {"batch_size": 4}},
        device_kinds=(AvailableDevices(device=DEVICE, max_devices=2),),
    )


def test_an_inspection_has_cache_keys_if_the_worker_has_the_data(tmp_path: Path) -> None:
    """The cache key is the same in another process, and absent on a worker without the data set."""
    volumes = volumes_in(tmp_path)
    write_split(volumes, "train", 1)
    found = []
    for _ in range(2):
        with handler_of(Trained(), volumes) as handler:
            found.append(handler.handle(inspection(), 1).inspection)
    first, second = found
    assert first is not None
    assert first == second
    keys = [known.cache_key for known in first.groups[0].parallel_plans]
    assert all(keys)
    assert len(set(keys)) == len(keys)
    with handler_of(Trained(), volumes_in(tmp_path / "other")) as handler:
        elsewhere = handler.handle(inspection(), 1).inspection
    assert elsewhere is not None
    assert {known.cache_key for known in elsewhere.groups[0].parallel_plans} == {""}


def test_a_trial_on_one_device_measures_time_and_files_and_leaves_no_file(tmp_path: Path) -> None:
    """One device needs no comparison to be verified; the state includes the optimizer."""
    volumes = volumes_in(tmp_path)
    write_split(volumes, "train", 1)
    with handler_of(Trained(), volumes) as handler:
        outcome = handler.handle(trial(), 1).trial
    assert outcome is not None
    assert outcome.is_usable
    assert outcome.is_verified
    assert outcome.batches >= 5
    assert outcome.save_s > 0
    assert outcome.state_bytes == 4 * 3 * 4 + 2 * 4  # weight and bias three times, and two step counts
    assert [path for path in volumes.checkpoints.rglob("*") if path.is_file()] == []
