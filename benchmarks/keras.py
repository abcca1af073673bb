"""Keras models: rows per second of the worker's handler, against Keras' own `fit` on the same rows.

Cerebro trains sub-epochs like a worker: create a model, load its checkpoint, make one pass over the partition's shards,
save the next checkpoint. `fit` has one model, the same rows in memory, and the same number of epochs. So each sub-epoch
creates and traces its model, and `fit` does so once. They alternate in one process per backend, with one thread.

``python -m benchmarks.keras BACKEND`` prints the results of one backend.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import Figure
from cerebro import KerasSubEpochSpec
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.keras.backend import BACKENDS, CORES

BAR = 0.9
ROWS, FEATURES, CLASSES, BATCH = 24_000, 784, 10, 64
HIDDEN = (1024, 512)
SUB_EPOCHS, ROUNDS = 3, 3
_CODE, _DATASET = "0" * 64, "benchmark"


class Perceptron(KerasSubEpochSpec):
    """MLP 784-1024-512-10 with Adam."""

    def __init__(self, backend: str) -> None:
        self.keras_backend = backend

    def create_models(self, hyperparams: Mapping[str, Any]) -> Any:
        """Return the compiled model."""
        import keras

        hidden = [keras.layers.Dense(width, "relu") for width in HIDDEN]
        last = keras.layers.Dense(CLASSES, "softmax")
        network = keras.Sequential([keras.Input((FEATURES,)), *hidden, last])
        network.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return network


def benchmark() -> list[Figure]:
    """Measure each backend."""
    return [_figure(backend) for backend in BACKENDS]


def _figure(backend: str) -> Figure:
    environment = {**os.environ, "KERAS_BACKEND": backend, CORES: "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.keras", backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return Figure(
        what=f"Keras over {backend}: rows/s of the handler's sub-epochs, against plain `fit` on the same rows",
        measured=f"{found['ours']:,.0f} rows/s, fit {found['fit']:,.0f} rows/s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at least",
        notes=(
            f"{backend}: {SUB_EPOCHS} sub-epochs of {ROWS:,} rows each time, of which making, loading, tracing and "
            f"saving a "
            f"model took {found['fixed']:.2f} s a sub-epoch",
        ),
    )


def measure(backend: str) -> dict[str, float]:
    """Return the rows per second of both, and the ratio of the paired runs."""
    import torch

    torch.set_num_threads(1)
    drawn = np.random.default_rng(0)
    rows = drawn.random((ROWS, FEATURES), np.float32)
    labels = drawn.integers(0, CLASSES, ROWS)
    ours: list[float] = []
    fit: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        sub_epochs = _sub_epochs(backend, Path(name), rows, labels)
        spec = Perceptron(backend)

        def plain() -> None:
            spec.create_models({}).fit(rows, labels, batch_size=BATCH, epochs=SUB_EPOCHS, verbose=0)

        sub_epochs(1), spec.create_models({}).fit(rows[:BATCH], labels[:BATCH], verbose=0)
        for number in range(ROUNDS):
            runs: list[tuple[list[float], Callable[[], None]]] = [
                (ours, lambda: sub_epochs(SUB_EPOCHS)),
                (fit, plain),
            ]
            for seconds, run in runs if number % 2 == 0 else reversed(runs):
                began = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        sub_epochs(SUB_EPOCHS, few=True)
        fixed = (time.perf_counter() - began) / SUB_EPOCHS
    total = ROWS * SUB_EPOCHS
    return {
        "ours": total / statistics.median(ours),
        "fit": total / statistics.median(fit),
        "ratio": statistics.median(theirs / mine for mine, theirs in zip(ours, fit, strict=True)),
        "fixed": fixed,
    }


def _sub_epochs(backend: str, folder: Path, rows: Any, labels: Any) -> Callable[..., None]:
    """Return a function that runs sub-epochs in sequence, with two batches each if `few`."""
    from cerebro.data.manifests import Source
    from cerebro.data.shards import write_rows
    from cerebro.runtime.volumes import Volumes
    from cerebro.usercode.encoding import encode
    from cerebro.worker.child.context import Context
    from cerebro.worker.protocol.channel import Channel
    from cerebro.worker.protocol.messages import TO_CHILD
    from model_hopper.handler import Handler

    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
    source = Source(fingerprint=_DATASET, metadata="none")
    pairs = list(zip(rows, labels.tolist(), strict=True))
    write_rows(volumes.partition(_DATASET, "train", 0), pairs, source)
    write_rows(volumes.partition(_DATASET, "train", 1), pairs[: 2 * BATCH - 1], source)
    agent, child = socket.socketpair()
    context = Context(Channel(child, TO_CHILD), volumes, cores=1)
    context.user_code.learn({_CODE: encode(Perceptron(backend)).encoded})
    handler = Handler(context)

    def run(number: int, *, few: bool = False) -> None:
        checkpoint: CheckpointRef | None = None
        for sub_epoch in range(number):
            task = TrainTask(
                key=f"fit-1/train/m00/e{sub_epoch + 1}/p0",
                experiment="benchmark",
                run="fit-1",
                model="m00",
                hyperparams={"batch_size": BATCH},
                code=_CODE,
                dataset=_DATASET,
                seed=0,
                hang_timeout_s=60,
                epoch=sub_epoch + 1,
                partition=int(few),
                sub_epoch=sub_epoch,
                position=Position(),
                checkpoint=checkpoint,
            )
            checkpoint = handler.handle(task, 1).checkpoint
            agent.recv(1 << 20)  # drain the handler's messages, so that its channel does not fill

    return run


def main() -> None:
    """Print the results of one backend."""
    print(json.dumps(measure(sys.argv[1])))


if __name__ == "__main__":
    main()
