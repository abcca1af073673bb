"""Hop: save, checksum and load of a state of 300 MB, against writing, flushing and reading the same number of bytes.

Cerebro: `checkpoint.save` (flatten, hash, write to a temporary file, flush, rename) and `checkpoint.load` with
`restore` into another copy of the model (check every byte, then copy it into the module's parameters). Reference: write
one buffer to a file in the same folder, fsync, close, and read it back into a buffer. Each round alternates both, so
that a slow disk affects both; the ratio is the median of the rounds' ratios. The state is a model and an optimizer's
two moments after a sub-epoch. Both sides read from the page cache, as on one machine, because the file was just
written.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.figure import Figure
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.worker.training.checkpoints import checkpoint
from cerebro.worker.training.checkpoints.storable import state_bytes
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee

BAR, FROZEN_BAR = 1.5, 0.2
BYTES = 300_000_000
ROUNDS = 9
_LAYERS = 10
_COPIES = 3  # parameters and Adam's two moments
_FLOAT_BYTES = 4
_PARTS, _TRAINED = 20, 1
"""Layers of the mostly frozen model, and its trained layers."""


def measure() -> dict[str, float]:
    """Return the seconds of both, and the median ratio."""
    trainee, other = _trainee(), _trainee()
    buffer = bytearray(os.urandom(1 << 20) * (BYTES >> 20)) + bytes(BYTES % (1 << 20))
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-", dir=_folder()) as name:
        root = Path(name)
        (root / "model").mkdir()  # saving does not create the folder: a deleted one must not return
        for number in range(ROUNDS + 1):
            if number % 2:
                theirs.append(_raw(root / "raw", buffer))
                ours.append(_hop(root, trainee, other))
            else:
                ours.append(_hop(root, trainee, other))
                theirs.append(_raw(root / "raw", buffer))
    ours, theirs = ours[1:], theirs[1:]  # the first round maps the memory in
    return {
        "state_mb": state_bytes(trainee.state()) / 1e6,
        "hop_s": statistics.median(map(sum, ours)),
        "save_s": statistics.median(save for save, _ in ours),
        "load_s": statistics.median(load for _, load in ours),
        "raw_s": statistics.median(map(sum, theirs)),
        "raw_write_s": statistics.median(write for write, _ in theirs),
        "raw_read_s": statistics.median(read for _, read in theirs),
        "ratio": statistics.median(sum(mine) / sum(other) for mine, other in zip(ours, theirs, strict=True)),
        "bar": BAR,
    }


def measure_frozen() -> dict[str, float]:
    """Return bytes and seconds of a hop with and without a frozen-weights file, and the ratio of bytes."""
    trainee, other = _frozen(), _frozen()
    found: dict[str, list[float]] = {f"{what}_{side}": [] for what in _HOP for side in ("plain", "based")}
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-", dir=_folder()) as name:
        root = Path(name)
        (root / "model").mkdir()
        trainee.frozen.is_wanted = True
        first = trainee.save(root, "model/first.pt")
        assert first is not None
        layout = checkpoint.check(root, first).layout
        for number in range(ROUNDS + 1):
            for side in ("plain", "based") if number % 2 else ("based", "plain"):
                trainee.frozen.is_wanted, trainee.frozen.layout = side == "based", layout
                for what, value in zip(_HOP, _hop_of_frozen(root, trainee, other), strict=True):
                    found[f"{what}_{side}"].append(value)
    middle = {what: statistics.median(values[1:]) for what, values in found.items()}
    return {**middle, "ratio": middle["bytes_based"] / middle["bytes_plain"]}


def benchmark() -> list[Figure]:
    """Measure both hops."""
    return [_full_model(measure()), _mostly_frozen(measure_frozen())]


def _mostly_frozen(found: dict[str, float]) -> Figure:
    return Figure(
        what="hop: bytes written of a model of which 95 % are frozen, against writing all of it",
        measured=f"{found['bytes_based'] / 1e6:.0f} MB, all {found['bytes_plain'] / 1e6:.0f} MB",
        ratio=found["ratio"],
        bar=FROZEN_BAR,
        sense="at most",
        notes=(
            f"mostly frozen: save {found['save_based']:.2f} s, all {found['save_plain']:.2f} s; load "
            f"{found['load_based']:.2f} s, all {found['load_plain']:.2f} s",
        ),
    )


def _full_model(found: dict[str, float]) -> Figure:
    return Figure(
        what=f"hop: save + checksum + load of {found['state_mb']:.0f} MB",
        measured=f"{found['hop_s']:.2f} s, raw bytes {found['raw_s']:.2f} s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at most",
        notes=(
            f"save {found['save_s']:.2f} s, load {found['load_s']:.2f} s; raw write and fsync "
            f"{found['raw_write_s']:.2f} s, read {found['raw_read_s']:.2f} s",
        ),
    )


def _folder() -> Path:
    """Return a folder on the local cluster's checkpoint disk: the temporary folder may be memory or another disk."""
    folder = Path(os.environ.get("CEREBRO_HOME") or "~/.cerebro").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _trainee() -> Trainee:
    side = round((BYTES / _COPIES / _LAYERS / _FLOAT_BYTES) ** 0.5)
    module = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(_LAYERS)))
    moments = {
        f"{name}/{which}": torch.randn_like(parameter)
        for name, parameter in module.named_parameters()
        for which in ("exp_avg", "exp_avg_sq")
    }
    return Trainee(modules=[module], checkpoint=Checkpoint({"optimizer": moments}))


def _hop(root: Path, trainee: Trainee, other: Trainee) -> tuple[float, float]:
    """Return the seconds of saving, and of loading into another copy."""
    began = time.perf_counter()
    reference: CheckpointRef = checkpoint.save(root, "model/u00000.pt", trainee.state())
    saved = time.perf_counter()
    restore(other, checkpoint.load(root, reference, torch.device("cpu")))
    loaded = time.perf_counter()
    (root / reference.name).unlink()
    return saved - began, loaded - saved


def _frozen() -> Trainee:
    side = round((BYTES / _PARTS / _FLOAT_BYTES) ** 0.5)
    module = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(_PARTS)))
    for layer in list(module)[:-_TRAINED]:
        layer.requires_grad_(False)
    moments = {
        f"{name}/{which}": torch.randn_like(parameter)
        for name, parameter in module.named_parameters()
        for which in ("exp_avg", "exp_avg_sq")
        if parameter.requires_grad
    }
    return Trainee(modules=[module], checkpoint=Checkpoint({"optimizer": moments}))


_HOP = ("bytes", "save", "load")


def _hop_of_frozen(root: Path, trainee: Trainee, other: Trainee) -> tuple[float, float, float]:
    """Return the written bytes, and the seconds of saving and of loading into another copy."""
    began = time.perf_counter()
    reference = trainee.save(root, "model/u00001.pt")
    saved = time.perf_counter()
    assert reference is not None
    restore(other, checkpoint.load(root, reference, torch.device("cpu")))
    loaded = time.perf_counter()
    written = (root / reference.name).stat().st_size
    (root / reference.name).unlink()
    return written, saved - began, loaded - saved


def _raw(path: Path, buffer: bytearray) -> tuple[float, float]:
    """Return the seconds of writing and flushing, and of reading."""
    began = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        file.write(buffer)
        os.fsync(file.fileno())
    written = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        content = file.read()
    read = time.perf_counter()
    if len(content) != len(buffer):
        raise OSError(f"{path} has {len(content)} bytes, expected {len(buffer)}")
    path.unlink()
    return written - began, read - written


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
