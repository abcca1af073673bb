"""User code of the self-test: pictures with one bright quarter, and its classifier.

Workers import it from their own installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebro.spec import ETLSpec, Mode, SubEpochSpec

SIDE = 8
"""Width and height of a picture, in pixels."""
CLASSES = 4
EPOCHS = 2
BATCH_SIZE = 4
SEARCH_SPACE = {"lr": [0.003, 0.01], "width": [8, 16], "batch_size": [BATCH_SIZE]}


def picture(label: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return float32 noise of shape (SIDE, SIDE) with one quarter 0.9 brighter."""
    pixels = generator.normal(size=(SIDE, SIDE)).astype(np.float32)
    half = SIDE // 2
    row, column = divmod(label, 2)
    pixels[row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.9
    return pixels


class Pictures(ETLSpec):
    """Loads an ``.npy`` object and its label."""

    def __init__(self) -> None:
        self.is_feature_download = ["picture"]

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Return the picture of the row and its label."""
        return np.load(f"{object_dir}/{row['picture']}", allow_pickle=False), row["label"]


class Quarters(SubEpochSpec):
    """A network with one hidden layer, trained with Adam."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create a network of the given width."""
        from torch import nn

        width = hyperparams["width"]
        layers = nn.Linear(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, CLASSES)
        return [nn.Sequential(nn.Flatten(), *layers)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Train one pass over the partition."""
        import torch

        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0})
        for pictures, labels in dataloader:
            loss = torch.nn.functional.cross_entropy(network(pictures), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            total["loss"] += loss.item() * len(labels)
        return {"loss": total["loss"] / dataloader.num_rows}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Compute the accuracy."""
        (network,) = models
        correct = sum(int((network(pictures).argmax(1) == labels).sum()) for pictures, labels in dataloader)
        return {"accuracy": correct / dataloader.num_rows}
