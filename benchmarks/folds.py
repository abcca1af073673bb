"""Cross-validation: five folds of eight models in one run, against five data sets with a run each.

A real local cluster has ten workers, so ten partitions. ETL decodes and resizes images. The separate runs write a table
of training and one of validation rows for each fold, preprocess both, and train eight models on ten smaller partitions.
Both train each model for the same epochs on the same numbers of rows. The disk ratio counts the files of the data sets.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from cerebro import ETLSpec, Experiment, Parallelism, SubEpochSpec
from cerebro.local import cluster

TIME_BAR, DISK_BAR = 0.5, 1.0
FOLDS, WORKERS, ROWS = 5, 10, 2_000
_FILES, _SIDE, _OUTPUT, _CLASSES = 100, 512, 16, 4
_GRID = {"lr": [0.001, 0.002, 0.003, 0.005], "width": [32, 64], "batch_size": [20]}
_EPOCHS = 1
_OPTIONS: dict[str, Any] = {
    "epochs": _EPOCHS,
    "metric": "loss",
    "mode": "min",
    "progress": False,
    "parallelism": Parallelism(trials="never"),
}


class Images(ETLSpec):
    """Decodes an image and makes it small."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return pixels and label."""
        with Image.open(Path(object_dir) / row["file"]) as file:
            image = file.convert("RGB").resize((_OUTPUT, _OUTPUT), Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32).reshape(-1) / 255, row["label"]


class Classifier(SubEpochSpec):
    """A perceptron with SGD."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create one network of the given size."""
        width = hyperparams["width"]
        return [nn.Sequential(nn.Linear(3 * _OUTPUT**2, width), nn.ReLU(), nn.Linear(width, _CLASSES))]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Make one pass over the partition."""
        (network,), rate = models, float(hyperparams["lr"])
        loss = torch.zeros(())
        for inputs, labels in dataloader:
            loss = functional.cross_entropy(network(inputs), labels)
            network.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for weight in network.parameters():
                    weight.sub_(rate * weight.grad)
        return {"loss": loss.item()}

    def test(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Return the mean loss."""
        (network,), total, rows = models, 0.0, 0
        for inputs, labels in dataloader:
            total += functional.cross_entropy(network(inputs), labels, reduction="sum").item()
            rows += len(labels)
        return {"loss": total / rows}


def measure() -> dict[str, float]:
    """Return the seconds and the bytes of both, one after the other on one cluster."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        home = folder / "home"
        _write_images(folder / "images")
        numbers = list(range(ROWS))
        with patch.dict(os.environ, {"CEREBRO_HOME": str(home)}):
            try:
                cluster.start(home, workers=WORKERS, tensorboard=False)
                _run(folder, "warm", {"train": numbers[: 20 * WORKERS]}, folds=2)
                empty = _bytes(home)
                began = time.monotonic()
                _run(folder, "folds", {"train": numbers}, folds=FOLDS)
                folds_s, folds_bytes = time.monotonic() - began, _bytes(home) - empty
                before, began = _bytes(home), time.monotonic()
                for fold in range(FOLDS):
                    rows = {
                        "train": [number for number in numbers if number % FOLDS != fold],
                        "valid": numbers[fold::FOLDS],
                    }
                    _run(folder, f"separate-{fold}", rows)
                separate_s, separate_bytes = time.monotonic() - began, _bytes(home) - before
                began = time.monotonic()
                _etl(folder, "one", {"train": numbers})
                etl_s = time.monotonic() - began
            finally:
                cluster.stop(home)
    return {
        "folds_s": folds_s,
        "separate_s": separate_s,
        "etl_s": etl_s,
        "folds_bytes": folds_bytes,
        "one_bytes": separate_bytes / FOLDS,
    }


def benchmark() -> list[Figure]:
    """Measure time and disk."""
    found = measure()
    what = f"folds: {FOLDS} folds of 8 models on {WORKERS} partitions"
    return [
        Figure(
            what=f"{what}, time against {FOLDS} separate ETL and fit runs",
            measured=f"{found['folds_s']:.1f} s with ETL ({found['etl_s']:.1f} s alone), separately "
            f"{found['separate_s']:.1f} s; {ROWS:,} images",
            ratio=found["folds_s"] / found["separate_s"],
            bar=TIME_BAR,
            sense="at most",
        ),
        Figure(
            what=f"{what}, files of the data against one data set",
            measured=f"{found['folds_bytes'] / 1e6:.1f} MB and {found['one_bytes'] / 1e6:.1f} MB",
            ratio=round(found["folds_bytes"] / found["one_bytes"], 2),
            bar=DISK_BAR,
            sense="at most",
        ),
    ]


def _etl(folder: Path, name: str, rows: Mapping[str, Sequence[int]]) -> Experiment:
    located = {}
    for split, numbers in rows.items():
        path = folder / f"{name}-{split}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "file", "label"])
            writer.writerows([n, f"{n % _FILES:03}.jpg", n % _CLASSES] for n in numbers)
        located[split] = {"metadata": str(path), "objects": str(folder / "images")}
    experiment = Experiment(name, locators=located)
    experiment.run_etl(Images(), progress=False)
    return experiment


def _run(folder: Path, name: str, rows: Mapping[str, Sequence[int]], folds: int | None = None) -> None:
    result = _etl(folder, name, rows).run_fit(Classifier(), _GRID, folds=folds, **_OPTIONS)
    if result.failures():
        raise RuntimeError(f"models failed: {result.failures()}")


def _bytes(home: Path) -> int:
    """Return the bytes of all preprocessed rows."""
    return sum(path.stat().st_size for path in home.rglob("datasets/*/*/partition-*/**/*") if path.is_file())


def _write_images(folder: Path) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(_FILES):
        coarse = random.integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(coarse).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(
            folder / f"{number:03}.jpg"
        )


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
