"""Train a grid of networks on handwritten digits: the job of `cerebro demo` and `make run`.

The digits come with scikit-learn (1,797 scans of 8 x 8 pixels), so the example downloads nothing. It first writes them
like a typical data set, with one PNG file per scan and one CSV table per split, to a folder or an S3 bucket. Then it
preprocesses the scans, trains and ranks the models, tests the best one, and predicts with it. ``--keras tensorflow``
or ``--keras torch`` trains the same network, written in Keras, with this backend.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, KerasSubEpochSpec, StepSpec, SubEpochSpec, data_folder
from cerebro.errors import CerebroError
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, find_running

SPLITS = {"train": 1200, "valid": 297, "test": 300}
SEARCH_SPACE = {"lr": [0.001, 0.003], "width": [32, 64], "dropout": [0.25, 0.5], "batch_size": [32]}
EPOCHS = 10


class DigitsETL(ETLSpec):
    """Turns a PNG scan into a 1 x 8 x 8 tensor with values from 0 to 1."""

    def __init__(self) -> None:
        self.is_feature_download = ["image"]

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Read the scan and the label of a row. Rows of `predict` have no label."""
        with Image.open(f"{object_dir}/{row['image']}") as image:
            pixels = np.asarray(image, dtype=np.float32)[None] / 255
        return pixels, None if mode == "predict" else row["label"]


class DigitsTraining(StepSpec):
    """Trains a small convolutional network with Adam."""

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Create the network."""
        width = hyperparams["width"]
        network = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(hyperparams["dropout"]),
            nn.Linear(width * 16, 10),
        )
        return [network]

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> dict[str, Any]:
        """Compute loss and accuracy of a batch."""
        images, labels = batch
        logits = models[0](images)
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": logits.argmax(1) == labels}

    def configure_optimizers(self, models: Any, hyperparams: Any) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])

    def validation_step(self, models: Any, batch: Any, hyperparams: Any) -> dict[str, Any]:
        """Compute loss and accuracy of a batch, too."""
        return self.training_step(models, batch, hyperparams)

    def prediction_step(self, models: Any, batch: Any, hyperparams: Any) -> dict[str, Any]:
        """Predict the most likely digit and its probability."""
        images, _ = batch
        probability, digit = functional.softmax(models[0](images), dim=1).max(dim=1)
        return {"digit": digit, "probability": probability}


class KerasDigitsTraining(KerasSubEpochSpec):
    """The same network in Keras. `compile` sets the optimizer, the loss and the metrics."""

    def __init__(self, backend: str) -> None:
        self.keras_backend = backend

    def create_models(self, hyperparams: Any) -> Any:
        """Create the network."""
        import keras
        from keras import layers

        width = hyperparams["width"]
        network = keras.Sequential(
            [
                keras.Input((1, 8, 8)),
                layers.Permute((2, 3, 1)),  # from channels first to channels last, Keras's default
                layers.Conv2D(width, 3, padding="same", activation="relu"),
                layers.Conv2D(width, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dropout(hyperparams["dropout"]),
                layers.Dense(10, activation="softmax"),
            ]
        )
        network.compile(
            optimizer=keras.optimizers.Adam(hyperparams["lr"]),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return network

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        """Predict the most likely digit and its probability, batch by batch."""
        for outputs in super().predict(models, checkpoint, dataloader, hyperparams):
            yield {"digit": outputs.argmax(1), "probability": outputs.max(1)}


def lay_out(target: str) -> dict[str, dict[str, str]]:
    """Write one PNG file per scan and one CSV table per split.

    The split `predict` has the rows of `test` without labels.

    Args:
        target: a folder or ``s3://bucket/prefix``.

    Returns:
        Dataset locators.
    """
    write = _s3_writer(target) if target.startswith("s3://") else _folder_writer(Path(target))
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = list(range(len(digits.images)))
    random.Random(0).shuffle(order)
    start = 0
    for split, count in SPLITS.items():
        numbers = order[start : start + count]
        start += count
        for number in numbers:
            write(f"images/{number:04d}.png", _png(digits.images[number]))
        rows = [{"id": n, "image": f"{n:04d}.png", "label": int(digits.target[n])} for n in numbers]
        write(f"{split}.csv", _table(rows))
        if split == "test":
            write("predict.csv", _table([{"id": row["id"], "image": row["image"]} for row in rows]))
    return {
        split: {"metadata": f"{target}/{split}.csv", "objects": f"{target}/images"}
        for split in (*SPLITS, "predict")
    }


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _table(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _folder_writer(folder: Path) -> Any:
    def write(name: str, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)

    return write


def _s3_writer(uri: str) -> Any:
    import boto3

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    return lambda name, content: client.put_object(
        Bucket=bucket, Key=f"{prefix}/{name}".lstrip("/"), Body=content
    )


def run(
    experiment: Experiment, output: Path, epochs: int = EPOCHS, training: SubEpochSpec | None = None
) -> float:
    """Preprocess, train, test and predict; write tables and a report to `output`.

    Stops runs that an earlier call left open.

    Args:
        experiment: experiment with the locators of `lay_out`.
        output: folder for tables and the report.
        epochs: number of epochs of each model.
        training: spec to train. Default `DigitsTraining`.

    Returns:
        Test accuracy of the best model.
    """
    for open_run in experiment.state().open_runs():
        print(f"stopping {open_run.id}, which an earlier call left open")
        experiment.stop(open_run.id)
        experiment.watch(open_run.id)
    etl = experiment.run_etl(DigitsETL(), fraction=1.0, seed=1)
    print(f"preprocessed {etl.kept_rows} rows in {etl.seconds:.1f} s, {sum(etl.failed.values())} failed")
    spec = training or DigitsTraining()
    result = experiment.run_fit(spec, SEARCH_SPACE, epochs=epochs, metric="accuracy", mode="max", seed=1)
    print(f"\nleaderboard of {result.run} (validation)\n{result.leaderboard().to_string()}\n")
    test = experiment.run_test()
    predictions = experiment.run_predict()
    output.mkdir(parents=True, exist_ok=True)
    result.leaderboard().to_csv(output / "leaderboard.csv")
    result.history().to_csv(output / "history.csv", index=False)
    result.sub_epochs().to_csv(output / "sub_epochs.csv", index=False)
    predictions.to_csv(output / "predictions.csv")
    result.report(output / "report.html")
    accuracy = float(test["accuracy"][result.best.id])
    print(
        f"best model {result.best.id} {result.best.hyperparams}, epoch {result.best.epoch}: test "
        f"accuracy {accuracy:.4f}"
    )
    print(f"{len(predictions)} predictions, tables and the report: {output.resolve()}")
    return accuracy


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--data",
        default=str(data_folder("examples/digits")),
        help="folder or s3://bucket/prefix to write the data set to (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, help="folder for tables and the report (default: results/NAME)"
    )
    parser.add_argument("--name", help="name of the experiment (default: digits, or digits-keras)")
    parser.add_argument(
        "--keras",
        choices=("tensorflow", "torch"),
        help="train the Keras network with this backend; see docs/keras.md",
    )
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help=f"number of epochs of each model (default: {EPOCHS})"
    )
    parser.add_argument("--workers", type=int, help="number of workers of the local cluster (default: 2)")
    arguments = parser.parse_args()
    name = arguments.name or ("digits-keras" if arguments.keras else "digits")
    training = KerasDigitsTraining(arguments.keras) if arguments.keras else None
    output = arguments.output or Path("results", name)
    began = time.monotonic()
    is_ours = find_running(ClusterHome()) is None
    try:
        if arguments.workers:
            cluster.start(workers=arguments.workers)
        experiment = Experiment(name, locators=lay_out(arguments.data))
        _say_where(experiment)
        run(experiment, output, arguments.epochs, training)
    except KeyboardInterrupt:
        if is_ours:
            print("stopping the local cluster, which this job started", flush=True)
            cluster.stop()
        return 130
    except CerebroError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    is_local = bool(experiment.connection.tensorboard)
    goes_on = f" The local cluster goes on (end it with: {_down_command()})" if is_local else ""
    print(f"done in {time.monotonic() - began:.0f} s.{goes_on}")
    _say_where(experiment)
    return 0


def _down_command() -> str:
    """Return the command that ends the local cluster, with its path unless the shell finds it."""
    program = Path(sys.executable).with_name("cerebro")
    found = shutil.which("cerebro")
    return "cerebro down" if found and Path(found).samefile(program) else f"{program} down"


def _say_where(experiment: Experiment) -> None:
    """Print the addresses of the web page and TensorBoard of a local cluster."""
    connection = experiment.connection
    if not connection.tensorboard:  # a remote cluster: the caller has its token
        return
    print(f"  web page     {connection.page_of(experiment.name)}")
    print(f"  sign in      {connection.sign_in_link(f'/experiments/{experiment.name}')}")
    print("               once, within 10 minutes; `cerebro open` makes another link")
    print(f"  TensorBoard  {connection.tensorboard}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
