"""Addresses are literal: no character of a path or key has a special meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.data.misc import fetch_misc
from cerebro.data.objects import describe, fetch_uri, open_store, split_uri
from cerebro.data.tables.locators import absolute, known_columns, parse_locators
from cerebro.data.tables.table_files import table_files
from cerebro.errors import LocatorError
from tests.data.objects.s3 import BUCKET, put, s3_server

ODD = ("run#1", "day?7", "a%20b", "a b", "x+y", "grün", "[1]", "run*", "a:b", "%", "file:")
"""Folder names with a special meaning in a URL, a pattern or a shell."""
PLAIN = ("run", "day", "a", "x", "a/b", "lock", "1", "run1", "dayX7", "50", "b", "")
"""Names that a wrong interpretation of `ODD` would give."""

Place = tuple[str, Callable[[str, bytes], None]]


@pytest.fixture(scope="module", params=["path", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield the address of a root with a folder of each name, and a function that writes objects."""
    root = tmp_path_factory.mktemp("addresses")

    def write(name: str, content: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    def fill(into: Callable[[str, bytes], None]) -> None:
        for folder in (*PLAIN, *ODD):
            if request.param == "s3" or not (root / folder).is_file():
                into(f"{folder}/0.txt".lstrip("/"), folder.encode())
                into(f"{folder}/t.csv".lstrip("/"), f"id,{folder or 'root'}\n1,2\n".encode())

    if request.param == "s3":
        with s3_server():
            fill(put)
            yield f"s3://{BUCKET}", put
        return
    fill(write)
    yield f"file://{root}" if request.param == "file" else str(root), write


@pytest.mark.parametrize("folder", ODD)
def test_an_address_selects_exactly_its_folder(place: Place, folder: str, tmp_path: Path) -> None:
    """Although similar names exist."""
    uri = f"{place[0]}/{folder}"
    store = open_store(uri)
    store.check()
    assert store.read("0.txt") == folder.encode()
    assert list(store.list()) == list(store.in_folder("")) == ["0.txt", "t.csv"]
    fetch_uri(f"{uri}/0.txt", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == folder.encode()
    assert describe(f"{uri}/0.txt").version == store.version("0.txt")
    for table in (f"{uri}/t.csv", f"{uri}/*.csv", f"{uri}/", uri):
        assert known_columns(table) == ("id", folder), table
    assert Path(fetch_misc([f"{uri}/0.txt"], tmp_path / "misc"), "0.txt").read_bytes() == folder.encode()


@pytest.mark.parametrize("name", ["a#1", "a?1", "a%231", "a b", "a+b", "ü", "50%", "a;b"])
def test_an_address_selects_exactly_its_object(place: Place, name: str) -> None:
    """A single object's name is neither cut nor decoded."""
    uri, write = place
    for each, content in (("a", b"other"), ("a%20b", b"other"), ("a1", b"other"), (name, b"right")):
        write(f"single/{each}", content)
    root, key = split_uri(f"{uri}/single/{name}")
    assert open_store(root).read(key) == open_store(f"{uri}/single").read(name) == b"right"


def test_slashes_of_a_key_are_kept() -> None:
    """In a bucket ``/a``, ``a`` and ``b//a`` are three keys."""
    with s3_server():
        for key in ("a", "/a", "b/a", "b//a", "//a"):
            put(key, key.encode())
            root, name = split_uri(f"s3://{BUCKET}/{key}")
            assert open_store(root).read(name) == key.encode()
        for root in ("", "/", "b", "b/", "b//", "//"):
            expected = f"{root}a" if root.endswith("/") or not root else f"{root}/a"
            assert open_store(f"s3://{BUCKET}/{root}").read("a") == expected.encode()


def test_escapes_in_a_file_address_are_decoded_unless_the_name_exists(tmp_path: Path) -> None:
    """`Path.as_uri` writes escapes; a folder with the escape in its name takes precedence."""
    folder = tmp_path / "run#1 ü%"
    folder.mkdir()
    (folder / "part-1.csv").write_text("id,decoded\n1,2\n")
    assert known_columns(f"{folder.as_uri()}/part-*.csv") == ("id", "decoded")
    assert open_store(folder.as_uri()).local_root() == folder
    Path(f"{tmp_path}/{folder.as_uri().rpartition('/')[2]}").mkdir()
    assert open_store(folder.as_uri()).local_root() != folder
    assert open_store(f"file://{tmp_path}/%2e%2e").local_root() == tmp_path / "%2e%2e"


@pytest.mark.parametrize("name", ["m#1.json", "m?1.json", "m%20.json"])
def test_misc_files_keep_their_names(tmp_path: Path, name: str) -> None:
    """Two files with the same name are refused, escaped or not."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(name)
    folder = fetch_misc([f"file://{tmp_path}/in/{name}"], tmp_path / "out")
    assert [path.name for path in Path(folder).iterdir()] == [name]
    (tmp_path / "in" / "a b").touch()
    with pytest.raises(LocatorError, match="two files 'a b'"):
        parse_locators({"misc": [f"file://{tmp_path}/in/a%20b", f"{tmp_path}/other/a b"]})


def test_relative_addresses_become_absolute(tmp_path: Path) -> None:
    """A colon makes no scheme, and only a leading tilde means the home."""
    given = parse_locators({"train": {"metadata": "a:b/t#1.csv", "objects": "x?y"}, "valid": "v/~t.csv"})
    whole = absolute(given, tmp_path)
    found = [address for split in whole.splits().values() for address in (split.metadata, split.objects)]
    assert found == [f"{tmp_path}/a:b/t#1.csv", f"{tmp_path}/x?y", f"{tmp_path}/v/~t.csv", None]
    with pytest.raises(LocatorError, match=r"unknown user: for a folder of this name write \./"):
        absolute(parse_locators({"train": "~no-such-user/t.csv"}))


def test_an_existing_file_precedes_a_pattern_of_its_name(tmp_path: Path) -> None:
    """``part-[1].csv`` and ``day?7`` are names, if such a file exists."""
    for name in ("part-1.csv", "part-[1].csv", "day17", "day?7/t.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name, found in (
        ("part-[1].csv", "part-[1].csv"),
        ("day?7", "day?7/t.csv"),
        ("part-[12].csv", "part-1.csv"),
    ):
        assert [file.name for file in table_files(f"{tmp_path}/{name}").files] == [found]
