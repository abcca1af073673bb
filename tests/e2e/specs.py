"""User code for end-to-end tests: tiny data and models, and a gate that blocks a sub-epoch.

Workers get the classes by value, so a class uses only names of this module that can be pickled.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro import ETLSpec, SubEpochSpec

FEATURES = 6


def knock(port: int, what: str) -> None:
    """Report to the test's gate and wait there; return at once without a gate."""
    if not port:
        return
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"{os.getpid()} {os.environ.get('CEREBRO_WORKER', '-')} {what}\n".encode())
            connection.recv(1)
    except OSError:
        return


class TinyETL(ETLSpec):
    """Six numbers and a class per row, from `x` and `label`; training row `held` stops at the gate."""

    def __init__(self, *, gate: int = 0, held: int = -1, ragged: int = -1, broken: int = -1) -> None:
        self.gate, self.held, self.ragged, self.broken = gate, held, ragged, broken

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        if row["id"] == self.held and mode == "train":  # other splits have the same row numbers
            knock(self.gate, f"row {row['id']}")
        if row["id"] == self.broken:
            raise ValueError(f"cannot read row {row['id']}")
        width = FEATURES + 1 if row["id"] == self.ragged else FEATURES
        values = np.sin(np.arange(1, width + 1, dtype=np.float32) * np.float32(row["x"]))
        return values, None if mode == "predict" else int(row["label"])


class TinyTraining(SubEpochSpec):
    """A small network with dropout and momentum, so random draws and state across sub-epochs affect the weights.

    Args:
        gate: port of the test's gate.
        holds: (tag, sub-epoch) pairs that stop before their first batch; `tag` is a hyperparameter.
        trouble: tag -> misbehaviour instead of training; ``raise until PATH``: until that file exists.
    """

    def __init__(self, *, gate: int = 0, holds: Any = (), trouble: dict[str, str] | None = None) -> None:
        self.gate, self.holds = gate, tuple(holds)
        self.trouble = trouble or {}

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        sub_epoch = checkpoint.get("sub_epochs", 0)
        tag = str(hyperparams.get("tag", ""))
        if (tag, sub_epoch) in self.holds or (tag, -1) in self.holds:
            knock(self.gate, f"{tag} {sub_epoch}")
        if tag in self.trouble:
            self.misbehave(self.trouble[tag], dataloader)
        # A manual step: importing torch.optim takes seconds in every child that a test kills.
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        momenta = checkpoint.get("momenta") or [torch.zeros_like(weight) for weight in weights]
        total = 0.0
        for inputs, labels in dataloader:
            loss = nn.functional.cross_entropy(network(inputs), labels)
            for weight, momentum, slope in zip(
                weights, momenta, torch.autograd.grad(loss, weights), strict=True
            ):
                momentum.mul_(0.9).add_(slope)
                weight.data.sub_(momentum, alpha=hyperparams["lr"])
            total += loss.item() * len(labels)
        checkpoint["momenta"], checkpoint["sub_epochs"] = momenta, sub_epoch + 1
        loss_now = float("nan") if self.trouble.get(tag) == "nan" else total / dataloader.num_rows
        return {"loss": loss_now}

    def misbehave(self, how: str, dataloader: Any) -> None:
        """Raise, hang or exit, as a user's mistake would."""
        if how == "raise" or (how.startswith("raise until ") and not Path(how[12:]).exists()):
            print("about to divide by zero", flush=True)  # noqa: T201 - a test looks for it in the log
            raise ZeroDivisionError("a mistake in user code")
        if how.startswith("ecc at ") and os.environ.get("CEREBRO_WORKER") == how[7:]:
            # The text of the CUDA driver, as torch reports it, on one worker only.
            raise RuntimeError(
                "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
            )
        if how == "exit":
            if os.fork() == 0:  # the child inherits all open files
                signal.pause()
            os._exit(7)
        if how == "hang":
            next(iter(dataloader))
            knock(self.gate, "hang")

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        total, right = 0.0, 0
        for inputs, labels in dataloader:
            scores = network(inputs)
            total += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
        return {"loss": total / dataloader.num_rows, "accuracy": right / dataloader.num_rows}

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        (network,) = models
        for inputs, _ in dataloader:
            yield {"label": network(inputs).argmax(1)}


class WideTraining(TinyTraining):
    """A network whose hidden layer has `width` numbers; larger networks have larger checkpoints."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        width = hyperparams["width"]
        return [nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 3))]


class FrozenTraining(TinyTraining):
    """A model with 16 MiB of frozen weights, and batch statistics that change."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        frozen = nn.Linear(2048, 2048).requires_grad_(False)
        return [
            nn.Sequential(
                nn.Linear(FEATURES, 2048), nn.BatchNorm1d(2048), frozen, nn.ReLU(), nn.Linear(2048, 3)
            )
        ]
