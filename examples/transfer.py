"""Train classifiers on the features of a pretrained network that all models share: transfer learning.

The example first trains a small network to tell the digits 0 to 4 apart, and writes its weights to a file, like weights
from a model hub. Then it selects a classifier of the digits 5 to 9: heads of several sizes and learning rates on the
features of the network, which stays frozen. Cerebro computes these features once for each worker. The digits come with
scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, Frozen, StepSpec, data_folder
from cerebro.errors import CerebroError

if __package__:
    from examples import captions
else:  # run as a script: Python searches the script's folder
    import captions  # type: ignore[import-not-found, no-redef]

PRETRAINED = "pretrained.pt"
CLASSES = 5
"""Digits 0 to 4 train the network, digits 5 to 9 the heads."""
FEATURES = 64 * 4 * 4
SPLITS = {"train": 600, "valid": 146, "test": 150}
SEARCH_SPACE = {"hidden": [0, 32, 64, 128], "lr": [1e-2, 1e-3], "batch_size": [32]}
"""`hidden`: units between features and classes; 0 means a linear head."""


class TransferETL(ETLSpec):
    """Turns the pixels of a row into a 1 x 8 x 8 array of bytes."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return pixels from 0 to 16, and the class from 0 to 4."""
        return np.asarray(row["pixels"], np.uint8).reshape(1, 8, 8), row["label"]


def scaled(images: Tensor) -> Tensor:
    """Scale pixels to numbers from 0 to 1, as the pretrained network expects."""
    return images.float() / 16


def make_network() -> nn.Sequential:
    """Create the network without its classifier; returns features of shape (images, `FEATURES`)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten()),
    )


class Heads(StepSpec):
    """Trains a head on frozen features with Adam."""

    def initialize_worker(self) -> None:
        """Load the pretrained weights from the `misc` files."""
        self.weights = torch.load(Path(self.misc_dir) / PRETRAINED)

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Create the frozen network and the head."""
        network, hidden = make_network(), hyperparams["hidden"]
        network.load_state_dict(self.weights)
        layers = [nn.Linear(FEATURES, hidden), nn.ReLU()] if hidden else []
        return [
            Frozen(network, prepare=scaled),
            nn.Sequential(*layers, nn.Linear(hidden or FEATURES, CLASSES)),
        ]

    def configure_optimizers(self, models: Any, hyperparams: Any) -> Any:
        """Train the head alone."""
        return torch.optim.Adam(models[1].parameters(), lr=hyperparams["lr"])

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        """Return the loss of a batch."""
        images, labels = batch
        network, head = models
        return functional.cross_entropy(head(network(images)), labels)

    def validation_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        """Return loss and accuracy of a batch."""
        images, labels = batch
        network, head = models
        logits = head(network(images))
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}


def lay_out(folder: Path) -> dict[str, Any]:
    """Pretrain the network, and write its weights and one table per split.

    Returns:
        Dataset locators.
    """
    from sklearn.datasets import load_digits

    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    is_source = digits.target < CLASSES
    captions.write_if_changed(
        folder / PRETRAINED, pretrained(digits.images[is_source], digits.target[is_source])
    )
    numbers = np.random.default_rng(0).permutation(np.flatnonzero(~is_source))
    located: dict[str, Any] = {"misc": [str(folder / PRETRAINED)]}
    start = 0
    for split, count in SPLITS.items():
        rows = [
            {
                "id": int(number),
                "pixels": digits.images[number].astype(int).ravel().tolist(),
                "label": int(digits.target[number]) - CLASSES,
            }
            for number in numbers[start : start + count]
        ]
        start += count
        pa.parquet.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
        located[split] = {"metadata": str(folder / f"{split}.parquet")}
    return located


def pretrained(images: NDArray[Any], labels: NDArray[Any], epochs: int = 5) -> bytes:
    """Train the network with a classifier, and return its weights as a file's content."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make_network()
        model = nn.Sequential(network, nn.Linear(FEATURES, CLASSES))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        pixels, classes = scaled(torch.from_numpy(images[:, None])), torch.from_numpy(labels)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(pixels)), 32):
                loss = functional.cross_entropy(model(pixels[rows]), classes[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
                optimizer.step()
    buffer = io.BytesIO()
    torch.save(network.state_dict(), buffer)
    return buffer.getvalue()


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each head (default: %(default)s)")
    parser.add_argument("--name", default="transfer", help="name of the experiment")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        experiment = Experiment(arguments.name, locators=lay_out(data_folder(f"examples/{arguments.name}")))
        experiment.run_etl(TransferETL(), seed=1)
        result = experiment.run_fit(
            Heads(), SEARCH_SPACE, epochs=arguments.epochs, metric="accuracy", mode="max", seed=1
        )
        test = experiment.run_test()
    except (CerebroError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{result.leaderboard().to_string()}\n\n{test.to_string()}\n")
    print(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
