"""The digits example on a local cluster whose worker has the GPU, and replays of its models."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.local import one_worker, worker_log
from benchmarks.gpu.section import GB, Row, Setting
from benchmarks.training import between_s, run_events
from cerebro import Experiment
from cerebro.client.connection import connect
from cerebro.client.replay import replay
from cerebro.contract.events import TaskCommitted
from examples.digits import DigitsETL, DigitsTraining, lay_out

_SPACE = {"lr": [0.001, 0.003], "width": [32, 64], "dropout": [0.25], "batch_size": [32]}
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_POLL_S = 0.5


class Deterministic(DigitsTraining):
    """The same training with torch's deterministic algorithms only."""

    def initialize_worker(self) -> None:
        """Enable deterministic algorithms."""
        torch.use_deterministic_algorithms(True)


def measure(setting: Setting) -> Iterator[Row]:
    """Train a grid, read the platform's reports during it, and replay it."""
    with patch.dict(os.environ, _DETERMINISTIC), one_worker(setting) as info:
        with redirect_stdout(sys.stderr):
            locators = lay_out(str(setting.folder / "digits"))
        experiment = Experiment("digits", locators=locators, server=info.kvs, token=info.token())
        began = time.monotonic()
        experiment.run_etl(DigitsETL(), fraction=1.0, seed=1, progress=False)
        etl_s = time.monotonic() - began
        epochs = 2 if setting.is_small else 5
        for spec in (Deterministic(), DigitsTraining()):
            label = f"digits, {type(spec).__name__}"
            began = time.monotonic()
            with _observed(experiment) as usages:
                result = experiment.run_fit(
                    spec, _SPACE, epochs=epochs, metric="accuracy", mode="max", seed=1, progress=False
                )
            fit_s = time.monotonic() - began
            commits = [e for e in run_events(experiment, result.run) if isinstance(e, TaskCommitted)]
            yield _fit(label, result, fit_s, etl_s, epochs)
            yield _tasks(label, commits, setting, worker_log(Path(info.home)))
            if isinstance(spec, Deterministic):
                yield _usage(label, usages)
                yield _timed_command(info.home, "status")
            yield from _replays(info.home, result.run, label, is_checked=isinstance(spec, Deterministic))
        yield _timed_command(info.home, "doctor")


def _fit(label: str, result: Any, fit_s: float, etl_s: float, epochs: int) -> Row:
    accuracy = float(result.leaderboard()["accuracy"].max())
    failures = result.failures()
    return Row(
        what=f"{label}: four models, {epochs} epochs",
        measured=f"{fit_s:.1f} s from call to result (preprocessing {etl_s:.1f} s), accuracy {accuracy:.3f}, "
        f"{len(failures)} failures",
        values={"fit_s": fit_s, "etl_s": etl_s, "accuracy": accuracy},
        holds=not failures and accuracy > 0.5,
        text="\n".join(failures.values())[:2000],
    )


def _tasks(label: str, commits: list[TaskCommitted], setting: Setting, log: str) -> Row:
    train = [each for each in commits if "/train/" in each.task]
    timings = [each.result.timings for each in train]
    middle = {
        name: statistics.median(getattr(each, name) for each in timings)
        for name in ("start_s", "load_s", "compute_s", "save_s")
    }
    gaps = [  # without a validation between them
        between_s(before, after)
        for before, after in pairwise(commits)
        if "/train/" in before.task and "/train/" in after.task
    ]
    peaks = [each.result.peak_gpu_bytes for each in train]
    values: dict[str, float] = {
        **middle,
        "gap_s": statistics.median(gaps or [0.0]),
        "longest_start_s": max(t.start_s for t in timings),
    }
    return Row(
        what=f"{label}: a sub-epoch",
        measured=", ".join(
            f"{name.removesuffix('_s')} {1e3 * value:.0f} ms" for name, value in values.items()
        )
        + f"; GPU memory {min(peaks) / 1e6:.0f} to {max(peaks) / 1e6:.0f} MB",
        values={**values, "peak_gpu_bytes": peaks},
        holds=min(peaks) > 0 if setting.is_gpu else None,
        text=log[-6000:],
    )


class _observed:  # noqa: N801 - used as a context manager
    """Reads the store's figures of the worker's GPU during a run."""

    def __init__(self, experiment: Experiment) -> None:
        self._kvs, self._is_over = experiment.connection.kvs, threading.Event()
        self._found: list[tuple[float | None, int | None]] = []
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._is_over.wait(_POLL_S):
            for worker in self._kvs.workers():
                if worker.usage is not None:
                    self._found += [(gpu.used_share, gpu.memory_bytes) for gpu in worker.usage.gpus]

    def __enter__(self) -> list[tuple[float | None, int | None]]:
        self._thread.start()
        return self._found

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def _usage(label: str, usages: list[tuple[float | None, int | None]]) -> Row:
    shares = [share for share, _ in usages if share is not None]
    used = [num_bytes for _, num_bytes in usages if num_bytes is not None]
    return Row(
        what=f"{label}: the GPU's use and memory as the platform reports them",
        measured=f"{len(usages)} readings, use up to {max(shares, default=0.0):.0%}, memory up to "
        f"{max(used, default=0) / GB:.2f} GB",
        values={"shares": shares, "bytes": used},
    )


def _timed_command(home: Any, command: str) -> Row:
    """Return a command's output as a row."""
    done = subprocess.run(
        [sys.executable, "-m", "cerebro.cli", command],
        env={**os.environ, "CEREBRO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    text = done.stdout + done.stderr
    lines = [line.strip() for line in text.splitlines() if "GPU" in line or "gpu" in line]
    return Row(
        what=f"cerebro {command}",
        measured=f"exit status {done.returncode}; {' | '.join(lines)[:300]}",
        values={"status": done.returncode},
        text=text[:4000],
    )


def _replays(home: Any, run: str, label: str, *, is_checked: bool) -> Iterator[Row]:
    began = time.monotonic()
    found = list(replay(connect(home=str(home)), "digits", run=run, model="m00"))
    seconds = time.monotonic() - began
    for each in found:
        yield Row(
            what=f"{label}: replay of {each.model}",
            measured=f"{each}, {seconds:.1f} s",
            values={"seconds": seconds, "is_equal": each.is_equal},
            holds=each.is_equal if is_checked else None,
        )
