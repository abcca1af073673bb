"""One model of five misbehaves in each sub-epoch; `cerebro replay` shows that the others are unaffected."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cerebro import Experiment
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.e2e.test_replay import replay
from tests.misdeeds import MISDEEDS

pytestmark = pytest.mark.slow

MODELS, EPOCHS = 5, 4
BAD, GOOD = "m00", tuple(f"m{number:02}" for number in range(1, MODELS))

NAMES = (
    *(
        "default dtype",
        "no gradients",
        "patched layer",
        "forward hook",
        "autocast",
        "environment",
        "folder",
        "umask",
    ),
    *(
        "warnings",
        "locale",
        "signals",
        "blocked signals",
        "reseeding thread",
        "threads",
        "child",
        "file size",
    ),
)
"""The last sub-epoch does the last four: once the file size limit is set, the checkpoint cannot be saved."""


class Hopping(TinyTraining):
    """Train with torch's optimizer; the model with tag ``bad`` misbehaves in `train` and `test`."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = 0.0
        for inputs, labels in dataloader:
            loss = torch.nn.functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.item() * len(labels)
        checkpoint["sub_epochs"] = checkpoint.get("sub_epochs", 0) + 1
        self.leave_traces(checkpoint["sub_epochs"], hyperparams)
        return {"loss": total / dataloader.num_rows}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        found = super().test(models, checkpoint, dataloader, hyperparams)
        self.leave_traces(checkpoint["sub_epochs"], hyperparams)
        return found

    def leave_traces(self, sub_epochs: int, hyperparams: Any) -> None:
        """Misbehave in the ways listed for this sub-epoch."""
        if hyperparams["tag"] == "bad":
            each = len(NAMES) // EPOCHS
            for name in NAMES[each * (sub_epochs - 1) : each * sub_epochs]:
                MISDEEDS[name]()


def weights(lab: Lab, experiment: Experiment, name: str) -> dict[str, list[bytes]]:
    """Return the final weights of the good models of a run."""
    run = experiment.state().runs[name]
    return {
        name: [
            weight.numpy().tobytes()
            for weight in checkpoints.load(
                lab.volumes.checkpoints, run.models[name].sub_epochs[-1].checkpoint.ref(), "cpu"
            )["models"][0].values()
        ]
        for name in GOOD
    }


def test_a_misbehaving_model_changes_no_bit_of_the_others(own_lab: MakeLab) -> None:
    """`cerebro replay` and a second run without misbehaviour give the same weights."""
    lab = own_lab(workers=1)  # all models in one worker, in one order of partitions
    experiment = lab.experiment()
    experiment.run_etl(TinyETL(), progress=False)
    results = []
    for kind in ("bad", "good"):
        space = [
            {"tag": "good" if number else kind, "lr": 0.01 * (1 + number), "batch_size": 5}
            for number in range(MODELS)
        ]
        results.append(
            experiment.run_fit(
                Hopping(), space, epochs=EPOCHS, metric="loss", mode="min", seed=3, progress=False
            )
        )
    states = results[0].leaderboard().set_index("model")["state"]
    assert dict(states) == {BAD: "failed"} | dict.fromkeys(GOOD, "finished")
    assert weights(lab, experiment, "fit-1") == weights(lab, experiment, "fit-2")
    status, output = replay(experiment.name, "--run", "fit-1")
    equal = [f"{name}: {EPOCHS} sub-epochs replayed, final state equal to the bit" for name in GOOD]
    ends = [line for line in output.splitlines() if not line.startswith(BAD) and ": replaying " not in line]
    assert ends == equal, output
    assert status == 1, "the other model is reported"
