"""Models with frozen layers train under each technique as on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cerebro import Frozen, SubEpochSpec
from cerebro.techniques import Ddp, Fsdp, Offload, Technique
from cerebro.techniques.conformance import check
from cerebro.techniques.facts import coupled

pytestmark = [pytest.mark.slow, pytest.mark.processes]


class Model(nn.Module):
    """A trained head on a frozen encoder with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        for number, weight in enumerate(encoder.parameters()):
            nn.init.constant_(weight, 0.1 * (number + 1))
        self.encoder, self.head = Frozen(encoder, prepare=torch.sin), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Any:
        """Return logits."""
        return self.head(self.encoder(inputs))


class Transfer(SubEpochSpec):
    """Trains the head, in one module with the encoder or in two."""

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        model = Model()
        return [model] if hyperparams["is_one"] else [model.encoder, model.head]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        head = models[0].head if hyperparams["is_one"] else models[1]
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        loss = torch.zeros(())
        for inputs, labels in dataloader:
            logits = models[0](inputs) if hyperparams["is_one"] else head(models[0](inputs))
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"loss": loss.item()}


@pytest.mark.parametrize("technique", [Ddp(), Fsdp(), Offload()], ids=["ddp", "fsdp", "offload"])
@pytest.mark.parametrize("is_one", [True, False], ids=["one module", "two modules"])
def test_a_technique_trains_a_model_with_frozen_layers(technique: Technique, is_one: bool) -> None:
    """Gradients and weights equal those on one device; frozen batch normalization couples no rows."""
    rows = [(np.sin(np.arange(6, dtype=np.float32) * row), np.int64(row % 3)) for row in range(1, 24)]
    assert coupled(Model()) == ""
    check(technique, Transfer(), rows, {"batch_size": 5, "is_one": is_one})
