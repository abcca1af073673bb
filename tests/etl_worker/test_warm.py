"""Processes that make shards outlive a job that went well: what they have imported is there for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cerebro.errors import RowError
from cerebro.spec import Mode
from etl_worker.cores import Cores
from etl_worker.errors import CoreDiedError
from etl_worker.partition import preprocess_partition
from tests.etl_worker.jobs import FailOn, make_job, note, notes, nothing, own_children, stored

pytestmark = pytest.mark.processes

ROWS = 40


class Counted(FailOn):
    """Notes each of its decodings and initialisations, and the processes that made a row."""

    def __init__(self, folder: Path, values: tuple[int, ...] = ()) -> None:
        super().__init__(values)
        self.folder = folder
        note(folder / "imports", str(os.getpid()))

    def initialize_worker(self) -> None:
        """See `ETLSpec`."""
        note(self.folder / "initialised", str(os.getpid()))

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        note(self.folder / "rows", str(os.getpid()))
        return super().row_preprocessor(row, mode, object_dir)


@pytest.fixture
def cores(tmp_path: Path) -> Iterator[Cores]:
    with closing(Cores(lambda: Counted(tmp_path))) as found:
        yield found


@pytest.mark.parametrize("number", [1, 3])
def test_the_next_job_imports_nothing(tmp_path: Path, cores: Cores, number: int) -> None:
    """Whatever its size; its rows are its own, and so are its shards."""
    ready: list[str] = []
    for name, rows in (("one", ROWS), ("few", 2), ("three", ROWS)):
        job = make_job(tmp_path / name, list(range(rows)), cores=number)
        preprocess_partition(job, cores, nothing, lambda name=name: ready.append(name))  # type: ignore[misc]
        assert stored(job.output_folder) == {value: [value * 2, value] for value in range(rows)}
    assert len(notes(tmp_path / "imports")) == len(notes(tmp_path / "initialised")) == number
    assert set(notes(tmp_path / "rows")) <= set(notes(tmp_path / "imports"))
    assert list(dict.fromkeys(ready)) == ["one", "few", "three"]


def test_more_processes_are_started_when_a_larger_job_comes(tmp_path: Path, cores: Cores) -> None:
    """Those that are there stay."""
    preprocess_partition(make_job(tmp_path / "small", [0], cores=3), cores, nothing)
    (first,) = notes(tmp_path / "imports")
    preprocess_partition(make_job(tmp_path / "large", list(range(ROWS)), cores=3), cores, nothing)
    assert notes(tmp_path / "imports")[0] == first
    assert len(notes(tmp_path / "imports")) == 3


def test_a_job_that_fails_leaves_no_process(tmp_path: Path) -> None:
    """What user code did to it, no other job meets; the next one starts anew."""
    with closing(Cores(lambda: Counted(tmp_path, values=(3,)))) as cores:
        job = make_job(tmp_path / "bad", list(range(ROWS)), cores=2, max_failed_fraction=0.0)
        with pytest.raises(RowError):
            preprocess_partition(job, cores, nothing)
        assert own_children() == []
        good = make_job(tmp_path / "good", [0, 1, 2], cores=2)
        preprocess_partition(good, cores, nothing)
    assert len(notes(tmp_path / "imports")) == 4
    assert own_children() == []


def test_a_process_that_died_while_it_waited_is_replaced(tmp_path: Path, cores: Cores) -> None:
    """The kernel may take it for want of memory: the next job does not fail for it."""
    preprocess_partition(make_job(tmp_path / "one", list(range(ROWS)), cores=2), cores, nothing)
    victim = own_children()[0]
    victim.kill()
    victim.join()
    job = make_job(tmp_path / "two", list(range(ROWS)), cores=2)
    try:
        preprocess_partition(job, cores, nothing)
    except CoreDiedError:
        pytest.fail("it was asked to do a job")
    assert len(notes(tmp_path / "imports")) == 4


_PRINTING = """
import os, sys
from contextlib import closing
from pathlib import Path
from etl_worker.cores import Cores
from etl_worker.partition import preprocess_partition
from tests.etl_worker.jobs import FailOn, make_job, nothing

class Loud(FailOn):
    def row_preprocessor(self, row, mode, object_dir):
        print("row", row["id"])
        return super().row_preprocessor(row, mode, object_dir)

folder = Path(sys.argv[1])
with closing(Cores(lambda: Loud([]))) as cores:
    for name in ("one", "two"):
        target = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(target, 1)
        job = make_job(folder / name, [f"{name}-{n}" for n in range(4)], cores=2, columns={"value": list(range(4))})
        preprocess_partition(job, cores, nothing)
"""


def test_what_user_code_prints_goes_to_the_log_of_its_own_attempt(tmp_path: Path) -> None:
    """Also where the process that prints was forked for an earlier one."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", _PRINTING, str(tmp_path)], cwd=root, check=True)
    for name in ("one", "two"):
        rows = {f"row {name}-{n}" for n in range(4)}
        assert set((tmp_path / f"{name}.log").read_text().splitlines()) == rows
