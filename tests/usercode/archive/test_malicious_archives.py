"""Malformed and malicious archives are refused, and nothing is written."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import ArchiveError
from cerebro.usercode.archive import DEFAULT_LIMITS, ArchiveLimits, extract, inspect

MIB = 1024 * 1024


def zip_of(
    *files: tuple[str, bytes], mode: int = 0o644 | stat.S_IFREG, method: int = zipfile.ZIP_STORED
) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as opened:
        for name, content in files:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            opened.writestr(info, content)
    return packed.getvalue()


def tar_of(*files: tuple[str, bytes], compress: bool = False, **fields: Any) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz" if compress else "w") as opened:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            opened.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def tgz_of(*files: tuple[str, bytes]) -> bytes:
    return tar_of(*files, compress=True)


def refused(content: bytes, folder: Path, match: str, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
    """Check that inspection and extraction both refuse the archive and leave no files."""
    with pytest.raises(ArchiveError, match=match):
        inspect(content, name="code.zip", limits=limits)
    with pytest.raises(ArchiveError, match=match):
        extract(content, folder / "out", name="code.zip", limits=limits)
    assert list(folder.iterdir()) == []


PACKERS = pytest.mark.parametrize("pack", [zip_of, tar_of, tgz_of])
Packer = Callable[..., bytes]


@PACKERS
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("../evil.py", "climbs out"),
        ("a/../../evil.py", "climbs out"),
        ("a/../b.py", "climbs out"),
        ("/etc/cron.d/evil", "absolute path"),
        ("C:/evil.py", "absolute path"),
        ("a\\..\\evil.py", "backslash"),
        ("a\nb.py", "control character"),
        ("x" * 300, "longer than"),
        ("/".join("x" * 40) + "/a.py", "folders deep"),
    ],
)
def test_name_that_leaves_its_folder(pack: Packer, name: str, match: str, tmp_path: Path) -> None:
    """Names that some unpackers would sanitize are refused too."""
    refused(pack(("ok.py", b"1"), (name, b"2")), tmp_path, match)


@PACKERS
@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("a.py", "a.py"), "twice"),
        (("A.py", "a.py"), "only in case"),
        (("Lib/x.py", "lib/y.py"), "only in case"),
        (("caf\u00e9.py", "cafe\u0301.py"), "only in case or accents"),
        (("a", "a/b.py"), "file and a folder"),
        (("a/b.py", "a"), "file and a folder"),
        (("a.py", "./a.py"), "twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_collide(pack: Packer, names: tuple[str, str], match: str, tmp_path: Path) -> None:
    """This includes names that collide only on case-insensitive file systems."""
    refused(pack(*((name, b"1") for name in names)), tmp_path, match)


@PACKERS
def test_too_many_members(pack: Packer, tmp_path: Path) -> None:
    files = [(f"{index}.py", b"") for index in range(11)]
    refused(pack(*files), tmp_path, "more than 10 files", ArchiveLimits(members=10))


@PACKERS
def test_archive_larger_than_the_unpacked_limit(pack: Packer, tmp_path: Path) -> None:
    """The size is counted while unpacking; the message names the member and the limit."""
    content = pack(("a.py", b"1"), ("b.bin", bytes(200_000)))
    refused(
        content,
        tmp_path,
        r"unpacks to more than 97\.7 KiB.*b.bin.*locators",
        ArchiveLimits(unpacked_bytes=100_000),
    )


def test_archive_larger_than_the_upload_limit(tmp_path: Path) -> None:
    """The upload's size is checked before the archive is opened."""
    refused(
        zip_of(("a.py", bytes(2000))),
        tmp_path,
        r"is 2\.\d+ KiB, the limit is 1 KiB",
        ArchiveLimits(archive_bytes=1024),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_bomb_is_refused_early_and_in_little_memory(kind: str, tmp_path: Path) -> None:
    """A gigabyte of zeros in a megabyte archive costs a few MiB of memory."""
    packed = io.BytesIO()
    if kind == "zip":
        with (
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened,
            opened.open("bomb.bin", "w") as member,
        ):
            for _ in range(300):
                member.write(bytes(MIB))
    else:
        with gzip.GzipFile(fileobj=packed, mode="wb") as stream:
            info = tarfile.TarInfo("bomb.bin")
            info.size = 300 * MIB
            stream.write(info.tobuf())
            for _ in range(300):
                stream.write(bytes(MIB))
    content = packed.getvalue()
    tracemalloc.start()
    try:
        refused(content, tmp_path, "unpacks to more than 100 times its .*'bomb.bin'.*bomb")
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_zip_with_wrong_sizes_in_its_header(tmp_path: Path) -> None:
    """The header promises ten bytes and the data has a million."""
    content = bytearray(zip_of(("bomb.bin", bytes(1_000_000)), method=zipfile.ZIP_DEFLATED))
    entry = content.rindex(b"PK\x01\x02")
    struct.pack_into("<I", content, entry + 24, 10)
    refused(bytes(content), tmp_path, "damaged")


def test_zip_with_a_directory_of_hundreds_of_thousands(tmp_path: Path) -> None:
    """Entries are counted before they are parsed, whatever the end record claims."""
    entry = zip_of(("a", b""))
    at = entry.index(b"PK\x01\x02")
    directory = entry[at : at + 47] * 400_000
    end = bytearray(entry[-22:])
    struct.pack_into("<I", end, 12, len(directory))
    tracemalloc.start()
    try:
        refused(entry[:at] + directory + bytes(end), tmp_path, "more than 5,000 files")
        assert tracemalloc.get_traced_memory()[1] < 45 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("field", [{"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}])
def test_link_in_a_tar(field: dict[str, Any], tmp_path: Path) -> None:
    """A later member could be written through a link."""
    refused(tar_of(("passwd", b""), linkname="/etc/passwd", **field), tmp_path, "'passwd' is a link")


def test_link_in_a_zip(tmp_path: Path) -> None:
    """Zip stores a link as a file mode."""
    refused(zip_of(("passwd", b"/etc/passwd"), mode=0o777 | stat.S_IFLNK), tmp_path, "'passwd' is a link")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_device_in_a_tar(kind: bytes, tmp_path: Path) -> None:
    refused(tar_of(("null", b""), type=kind), tmp_path, "'null' is a device")


def test_setuid(tmp_path: Path) -> None:
    refused(tar_of(("su", b""), mode=0o4755), tmp_path, "setuid")
    refused(zip_of(("su", b""), mode=0o4755 | stat.S_IFREG), tmp_path, "setuid")


def test_encrypted_zip(tmp_path: Path) -> None:
    content = bytearray(zip_of(("a.py", b"1")))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    refused(bytes(content), tmp_path, "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_reserves_memory_by_its_header(method: int, tmp_path: Path) -> None:
    """Only methods with bounded memory are allowed."""
    refused(zip_of(("a.py", b"1"), method=method), tmp_path, "neither stored nor deflated")


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    """Such a module could not be imported either."""
    refused(tar_of(("a.py", b"1")).replace(b"a.py", b"\xff.py"), tmp_path, "damaged|not UTF-8")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", encoding="latin-1", format=tarfile.GNU_FORMAT) as opened:
        opened.addfile(tarfile.TarInfo("caf\u00e9.py"))
    refused(packed.getvalue(), tmp_path, "not UTF-8")


def test_tar_header_with_quadratic_parse_time(tmp_path: Path) -> None:
    """A pax header of digits (CVE-2024-6232)."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 60_000
    refused(header.tobuf() + b"1" * 60_000 + bytes(4096), tmp_path, "absurd number")


def test_tar_header_that_exceeds_the_memory_limit(tmp_path: Path) -> None:
    """The header's size is checked before it is read in full."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 200 * MIB
    refused(header.tobuf(), tmp_path, "tar header of more than 64 KiB")


def test_tar_that_points_backwards(tmp_path: Path) -> None:
    """A negative size would make the reader loop (CVE-2025-8194)."""
    header = bytearray(tar_of(("a.py", b"1")))
    header[124:136] = b"\xff" * 11 + b"\x00"  # negative in base 256
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
    refused(bytes(header), tmp_path, "damaged|negative")


@PACKERS
def test_archive_cut_short(pack: Packer, tmp_path: Path) -> None:
    content = pack(("a.py", b"1" * 700), ("b.py", b"2" * 700))
    end = len(content) if pack is not tar_of else 512 * 6  # a tar ends with padding
    for length in range(1, end - 1, 37):
        if pack is tar_of and length % 512 == 0:
            continue
        with pytest.raises(ArchiveError):
            inspect(content[:length], name="code.zip")


@given(data=st.data())
def test_damage_is_always_an_archive_error(data: st.DataObject) -> None:
    """Corrupt bytes give a listing or an `ArchiveError`, never another exception."""
    pack = data.draw(st.sampled_from([zip_of, tar_of, tgz_of]))
    content = bytearray(pack(("a.py", b"print(1)" * 9), ("folder/b.py", bytes(600))))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    try:
        inspect(bytes(content))
    except ArchiveError:
        pass


@given(
    names=st.lists(
        st.text(st.sampled_from("ab./\\:\x00\n~\u00e9C"), min_size=1, max_size=12), min_size=1, max_size=5
    ),
    pack=st.sampled_from([zip_of, tar_of, tgz_of]),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_nothing_is_written_outside(
    names: list[str], pack: Packer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All files end up below the destination, or none is written."""
    root = tmp_path_factory.mktemp("root")
    try:
        extract(pack(*((name, b"x") for name in names)), root / "deep" / "out")
    except ArchiveError:
        assert not (root / "deep" / "out").exists()
        assert not (root / "deep").exists() or list((root / "deep").iterdir()) == []
    else:
        assert [path.name for path in root.iterdir()] == ["deep"]
        assert [path.name for path in (root / "deep").iterdir()] == ["out"]
        assert sum(path.is_file() for path in root.rglob("*")) == len(names)
