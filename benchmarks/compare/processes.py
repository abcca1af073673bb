"""Task-parallel training: a process per core with all rows, which takes the next model when it is free."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import multiprocessing

from benchmarks.compare import task
from benchmarks.compare.contenders import Outcome


class Trained(NamedTuple):
    """One model: its accuracy, bytes of training rows in this process's memory, and bytes of its file."""

    accuracy: float
    held: int
    written: int


def train(train_rows: task.Rows, valid_rows: task.Rows, rate: float, into: str, held_in: str) -> Trained:
    """Train, evaluate and save a model.

    Args:
        held_in: pattern of the paths of the mapped training rows.
    """
    model = task.network()
    task.epoch(model, task.adam(model.parameters(), rate), train_rows)
    accuracy = task.correct(model, valid_rows) / len(valid_rows.labels)
    path = Path(into) / f"{rate}.pt"
    torch.save(model.state_dict(), path)
    return Trained(accuracy, task.held(held_in), path.stat().st_size)


def run(folder: str, rates: list[float], into: str) -> Outcome:
    """Train all models in processes that start once and share the mapped files through the page cache."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(task.WORKERS, _prepare, (folder,)) as pool:
        found = pool.starmap(_train, [(rate, into) for rate in rates], chunksize=1)
        pool.close()
        pool.join()
    return Outcome(
        seconds=time.monotonic() - began,
        accuracy=[trained.accuracy for trained in found],
        held=max(trained.held for trained in found),
        moved=sum(trained.written for trained in found),
    )


_rows: list[task.Rows] = []
"""Rows of this process, set by the pool's initializer."""


def _prepare(folder: str) -> None:
    torch.set_num_threads(1)
    _rows.extend(task.Rows.load(folder, split) for split in task.SPLITS)


def _train(rate: float, into: str) -> Trained:
    return train(_rows[0], _rows[1], rate, into, r"train-inputs\.npy$")
