"""Predict clicks in Criteo's ad logs with an MLP of 1000 + 500 units.

The workload of Nakandala et al. (PVLDB 2020, tables 4 and 5): 16 configurations. A row has 13 counts and 26 categories.
The example downloads nothing. It writes synthetic rows in Criteo's format, a text file with tabs; clicks depend on
some values of the row. ``--data train.txt`` reads Criteo's unpacked file instead. ``--small`` runs on a laptop.
``--keras`` trains the same network, written in Keras. docs/workloads.md lists the results.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, KerasSubEpochSpec, StepSpec, SubEpochSpec, data_folder
from cerebro.errors import CerebroError

COUNTS = [f"count_{number}" for number in range(1, 14)]
CATEGORIES = [f"category_{number}" for number in range(1, 27)]
_BLOCK = 100_000
"""Number of rows written at a time."""
_SPLITS = {"valid": 5, "test": 5}
"""Percentage of the rows in each split. The other rows are for training."""


@dataclass(frozen=True)
class Size:
    """Sizes of the data and the network, and the search space.

    Attributes:
        rows: number of synthetic rows.
        buckets: number of hash buckets for all categories.
        hidden: units of the two hidden layers.
        epochs: number of epochs of each model.
        space: values of each hyperparameter. All combinations are trained.
    """

    rows: int
    buckets: int
    hidden: tuple[int, int]
    epochs: int
    space: dict[str, list[float | int]]


PAPER = Size(
    rows=1_000_000,
    buckets=46_000,
    hidden=(1000, 500),
    epochs=5,
    space={"lr": [1e-3, 1e-4], "decay": [1e-4, 1e-5], "batch_size": [32, 64, 256, 512]},
)
SMALL = Size(
    rows=20_000,
    buckets=2_000,
    hidden=(100, 50),
    epochs=2,
    space={"lr": [1e-3, 3e-4], "decay": [1e-5], "batch_size": [64, 256]},
)


class CriteoETL(ETLSpec):
    """Turns counts into logarithms and hashes categories into buckets."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Convert rows to counts and buckets.

        Missing counts and negative counts become 0; Criteo's file has counts down to -3. A missing category is hashed
        as an empty string.

        Returns:
            Inputs: ``counts``, float32 of shape (rows, 13); ``buckets``, int32 of shape (rows, 26). Outputs: clicks,
            float32 of shape (rows,).
        """
        counts = [np.log1p(np.maximum(pc.fill_null(batch[name], 0).to_numpy(), 0)) for name in COUNTS]
        buckets = [self._bucket(name, batch[name]) for name in CATEGORIES]
        inputs = {
            "counts": np.stack(counts, axis=1).astype(np.float32),
            "buckets": np.stack(buckets, axis=1).astype(np.int32),
        }
        return inputs, batch["click"].to_numpy().astype(np.float32)

    def _bucket(self, name: str, column: pa.Array) -> Any:
        encoded = pc.fill_null(column, "").dictionary_encode()
        words = encoded.dictionary.to_pylist()
        hashed = (xxhash.xxh3_64_intdigest(f"{name}={word}".encode()) % self.buckets for word in words)
        return np.fromiter(hashed, np.int64, len(words))[encoded.indices.to_numpy()]


class CriteoTraining(StepSpec):
    """Trains an MLP with Adam."""

    def __init__(self, buckets: int, hidden: tuple[int, int]) -> None:
        self.buckets, self.hidden = buckets, hidden

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Create the network in three parts.

        An embedding of the buckets and a linear layer of the counts make up the first layer; the other layers follow.
        The sum of the embeddings equals a linear layer applied to one-hot vectors of the categories.
        """
        first, second = self.hidden
        looked_up = nn.EmbeddingBag(self.buckets, first, mode="sum")
        nn.init.normal_(looked_up.weight, std=(1 / self.buckets) ** 0.5)
        rest = nn.Sequential(nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1))
        return [looked_up, nn.Linear(len(COUNTS), first), rest]

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Tensor:
        """Compute the loss of a batch."""
        inputs, clicks = batch
        return functional.binary_cross_entropy_with_logits(_logits(models, inputs), clicks)

    def configure_optimizers(self, models: Any, hyperparams: Any) -> torch.optim.Optimizer:
        """Create the optimizer of all three parts."""
        parameters = [each for model in models for each in model.parameters()]
        return torch.optim.Adam(parameters, lr=hyperparams["lr"], weight_decay=hyperparams["decay"])

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Compute loss, accuracy and area under the ROC curve (AUC).

        AUC is not a mean over batches, so this method collects the predictions of all rows.
        """
        from sklearn.metrics import roc_auc_score

        predictions = [(_logits(models, inputs).cpu(), clicks.cpu()) for inputs, clicks in dataloader]
        logits, clicks = (torch.cat(part) for part in zip(*predictions, strict=True))
        return {
            "loss": float(functional.binary_cross_entropy_with_logits(logits, clicks)),
            "accuracy": float(((logits > 0) == (clicks > 0)).float().mean()),
            "auc": float(roc_auc_score(clicks.numpy(), logits.numpy())),
        }

    def prediction_step(self, models: Any, batch: Any, hyperparams: Any) -> dict[str, Tensor]:
        """Predict the probability of a click."""
        inputs, _ = batch
        return {"click": torch.sigmoid(_logits(models, inputs))}


def _logits(models: Any, inputs: Any) -> Tensor:
    looked_up, counted, rest = models
    logits: Tensor = rest(looked_up(inputs["buckets"]) + counted(inputs["counts"]))
    return logits.squeeze(1)


class KerasCriteoTraining(KerasSubEpochSpec):
    """The same network in Keras.

    `compile` sets the optimizer, the loss and the metrics. Keras computes AUC with 200 thresholds.
    """

    def __init__(self, buckets: int, hidden: tuple[int, int], backend: str) -> None:
        self.buckets, self.hidden, self.keras_backend = buckets, hidden, backend

    def create_models(self, hyperparams: Any) -> Any:
        """Create and compile the network. Its two inputs have names."""
        import keras
        from keras import layers, ops

        first, second = self.hidden
        inputs = {
            "counts": keras.Input((len(COUNTS),), name="counts"),
            "buckets": keras.Input((len(CATEGORIES),), dtype="int32", name="buckets"),
        }
        drawn = keras.initializers.RandomNormal(stddev=(1 / self.buckets) ** 0.5)
        looked_up = ops.sum(layers.Embedding(self.buckets, first, drawn)(inputs["buckets"]), axis=1)
        hidden = layers.ReLU()(layers.Add()([looked_up, layers.Dense(first)(inputs["counts"])]))
        hidden = layers.Dense(second, activation="relu")(hidden)
        network = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
        network.compile(
            optimizer=keras.optimizers.Adam(hyperparams["lr"], weight_decay=hyperparams["decay"]),
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC(name="auc")],
        )
        return network


# --- data ----------------------------------------------------------------------------------------


def synthesize(path: Path, rows: int, *, seed: int = 0) -> None:
    """Write synthetic rows in Criteo's format.

    A line has a click, the counts and the categories, separated by tabs. One count or category in ten is missing: its
    cell is empty.
    """
    generator = np.random.default_rng(seed)
    words = [
        [f"{word:08x}" for word in generator.integers(0, 2**32, 4 ** (2 + n % 6))]
        for n in range(len(CATEGORIES))
    ]
    lean = [generator.normal(0, 0.7, len(known)) for known in words]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for begin in range(0, rows, _BLOCK):
            count = min(_BLOCK, rows - begin)
            chosen = [(len(known) * generator.random(count) ** 3).astype(int) for known in words]
            counts = generator.geometric(0.05, (len(COUNTS), count)) - 1
            clicks = _clicks(generator, counts, [lean[n][chosen[n]] for n in range(0, len(CATEGORIES), 3)])
            cells = [
                *counts.astype(str),
                *(np.array(known)[at] for known, at in zip(words, chosen, strict=True)),
            ]
            shown = [np.where(generator.random(count) < 0.1, "", each) for each in cells]
            lines = np.stack([clicks.astype(str), *shown], axis=1)
            file.writelines("\t".join(line) + "\n" for line in lines)


def _clicks(generator: np.random.Generator, counts: Any, leans: list[Any]) -> Any:
    """Draw a click for about one row in four.

    Some categories and a small first count make a click more likely.
    """
    logit = np.sum(leans, axis=0) - 0.5 * np.log1p(counts[0]) + 0.2
    return (generator.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def lay_out(source: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Convert Criteo's text file to one Parquet table per split.

    The id of a row is its number in the file. Rows are read and written in blocks, so the file may be larger than
    memory.

    Returns:
        Dataset locators.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "click": pa.int8(),
        **dict.fromkeys(COUNTS, pa.int64()),
        **dict.fromkeys(CATEGORIES, pa.string()),
    }
    schema = pa.schema([("id", pa.int64()), *kinds.items()])
    reader = pa.csv.open_csv(
        source,
        pa.csv.ReadOptions(column_names=list(kinds)),
        pa.csv.ParseOptions(delimiter="\t"),
        pa.csv.ConvertOptions(column_types=kinds, strings_can_be_null=True, null_values=[""]),
    )
    paths = {split: folder / f"{split}.parquet" for split in ("train", *_SPLITS)}
    first = 0
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(pa.parquet.ParquetWriter(path, schema))
            for split, path in paths.items()
        }
        for batch in reader:
            ids = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            whole = pa.record_batch([pa.array(ids), *batch.columns], schema=schema)
            share = ids % 100
            begin = 0
            for split, per_cent in _SPLITS.items():
                writers[split].write_batch(whole.filter((share >= begin) & (share < begin + per_cent)))
                begin += per_cent
            writers["train"].write_batch(whole.filter(share >= begin))
    return {split: {"metadata": str(path)} for split, path in paths.items()}


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--small", action="store_true", help="fewer rows, units and configurations, for a laptop"
    )
    parser.add_argument("--rows", type=int, help="number of synthetic rows")
    parser.add_argument("--data", type=Path, help="Criteo's unpacked train.txt (default: synthetic rows)")
    parser.add_argument("--name", default="criteo", help="name of the experiment")
    parser.add_argument(
        "--keras", choices=("tensorflow", "torch"), help="train the Keras network with this backend"
    )
    arguments = parser.parse_args()
    size = SMALL if arguments.small else PAPER
    began = time.monotonic()
    try:
        folder = data_folder(f"examples/{arguments.name}")
        source = arguments.data or folder / "train.txt"
        if arguments.data is None:
            synthesize(source, arguments.rows or size.rows)
        experiment = Experiment(arguments.name, locators=lay_out(source, folder))
        etl = experiment.run_etl(CriteoETL(size.buckets), seed=1)
        print(f"preprocessed {sum(etl.kept_rows.values()):,} rows in {etl.seconds:.1f} s")
        training: SubEpochSpec = CriteoTraining(size.buckets, size.hidden)
        if arguments.keras:
            training = KerasCriteoTraining(size.buckets, size.hidden, arguments.keras)
        result = experiment.run_fit(
            training, size.space, epochs=size.epochs, metric="auc", mode="max", seed=1
        )
        test = experiment.run_test()
    except (CerebroError, OSError, pa.ArrowInvalid) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{result.leaderboard().to_string()}\n\n{test.to_string()}\n")
    print(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
