"""`cerebro.usercode.archive.pack` selects files and refuses unsafe or large folders."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import ArchiveError
from cerebro.usercode.archive import ArchiveLimits, extract, inspect, pack

_PART = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=8)
_TREES = st.dictionaries(
    st.lists(_PART, min_size=1, max_size=3).map("/".join), st.binary(max_size=300), min_size=1, max_size=8
).filter(lambda tree: not any(other.startswith(name + "/") for name in tree for other in tree))


def _write(tree: dict[str, bytes], root: Path) -> None:
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def _read(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def _names(content: bytes) -> list[str]:
    return [member.name for member in inspect(content).members]


@given(tree=_TREES)
def test_unpacked_files_equal_packed_files(
    tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    _write(tree, root / "in")
    content = pack(root / "in")
    extract(content, root / "out")
    assert _read(root / "out") == tree
    assert {member.name: member.size for member in inspect(content).members} == {
        name: len(data) for name, data in tree.items()
    }


@given(tree=_TREES)
def test_same_files_give_the_same_bytes(
    tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The archive depends neither on times nor on the order of creation."""
    root = tmp_path_factory.mktemp("tree")
    _write(tree, root / "one")
    _write(dict(reversed(tree.items())), root / "two")
    for path in (root / "two").rglob("*"):
        os.utime(path, (1, 1))
    assert pack(root / "one") == pack(root / "two")


def test_caches_hidden_files_and_environments_are_not_packed(tmp_path: Path) -> None:
    tree = {
        "model.py": b"1", "package/__init__.py": b"", "package/__pycache__/x.pyc": b"", ".git/config": b"",
        ".env": b"SECRET=1", "env/pyvenv.cfg": b"", "env/lib/x.py": b"", "package/.cache/x": b"",
    }  # fmt: skip
    _write(tree, tmp_path)
    assert _names(pack(tmp_path)) == ["model.py", "package/__init__.py"]


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_an_existing_archive_is_sent_unchanged(suffix: str, tmp_path: Path) -> None:
    """The archive is checked but not packed again."""
    (tmp_path / "model.py").write_bytes(b"x = 1")
    packed = tmp_path / f"code{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(packed, "w") as opened:
            opened.write(tmp_path / "model.py", "model.py")
    else:
        with tarfile.open(packed, "w:gz") as tar:
            tar.add(tmp_path / "model.py", "model.py")
    assert pack(packed) == packed.read_bytes()


def test_link_is_named_not_followed(tmp_path: Path) -> None:
    """A link could copy a file from outside the folder."""
    (tmp_path / "model.py").write_bytes(b"")
    (tmp_path / "secrets").symlink_to("/etc/passwd")
    with pytest.raises(ArchiveError, match="secrets is a link"):
        pack(tmp_path)


def test_too_much_data_names_the_largest_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"")
    (tmp_path / "data.bin").write_bytes(bytes(2000))
    with pytest.raises(ArchiveError, match=r"data\.bin.*locators"):
        pack(tmp_path, limits=ArchiveLimits(unpacked_bytes=1000))
