"""kill -9 of a job keeps complete shards and leaves no process running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from cerebro.data.partitions import complete_shards
from cerebro.errors import RetryableError, RowError
from etl_worker.cores import Cores
from etl_worker.errors import CoreDiedError
from etl_worker.partition import preprocess_partition
from tests.etl_worker.jobs import (
    Double,
    FailOn,
    make_job,
    notes,
    nothing,
    own_children,
    preprocess,
    ready,
    stored,
)

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
ROWS = 40
ALL = {value: [value * 2, value] for value in range(ROWS)}


class Waiting(FailOn):
    """A spec that writes to a pipe at one row, and waits there until it is killed."""

    def __init__(self, notes: Path, at: int, pipe: int) -> None:
        super().__init__([], notes)
        self.at, self.pipe = at, pipe

    def row_preprocessor(self, row, mode, object_dir):  # type: ignore[no-untyped-def]
        if row["value"] == self.at:
            os.write(self.pipe, b"at the row")
            signal.pause()
        return super().row_preprocessor(row, mode, object_dir)


_AT_A_STEP = """
import os, signal, sys
from pathlib import Path
from tests.etl_worker.jobs import Double, make_job, nothing, preprocess

folder, step = Path(sys.argv[1]), 0
real = {"fsync": os.fsync, "replace": Path.replace}

def dying(name):
    def call(*args):
        global step
        for when in ("before", "after"):
            step += 1
            if step == at:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                result = real[name](*args)
        return result
    return call

os.fsync, Path.replace = dying("fsync"), dying("replace")
at = 0
while True:  # one process per step, forked from here: starting Python for each would take minutes
    at += 1
    child = os.fork()
    if child == 0:
        preprocess(make_job(folder / str(at), [0, 1]), Double, nothing)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
print(at)
"""


@contextmanager
def _script(text: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("cores", "at"),
    [
        (1, 10),
        (2, 25),
        pytest.param(1, 9, marks=pytest.mark.slow),
        pytest.param(1, 39, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
    ],
)
def test_a_killed_job_is_resumed(tmp_path: Path, cores: int, at: int) -> None:
    """Complete shards survive, and the next attempt repeats only the other rows."""
    job = make_job(tmp_path, list(range(ROWS)), cores=cores)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with suppress(BaseException):
            preprocess(job, lambda: Waiting(tmp_path / "before", at, write), nothing)
        os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read(len(b"at the row")) == b"at the row"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # The pipe closes once all processes that hold it are dead, so the core processes have died too.
        assert file.read() == b""
    kept = {row for shard in complete_shards(job.output_folder) for row in range(shard.start, shard.stop)}
    if cores == 1:
        assert kept == set(range(at // 10 * 10))
    preprocess(job, lambda: FailOn([], tmp_path / "after"), nothing)
    assert sorted(int(row) for row in notes(tmp_path / "after")) == sorted(set(range(ROWS)) - kept)
    assert stored(job.output_folder) == ALL


@pytest.mark.slow  # a hundred short processes, each of which syncs its files to disk
def test_a_kill_at_any_moment_is_harmless(tmp_path: Path) -> None:
    """The job is killed around each fsync and rename; the next attempt completes it without leftover files."""
    with _script(_AT_A_STEP, tmp_path) as process:
        output = process.communicate()[0]
    steps = int(output)
    # Two kill points per fsync and rename: the plan, the rows and manifests of two shards, the partition
    # manifest, its statistics.
    assert steps == 6 + 2 * (4 + 6) + 6 + 6 + 1
    for step in range(1, steps):
        job = make_job(tmp_path / str(step), [0, 1])
        preprocess(job, Double, nothing)
        assert stored(job.output_folder) == {0: [0, 0], 1: [2, 1]}
        assert len(list(job.output_folder.iterdir())) == 1 + 2 * 2 + 2


class _Dying(Double):
    """A spec that kills its process at one value."""

    def __init__(self, at: int, by_signal: bool) -> None:
        self.at, self.by_signal = at, by_signal

    def row_preprocessor(self, row, mode, object_dir):  # type: ignore[no-untyped-def]
        if row["value"] == self.at:
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(7)
        return super().row_preprocessor(row, mode, object_dir)


@pytest.mark.parametrize(("by_signal", "how"), [(False, "exit status 7"), (True, "signal SIGKILL")])
def test_a_dead_core_process_is_reported(tmp_path: Path, by_signal: bool, how: str) -> None:
    """The retryable error says how the process ended and at which row."""
    job = make_job(tmp_path, list(range(ROWS)), cores=2)
    with pytest.raises(CoreDiedError, match=rf"died with {how} at row 13 of the partition") as caught:
        preprocess(job, lambda: _Dying(13, by_signal), nothing)
    assert isinstance(caught.value, RetryableError)
    preprocess(job, Double, nothing)
    assert stored(job.output_folder) == ALL


def test_a_job_that_fails_leaves_no_process(tmp_path: Path) -> None:
    bad = {3}
    with closing(Cores(ready(lambda: FailOn(sorted(bad))))) as cores:
        with pytest.raises(RowError):
            preprocess_partition(make_job(tmp_path / "bad", range(ROWS), cores=2), cores, nothing)
        assert own_children() == []
        bad.clear()
        job = make_job(tmp_path / "good", range(ROWS), cores=2)
        preprocess_partition(job, cores, nothing)
    assert stored(job.output_folder) == ALL
    assert own_children() == []
