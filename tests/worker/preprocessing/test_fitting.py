"""`ETLSpec.fit` reads each training row once, for any partitioning."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.objects.folder import FolderStore
from cerebro.data.tables.whole_tables import write_table
from cerebro.errors import ObjectStoreError, PreemptedError, SpecError
from cerebro.spec import ETLSpec
from cerebro.worker.preprocessing import fit_pass
from cerebro.worker.preprocessing.fit_pass import FitPass


class Collecting(ETLSpec):
    """A spec that returns the rows it read."""

    def __init__(self, batch_rows: int = 4, columns: list[str] | None = None) -> None:
        self.batch_rows, self.is_feature_download = batch_rows, columns or []

    def fit(self, batches: Iterator[Any], object_dir: str) -> Any:
        """Return ids, batch sizes, object contents and a random number."""
        ids, sizes, objects = [], [], []
        for batch in batches:
            ids += batch["id"].to_pylist()
            sizes.append(batch.num_rows)
            for column in self.is_feature_download:
                objects += [(Path(object_dir) / name).read_text() for name in batch[column].to_pylist()]
        return ids, sizes, objects, random.random()


def parts(folder: Path, cut: list[int]) -> list[Path]:
    """Write metadata of partitions with the given row counts."""
    paths, begin = [], 0
    for number, count in enumerate(cut):
        ids = range(begin, begin + count)
        table = pa.table({"id": pa.array(ids, pa.int64()), "file": [f"{one}.txt" for one in ids]})
        path = folder / f"train-{number}.arrow"
        write_table(path, table)
        paths.append(path)
        begin += count
    return paths


def passing(spec: Any, paths: list[Path], folder: Path, **given: Any) -> FitPass:
    options: dict[str, Any] = {
        "objects_uri": None,
        "scratch": folder / "scratch",
        "seed_key": "one/fit",
        **given,
    }
    return FitPass(spec, paths, **options)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), st.integers(1, 12))
def test_each_row_is_read_once_in_a_fixed_order(cut: list[int], batch_rows: int) -> None:
    """Batches have at most `batch_rows` rows, and the random state at the start is fixed."""
    with TemporaryDirectory() as name:
        folder, messages = Path(name), []
        passes = passing(
            Collecting(batch_rows),
            parts(folder, cut),
            folder,
            on_rows=lambda rows, total: messages.append((rows, total)),
        )
        ids, sizes, _, drawn = passes.fit()
        random.random()
        assert passing(Collecting(batch_rows), parts(folder, cut), folder).fit()[3] == drawn
    assert ids == list(range(sum(cut)))
    assert max(sizes) <= batch_rows
    assert passes.rows == sum(cut)
    assert messages[0] == (0, sum(cut))
    assert messages[-1] == (sum(cut), sum(cut))


class Remote(FolderStore):
    """A store whose objects must be copied."""

    def local_root(self) -> Path:
        return cast(Path, None)


def test_objects_are_available_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote objects are copied for the duration of a batch. Rows with missing objects are skipped."""
    root = tmp_path / "objects"
    root.mkdir()
    for one in range(10):
        (root / f"{one}.txt").write_text(str(one))
    spec, paths = Collecting(3, ["file"]), parts(tmp_path, [4, 6])
    here = passing(spec, paths, tmp_path, objects_uri=str(root)).fit()
    assert here[2] == [str(one) for one in range(10)]
    monkeypatch.setattr(fit_pass, "open_store", lambda uri: Remote(str(root)))
    assert passing(spec, paths, tmp_path, objects_uri="s3://there").fit() == here
    (root / "5.txt").unlink()
    ids, sizes, _, _ = passing(spec, paths, tmp_path, objects_uri="s3://there").fit()
    assert ids == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert sizes == [3, 1, 2, 3]
    assert not (tmp_path / "scratch").exists()
    for one in range(7, 10):
        (root / f"{one}.txt").unlink()
    ids, sizes, _, _ = passing(spec, paths, tmp_path, objects_uri="s3://there").fit()
    assert (ids, sizes) == ([0, 1, 2, 3, 4, 6], [3, 1, 2])


def test_an_error_in_fit_has_its_rows_and_traceback(tmp_path: Path) -> None:
    """The error has the rows of the batch and the user's frames."""

    class Wrong(Collecting):
        def fit(self, batches: Iterator[Any], object_dir: str) -> Any:
            next(batches)
            return {"a": 1}[next(batches)["file"][0].as_py()]

    with pytest.raises(
        SpecError, match=r"in the 4 rows from row 4 on, after 4 rows: KeyError: '4.txt'"
    ) as caught:
        passing(Wrong(), parts(tmp_path, [10]), tmp_path).fit()
    assert "in fit" in caught.value.user_traceback
    with pytest.raises(SpecError, match="the locator of 'train' has no object root"):
        passing(Collecting(4, ["file"]), parts(tmp_path, [10]), tmp_path).fit()


def test_an_error_of_the_platform_is_reported_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is retried even if user code catches or replaces the error."""

    class Broken(Remote):
        def fetch(self, name: str, destination: Path) -> None:
            raise ObjectStoreError("away")

    class Hiding(Collecting):
        def fit(self, batches: Iterator[Any], object_dir: str) -> Any:
            try:
                return list(batches)
            except Exception as error:
                raise ValueError("something") from error

    class Swallowing(Collecting):
        def fit(self, batches: Iterator[Any], object_dir: str) -> Any:
            with suppress(Exception):
                return list(batches)

    (tmp_path / "objects").mkdir()
    monkeypatch.setattr(fit_pass, "open_store", lambda uri: Broken(str(tmp_path / "objects")))
    for spec in (Hiding(4, ["file"]), Swallowing(4, ["file"])):
        with pytest.raises(ObjectStoreError, match="away"):
            passing(spec, parts(tmp_path, [10]), tmp_path, objects_uri="s3://there").fit()


def test_a_pass_is_preempted_at_a_batch(tmp_path: Path) -> None:
    """`except Exception` in user code does not catch the preemption."""

    def leave(rows: int, total: int) -> None:
        if rows:
            raise PreemptedError

    with pytest.raises(PreemptedError):
        passing(Collecting(), parts(tmp_path, [10]), tmp_path, on_rows=leave).fit()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_an_unreadable_object_of_a_local_folder_is_a_user_error(number: int, tmp_path: Path) -> None:
    """Otherwise the run would pause and wait for a volume."""

    class Unreadable(Collecting):
        def fit(self, batches: Iterator[Any], object_dir: str) -> Any:
            raise OSError(number, "no", f"{object_dir}/0.txt")

    spec = Unreadable(4, ["file"])
    with pytest.raises(SpecError, match="fit raised"):
        passing(spec, parts(tmp_path, [2]), tmp_path / "own", objects_uri=str(tmp_path)).fit()
