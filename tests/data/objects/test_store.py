"""The contract of object stores: every kind passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.data.objects import ObjectStore, describe, fetch_uri, open_store
from cerebro.errors import LocatorError
from tests.data.objects.s3 import BUCKET, put, s3_server

Put = Callable[[str, bytes], None]


@pytest.fixture(scope="module", params=["folder", "s3"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kind of store with a running server."""
    if request.param == "s3":
        with s3_server():
            yield "s3"
        return
    yield "folder"


@pytest.fixture
def place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Put]:
    """Yield the address of an empty root, and a function that writes objects there."""
    root = tmp_path_factory.mktemp("objects")
    if kind == "s3":
        return f"s3://{BUCKET}/{root.name}/set", lambda name, content: put(f"{root.name}/set/{name}", content)

    def write(name: str, content: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return str(root), write


@pytest.fixture
def store(place: tuple[str, Put]) -> ObjectStore:
    """A store with some objects."""
    uri, write = place
    for name in ["a.txt", "images/1.png", "images/2.png", "other/3 ü.png"]:
        write(name, f"content of {name}".encode())
    write("large", b"0123456789" * 300_000)
    return open_store(uri)


def test_objects_are_read_whole(store: ObjectStore) -> None:
    """Content and size, also for an object of several pieces."""
    assert store.read("other/3 ü.png") == "content of other/3 ü.png".encode()
    assert store.read("large") == b"0123456789" * 300_000
    assert store.size("large") == 3_000_000


def test_objects_are_copied_to_files(store: ObjectStore, tmp_path: Path) -> None:
    """The method creates folders and leaves only the copy in them."""
    store.fetch("large", tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == store.read("large")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["copy"]


def test_objects_are_listed_in_order(store: ObjectStore) -> None:
    """A prefix selects; names are relative to the root."""
    assert list(store.list("images/")) == ["images/1.png", "images/2.png"]
    assert list(store.list()) == ["a.txt", "images/1.png", "images/2.png", "large", "other/3 ü.png"]
    assert list(store.list("nothing")) == []


def test_exists_reports_whether_an_object_exists(store: ObjectStore) -> None:
    """An absent object is no error here."""
    assert store.exists("a.txt")
    assert not store.exists("b.txt")
    assert not store.exists("images")


def test_an_absent_object_is_named(store: ObjectStore, tmp_path: Path) -> None:
    """Every read method names the object and a fix, and leaves no file."""
    calls: list[Callable[[], object]] = [
        lambda: store.read("b.txt"),
        lambda: store.size("b.txt"),
        lambda: store.version("b.txt"),
        lambda: store.fetch("b.txt", tmp_path / "copy"),
    ]
    for call in calls:
        with pytest.raises(LocatorError, match=r"b\.txt does not exist.*check the locator"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../a.txt", "images/../../a.txt", "/etc/passwd", "", "images\\..\\a", "a\0b"]
)
def test_a_name_that_leaves_the_root_is_refused(store: ObjectStore, tmp_path: Path, name: str) -> None:
    """Names come from metadata; they must not escape the root or the target folder."""
    calls: list[Callable[[], object]] = [
        lambda: store.read(name),
        lambda: store.exists(name),
        lambda: store.fetch(name, tmp_path / "copy"),
    ]
    for call in calls:
        with pytest.raises(LocatorError, match="leaves its root"):
            call()


def test_the_version_changes_with_the_content(place: tuple[str, Put]) -> None:
    """A fingerprint of the data needs no read."""
    uri, write = place
    store = open_store(uri)
    write("changing", b"first")
    first = store.version("changing")
    assert store.version("changing") == first
    write("changing", b"second!")
    assert store.version("changing") != first


def test_single_objects_have_addresses(store: ObjectStore, tmp_path: Path) -> None:
    """A metadata file is copied and described by its address alone."""
    uri = f"{store.uri}/images/1.png"
    fetch_uri(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content of images/1.png"
    found = describe(uri)
    assert (found.uri, found.num_bytes) == (uri, 23)
    assert found.version == store.version("images/1.png")
    with pytest.raises(LocatorError, match=r"images/9\.png does not exist"):
        describe(f"{store.uri}/images/9.png")


def test_a_root_can_be_checked(store: ObjectStore) -> None:
    """An existing root passes; a missing one is named."""
    store.check()
    absent = open_store(f"{store.uri}/nowhere")
    with pytest.raises(LocatorError, match=r"nowhere.*check the locator"):
        absent.check()
