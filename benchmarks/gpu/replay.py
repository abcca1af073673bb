"""Fits of the digits on a local cluster whose worker has the GPU, and replays of their models."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.local import local_cluster, observed_gpu, worker_log
from benchmarks.gpu.section import GB, Row, Setting, part
from benchmarks.training import between_s, run_events
from cerebro import Experiment, Parallelism
from cerebro.client.connection import connect
from cerebro.client.replay import replay
from cerebro.contract.events import TaskCommitted
from cerebro.local.home import ClusterInfo
from cerebro.techniques import Fused
from examples.digits import DigitsETL, DigitsTraining, lay_out

_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Deterministic(DigitsTraining):
    """The same training with torch's deterministic algorithms only."""

    def initialize_worker(self) -> None:
        """Enable deterministic algorithms."""
        torch.use_deterministic_algorithms(True)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A fit whose first model is replayed.

    Attributes:
        is_checked: True if the replay has to equal the fit: to the bit, or up to rounding after a fused group.
    """

    label: str
    spec: DigitsTraining
    dropout: float = 0.25
    techniques: tuple[Any, ...] | None = None
    is_checked: bool = True


_CASES = (
    _Case(label="digits, deterministic algorithms", spec=Deterministic()),
    # Without dropout: the masks of a stack on a GPU differ from separate training.
    _Case(
        label="digits in a fused group, deterministic algorithms",
        spec=Deterministic(),
        dropout=0.0,
        techniques=(Fused(models=4),),
    ),
    _Case(label="digits, as torch is by default", spec=DigitsTraining(), is_checked=False),
)


def measure(setting: Setting) -> Iterator[Row]:
    """Train grids, read the platform's reports during the first one, and replay a model of each."""
    with patch.dict(os.environ, _DETERMINISTIC), local_cluster(setting) as info:
        with redirect_stdout(sys.stderr):
            locators = lay_out(str(setting.folder / "digits"))
        experiment = Experiment("digits", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(DigitsETL(), fraction=1.0, seed=1, progress=False)
        for case in _CASES[:2] if setting.is_small else _CASES:
            yield from part(setting, case.label, 20, partial(_case, setting, info, experiment, case))
        for command in ("status", "doctor"):
            yield from part(
                setting, f"cerebro {command}", 10, partial(_timed_command, setting, info.home, command)
            )


def _case(setting: Setting, info: ClusterInfo, experiment: Experiment, case: _Case) -> Iterator[Row]:
    epochs = 1 if setting.is_small else 2
    lrs = [0.001, 0.003, 0.002, 0.004][: 2 if setting.is_small else None]
    space = {"lr": lrs, "width": [32], "batch_size": [32]}
    began = time.monotonic()
    with observed_gpu(experiment) as usages:
        result = experiment.run_fit(
            case.spec,
            {**space, "dropout": [case.dropout]},
            epochs=epochs,
            metric="accuracy",
            mode="max",
            seed=1,
            parallelism=Parallelism(techniques=case.techniques, trials="never"),
            progress=False,
        )
    seconds = time.monotonic() - began
    accuracy, failures = float(result.leaderboard()["accuracy"].max()), result.failures()
    yield Row(
        what=f"{case.label}: {len(lrs)} models, {epochs} epochs",
        measured=f"{seconds:.1f} s from call to result, accuracy {accuracy:.3f}, {len(failures)} failures",
        values={"seconds": seconds, "accuracy": accuracy},
        holds=not failures and accuracy > 0.3,
        text="\n".join(failures.values())[:2000],
    )
    commits = [each for each in run_events(experiment, result.run) if isinstance(each, TaskCommitted)]
    yield _tasks(case.label, commits, setting, worker_log(Path(info.home)))
    yield _usage(case.label, usages)
    yield from _replay(info.home, result.run, case)


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
        "gap_s": max(0.0, statistics.median(gaps or [0.0])),  # models of a group end together
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


def _usage(label: str, usages: list[tuple[float | None, int | None]]) -> Row:
    shares = [share for share, _ in usages if share is not None]
    used = [num_bytes for _, num_bytes in usages if num_bytes is not None]
    return Row(
        what=f"{label}: the GPU's use and memory as the platform reports them",
        measured=f"{len(usages)} readings, use up to {max(shares, default=0.0):.0%}, memory up to "
        f"{max(used, default=0) / GB:.2f} GB",
        values={"shares": shares, "bytes": used},
    )


def _timed_command(setting: Setting, home: Any, command: str) -> Iterator[Row]:
    """Return a command's output as a row; `doctor` has to know the GPU."""
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
    yield Row(
        what=f"cerebro {command}",
        measured=f"exit status {done.returncode}; {' | '.join(lines)[:300]}",
        values={"status": done.returncode},
        holds=done.returncode == 0 if command == "status" else None,
        text=text[:4000],
    )


def _replay(home: Any, run: str, case: _Case) -> Iterator[Row]:
    began = time.monotonic()
    for each in replay(connect(home=str(home)), "digits", run=run, model="m00"):
        yield Row(
            what=f"{case.label}: replay of {each.model}",
            measured=f"{each}, {time.monotonic() - began:.1f} s",
            values={"seconds": time.monotonic() - began, "is_equal": each.is_equal},
            holds=each.is_equal if case.is_checked else None,
        )
