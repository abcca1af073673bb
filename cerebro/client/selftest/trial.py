"""One trial of a cluster: create data, preprocess, train, check the result, delete the data.

`cerebro selftest` calls `run`, which takes about 30 s and at most ten minutes by default. A failure raises a
`CerebroError` with the expected and the actual result. The experiment stays in the store.
"""

from __future__ import annotations

import csv
import itertools
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from cerebro.client.connection import Connection, connect
from cerebro.client.experiment import Experiment
from cerebro.client.selftest.specs import CLASSES, EPOCHS, SEARCH_SPACE, Pictures, Quarters, picture
from cerebro.errors import CerebroError, ClusterError

TIMEOUT_S = 600.0
"""Default time limit. The trial takes 30 s; the rest is for workers of a new cluster to start."""
VALID_ROWS = 80
ROWS_PER_WORKER = 120
"""Rows per worker. Partitions follow the workers' weights; one with 1/8 of another's weight still fills a batch."""
_STOP_TIMEOUT_S = 10.0
MIN_ACCURACY = 0.6
"""Lowest accepted accuracy. Chance is 0.25; the models reach 0.9."""

SubEpoch = tuple[str, int, int]
"""Model, epoch, partition."""


class TrialError(CerebroError):
    """The cluster produced a wrong result."""


def run(home: str | None = None, *, timeout_s: float = TIMEOUT_S) -> int:
    """Test the cluster of ``CEREBRO_SERVER``, or the local one at `home`, and print the steps. Return 0.

    Raises:
        TrialError: a result is wrong.
        CerebroError: the cluster refused a request, or a run failed.
    """
    began = time.monotonic()
    if home is not None:  # safe, because this process runs only the command
        os.environ["CEREBRO_HOME"] = home
        os.environ.pop("CEREBRO_SERVER", None)
    experiment = None
    try:
        with _limit(timeout_s):
            connection = connect()
            workers = sum("train" in status.record.kinds for status in connection.kvs.workers())
            name = _new_name()
            _print(f"{name} on {connection.kvs.address}, {workers or 'no'} workers")
            with _data(name, connection, workers) as locators:
                experiment = Experiment(name, locators=locators)
                _try(experiment, locators)
    except _Expired as cause:
        raise TrialError(f"not done after {timeout_s:g} s{_stop_run(experiment)}") from cause
    _print(f"selftest passed in {time.monotonic() - began:.0f} s")
    return 0


def _new_name() -> str:
    """Return a name for a trial. Two trials may begin in the same second."""
    return f"selftest-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _try(experiment: Experiment, locators: Mapping[str, Any]) -> None:
    etl = experiment.run_etl(Pictures(), seed=1, progress=False)
    _print(f"preprocessed {etl.kept_rows} rows in {etl.seconds:.1f} s")
    if etl.kept_rows != etl.rows or set(etl.kept_rows) != set(locators):
        raise TrialError(f"only {etl.kept_rows} of the rows {etl.rows} were preprocessed")
    result = experiment.run_fit(
        Quarters(), SEARCH_SPACE, epochs=EPOCHS, metric="accuracy", mode="max", seed=1, progress=False
    )
    _print(f"{result.leaderboard().to_string()}\n")
    if failures := result.failures():
        raise TrialError(
            "models failed: " + "; ".join(f"{model}: {text}" for model, text in failures.items())
        )
    partitions = range(len(experiment.state().datasets[etl.dataset].plan.splits["train"]))
    expected = set(itertools.product(result.leaderboard()["model"], range(1, EPOCHS + 1), partitions))
    sub_epochs = result.sub_epochs()
    committed = list(zip(sub_epochs["model"], sub_epochs["epoch"], sub_epochs["partition"], strict=True))
    accuracy = result.best.value
    assert accuracy is not None  # the best model has a value
    check(committed, expected, accuracy=accuracy)
    _print(f"{len(committed)} sub-epochs, each committed exactly once")
    _print(f"best accuracy {accuracy:.3f}; chance is {1 / CLASSES}")


def check(committed: Sequence[SubEpoch], expected: Set[SubEpoch], *, accuracy: float) -> None:
    """Compare committed with expected sub-epochs, and check the accuracy.

    Raises:
        TrialError: a sub-epoch is missing, was committed twice or is unexpected, or the accuracy is too low.
    """
    sub_epochs = set(committed)
    if sub_epochs != expected or len(committed) != len(sub_epochs):
        raise TrialError(
            f"of {len(expected)} sub-epochs {len(expected - sub_epochs)} were not committed, "
            f"{len(committed) - len(sub_epochs)} more than once, and {len(sub_epochs - expected)} were unexpected: "
            "expected each exactly once"
        )
    if accuracy < MIN_ACCURACY:
        raise TrialError(
            f"the best model's accuracy is {accuracy:.3f}, expected at least {MIN_ACCURACY}: the models did not learn"
        )


# --- data ----------------------------------------------------------------------------------------


@contextmanager
def _data(name: str, connection: Connection, workers: int) -> Iterator[dict[str, dict[str, str]]]:
    """Write tables and objects to the shared volume, yield their locators, and delete them afterwards."""
    if connection.is_remote:
        raise ClusterError(
            "the selftest writes its data to the shared volume, which this machine does not have: run it in the "
            "cluster, with `helm test` or in a terminal of the notebook"
        )
    folder = connection.volumes.shared / "selftest" / name
    rows = {"train": ROWS_PER_WORKER * max(workers, 2), "valid": VALID_ROWS}
    generator = np.random.default_rng(1)
    ids = itertools.count()
    try:
        try:
            (folder / "pictures").mkdir(parents=True)
            locators = {
                split: _write(folder, split, itertools.islice(ids, count), generator)
                for split, count in rows.items()
            }
        except OSError as cause:
            raise ClusterError(
                f"{cause.filename or folder} cannot be written: {cause.strerror}. Mount the shared volume with write "
                "access, and set CEREBRO_VOLUMES to its folder"
            ) from cause
        yield locators
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, split: str, ids: Iterator[int], generator: np.random.Generator) -> dict[str, str]:
    objects, table = folder / "pictures", folder / f"{split}.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "picture", "label"])
        for number in ids:
            np.save(objects / f"{number}.npy", picture(number % CLASSES, generator))
            writer.writerow([number, f"{number}.npy", number % CLASSES])
    return {"metadata": str(table), "objects": str(objects)}


# --- time ----------------------------------------------------------------------------------------


class _Expired(BaseException):  # not an Exception, so that only `run` catches it
    pass


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise `_Expired` after a time limit, by a signal, because following a run blocks."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise _Expired

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _stop_run(experiment: Experiment | None) -> str:
    """Stop the run, and return its status as text."""
    if experiment is None:
        return ": the store did not answer. Check kvs-api"
    try:
        with _limit(_STOP_TIMEOUT_S):
            status = experiment.status()
            if experiment.state().active_run() is not None:
                experiment.stop()
    except (_Expired, CerebroError):
        return ", and the store does not answer. Check kvs-api"
    return f"; it was stopped. Last status:\n{status}"


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
