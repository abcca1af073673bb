"""Shared frozen layers: the COCO example's models with a frozen encoder, against encoding in each sub-epoch.

Eight decoders train for three epochs on two workers, on images of 96 pixels. One side wraps the encoder in
`cerebro.Frozen`, so each worker encodes its images once. The other side calls the encoder in each batch.
Rounds alternate; each round of the first side starts with an empty cache. Both sides validate after each epoch.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figure import Figure
from cerebro import Experiment
from cerebro.client.results import FitResult
from cerebro.local import cluster
from examples import captions, coco

BAR = 3.0
ROUNDS = 3
SIZE = replace(
    coco.SMALL,
    side=108,
    crop=96,
    space={"lr": [1e-2, 1e-3], "embed": [32, 64], "hidden": [64, 128], "batch_size": [10]},
)


class Direct(nn.Module):
    """Encodes each batch, without gradients and in evaluation mode."""

    def __init__(self, encoder: nn.Module, crop: int) -> None:
        super().__init__()
        self.encoder, self.crop = encoder.requires_grad_(False), crop

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of the images' central squares."""
        self.encoder.eval()
        with torch.no_grad():
            features: Tensor = self.encoder(coco.centered(images, self.crop))
        return features


class DirectTraining(coco.CocoTraining):
    """The example's spec without `cerebro.Frozen`."""

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Replace the shared encoder."""
        frozen, decoder = super().create_models(hyperparams)
        encoder = frozen.module
        assert isinstance(encoder, nn.Module)
        return [Direct(encoder, self.crop), decoder]


def benchmark() -> list[Figure]:
    """Measure both sides."""
    found = measure()
    return [
        Figure(
            what=f"frozen: COCO, {found['models']:.0f} models x {SIZE.epochs} epochs, encoding each batch over shared "
            "frozen layers",
            measured=f"{found['direct_s']:.1f} s, shared {found['shared_s']:.1f} s",
            ratio=found["ratio"],
            bar=BAR,
            sense="at least",
            notes=(
                f"sub-epochs {found['direct_sub_epochs_s']:.1f} s, shared {found['shared_sub_epochs_s']:.1f} s",
            ),
        )
    ]


def measure() -> dict[str, float]:
    """Return the median seconds of both sides and of their ratio."""
    seconds: dict[str, list[float]] = {"direct": [], "shared": []}
    computed: dict[str, list[float]] = {"direct": [], "shared": []}
    results: dict[str, FitResult] = {}
    with _experiment() as (experiment, shards):
        for number in range(ROUNDS):
            for side in ("direct", "shared") if number % 2 else ("shared", "direct"):
                for folder in shards.glob("**/frozen"):
                    shutil.rmtree(folder)
                kind = coco.CocoTraining if side == "shared" else DirectTraining
                began = time.monotonic()
                results[side] = experiment.run_fit(
                    kind(SIZE.crop, SIZE.width),
                    SIZE.space,
                    epochs=SIZE.epochs,
                    metric="loss",
                    mode="min",
                    seed=1,
                    progress=False,
                )
                seconds[side].append(time.monotonic() - began)
                table = results[side].sub_epochs()
                computed[side].append((table["ended"] - table["started"]).dt.total_seconds().sum())
    return {
        "models": len(results["shared"].leaderboard()),
        "direct_s": statistics.median(seconds["direct"]),
        "shared_s": statistics.median(seconds["shared"]),
        "direct_sub_epochs_s": statistics.median(computed["direct"]),
        "shared_sub_epochs_s": statistics.median(computed["shared"]),
        "ratio": statistics.median(a / b for a, b in zip(seconds["direct"], seconds["shared"], strict=True)),
    }


@contextmanager
def _experiment() -> Iterator[tuple[Experiment, Path]]:
    """Yield an experiment with preprocessed images, and the folder of its workers' shards."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder, home = Path(name) / "data", Path(name) / "home"
        captions.synthesize(folder / "coco", SIZE.rows, SIZE.side)
        located = captions.lay_out(folder / "coco", folder, at_least=SIZE.at_least)
        coco.write_encoder(folder / coco.ENCODER, None, SIZE, folder / "coco/train2017")
        located["misc"].append(str(folder / coco.ENCODER))
        try:
            info = cluster.start(home, workers=2, tensorboard=False)
            experiment = Experiment("frozen", locators=located, server=info.kvs, token=info.token())
            experiment.run_etl(coco.CocoETL(SIZE.side), seed=1, progress=False)
            yield experiment, home
        finally:
            cluster.stop(home)
