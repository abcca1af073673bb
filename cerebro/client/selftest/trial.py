"""One trial of a cluster: data made, preprocessed, trained on, the outcome checked, the data removed.

Fails with a `CerebroError` that says what was expected and what came. The experiment stays in the store, as all do.
"""

from __future__ import annotations

import csv
import itertools
import os
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
"""Most of it is for workers of a new cluster that are not there yet; the trial itself takes half a minute."""
VALID_ROWS = 80
ROWS_PER_WORKER = 120
"""Shares follow the workers' weights: with these, one with an eighth of another's still fills a batch."""
_STOP_TIMEOUT_S = 10.0
LEAST_ACCURACY = 0.6
"""Chance is 0.25; the models that are trained reach 0.9."""

SubEpoch = tuple[str, int, int]
"""Model, epoch, partition."""


class TrialError(CerebroError):
    """The cluster did not do what it should have."""


def run(home: str | None = None, *, timeout_s: float = TIMEOUT_S) -> int:
    """Try the cluster of ``CEREBRO_SERVER``, or the local one at `home`, which is started if need be.

    Prints what it does and the leaderboard. Returns 0.

    Raises:
        TrialError: something is not as it should be.
        CerebroError: the cluster refused something, or a run failed.
    """
    began = time.monotonic()
    if home is not None:  # the command's own process: nobody else reads these
        os.environ["CEREBRO_HOME"] = home
        os.environ.pop("CEREBRO_SERVER", None)
    experiment = None
    try:
        with _limit(timeout_s):
            connection = connect()
            workers = sum("train" in status.record.kinds for status in connection.kvs.workers())
            name = f"selftest-{time.strftime('%Y%m%d-%H%M%S')}"
            _say(f"{name} on {connection.kvs.address}, {workers or 'no'} workers")
            with _data(name, connection, workers) as locators:
                experiment = Experiment(name, locators=locators)
                _try(experiment, locators)
    except _Expired as cause:
        raise TrialError(f"not done after {timeout_s:g} s{_stop_run(experiment)}") from cause
    _say(f"selftest passed in {time.monotonic() - began:.0f} s")
    return 0


def _try(experiment: Experiment, locators: Mapping[str, Any]) -> None:
    etl = experiment.run_etl(Pictures(), seed=1, progress=False)
    _say(f"preprocessed {etl.kept} rows in {etl.seconds:.1f} s")
    if etl.kept != etl.rows or set(etl.kept) != set(locators):
        raise TrialError(f"of the rows {etl.rows} only {etl.kept} were kept")
    result = experiment.run_fit(
        Quarters(), SEARCH_SPACE, epochs=EPOCHS, metric="accuracy", mode="max", seed=1, progress=False
    )
    _say(f"{result.leaderboard().to_string()}\n")
    if failures := result.failures():
        raise TrialError("models failed: " + "; ".join(f"{model}: {why}" for model, why in failures.items()))
    partitions = range(len(experiment.state().datasets[etl.dataset].plan.splits["train"]))
    expected = set(itertools.product(result.leaderboard()["model"], range(1, EPOCHS + 1), partitions))
    visits = result.sub_epochs()
    committed = list(zip(visits["model"], visits["epoch"], visits["partition"], strict=True))
    accuracy = result.best.value
    assert accuracy is not None  # by which it is the best
    check(committed, expected, accuracy=accuracy)
    _say(f"{len(committed)} sub-epochs, each committed exactly once")
    _say(f"best accuracy {accuracy:.3f}; chance is {1 / CLASSES}")


def check(committed: Sequence[SubEpoch], expected: Set[SubEpoch], *, accuracy: float) -> None:
    """Compare what was committed with what should have been.

    Raises:
        TrialError: a sub-epoch is missing, was committed twice or was never asked for; or next to nothing was learned.
    """
    sub_epochs = set(committed)
    if sub_epochs != expected or len(committed) != len(sub_epochs):
        raise TrialError(
            f"of {len(expected)} sub-epochs {len(expected - sub_epochs)} were not committed, "
            f"{len(committed) - len(sub_epochs)} more "
            f"than once, and {len(sub_epochs - expected)} were nobody's: expected each exactly once"
        )
    if accuracy < LEAST_ACCURACY:
        raise TrialError(
            f"the best model's accuracy is {accuracy:.3f}, expected {LEAST_ACCURACY} or more: models were trained, but "
            "learned next to nothing"
        )


# --- data ----------------------------------------------------------------------------------------


@contextmanager
def _data(name: str, connection: Connection, workers: int) -> Iterator[dict[str, dict[str, str]]]:
    """Tables and objects on the shared volume, for as long as they are needed; their locators."""
    if connection.is_outside:
        raise ClusterError(
            "the selftest writes its data to the shared volume, and this machine reaches the cluster from outside: run "
            "it in the cluster, with `helm test`, or in a terminal of the notebook"
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
                f"{cause.filename or folder} cannot be written: {cause.strerror}. The shared volume has to be mounted "
                "here and be writable; CEREBRO_VOLUMES says where volumes are"
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


class _Expired(BaseException):  # it comes anywhere, and nobody but `run` is to take it for a mistake
    pass


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End what takes longer. By a signal, because a run is followed in calls that block."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise _Expired

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _stop_run(experiment: Experiment | None) -> str:
    """Stop what still runs; tells what it waited for."""
    if experiment is None:
        return ": the store did not answer; is kvs-api well?"
    try:
        with _limit(_STOP_TIMEOUT_S):
            status = experiment.status()
            if experiment.state().active_run() is not None:
                experiment.stop()
    except (_Expired, CerebroError):
        return ": and the store does not answer; is kvs-api well?"
    return f"; it was stopped. How far it came:\n{status}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
