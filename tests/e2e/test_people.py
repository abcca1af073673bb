"""Users change, clone, extend and add models during training."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Parallelism
from cerebro.cli import main
from cerebro.errors import ConflictError
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining, knock

pytestmark = pytest.mark.slow


class Tracked(TinyTraining):
    """Train with a tracked optimizer; the hyperparameter `plain` restores it by `load_state_dict`."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        sub_epoch, tag = checkpoint.get("sub_epochs", 0), str(hyperparams["tag"])
        if (tag, sub_epoch) in self.holds:
            knock(self.gate, f"{tag} {sub_epoch}")
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        if not hyperparams.get("plain"):
            checkpoint.track(optimizer=optimizer)
        elif "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        total = 0.0
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimizer.param_groups:  # a schedule that depends on the number of epochs
                group["weight_decay"] = 0.01 * dataloader.step / dataloader.total_steps
            optimizer.step()
            total += loss.item() * len(labels)
        if hyperparams.get("plain"):
            checkpoint["optimizer"] = optimizer.state_dict()
        checkpoint["sub_epochs"] = sub_epoch + 1
        return {"loss": total / dataloader.num_rows}


def test_a_run_with_changed_and_cloned_models_replays_bit_identically(lab: Lab) -> None:
    """During a sub-epoch of m00, m00 is changed, cloned warm and cold, and extended, and a model is added.

    The sub-epoch counts with the old values, the warm clone starts from its parent's checkpoint, and each model
    replays.
    """
    experiment = lab.prepared()
    fit = lab.fit(
        experiment,
        Tracked(gate=lab.gate.port, holds=[("a", 3)]),
        tags="ab",
        epochs=3,
        parallelism=Parallelism(trials="never"),
    )
    held = lab.gate.knock()
    experiment.change_model("m00", {"lr": 0.002, "batch_size": 4})
    warm = experiment.clone("m00", {"lr": 0.03, "tag": "w"}, warm=True)
    cold = experiment.clone("m00", {"tag": "k"}, epochs=1)
    (added,) = experiment.add_models([{"tag": "n", "lr": 0.01, "batch_size": 3}], epochs=1)
    experiment.extend_model("m00", epochs=4)
    experiment.prioritize("high", model="m00")
    assert (warm, cold, added) == ("m02", "m03", "m04")
    with pytest.raises(ConflictError, match="has no search"):
        experiment.stop_search()
    held.let_through()
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = experiment.state().runs[result.run]
    parent, clone = run.models["m00"], run.models[warm]
    assert [parent.hyperparams_of(sub_epoch)["lr"] for sub_epoch in range(len(parent.sub_epochs))] == [
        0.01
    ] * 4 + [0.002] * 4
    assert [model.completed_epochs for model in run.models.values()] == [4, 3, 3, 1, 1]
    assert clone.lineage.sub_epochs == 3
    assert clone.sub_epochs[2].checkpoint.checksum == parent.sub_epochs[2].checkpoint.checksum
    output = io.StringIO()
    with redirect_stdout(output):
        assert main(["replay", experiment.name]) == 0
    assert output.getvalue().count("final state equal to the bit") == 5


def test_a_changed_rate_that_user_code_resets_fails_its_sub_epoch(lab: Lab) -> None:
    """After a change and in a warm clone, with a plain optimizer; the error names the fix.

    With a tracked optimizer the clone trains.
    """
    experiment = lab.prepared()
    space = [{"tag": "a", "lr": 0.01, "batch_size": 5, "plain": True}]
    experiment.run_fit(
        Tracked(),
        space,
        epochs=1,
        metric="loss",
        mode="min",
        seed=3,
        progress=False,
        parallelism=Parallelism(trials="never"),
    )
    clones = [
        experiment.clone("m00", {"lr": 0.03, "plain": plain}, warm=True, epochs=2) for plain in (True, False)
    ]
    run = experiment.watch(progress=False)
    failed, trained = (run.models[name] for name in clones)
    assert trained.completed_epochs == 2
    assert failed.failures.final is not None
    assert (
        "lr was changed from 0.01 to 0.03, but the optimizer in checkpoint['optimizer']"
        in failed.failures.final.text
    )
    assert "checkpoint.track(optimizer=optimizer)" in failed.failures.final.text
