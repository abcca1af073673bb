"""The number of preprocessing processes adapts to memory and waiting time without changing the output."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.tasks.failures import FailureKind
from cerebro.worker.child.task_loop import failure_of
from etl_worker.cores import Cores
from etl_worker.errors import NoMemoryError
from etl_worker.partition import preprocess_partition
from etl_worker.process_count import MAX_PER_CORE, Sizing, Window
from tests.control_groups import run_in
from tests.etl_worker.jobs import Double, make_job, nothing, ready, stored

ROWS = 80
ALL = {value: [value * 2, value] for value in range(ROWS)}

windows = st.builds(
    Window,
    rate=st.floats(0, 1e6),
    busy=st.floats(0, 1),
    machine_busy=st.floats(0, 1),
)


# --- the decision -----------------------------------------------------------------------------------


@given(cores=st.integers(1, 64), measured=st.lists(windows | st.none(), max_size=30))
def test_the_process_count_stays_in_its_limits_and_settles(cores: int, measured: list[Window | None]) -> None:
    """`None` means that memory ran out. The number stays within its limits and never grows afterwards."""
    sizing, has_run_out = Sizing(cores), False
    for window in measured:
        before = sizing.number
        if window is None:
            assert sizing.ran_out() == (before > 1)
            has_run_out |= before > 1
            assert sizing.number == -(-before // 2)
        else:
            sizing.add(window)
            assert not has_run_out or sizing.number == before
        assert 1 <= sizing.number <= MAX_PER_CORE * cores


@given(cores=st.integers(1, 64), shortages=st.integers(0, 5))
def test_attempts_after_a_lack_of_memory_start_with_fewer_processes(cores: int, shortages: int) -> None:
    """The third attempt at 16 cores uses one process; a smaller known number stays in effect."""
    sizing = Sizing(cores)
    sizing.begin(shortages)
    assert sizing.number == max(1, cores // 4**shortages)
    sizing.ran_out()
    before = sizing.number
    sizing.begin(0)
    assert sizing.number == before


def test_processes_are_added_while_the_row_rate_rises() -> None:
    """Each step adds half; a step that does not raise the row rate is reverted."""
    sizing = Sizing(4)
    numbers = []
    for rate in (100.0, 150.0, 220.0, 225.0, 400.0):
        sizing.add(Window(rate=rate, busy=0.1, machine_busy=0.1))
        numbers.append(sizing.number)
    assert numbers == [6, 9, 14, 9, 9]


# --- processes --------------------------------------------------------------------------------------


class Hungry(Double):
    """A spec whose process dies, like by the OOM killer, if more than `most` run or the value is `bad`.

    Args:
        deaths: file with a line per killed process.
    """

    def __init__(self, folder: Path, most: int, bad: int = -1) -> None:
        self.folder, self.most, self.bad = folder, most, bad

    def initialize_worker(self) -> None:
        """See `ETLSpec`."""
        (self.folder / str(os.getpid())).touch()

    def row_preprocessor(self, row: Any, mode: Any, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        alive = [path for path in self.folder.glob("[0-9]*") if psutil.pid_exists(int(path.name))]
        if len(alive) > self.most or row["value"] == self.bad:
            self.die()
        return super().row_preprocessor(row, mode, object_dir)

    def die(self) -> None:
        """Die by SIGKILL and count the death, like the kernel's OOM killer."""
        with (self.folder / "deaths").open("a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Refused(Hungry):
    """A spec for which Python itself raises MemoryError."""

    def die(self) -> None:
        """See `Hungry`."""
        raise MemoryError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    processes = tmp_path / "processes"
    processes.mkdir()
    return processes


def cores_of(spec: Hungry, *, counted: bool = True) -> Cores:
    """Return core processes with or without a kernel that counts OOM kills."""
    deaths = spec.folder / "deaths"

    def kills() -> int | None:
        return len(deaths.read_text().splitlines()) if deaths.exists() else 0

    return Cores(ready(lambda: spec), kills if counted else lambda: None)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("make", "counted"),
    [
        (Hungry, True),
        pytest.param(Hungry, False, marks=pytest.mark.slow),
        pytest.param(Refused, True, marks=pytest.mark.slow),
    ],
)
def test_fewer_processes_produce_the_same_bytes(
    tmp_path: Path, folder: Path, make: type[Hungry], counted: bool
) -> None:
    whole = make_job(tmp_path / "whole", list(range(ROWS)), cores=8)
    with closing(Cores(Double)) as cores:
        expected = preprocess_partition(whole, cores, nothing)
    observed: list[int] = []
    with closing(cores_of(make(folder, 3), counted=counted)) as cores:
        job = make_job(tmp_path / "one", list(range(ROWS)), cores=8)
        result = preprocess_partition(job, cores, lambda progress: observed.append(progress.rows_done))
        assert cores._sizing.number <= 4
    assert (result.checksum, stored(job.output_folder)) == (expected.checksum, ALL)
    assert observed[-1] == ROWS
    assert max(observed) == ROWS
    assert list(job.output_folder.glob(".*")) == []
    rows = sorted(path.name for path in job.output_folder.glob("shard-*.arrow"))
    assert rows == sorted(shard.file for shard in result.shards), "nothing lies there that nobody reads"


@pytest.mark.processes
def test_a_row_that_always_exhausts_the_memory_is_named(tmp_path: Path, folder: Path) -> None:
    """The attempt fails as out of memory after a single process was killed at that row."""
    job = make_job(tmp_path, [f"row-{number}" for number in range(ROWS)], cores=4)
    with (
        closing(cores_of(Hungry(folder, 9, bad=33))) as cores,
        pytest.raises(NoMemoryError, match="whose id is 'row-33', with a single process") as caught,
    ):
        preprocess_partition(job, cores, nothing)
    assert (folder / "deaths").read_text().count("\n") == 3
    failure = failure_of(caught.value)
    assert (failure.kind, failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "host")


class Squeezed(Hungry):
    """A spec whose rows fail in each process that starts before the first OOM kill, until that process is killed."""

    def initialize_worker(self) -> None:
        """See `ETLSpec`."""
        super().initialize_worker()
        self.lacks_memory = not (self.folder / "deaths").exists()

    def row_preprocessor(self, row: Any, mode: Any, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        if self.lacks_memory:
            if row["value"] % 2:
                self.die()
            raise OSError("Cannot allocate memory")
        return super().row_preprocessor(row, mode, object_dir)


@pytest.mark.processes
def test_a_failed_row_of_an_ended_process_is_repeated(tmp_path: Path, folder: Path) -> None:
    """Lack of memory may have caused the row's failure."""
    job = make_job(tmp_path, list(range(ROWS)), cores=2)
    with closing(cores_of(Squeezed(folder, 99))) as cores:
        preprocess_partition(job, cores, nothing)
    assert stored(job.output_folder) == ALL


@pytest.mark.processes
def test_waiting_rows_get_more_processes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's processor time shows the waiting; the shard plan stays the same."""
    rates = iter([10.0, 20.0, 20.0])

    def measure(*_: object) -> Window | None:
        rate = next(rates, None)
        return None if rate is None else Window(rate=rate, busy=0.0, machine_busy=0.0)

    monkeypatch.setattr("etl_worker.cores.Watch.measure", measure)
    job = make_job(tmp_path, list(range(ROWS)), cores=2)
    with closing(cores_of(Hungry(folder, 99))) as cores:
        manifest = preprocess_partition(job, cores, nothing)
        assert cores._sizing.number == 3
    assert (len(manifest.shards), stored(job.output_folder)) == (8, ALL)
    assert len(list(folder.iterdir())) == 4


_REAL = """
import sys
from contextlib import closing
from pathlib import Path
from etl_worker.cores import Cores
from etl_worker.partition import preprocess_partition
from tests.etl_worker.jobs import Double, make_job, nothing, ready, stored

class Large(Double):
    def row_preprocessor(self, row, mode, object_dir):
        held = bytearray(96 << 20)
        held[:: 4096] = bytes(len(held[:: 4096]))
        return super().row_preprocessor(row, mode, object_dir)

job = make_job(Path(sys.argv[1]), list(range(80)), cores=8)
with closing(Cores(Large)) as cores:
    made = preprocess_partition(job, cores, nothing)
    print(made.checksum, cores._sizing.number, len(stored(job.output_folder)))
"""


@pytest.mark.processes
@pytest.mark.slow
def test_after_an_out_of_memory_kill_fewer_processes_finish_the_job(
    small_group: Path, tmp_path: Path
) -> None:
    """Uses real memory: eight processes of 100 MB in a cgroup of 384 MiB."""
    checksum, number, rows = run_in(small_group, _REAL, tmp_path / "small").split()
    whole = make_job(tmp_path / "whole", list(range(ROWS)), cores=8)
    with closing(Cores(Double)) as cores:
        assert checksum == preprocess_partition(whole, cores, nothing).checksum
    assert int(number) < 4
    assert int(rows) == ROWS
