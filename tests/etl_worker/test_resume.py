"""A later attempt reuses complete shards of an interrupted job if the source is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro.data.partitions import PARTITION_FILE, STATISTICS_FILE, complete_shards, read_manifest
from cerebro.errors import RowError
from cerebro.spec import Mode
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress
from tests.etl_worker.jobs import Double, FailOn, make_job, notes, nothing, preprocess, stored

ALL = {value: [value * 2, value] for value in range(40)}


class _InterruptError(BaseException):
    """Interrupts a job like a signal; row functions do not catch it."""


class _Until(FailOn):
    """A spec that interrupts the job at one value."""

    def __init__(self, at: int, log: Path) -> None:
        super().__init__([], log)
        self.at = at

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        if row["value"] == self.at:
            raise _InterruptError
        return super().row_preprocessor(row, mode, object_dir)


def _interrupted(tmp_path: Path, at: int = 25) -> EtlJob:
    """Return a job of 40 rows in four shards, interrupted in the third."""
    job = make_job(tmp_path, list(range(40)))
    with pytest.raises(_InterruptError):
        preprocess(job, lambda: _Until(at, tmp_path / "before"), nothing)
    assert len(notes(tmp_path / "before")) == at
    return job


def _rerun(job: EtlJob, log: Path) -> list[int]:
    """Run the next attempt and return the rows that it preprocesses."""
    preprocess(job, lambda: FailOn([], log), nothing)
    return sorted(int(row) for row in notes(log))


def test_complete_shards_are_not_repeated(tmp_path: Path) -> None:
    job = _interrupted(tmp_path)
    assert _rerun(job, tmp_path / "after") == list(range(20, 40))
    assert stored(job.output_folder) == ALL


def test_a_complete_partition_is_not_repeated(tmp_path: Path) -> None:
    """The spec is not loaded, no file changes, and progress is complete."""
    job = make_job(tmp_path, list(range(40)))
    manifest = preprocess(job, Double, nothing)
    times = {path: path.stat().st_mtime_ns for path in job.output_folder.iterdir()}
    reports: list[EtlProgress] = []

    def no_spec() -> Double:
        raise AssertionError("the spec was asked for")

    assert preprocess(job, no_spec, reports.append) == manifest
    assert {path: path.stat().st_mtime_ns for path in job.output_folder.iterdir()} == times
    assert reports[-1] == EtlProgress(rows_done=40, rows_failed=0, rows_total=40)


@pytest.mark.processes
@pytest.mark.parametrize("cores", [2, 3])
def test_another_number_of_cores_keeps_the_shard_plan(tmp_path: Path, cores: int) -> None:
    """A restarted worker with other resources keeps its complete shards."""
    job = _interrupted(tmp_path)
    assert _rerun(replace(job, cores=cores), tmp_path / "after") == list(range(20, 40))
    assert stored(job.output_folder) == ALL


def test_another_fingerprint_repeats_all_shards(tmp_path: Path) -> None:
    """A changed spec, seed or fraction changes the fingerprint."""
    job = _interrupted(tmp_path)
    assert _rerun(replace(job, fingerprint="spec-2"), tmp_path / "after") == list(range(40))
    assert {entry.written for entry in read_manifest(job.output_folder).shards} == {
        shard.written for shard in complete_shards(job.output_folder)
    }
    assert len(list(job.output_folder.glob("*.arrow"))) == len(read_manifest(job.output_folder).shards)


@pytest.mark.parametrize("damage", ["shard", "manifest", "partition", "plan"])
def test_damaged_files_are_repeated(tmp_path: Path, damage: str) -> None:
    """A flipped bit costs one shard; a lost manifest costs only the rows that it covers."""
    job = make_job(tmp_path, list(range(40)))
    preprocess(job, Double, nothing)
    shard = complete_shards(job.output_folder)[1]
    if damage == "shard":
        path = job.output_folder / shard.file
        content = bytearray(path.read_bytes())
        content[300] ^= 1
        path.write_bytes(content)
    elif damage == "manifest":
        (job.output_folder / "shard-00001.json").write_text("{}")
    elif damage == "partition":
        (job.output_folder / PARTITION_FILE).write_text("{}")
    else:
        (job.output_folder / "plan.json").unlink()
    expected = [] if damage in {"partition", "plan"} else list(range(10, 20))
    assert _rerun(job, tmp_path / "after") == expected
    assert stored(job.output_folder) == ALL


def test_a_partition_is_incomplete_while_it_is_repeated(tmp_path: Path) -> None:
    """Otherwise a reader could map shards that are about to change."""
    job = make_job(tmp_path, list(range(40)))
    preprocess(job, Double, nothing)
    observed: list[bool] = []

    class Looking(Double):
        def initialize_worker(self) -> None:
            observed.append((job.output_folder / PARTITION_FILE).exists())

    preprocess(replace(job, fingerprint="spec-2"), Looking, nothing)
    assert observed == [False]


def test_failed_rows_are_retried_after_a_failed_job(tmp_path: Path) -> None:
    """The user may fix the data without changing the spec, so shards with failed rows are repeated."""
    job = make_job(tmp_path, list(range(40)), max_failed_fraction=0.05)
    with pytest.raises(RowError):
        preprocess(job, lambda: FailOn([3, 15, 25]), nothing)
    assert _rerun(job, tmp_path / "after") == list(range(30))
    assert stored(job.output_folder) == ALL


def test_leftovers_are_cleared(tmp_path: Path) -> None:
    """This covers files of killed attempts and shards of an older shard plan."""
    job = _interrupted(tmp_path)
    for name in [".shard-00000-abc.arrow.1-2.aside", "shard-00077-abcdef01.arrow", "shard-00077.json"]:
        (job.output_folder / name).write_bytes(b"left")
    job.cache_folder.mkdir(exist_ok=True)
    (job.cache_folder / "left").touch()
    preprocess(job, Double, nothing)
    manifest = read_manifest(job.output_folder)
    expected = {"plan.json", PARTITION_FILE, STATISTICS_FILE}
    for shard in manifest.shards:
        expected |= {shard.file, f"shard-{shard.index:05d}.json"}
    assert {path.name for path in job.output_folder.iterdir()} == expected
    assert not job.cache_folder.exists()
