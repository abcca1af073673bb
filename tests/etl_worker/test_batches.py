"""A batch preprocessor gives the same rows and failures as a row preprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.partitions import failed_rows
from cerebro.errors import RowError
from cerebro.spec import ETLSpec, Mode
from tests.etl_worker.jobs import FailOn, make_job, nothing, preprocess, stored


class InBatches(ETLSpec):
    """A batch preprocessor with the results of `FailOn`."""

    def __init__(self, values: Sequence[int] = (), batch_rows: int = 4096) -> None:
        self.values, self.batch_rows = list(values), batch_rows

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        value = batch["value"].to_numpy()
        for bad in value[np.isin(value, self.values)]:
            raise ValueError(f"value {bad} is bad")
        return value * 2, value


@settings(deadline=None, max_examples=60)
@given(data=st.data(), count=st.integers(0, 60), batch_rows=st.integers(1, 70), as_text=st.booleans())
def test_batches_produce_the_same_output_as_rows(
    data: st.DataObject, count: int, batch_rows: int, as_text: bool
) -> None:
    bad = sorted(data.draw(st.sets(st.integers(0, max(0, count - 1)))))
    ids = [f"row-{i}" if as_text else i * 3 for i in range(count)]
    with TemporaryDirectory() as name:
        found = []
        for spec in (InBatches(bad, batch_rows), FailOn(bad)):
            folder = Path(name) / type(spec).__name__
            job = make_job(folder, ids, max_failed_fraction=1.0)  # type: ignore[arg-type]  # of one type each
            manifest = preprocess(job, lambda spec=spec: spec, nothing)  # type: ignore[misc]
            failed = [(row.id, row.error) for row in failed_rows(job.output_folder)]
            found.append((stored(job.output_folder), failed, manifest.rows_in, manifest.rows_out))
    assert found[0] == found[1]


@pytest.mark.processes
def test_several_cores_process_batches(tmp_path: Path) -> None:
    job = make_job(tmp_path, list(range(97)), cores=3, max_failed_fraction=1.0)
    preprocess(job, lambda: InBatches([2, 50], 7), nothing)
    assert stored(job.output_folder) == {
        value: [value * 2, value] for value in range(97) if value not in {2, 50}
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (([[1, 2]], None), r"field 'input' is a builtins.list; batch_preprocessor must return"),
        ((np.zeros((3, 2)), None), r"4 rows .* row 0: field 'input' has shape \(3, 2\); .* 4 on the first axis"),
        ((1.0, None), r"field 'input' has shape \(\); batch_preprocessor must return one entry for each row"),
        (np.zeros(4), r"row 0: batch_preprocessor returned a ndarray, expected \(input, output\)"),
        ((np.array(["a"] * 4), None), r"dtype <U1; batch_preprocessor must return one of.* CLASSES\.index\(word\)"),
    ],
)  # fmt: skip
def test_an_invalid_batch_ends_the_job(tmp_path: Path, returned: Any, message: str) -> None:
    """The error names the first row and the expected result."""

    class Returning(ETLSpec):
        def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
            """See `ETLSpec`."""
            result: tuple[Any, Any] = returned
            return result

    with pytest.raises(RowError, match=message):
        preprocess(make_job(tmp_path, list(range(16))), Returning, nothing)


class Sizes(InBatches):
    """A spec that outputs the size of each row's object."""

    is_feature_download = ["file"]  # noqa: RUF012 - as a user writes it

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        lengths = [(Path(object_dir) / name).stat().st_size for name in batch["file"].to_pylist()]
        return np.array(lengths), None


@pytest.mark.parametrize("batch_rows", [1, 3, 10])
def test_rows_with_missing_objects_are_omitted(tmp_path: Path, batch_rows: int) -> None:
    """Other rows of the batch are kept."""
    (tmp_path / "objects").mkdir()
    for number in range(8):
        if number not in {0, 5}:
            (tmp_path / "objects" / f"{number}").write_bytes(b"x" * number)
    names = ["../up" if number == 7 else str(number) for number in range(8)]
    objects = str(tmp_path / "objects")
    job = make_job(tmp_path, range(8), columns={"file": names}, objects_uri=objects, max_failed_fraction=1.0)
    preprocess(job, lambda: Sizes(batch_rows=batch_rows), nothing)
    assert stored(job.output_folder) == {number: [number] for number in (1, 2, 3, 4, 6)}
    assert [row.id for row in failed_rows(job.output_folder)] == [0, 5, 7]


class Scaled(ETLSpec):
    """A row function that cannot handle an empty cell."""

    def row_preprocessor(self, row: Any, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        return row["value"] / 2 + row["age"], None


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (InBatches(batch_rows=3), "ArrowInvalid: .* with 1 nulls, but zero_copy_only was True"),
        (Scaled(), "TypeError: unsupported operand .*"),
    ],
)
def test_an_error_names_the_empty_cells_of_its_row(tmp_path: Path, spec: Any, error: str) -> None:
    """Equal errors are listed once."""
    columns = {"value": [0, None, 2, None], "age": [1, None, 3, None], "city": ["a", "", "", ""]}
    job = make_job(tmp_path, list(range(4)), columns=columns)
    hint = r" \(empty in this row: value, age, city; fill them, or handle None, and '' in texts\)"
    with pytest.raises(RowError, match=rf"\n  row 1 and 1 more: {error}{hint}\Z"):
        preprocess(job, lambda: spec, nothing)
