"""The contract of object stores: every kind passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.data.objects import describe, fetch_uri, open_store
from cerebro.data.objects.folder import FolderStore
from cerebro.errors import LocatorError
from cerebro.testing import check_store
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


def test_each_kind_passes_the_contract_suite(place: tuple[str, Put]) -> None:
    """The suite that packages use for their stores."""
    uri, write = place
    check_store(open_store, uri, write)


class Cut(FolderStore):
    """Forgets the last byte."""

    def read(self, name: str) -> bytes:
        return super().read(name)[:-1]


class Unsorted(FolderStore):
    """Lists names in reverse order."""

    def list(self, prefix: str = "") -> Iterator[str]:
        return reversed([*super().list(prefix)])


class Open(FolderStore):
    """Lets names leave the root."""

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()


class Raising(FolderStore):
    """Raises an error of its own for missing objects."""

    def size(self, name: str) -> int:
        return (self._root / name).stat().st_size


@pytest.mark.parametrize("kind", ["folder"], indirect=True)
@pytest.mark.parametrize(
    ("make", "call"),
    [(Cut, "read"), (Unsorted, "list"), (Open, "exists"), (Raising, "size")],
)
def test_the_suite_finds_mistakes(place: tuple[str, Put], make: type[FolderStore], call: str) -> None:
    """The error names the call."""
    with pytest.raises(LocatorError, match=rf"^{call}\("):
        check_store(make, *place)


def test_single_objects_have_addresses(place: tuple[str, Put], tmp_path: Path) -> None:
    """A metadata file is copied and described by its address alone."""
    root, write = place
    write("images/1.png", b"content of images/1.png")
    store, uri = open_store(root), f"{root}/images/1.png"
    fetch_uri(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content of images/1.png"
    found = describe(uri)
    assert (found.uri, found.num_bytes) == (uri, 23)
    assert found.version == store.version("images/1.png")
    with pytest.raises(LocatorError, match=r"images/9\.png does not exist"):
        describe(f"{root}/images/9.png")
