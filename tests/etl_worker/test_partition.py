"""A partition's input rows equal its output rows plus failed rows, for any number of cores."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cerebro.worker.preprocessing.metadata as metadata_module
from cerebro.data.partitions import STATISTICS_FILE, failed_rows, find_partitions, read_manifest
from cerebro.data.statistics.data import DataStatistics
from cerebro.errors import LocatorError, MetadataError, RowError, SpecError
from cerebro.runtime.tracebacks import text_of
from cerebro.spec import ETLSpec, Mode
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress
from etl_worker.errors import TooManyFailedError
from tests.etl_worker.jobs import (
    Double,
    FailOn,
    make_job,
    note,
    notes,
    nothing,
    preprocess,
    stored,
    write_metadata,
)


class _Collects(Double):
    """A spec that collects garbage at each row."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        gc.collect()
        return super().row_preprocessor(row, mode, object_dir)


class _Cycle:
    """Garbage that only the garbage collector finds. Its finaliser notes the process."""

    def __init__(self, log: Path) -> None:
        self.log, self.itself = log, self

    def __del__(self) -> None:
        note(self.log, str(os.getpid()))


@pytest.mark.processes
def test_cores_do_not_collect_the_garbage_of_their_parent(tmp_path: Path) -> None:
    """Its finalisers may join threads that a fork lacks."""
    gc.disable()
    try:
        _Cycle(tmp_path / "log")
        preprocess(make_job(tmp_path, list(range(4)), cores=2), _Collects, nothing)
        assert notes(tmp_path / "log") == []
        gc.collect()
        assert notes(tmp_path / "log") == [str(os.getpid())]
    finally:
        gc.enable()


def test_an_error_while_counting_columns_does_not_fail_the_etl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition is complete, without columns in its statistics."""

    def fail(*_: object) -> None:
        raise OverflowError("(34, 'Numerical result out of range')")

    monkeypatch.setattr(metadata_module, "observe_metadata", fail)
    job = make_job(tmp_path, list(range(4)))
    assert preprocess(job, Double, nothing).rows_out == 4
    statistics = DataStatistics.from_json((job.output_folder / STATISTICS_FILE).read_bytes())
    assert statistics == DataStatistics()
    assert "a partition has no statistics" in caplog.text


@settings(deadline=None, max_examples=60)
@given(data=st.data(), count=st.integers(0, 60), as_text=st.booleans())
def test_no_row_is_lost(data: st.DataObject, count: int, as_text: bool) -> None:
    bad = data.draw(st.sets(st.integers(0, max(0, count - 1))))
    ids = [f"row-{i}" if as_text else i * 3 for i in range(count)]
    with TemporaryDirectory() as name:
        job = make_job(Path(name), ids, max_failed_fraction=1.0)  # type: ignore[arg-type]  # of one type each
        manifest = preprocess(job, lambda: FailOn(list(bad)), nothing)
        failed = [row.id for row in failed_rows(job.output_folder)]
        assert failed == [ids[value] for value in sorted(bad) if value < count]
        assert stored(job.output_folder) == {
            ids[value]: [value * 2, value] for value in range(count) if value not in bad
        }
        assert manifest.rows_in == count == manifest.rows_out + manifest.rows_failed


@pytest.mark.processes
@pytest.mark.parametrize(("count", "cores"), [(0, 2), (1, 4), (3, 4), (4, 4), (5, 2), (97, 3)])
def test_no_row_is_lost_between_cores(tmp_path: Path, count: int, cores: int) -> None:
    """Covers fewer rows than cores, equally many, and uneven divisions."""
    job = make_job(tmp_path, list(range(count)), cores=cores, max_failed_fraction=1.0)
    manifest = preprocess(job, lambda: FailOn([2, 50]), nothing)
    assert manifest.rows_in == count
    assert stored(job.output_folder) == {
        value: [value * 2, value] for value in range(count) if value not in {2, 50}
    }
    assert manifest == read_manifest(job.output_folder)


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
def test_the_checksum_depends_on_rows_and_not_on_attempts(values: list[int], data: st.DataObject) -> None:
    """A checksum proves that a replica is equal: the same rows give the same one, any other value does not."""
    at = data.draw(st.integers(0, len(values) - 1))
    changed = [value + (place == at) for place, value in enumerate(values)]
    with TemporaryDirectory() as name:
        results = [
            preprocess(
                make_job(Path(name, str(number)), list(range(len(values))), columns={"value": given}),
                Double,
                nothing,
            ).checksum
            for number, given in enumerate((values, values, changed))
        ]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_a_complete_partition_is_found_on_its_volume(tmp_path: Path) -> None:
    job = make_job(tmp_path, [1, 2], output_folder=tmp_path / "digits" / "train" / "partition-0001")
    manifest = preprocess(job, Double, nothing)
    (found,) = find_partitions(tmp_path)
    assert (found.dataset, found.split, found.partition) == ("digits", "train", 1)
    assert found.manifest == manifest


class _RecordingSpec(ETLSpec):
    """A spec that records its calls."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls

    def initialize_worker(self) -> None:
        self.calls.append(("initialized",))

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        self.calls.append((row, mode, object_dir))
        return 1, None


def test_the_row_function_sees_plain_values_and_its_mode(tmp_path: Path) -> None:
    """Rows are dicts of Python values, the mode is the split, and `initialize_worker` runs once before."""
    calls: list[tuple[Any, ...]] = []
    columns = {"text": ["a", None], "number": [1.5, 2.0], "many": [[1, 2], []]}
    job = make_job(tmp_path, ["x", "y"], columns=columns, split="predict", objects_uri=str(tmp_path))
    preprocess(job, lambda: _RecordingSpec(calls), nothing)
    assert calls == [
        ("initialized",),
        ({"id": "x", "text": "a", "number": 1.5, "many": [1, 2]}, "predict", str(tmp_path)),
        ({"id": "y", "text": None, "number": 2.0, "many": []}, "predict", str(tmp_path)),
    ]


@pytest.mark.processes
@pytest.mark.parametrize("cores", [1, 2])
def test_progress_is_counted_over_all_cores(tmp_path: Path, cores: int) -> None:
    """Failed rows count too, and the last report equals the total."""
    reports: list[EtlProgress] = []
    job = make_job(tmp_path, list(range(40)), cores=cores, max_failed_fraction=0.5)
    preprocess(job, lambda: FailOn([3, 30]), reports.append)
    done = [report.rows_done for report in reports]
    assert done == sorted(done)
    assert reports[-1] == EtlProgress(rows_done=40, rows_failed=2, rows_total=40)


class _StopError(Exception):
    """Raised by a progress callback."""


@pytest.mark.parametrize("cores", [1, 2])
def test_progress_can_end_the_job(tmp_path: Path, cores: int) -> None:
    """The exception propagates, for example after a lost lease; no process or partial shard remains."""

    def stop(progress: EtlProgress) -> None:
        raise _StopError

    job = make_job(tmp_path, list(range(40)), cores=cores)
    with pytest.raises(_StopError):
        preprocess(job, Double, stop)
    assert not list(job.output_folder.glob("*.arrow"))


@pytest.mark.processes
@pytest.mark.parametrize("cores", [1, 2])
def test_too_many_failures_end_the_job(tmp_path: Path, cores: int) -> None:
    """The error has the counts, the share, a line per failed row and the first traceback."""
    job = make_job(
        tmp_path, [f"row-{i}" for i in range(20)], cores=cores, max_failed_fraction=0.1, split="valid"
    )
    with pytest.raises(TooManyFailedError) as caught:
        preprocess(job, lambda: FailOn(range(20)), nothing)
    text = str(caught.value)
    for part in [
        "'valid'",
        "of the 20 rows",
        "`max_failed` allows 10.0%",
    ]:
        assert part in text
    assert [row.id for row in caught.value.rows] == [f"row-{i}" for i in range(20)]
    assert "20 of the 20 rows of a partition failed (100.0%" in text
    lines = [f"  row 'row-{i}': ValueError: value {i} is bad" for i in range(20)]
    assert text.splitlines()[1:] == lines
    assert "in row_preprocessor" in caught.value.user_traceback
    assert caught.value.user_traceback.rstrip().endswith("ValueError: value 0 is bad")


class _Odd(Double):
    """A spec with a different result for one value."""

    def __init__(self, at: int, value: Any) -> None:
        self.at, self.value = at, value

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        return self.value if row["value"] == self.at else (np.zeros((3, 4), np.float32), 1)


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.processes)])
@pytest.mark.parametrize("at", [1, 9, 39])
def test_a_shape_that_changes_is_named(tmp_path: Path, cores: int, at: int) -> None:
    """Shapes are compared within and across shards and cores; the error has the row, field and both shapes."""
    job = make_job(tmp_path, [f"row-{i}" for i in range(40)], cores=cores)
    with pytest.raises(RowError) as caught:
        preprocess(job, lambda: _Odd(at, (np.zeros((3, 5), np.float32), 1)), nothing)
    for part in [f"'row-{at}'", "'input'", "(3, 4)", "(3, 5)", "Pad"]:
        assert part in str(caught.value)


@pytest.mark.parametrize("error", [StopIteration("end"), SystemExit(3), AssertionError(), MemoryError()])
def test_any_exception_of_the_row_function_fails_its_row(tmp_path: Path, error: BaseException) -> None:
    """This includes StopIteration and SystemExit."""

    class Raising(Double):
        def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
            if row["value"] == 1:
                raise error
            return super().row_preprocessor(row, mode, object_dir)

    job = make_job(tmp_path, list(range(4)), max_failed_fraction=0.5)
    assert preprocess(job, Raising, nothing).rows_failed == 1
    (row,) = failed_rows(job.output_folder)
    assert row.id == 1
    assert type(error).__name__ in row.error


@pytest.mark.processes
@pytest.mark.parametrize("cores", [1, 2])
def test_an_interrupt_is_passed_on(tmp_path: Path, cores: int) -> None:
    class Interrupted(Double):
        def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
            raise KeyboardInterrupt

    job = make_job(tmp_path, list(range(8)), cores=cores, max_failed_fraction=1.0)
    with pytest.raises(KeyboardInterrupt):
        preprocess(job, Interrupted, nothing)


class _Draw(Double):
    """Rows of random numbers from the global generators that user code usually calls."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        return (random.random(), np.random.rand(), torch.rand(()).item()), row["value"]


@pytest.mark.processes
def test_random_rows_do_not_depend_on_the_cores(tmp_path: Path) -> None:
    """Every row has its own seed."""
    one = make_job(tmp_path / "one", list(range(12)), cores=1)
    three = make_job(tmp_path / "three", list(range(12)), cores=3)
    for job in (one, three):
        preprocess(job, _Draw, nothing)
    rows = stored(one.output_folder)
    assert rows == stored(three.output_folder)
    for field in range(3):
        assert len({str(row[field]) for row in rows.values()}) == 12


def test_random_rows_do_not_depend_on_the_attempt(tmp_path: Path) -> None:
    """A retried row draws the same numbers."""
    job = make_job(tmp_path, list(range(12)))
    preprocess(job, _Draw, nothing)
    rows = stored(job.output_folder)
    lost = job.output_folder / "shard-00001.json"
    lost.write_text("{}")
    preprocess(job, _Draw, nothing)
    assert lost.read_text() != "{}"
    assert stored(job.output_folder) == rows


def _raising(error: BaseException) -> Any:
    def call(*_: object) -> Any:
        raise error

    return call


@pytest.mark.processes
@pytest.mark.parametrize("cores", [1, 2])
def test_a_spec_that_cannot_start_is_reported(tmp_path: Path, cores: int) -> None:
    """The error includes the user's traceback."""
    job = make_job(tmp_path, list(range(8)), cores=cores)
    with pytest.raises(SpecError, match=r"restored and initialised: ModuleNotFoundError: mylib$") as caught:
        preprocess(job, _raising(ModuleNotFoundError("mylib")), nothing)
    assert text_of(caught.value).count("in call") == 1


@pytest.mark.parametrize(
    ("features", "objects", "expected"),
    [
        (["picture"], True, r"names the column 'picture'.*only id, value"),
        (["value"], False, "no object root"),
        ("value", True, "expected a list of column names"),
    ],
)
def test_features_to_download_must_exist(tmp_path: Path, features: Any, objects: bool, expected: str) -> None:
    """The error names the column and the existing ones."""

    class Downloading(Double):
        is_feature_download = features

    job = make_job(tmp_path, [1], objects_uri=str(tmp_path) if objects else None)
    with pytest.raises(SpecError, match=expected):
        preprocess(job, Downloading, nothing)


def _with_metadata(job: EtlJob, table: pa.Table) -> EtlJob:
    write_metadata(job.metadata_path, table)
    return job


def test_metadata_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The file may be missing, in another format, without ids, or with ids that are null or of another type."""
    job = make_job(tmp_path, [1])
    for table, expected in [
        (pa.table({"x": [1]}), r"no column 'id' \(its columns: x\)"),
        (pa.table({"id": [1.5]}), "ids of type double"),
        (pa.table({"id": pa.array([1, None])}), "without an id"),
    ]:
        with pytest.raises(MetadataError, match=rf"{job.metadata_path}.*{expected}"):
            preprocess(_with_metadata(job, table), Double, nothing)
    job.metadata_path.write_bytes(b"no arrow")
    with pytest.raises(LocatorError, match=str(job.metadata_path)):
        preprocess(job, Double, nothing)
    job.metadata_path.unlink()
    with pytest.raises(LocatorError, match=str(job.metadata_path)):
        preprocess(job, Double, nothing)
