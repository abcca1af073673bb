"""A damaged append-only file is diagnosed with a repair command, using a real Redis."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis

from cerebro.local import damage
from cerebro.local.supervision.service_process import ServiceProcess
from cerebro.local.supervision.services import Service
from tests.kvs_api.real import Database

RECORDS = 500


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the append-only file of a database that was killed."""
    with Database(tmp_path) as database, redis.Redis.from_url(database.url) as client:
        for number in range(RECORDS):
            client.xadd("log", {"e": f"event {number}"})
    (path,) = (tmp_path / "store/appendonlydir").glob("*.incr.aof")
    return path


def left(folder: Path) -> int:
    """Count the records that a database loads; they must be the oldest ones."""
    with Database(folder) as database, redis.Redis.from_url(database.url) as client:
        found = client.xrange("log")
    assert [fields[b"e"] for _, fields in found] == [b"event %d" % number for number in range(len(found))]
    return len(found)


def flip(path: Path) -> None:
    """Flip bits in the middle of the file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(byte ^ 0xFF for byte in content[middle : middle + 100])
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("cut", [1, 17, 40])
def test_a_truncated_write_is_dropped(written: Path, tmp_path: Path, cut: int) -> None:
    """Only the last record is lost, without manual repair."""
    with written.open("r+b") as file:
        file.truncate(written.stat().st_size - cut)
    assert left(tmp_path) == RECORDS - 1
    assert damage.explained(tmp_path / "store", tmp_path / "log") == ""


@pytest.mark.slow
@pytest.mark.processes
def test_damage_in_the_middle_is_named_and_repaired(written: Path, tmp_path: Path) -> None:
    """The printed commands repair it: earlier records survive and new ones can be appended."""
    flip(written)
    with pytest.raises(AssertionError, match="Bad file format"):
        left(tmp_path)
    said = damage.explained(tmp_path / "store", tmp_path / "log")
    assert f"its append-only file {written} is damaged" in said
    commands = said.split("`")[1::2]
    assert commands[0] == "cerebro down"
    for command in commands[1:]:
        subprocess.run(command, shell=True, check=True, input=b"y\n", capture_output=True)
    assert (tmp_path / "store.damaged" / "appendonlydir" / written.name).exists()
    kept = left(tmp_path)
    assert RECORDS / 3 < kept < RECORDS
    with Database(tmp_path) as database, redis.Redis.from_url(database.url) as client:
        client.xadd("log", {"e": f"event {kept}"})
    assert left(tmp_path) == kept + 1


SAID = "7:M 23 Nov # Bad file format reading the append only file appendonly.aof.3.incr.aof: make a backup"


@pytest.mark.parametrize(
    ("printed", "is_damage"),
    [
        (f"7:M ready\n{SAID}\n", True),
        (f"{SAID}\n7:M * Ready to accept connections\n", False),
        ("7:M # Fatal error loading the DB, check server logs. Exiting.\n", False),
        ("", False),
        (None, False),
    ],
)
def test_only_damage_is_reported_as_damage(tmp_path: Path, printed: str | None, is_damage: bool) -> None:
    """Only the latest start in the log counts; a missing log is no damage."""
    if printed is not None:
        (tmp_path / "log").write_text(printed)
    said = damage.explained(tmp_path / "store", tmp_path / "log")
    assert ("appendonlydir/appendonly.aof.3.incr.aof is damaged" in said) == is_damage
    assert bool(said) == is_damage


@pytest.mark.processes
def test_a_process_that_ends_before_it_is_ready_is_explained(tmp_path: Path) -> None:
    """`cerebro up` prints the explanation."""
    service = Service(
        name="redis", command=("false",), environment={}, ready=lambda: False, explain=lambda: ": why"
    )
    process = ServiceProcess(service, log=tmp_path / "log", folder=tmp_path)
    process.start(0.0)
    while not process.reap(1.0):
        pass
    assert process.info().problem.endswith("before it was ready, 1 in a row: why")
