"""Objects are downloaded before their row is preprocessed, and removed afterwards."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro.data.objects import ObjectStore, open_store
from cerebro.data.partitions import failed_rows
from cerebro.errors import LocatorError, ObjectStoreError
from cerebro.spec import ETLSpec, Mode
from cerebro.worker.preprocessing.downloads import ShardObjects
from cerebro.worker.preprocessing.job import EtlJob
from tests.data.objects.s3 import BUCKET, put, s3_server
from tests.etl_worker.jobs import make_job, nothing, preprocess, stored

NAMES = [f"images/{i}.bin" for i in range(20)]


class ReadObject(ETLSpec):
    """A spec that outputs the number in the row's object and the number of files next to it."""

    is_feature_download = ["file"]  # noqa: RUF012

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        path = Path(object_dir) / row["file"]
        return int(path.read_text()), len(list(path.parent.iterdir()))


class Unreadable(ReadObject):
    """A spec for which one object is unreadable; it may raise another error."""

    def __init__(self, number: int, is_wrapped: bool) -> None:
        self.number, self.is_wrapped = number, is_wrapped

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        try:
            if row["file"] == "bad":
                raise OSError(self.number, os.strerror(self.number), f"{object_dir}/bad")
        except OSError:
            if not self.is_wrapped:
                raise
            raise ValueError("bad picture")  # noqa: B904 - as user code does it
        return super().row_preprocessor(row, mode, object_dir)


@pytest.fixture(scope="module", params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A root with twenty objects, in a folder or in S3."""
    if request.param == "s3":
        with s3_server():
            for number, name in enumerate(NAMES):
                put(f"root/{name}", str(number).encode())
            yield f"s3://{BUCKET}/root"
        return
    folder = tmp_path_factory.mktemp("objects")
    (folder / "images").mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_text(str(number))
    yield str(folder)


def _job(tmp_path: Path, root: str, names: list[Any], **changes: Any) -> EtlJob:
    ids = list(range(len(names)))
    return make_job(tmp_path, ids, columns={"file": names}, objects_uri=root, **changes)


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_rows_find_their_objects(tmp_path: Path, root: str, cores: int) -> None:
    """Objects in a folder are used in place; copies from S3 are removed after the job."""
    job = _job(tmp_path, root, NAMES, cores=cores)
    preprocess(job, ReadObject, nothing)
    assert {row: values[0] for row, values in stored(job.output_folder).items()} == {i: i for i in range(20)}
    assert not job.cache_folder.exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("images/99.bin", "does not exist|No such file"),
        ("../secret", "leaves its root"),
        ("/etc/passwd", "leaves its root"),
    ],
)
def test_a_missing_object_fails_its_row(tmp_path: Path, root: str, name: str, expected: str) -> None:
    """The failure has the object's name."""
    job = _job(tmp_path, root, [*NAMES[:3], name], max_failed_fraction=0.5)
    preprocess(job, ReadObject, nothing)
    (row,) = failed_rows(job.output_folder)
    assert row.id == 3
    assert name in row.error
    assert re.search(expected, row.error)


def test_rows_may_name_no_object_or_several(tmp_path: Path, root: str) -> None:
    """A null is no object, and a list has several."""

    class Several(ReadObject):
        def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
            return sum(int((Path(object_dir) / name).read_text()) for name in row["file"] or []), None

    job = _job(tmp_path, root, [NAMES[1:4], None, [NAMES[7]]])
    preprocess(job, Several, nothing)
    assert stored(job.output_folder) == {0: [6], 1: [0], 2: [7]}


def test_a_missing_root_ends_the_job(tmp_path: Path, root: str) -> None:
    """The error blames the locator, because every row would fail."""
    job = _job(tmp_path, f"{root}/nowhere", NAMES, max_failed_fraction=1.0)
    with pytest.raises(LocatorError, match="nowhere"):
        preprocess(job, ReadObject, nothing)


class _Remote:
    """A remote store that records its fetches and can block them."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.uri = inner.uri
        self.fetched: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def local_root(self) -> None:
        return None

    def fetch(self, name: str, destination: Path) -> None:
        with self.lock:
            self.fetched.append(name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self._inner.fetch(name, destination)
        with self.lock:
            self.at_once -= 1


@pytest.fixture
def remote(tmp_path: Path) -> _Remote:
    """A `_Remote` with twenty objects."""
    (tmp_path / "objects" / "images").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "objects" / name).touch()
    return _Remote(open_store(str(tmp_path / "objects")))


def test_prefetching_of_objects_is_bounded(tmp_path: Path, remote: _Remote) -> None:
    """The number of prefetched objects and of parallel downloads is bounded, and each object is fetched once."""
    rows = [{"file": name} for name in NAMES for _ in range(2)]
    with ShardObjects(remote, rows, ["file"], tmp_path / "cache", concurrency=2) as objects:
        objects.wait(0)
        assert (tmp_path / "cache" / NAMES[0]).exists()
        assert len(remote.fetched) <= 8 + 1
        for position in range(len(rows)):
            objects.wait(position)
    assert sorted(remote.fetched) == sorted(NAMES)
    assert remote.most_at_once <= 2
    assert not (tmp_path / "cache").exists()


def test_two_objects_are_never_copied_to_one_file(tmp_path: Path, remote: _Remote) -> None:
    """Two S3 keys may map to one path on disk; the row fails with that error."""
    rows = [{"file": "images/0"}, {"file": "images//0"}, {"file": "images/./0"}, {"file": "images/0"}]
    (tmp_path / "objects" / "images" / "0").touch()
    with ShardObjects(remote, rows, ["file"], tmp_path / "cache", concurrency=2) as objects:
        objects.wait(0)
        for position in (1, 2):
            with pytest.raises(LocatorError, match="would be copied to one file: rename one"):
                objects.wait(position)
        objects.wait(3)
    assert remote.fetched == ["images/0"]


def test_a_store_that_does_not_answer_ends_the_job(
    tmp_path: Path, remote: _Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retryable error does not blame a row."""

    def unreachable(name: str, destination: Path) -> None:
        raise ObjectStoreError("the store cannot be reached")

    monkeypatch.setattr(remote, "fetch", unreachable)
    monkeypatch.setattr("cerebro.worker.preprocessing.shard.open_store", lambda uri: remote)
    job = _job(tmp_path, "s3://any/where", NAMES, max_failed_fraction=1.0)
    with pytest.raises(ObjectStoreError):
        preprocess(replace(job, objects_uri=remote.uri), ReadObject, nothing)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.processes
def test_an_unreadable_object_of_a_local_folder_is_a_failed_row(
    number: int, *, is_wrapped: bool, tmp_path: Path
) -> None:
    """The file is the user's, so the other rows are preprocessed."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "0").write_text("0")
    job = _job(tmp_path, str(tmp_path / "own"), ["0", "bad"], max_failed_fraction=1.0)
    assert preprocess(job, lambda: Unreadable(number, is_wrapped), nothing).rows_failed == 1
