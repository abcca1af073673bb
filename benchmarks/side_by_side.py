"""Cerebro beside other ways to train the same models on this machine, in turns.

Eight perceptrons (784-1024-512-10, Adam, batches of 128) for three epochs over 40,000 rows, on two cores with a thread
each; from the call to the result, with what the call has to start, while clusters are up already. The other ways are in
`contenders`; Ray Tune gets an environment of its own beside this one, made at the first call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import contenders
from benchmarks.contenders import BATCH, CLASSES, CORES, EPOCHS, FEATURES
from benchmarks.figure import Figure
from cerebro import ETLSpec, Experiment, SubEpochSpec
from cerebro.local import cluster

ROWS, ROUNDS = 40_000, 2
RATES = (0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002)
BARS = {"task-parallel": 1.0, "ray-tune": 1.3, "ddp": 2.3}
"""Way -> how many times as long as Cerebro it takes at least."""
_NAMES = {"task-parallel": "processes with all data each", "ray-tune": "Ray Tune", "ddp": "DDP on two ranks"}
_RAY = "ray[tune]==2.60.0"
_LIMIT_S = 1200.0


def row_of(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Inputs of a row, drawn from its number: whoever makes it gets the same."""
    return np.random.default_rng(number).standard_normal(FEATURES, np.float32)


class Rows(ETLSpec):
    """A row's number becomes its inputs."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """The row's inputs, drawn from its number, and its label."""
        return row_of(row["id"]), row["label"]


class Perceptron(SubEpochSpec):
    """`contenders.network`."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """One network, as all contenders train it."""
        return [contenders.network()]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """One pass over the partition."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        total = torch.zeros(())
        for inputs, labels in dataloader:
            total += contenders.step(network, optimizer, inputs, labels) * len(labels)
        checkpoint["optimizer"] = optimizer.state_dict()
        return {"loss": total.item() / dataloader.num_rows}


def measure() -> dict[str, list[float]]:
    """Way, Cerebro among them -> seconds, one per round."""
    python = {"ray-tune": _ray_python()}
    seconds: dict[str, list[float]] = {way: [] for way in ("cerebro", *BARS)}
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        root = Path(folder)
        _write(root)
        try:
            experiment = _preprocessed(root)
            for turn in range(ROUNDS):
                ways = list(seconds)
                for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                    if way == "cerebro":
                        seconds[way].append(_cerebro(experiment))
                    else:
                        seconds[way].append(_contender(way, python.get(way, sys.executable), root))
        finally:
            cluster.stop(root / "home")
    return seconds


def benchmark() -> list[Figure]:
    """`measure` as lines of the table."""
    seconds = measure()
    ours = seconds["cerebro"]
    rounds = "; ".join(f"{way} {', '.join(f'{s:.1f}' for s in found)} s" for way, found in seconds.items())
    return [
        Figure(
            what=f"side by side, {len(RATES)} models x {EPOCHS} epochs on {CORES} cores: {_NAMES[way]} against Cerebro",
            measured=f"{statistics.median(seconds[way]):.1f} s, Cerebro {statistics.median(ours):.1f} s",
            ratio=statistics.median(theirs / own for theirs, own in zip(seconds[way], ours, strict=True)),
            bar=bar,
            sense="at least",
            notes=(f"in turns, {ROUNDS} rounds: {rounds}",) if way == "task-parallel" else (),
        )
        for way, bar in BARS.items()
    ]


def _preprocessed(root: Path) -> Experiment:
    info = cluster.start(root / "home", workers=CORES, tensorboard=False)
    locators = {"train": {"metadata": str(root / "train.csv")}}
    experiment = Experiment("side-by-side", locators=locators, server=info.kvs, token=info.token())
    experiment.run_etl(Rows(), progress=False)
    return experiment


def _cerebro(experiment: Experiment) -> float:
    began = time.monotonic()
    result = experiment.run_fit(
        Perceptron(),
        {"lr": list(RATES), "batch_size": [BATCH]},
        epochs=EPOCHS,
        metric="loss",
        mode="min",
        progress=False,
    )
    seconds = time.monotonic() - began
    assert len(result.leaderboard()) == len(RATES)
    return seconds


def _contender(way: str, python: str, root: Path) -> float:
    with tempfile.TemporaryDirectory(dir=root) as into:
        command = [python, contenders.__file__, way, str(root), json.dumps(RATES), into]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_LIMIT_S,
            cwd=into,
            env={**os.environ, "HOME": into},  # Ray writes there
        )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told["seconds"]


def _write(root: Path) -> None:
    inputs = np.stack([row_of(number) for number in range(ROWS)])
    np.save(root / "inputs.npy", inputs)
    np.save(root / "labels.npy", np.arange(ROWS) % CLASSES)
    lines = [f"{number},{number % CLASSES}" for number in range(ROWS)]
    (root / "train.csv").write_text("\n".join(["id,label", *lines]))


def _ray_python() -> str:
    """The interpreter of an environment with Ray Tune, behind which this one's packages are seen (torch)."""
    folder = Path(sys.prefix) / "ray"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _RAY], check=True
        )
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "torch.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        (folder / "complete").touch()
    return str(python)


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
