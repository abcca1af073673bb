"""A file that shares ranges with a base file reads as a whole, or raises."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro.data.files.base_file import (
    LONGEST_NAME,
    MAX_RANGES,
    BasedFile,
    Layout,
    Range,
    UnreadableLayoutError,
    base_namer,
    base_written,
    is_base,
    layout_of,
    opened,
)
from cerebro.data.files.durable import checksum, checksum_of
from cerebro.runtime.volumes import sub_epoch_of


def written(folder: Path, whole: bytes, ranges: list[tuple[int, int]]) -> Path:
    """Write a file whose (start, end) ranges are in a base, in reverse order."""
    in_base: list[Range] = []
    base = b""
    for start, end in reversed(ranges):
        in_base.insert(0, Range(start=start, size=end - start, at=len(base)))
        base += whole[start:end]
    (folder / "aside").write_bytes(base)
    name = base_namer()(checksum(folder / "aside"))
    (folder / "aside").rename(folder / name)
    keep = bytearray(whole)
    for start, end in reversed(ranges):
        del keep[start:end]
    path = folder / "u0.pt"
    path.write_bytes(bytes(keep) + Layout(base=name, size=len(whole), ranges=tuple(in_base)).encoded())
    return path


@given(data=st.data(), whole=st.binary(min_size=1, max_size=300))
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_based_file_reads_like_the_whole_file(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From any offset, with any ranges in the base."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), min_size=2, max_size=9)))
    ranges = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    path = written(tmp_path_factory.mktemp("files"), whole, ranges)
    with opened(path) as file:
        assert isinstance(file, BasedFile)
        assert file.size == len(whole)
        assert file.read() == whole
        for _ in range(4):
            start, count = data.draw(st.integers(0, len(whole) + 2)), data.draw(st.integers(0, 50))
            file.seek(start)
            found = b""
            while len(found) < count and (more := file.read(count - len(found))):
                found += more
            assert found == whole[start : start + count]
        file.seek(0)
        assert checksum_of(file).num_bytes == len(whole)


def test_other_files_are_read_unchanged(tmp_path: Path) -> None:
    """Including empty and short files."""
    for content in (b"", b"x", b"y" * 100):
        (tmp_path / "x").write_bytes(content)
        with opened(tmp_path / "x") as file:
            assert file.read() == content


def test_names_have_the_checksum_and_are_unique(tmp_path: Path) -> None:
    """A name has the checksum, is unique, and differs from checkpoint names, which older versions delete."""
    (tmp_path / "x").write_bytes(b"frozen")
    found = checksum(tmp_path / "x")
    one, other = base_namer()(found), base_namer()(found)
    assert one != other
    assert base_written(one) == base_written(other) == found
    assert is_base(one)
    assert sub_epoch_of(one) is None
    assert not is_base("u00000-e001-p0000-a1.pt")
    assert not is_base(f".{one}.12-ab.aside")


@pytest.mark.parametrize(
    "ranges",
    [
        [Range(start=0, size=5, at=0), Range(start=4, size=2, at=5)],
        [Range(start=5, size=2, at=0), Range(start=0, size=2, at=2)],
        [Range(start=8, size=3, at=0)],
        [Range(start=0, size=5, at=1)],
        [],
    ],
)
def test_invalid_layouts_are_refused(ranges: list[Range]) -> None:
    """Ranges that overlap, are unordered or exceed the file or the base; no ranges."""
    with pytest.raises(ValueError, match=r"overlap|behind|at least 1"):
        Layout(base=f"frozen-{'0' * 16}-5-{'0' * 8}", size=10, ranges=tuple(ranges))


_LARGE, _BASE = 1 << 59, f"frozen-{'0' * 16}-{1 << 60}-{'0' * 8}"


def test_the_largest_layout_can_be_read(tmp_path: Path) -> None:
    """With any names and numbers."""
    name = "x" * (LONGEST_NAME - 2)
    first = Range(start=0, size=_LARGE, at=0, name=name, digest=(1 << 64) - 1)
    others = (
        first.model_copy(update={"start": place, "size": 1, "at": place})
        for place in range(_LARGE, _LARGE + MAX_RANGES - 1)
    )
    layout = Layout(base=_BASE, size=_LARGE + MAX_RANGES - 1, ranges=(first, *others))
    (tmp_path / "u0.pt").write_bytes(layout.encoded())
    with (tmp_path / "u0.pt").open("rb") as file:
        assert layout_of(file) == layout


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ('"ranges":[' + "{}," * 50_000 + "{}]", "ranges.0.start"),
        ('"ranges":[' + f'{{"start":{1 << 63},"size":1,"at":0}}' + "]", "ranges.0.start"),
        ('"ranges":[{"start":0,"size":1,"at":' + "9" * 5000 + "}]", "number out of range"),
        ('"changing":[' + '"",' * 3000 + '""]', "changing"),
        ('"changing":["' + "x" * 201 + '"]', "changing.0"),
        ("[" * 100_000, "JSON"),
        (f'"x":"{"x" * (1 << 20)}"', "longer than"),
    ],
)
def test_an_invalid_layout_is_rejected_cheaply(tmp_path: Path, what: str, why: str) -> None:
    """The reader stops at the first error, and rejects a layout that is too long without reading it."""
    layout = f'{{"base":"{_BASE}","size":9,{what}}}'.encode()
    path = tmp_path / "u0.pt"
    path.write_bytes(layout + struct.pack("<Q16s", len(layout), b"cerebro: based 1"))
    with path.open("rb") as file, pytest.raises(UnreadableLayoutError) as error:
        layout_of(file)
    assert why in str(error.value.__cause__)
    assert len(str(error.value.__cause__)) < 1000


@pytest.mark.parametrize("base", ["../../etc/passwd", "frozen-x", f"frozen-{'0' * 16}-5-{'0' * 8}/../x", ""])
def test_a_base_is_a_file_of_the_same_folder(base: str) -> None:
    with pytest.raises(ValueError, match="base"):
        Layout(base=base, size=10, ranges=(Range(start=0, size=5, at=0),))


def test_a_damaged_layout_and_a_missing_or_short_base_are_errors(tmp_path: Path) -> None:
    """As OSError, the type that callers of file reads expect."""
    path = written(tmp_path, bytes(range(200)), [(10, 60), (80, 90)])
    with path.open("rb") as file:
        layout = layout_of(file)
    assert layout is not None
    os.truncate(tmp_path / layout.base, 20)
    with opened(path) as whole, pytest.raises(OSError, match="ends too early"):
        checksum_of(whole)
    (tmp_path / layout.base).unlink()
    with pytest.raises(FileNotFoundError, match=layout.base):
        opened(path)
    content = path.read_bytes()
    path.write_bytes(content[:3] + content[4:])
    with pytest.raises(UnreadableLayoutError):
        opened(path)
