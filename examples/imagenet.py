"""Train VGG16 and ResNet50 on ImageNet in 16 configurations.

The workload of Nakandala et al. (PVLDB 2020, table 5), measured by top-1 and top-5 accuracy. The example downloads
nothing. It writes JPEGs of synthetic classes, with the folders, the class mapping and the validation labels of the
unpacked ImageNet archive. ``--data FOLDER`` reads the real files instead. ``--small`` runs on a laptop.
docs/workloads.md lists the results.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, Ratio, SubEpochSpec, data_folder
from cerebro.errors import CerebroError, LocatorError

if __package__:
    from examples import vision
else:  # run as a script: Python searches the script's folder
    import vision  # type: ignore[import-not-found, no-redef]

MAPPING, SOLUTION = "LOC_synset_mapping.txt", "LOC_val_solution.csv"
COLOURS = 255 * np.array(list(itertools.product((0, 1), repeat=3)))
"""The eight RGB colours of the synthetic images, shape (8, 3)."""


@dataclass(frozen=True)
class Size:
    """Sizes of the data and the networks, and the search space.

    Attributes:
        rows: number of synthetic training images. A tenth as many are for validation.
        classes: number of synthetic classes.
        side: side of a preprocessed image, in pixels.
        crop: side of the networks' input, in pixels.
        width: number of channels of the networks, as a fraction of the published networks.
        epochs: number of epochs of each model.
        space: values of each hyperparameter. All combinations are trained.
    """

    rows: int
    classes: int
    side: int
    crop: int
    width: float
    epochs: int
    space: dict[str, list[str | float | int]]


PAPER = Size(
    rows=100_000,
    classes=1000,
    side=128,
    crop=112,
    width=1.0,
    epochs=10,
    space={
        "architecture": ["vgg16", "resnet50"],
        "lr": [1e-4, 1e-6],
        "decay": [1e-4, 1e-6],
        "batch_size": [32, 256],
    },
)
SMALL = Size(
    rows=1000,
    classes=10,
    side=36,
    crop=32,
    width=0.125,
    epochs=2,
    space={"architecture": ["vgg16", "resnet50"], "lr": [1e-3, 3e-4], "decay": [1e-4], "batch_size": [16]},
)


class ImageNetETL(ETLSpec):
    """Crops an image to its central square and resizes it."""

    def __init__(self, side: int) -> None:
        self.is_feature_download = ["image"]
        self.side = side

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Read an image and its label.

        Returns:
            Input: uint8 of shape (3, side, side), a quarter of the bytes of float32. Output: the number of the class.
            In `predict` the output is `None`.
        """
        pixels = vision.read_image(object_dir, "image", row["image"], self.side)
        return pixels, None if mode == "predict" else row["label"]


# --- training ------------------------------------------------------------------------------------


def hits(logits: Tensor, labels: Tensor, most: int) -> int:
    """Count the rows with the label among the `most` likeliest classes."""
    likeliest = logits.topk(min(most, logits.shape[1]), dim=1).indices
    return int((likeliest == labels[:, None]).sum())


class ImageNetTraining(SubEpochSpec):
    """Trains VGG16 or ResNet50 with Adam."""

    def __init__(self, crop: int, width: float) -> None:
        self.crop, self.width = crop, width

    def initialize_worker(self) -> None:
        """Read the classes from ImageNet's class mapping, one of the `misc` files."""
        self.classes = list(read_mapping(Path(self.misc_dir) / MAPPING))

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Create the network that ``architecture`` names."""
        if hyperparams["architecture"] == "vgg16":
            return [vision.vgg16(len(self.classes), self.crop, self.width)]
        return [vision.ResNet50(len(self.classes), self.width)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Ratio]:
        """Train on one partition."""
        (network,) = models
        optimizer = torch.optim.Adam(
            network.parameters(), lr=hyperparams["lr"], weight_decay=hyperparams["decay"]
        )
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress(_nothing())
        for images, labels in dataloader:
            if len(labels) == 1 and dataloader.ranks == 1:
                # Skip a last batch of one row, like `drop_last`. With a small crop, the last feature map has one value
                # per channel, and batch norm cannot compute a variance. Several ranks use synchronized batch norm.
                continue
            logits = network(vision.augmented(vision.normalized(images), self.crop))
            loss = functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            _add(total, loss.item(), logits, labels)
            dataloader.report(loss=loss)
        return _metrics(total)

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Ratio]:
        """Compute loss, top-1 accuracy and top-5 accuracy."""
        (network,) = models
        total = _nothing()
        for images, labels in dataloader:
            logits = network(vision.middle(vision.normalized(images), self.crop))
            _add(total, float(functional.cross_entropy(logits, labels)), logits, labels)
        return _metrics(total)

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Iterator[Any]:
        """Predict the likeliest class (its WordNet ID) and its probability, batch by batch."""
        (network,) = models
        for images, _ in dataloader:
            probability, label = functional.softmax(
                network(vision.middle(vision.normalized(images), self.crop)), 1
            ).max(1)
            yield {"class": [self.classes[number] for number in label.tolist()], "probability": probability}


def _nothing() -> dict[str, Any]:
    return {"loss": 0.0, "top1": 0, "top5": 0, "rows": 0}


def _add(total: dict[str, Any], loss: float, logits: Tensor, labels: Tensor) -> None:
    total["loss"] += loss * len(labels)
    total["top1"] += hits(logits, labels, 1)
    total["top5"] += hits(logits, labels, 5)
    total["rows"] += len(labels)


def _metrics(total: dict[str, Any]) -> dict[str, Ratio]:
    return {name: Ratio(total[name], total["rows"]) for name in ("loss", "top1", "top5")}


# --- data ----------------------------------------------------------------------------------------


def read_mapping(path: Path) -> dict[str, str]:
    """Read the class mapping, a file with one class per line.

    Returns:
        WordNet ID -> words, such as ``n01440764`` -> ``tench, Tinca tinca``. The position of a class, from 0, is its
        label.

    Raises:
        LocatorError: a line is empty or repeats a class.
    """
    classes: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name, _, words = line.strip().partition(" ")
        if not name or name in classes:
            raise LocatorError(
                f"{path}, line {number}: expected a new class, such as 'n01440764 tench', found {line!r}"
            )
        classes[name] = words
    return classes


def lay_out(data: Path, folder: Path) -> dict[str, Any]:
    """Write a table of images for each split.

    The folder ``val`` becomes the split `valid`. Without ``LOC_val_solution.csv`` it needs one folder per class, as
    ``train`` does. The folder ``test`` is optional. Its images have no labels and become the split `predict`.

    Args:
        data: folder with ``LOC_synset_mapping.txt`` and optionally ``LOC_val_solution.csv``. The image folders are in
            ``ILSVRC/Data/CLS-LOC``, or in `data` itself.
        folder: output folder for the tables.

    Returns:
        Dataset locators.

    Raises:
        LocatorError: a file or folder is missing, or the mapping lacks a class.
    """
    mapping = data / MAPPING
    if not mapping.is_file():
        raise LocatorError(
            f"{data} has no {MAPPING}: give --data the folder with ImageNet's unpacked Kaggle archive, or "
            "write that file, with one line per class, such as 'n01440764 tench, Tinca tinca'"
        )
    labels = {name: number for number, name in enumerate(read_mapping(mapping))}
    root = data / "ILSVRC/Data/CLS-LOC"
    root = root if root.is_dir() else data
    images = {"train": _in_folders(root / "train", labels, mapping)}
    solution = data / SOLUTION
    if solution.is_file():
        images["val"] = _solved(root / "val", solution, labels, mapping)
    else:
        images["val"] = _in_folders(root / "val", labels, mapping)
    tables: dict[str, dict[str, list[Any]]] = {
        part: {"image": list(found), "label": list(found.values())} for part, found in images.items()
    }
    if (root / "test").is_dir():
        tables["test"] = {"image": [path.name for path in _seen(root / "test")]}
    folder.mkdir(parents=True, exist_ok=True)
    located: dict[str, Any] = {"misc": [str(mapping)]}
    for part, columns in tables.items():
        split = {"val": "valid", "test": "predict"}.get(part, part)
        located[split] = {"metadata": str(folder / f"{split}.parquet"), "objects": str(root / part)}
        ids = [Path(name).stem for name in columns["image"]]
        pa.parquet.write_table(pa.table({"id": ids, **columns}), folder / f"{split}.parquet")
    return located


def _in_folders(root: Path, labels: Mapping[str, int], mapping: Path) -> dict[str, int]:
    """Map each image to the label of its class folder."""
    if not root.is_dir():
        raise LocatorError(f"there is no folder {root}: create it, with one folder of images per class")
    found: dict[str, int] = {}
    for folder in _seen(root):
        if not folder.is_dir():
            raise LocatorError(
                f"{folder} is not a folder: move each image into the folder of its class"
                + (f", or add {SOLUTION} to {mapping.parent}" if root.name == "val" else "")
            )
        if folder.name not in labels:
            raise LocatorError(
                f"the folder {folder} is of no class in {mapping}: add a line '{folder.name} WORDS' to it, or move the "
                "folder away"
            )
        found |= {f"{folder.name}/{image.name}": labels[folder.name] for image in _seen(folder)}
    return found


def _solved(root: Path, solution: Path, labels: Mapping[str, int], mapping: Path) -> dict[str, int]:
    """Map each image to its label in the solution file.

    A line looks like ``ILSVRC2012_val_00000001,n01751748 111 108 237 234``.
    """
    found: dict[str, int] = {}
    with solution.open(newline="") as file:
        for line, cells in enumerate(list(csv.reader(file))[1:], 2):
            image, name = cells[0], "".join(cells[1:2]).partition(" ")[0]
            if name not in labels:
                raise LocatorError(
                    f"{solution}, line {line}: {image} is of the class {name!r}, which is not in {mapping}: add a line "
                    f"'{name} WORDS' to it, or remove the line"
                )
            found[f"{image}.JPEG"] = labels[name]
    if not root.is_dir():
        raise LocatorError(f"there is no folder {root}: create it, with the images that {solution} lists")
    return found


def _seen(folder: Path) -> list[Path]:
    """List a folder, sorted, without hidden files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def synthesize(data: Path, size: Size, *, seed: int = 0) -> None:
    """Write synthetic images with ImageNet's folders and files.

    A class is defined by its background colour, stripe colour and stripe width.
    """
    root = data / "ILSVRC/Data/CLS-LOC"
    names = [f"n{10_000_000 + number:08d}" for number in range(size.classes)]
    valid, unlabelled = max(size.classes, size.rows // 10), max(1, size.rows // 50)
    written: list[tuple[Path, int]] = []
    for number in range(size.rows):
        name = names[number % size.classes]
        written.append((root / "train" / name / f"{name}_{number}.JPEG", number % size.classes))
    for split, count in (("val", valid), ("test", unlabelled)):
        written += [
            (root / split / f"ILSVRC2012_{split}_{number + 1:08d}.JPEG", number % size.classes)
            for number in range(count)
        ]
    for folder in sorted({path.parent for path, _ in written}):
        folder.mkdir(parents=True, exist_ok=True)
    (data / MAPPING).write_text("".join(f"{name} class {number}\n" for number, name in enumerate(names)))
    solved = [
        f"{path.stem},{names[label]} 0 0 1 1 \n" for path, label in written if path.parent.name == "val"
    ]
    (data / SOLUTION).write_text("ImageId,PredictionString\n" + "".join(solved))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy and Pillow mostly release the GIL
        for _ in pool.map(lambda number: _paint(*written[number], size, [seed, number]), range(len(written))):
            pass


def _paint(path: Path, label: int, size: Size, seed: list[int]) -> None:
    """Write an image with stripes and noise.

    The direction of the stripes is random. Height and width are random too, from `size.side` to twice `size.side`.
    """
    generator = np.random.default_rng(seed)
    height, width = generator.integers(size.side, 2 * size.side, 2)
    angle, shift = generator.uniform(0, 2 * np.pi, 2)
    down, across = np.mgrid[0:height, 0:width] / size.side
    period = 1 / (2 + label // len(COLOURS) ** 2)
    wave = np.sin((down * np.sin(angle) + across * np.cos(angle)) * 2 * np.pi / period + shift)
    stripes, ground = COLOURS[label % len(COLOURS)], COLOURS[label // len(COLOURS) % len(COLOURS)]
    image = np.where(wave[..., None] > 0, stripes, 100 + 0.3 * ground)
    noisy = generator.uniform(0.8, 1) * image + generator.normal(0, 20, image.shape)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, "JPEG")


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--small", action="store_true", help="fewer images and smaller networks, for a laptop"
    )
    parser.add_argument("--rows", type=int, help="number of synthetic training images")
    parser.add_argument(
        "--data",
        type=Path,
        help=f"folder with ImageNet's files, including {MAPPING} (default: synthetic images)",
    )
    parser.add_argument(
        "--max-failed",
        type=float,
        default=0.01,
        help="fraction of images that may be missing or damaged (default: %(default)s)",
    )
    parser.add_argument("--name", default="imagenet", help="name of the experiment")
    arguments = parser.parse_args()
    size = SMALL if arguments.small else PAPER
    size = replace(size, rows=arguments.rows or size.rows)
    began = time.monotonic()
    try:
        folder = data_folder(f"examples/{arguments.name}")
        data = arguments.data or folder / f"{size.classes}-classes-{size.rows}-images-{size.side}"
        if arguments.data is None:
            synthesize(data, size)
        experiment = Experiment(arguments.name, locators=lay_out(data, folder))
        etl = experiment.run_etl(ImageNetETL(size.side), seed=1, max_failed=arguments.max_failed)
        vision.say_preprocessed(etl)
        result = experiment.run_fit(
            ImageNetTraining(size.crop, size.width),
            size.space,
            epochs=size.epochs,
            metric="top1",
            mode="max",
            seed=1,
        )
        predictions = experiment.run_predict() if "predict" in etl.kept_rows else None
    except (CerebroError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{result.leaderboard().to_string()}\n")
    if predictions is not None:
        print(
            f"predictions for {len(predictions)} images without labels, such as:\n{predictions.head(3).to_string()}\n"
        )
    print(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
