"""A local cluster whose workers use the GPU, for a section."""

from __future__ import annotations

import csv
import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

from benchmarks.gpu.section import Setting
from benchmarks.training import CLASSES, FEATURES
from cerebro import Experiment
from cerebro.local import cluster
from cerebro.local.home import ClusterInfo

_POLL_S = 0.5


@contextmanager
def local_cluster(
    setting: Setting, workers: int = 1, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ClusterInfo]:
    """Start a cluster that ends with the context.

    Args:
        workers: number of workers; if there are several, they share the GPU.
        variables: additional environment variables of its services.
    """
    home = setting.folder / "home"
    try:
        with patch.dict(os.environ, variables):
            yield cluster.start(
                home, workers=workers, devices=1, tensorboard=False, notebook=False, timeout_s=60.0
            )
    except BaseException:
        print(worker_log(home), flush=True)
        raise
    finally:
        cluster.stop(home)


def worker_log(home: Path) -> str:
    """Return the end of the worker's log and of its children's."""
    logs = [home / "logs" / f"worker-0{name}.log" for name in ("", ".child")]
    return "\n".join(path.read_text(errors="replace")[-12_000:] for path in logs if path.exists())


def tables(folder: Path, rows: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Write a table of random numbers and labels for each split, as `benchmarks.training.TableETL` reads them.

    Returns:
        Dataset locators.
    """
    draw = random.Random(0)
    for split, count in rows.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *(f"x{i}" for i in range(FEATURES)), "label"])
            for row in range(count):
                numbers = (round(draw.gauss(0, 1), 4) for _ in range(FEATURES))
                writer.writerow([row, *numbers, row % CLASSES])
    return {split: {"metadata": str(folder / f"{split}.csv")} for split in rows}


@contextmanager
def observed_gpu(experiment: Experiment) -> Iterator[list[tuple[float | None, int | None]]]:
    """Read the store's figures of the workers' GPU in the context: its used share and bytes."""
    kvs, is_over = experiment.connection.kvs, threading.Event()
    found: list[tuple[float | None, int | None]] = []

    def poll() -> None:
        while not is_over.wait(_POLL_S):
            for worker in kvs.workers():
                if worker.usage is not None:
                    found.extend((gpu.used_share, gpu.memory_bytes) for gpu in worker.usage.gpus)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
