"""Reader of zip, tar and tar.gz as a stream of members, limited by an `UnpackMeter` and `Names`.

`unpacking.py` iterates over `members` to list or to write an archive. Only this module uses `zipfile` and `tarfile`,
without a file system. Both libraries trust headers, which costs memory and time; comments mark each place that prevents
it.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol

from cerebro.errors import ArchiveError
from cerebro.usercode.archive.rules import Names, UnpackMeter, too_many_members

Kind = Literal["zip", "tar", "tar.gz"]

CHUNK_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 64 * 1024  # an extended tar header: long names, timestamps, attributes
_MAX_HEADERS_BYTES = 16 * 1024 * 1024
_DIGITS = re.compile(rb"\d{64}")
_ZIP_END = b"PK\x05\x06"
_ZIP_ENTRY = b"PK\x01\x02"
_ENTRIES_PER_MEMBER = 4
_ZIP_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_UTF8_NAME = 0x800


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file or folder. `chunks` yields the file's bytes; the next member consumes the rest."""

    path: PurePosixPath
    is_folder: bool
    is_executable: bool
    chunks: Iterator[bytes]


def kind_of(content: bytes, archive: str) -> Kind:
    """Return the archive's kind by its first bytes, because its name proves nothing.

    Raises:
        ArchiveError: the kind is unknown.
    """
    if not content:
        raise ArchiveError(f"{archive} is empty: choose the file again")
    if content.startswith((b"PK\x03\x04", _ZIP_END)):
        return "zip"
    if content.startswith(b"\x1f\x8b"):
        return "tar.gz"
    if content[257:262] == b"ustar":
        return "tar"
    raise ArchiveError(
        f"{archive} is not a zip, tar or tar.gz archive: pack the code with `zip -r code.zip .`"
    )


def members(content: bytes, meter: UnpackMeter) -> Iterator[Member]:
    """Yield all members in the archive's order, each checked first.

    Raises:
        ArchiveError: a member breaks a rule.
    """
    meter.check_packed()
    kind = kind_of(content, meter.archive)
    names = Names(archive=meter.archive, limits=meter.limits)
    with _foreign_errors(meter.archive):
        if kind == "zip":
            yield from _zip_members(content, meter, names)
        elif kind == "tar":
            yield from _tar_members(io.BytesIO(content), meter, names)
        else:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                yield from _tar_members(unpacked, meter, names)


@contextmanager
def _foreign_errors(archive: str) -> Iterator[None]:
    try:
        yield
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, struct.error,
        ValueError, OverflowError, NotImplementedError, RuntimeError, KeyError,
    ) as cause:  # fmt: skip
        # zipfile and tarfile do not document their errors for damaged input; RuntimeError includes RecursionError.
        raise ArchiveError(
            f"{archive} is damaged ({type(cause).__name__}: {cause}): pack it again"
        ) from cause


# --- zip ----------------------------------------------------------------------------------------


def _zip_members(content: bytes, meter: UnpackMeter, names: Names) -> Iterator[Member]:
    # zipfile builds an object per entry before the number is known: 32 MiB hold 700,000 entries, half a GiB of objects.
    # This also counts entries of nested archives.
    if content.count(_ZIP_ENTRY) > _ENTRIES_PER_MEMBER * meter.limits.members:
        raise too_many_members(meter.archive, meter.limits)
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        for info in opened.infolist():
            name = _zip_name(info, meter.archive)
            mode = info.external_attr >> 16
            is_folder = name.endswith("/") or stat.S_ISDIR(mode)
            _check_zip_member(info, mode, name, meter.archive)
            meter.member = name
            path = names.take(name, is_folder=is_folder)
            if path is None:
                continue
            chunks = iter(()) if is_folder else _zip_chunks(opened, info, meter)
            yield Member(
                path=path, is_folder=is_folder, is_executable=bool(mode & stat.S_IXUSR), chunks=chunks
            )
            _drain(chunks)


def _zip_name(info: zipfile.ZipInfo, archive: str) -> str:
    name = info.orig_filename  # `filename` ends at a NUL, so check the original name
    if info.flag_bits & _UTF8_NAME or name.isascii():
        return name
    try:  # macOS writes UTF-8 without the flag; zipfile then reads code page 437
        return name.encode("cp437").decode("utf-8")
    except UnicodeError as cause:
        raise ArchiveError(
            f"{archive}: member {name!r} has a name that is not UTF-8: rename it and pack again"
        ) from cause


def _check_zip_member(info: zipfile.ZipInfo, mode: int, name: str, archive: str) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise ArchiveError(f"{archive}: member {name!r} is encrypted: pack it without a password")
    if info.compress_type not in _ZIP_METHODS:
        # bzip2 and LZMA allocate the header's size before the first byte is measured.
        raise ArchiveError(
            f"{archive}: member {name!r} is neither stored nor deflated: pack it with plain zip"
        )
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _not_a_file(archive, name, "link" if stat.S_ISLNK(mode) else "device")
    if name.endswith("/") and info.file_size:
        raise ArchiveError(f"{archive}: member {name!r} is a folder with content: pack it again")
    _check_privileges(mode, name, archive)


def _zip_chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo, meter: UnpackMeter) -> Iterator[bytes]:
    with _foreign_errors(meter.archive), opened.open(info) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            meter.add(len(chunk))
            yield chunk


# --- tar ----------------------------------------------------------------------------------------


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _TarStream:
    """The unpacked tar, forward only. Measures every byte and limits tarfile's header reads."""

    def __init__(self, raw: _Readable, meter: UnpackMeter) -> None:
        self._raw, self._meter, self._at, self._headers_bytes = raw, meter, 0, 0
        self.last = b""

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        # tarfile seeks back only for negative sizes, which would loop forever.
        if whence != io.SEEK_SET or position < self._at:
            raise tarfile.ReadError("a header points backwards")
        while self._at < position and self.take(min(CHUNK_BYTES, position - self._at)):
            pass
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read for tarfile's headers; file contents use `take`."""
        if size > tarfile.BLOCKSIZE:
            self._headers_bytes += size
        if not 0 <= size <= _MAX_HEADER_BYTES or self._headers_bytes > _MAX_HEADERS_BYTES:
            raise ArchiveError(
                f"{self._meter.archive} has a tar header of more than {_MAX_HEADER_BYTES // 1024} KiB: "
                "pack it without extended attributes, or as zip"
            )
        self.last = self.take(size)
        if _DIGITS.search(self.last):
            # Long runs of digits take tarfile's header pattern quadratic time (CVE-2024-6232).
            raise tarfile.ReadError("a header holds an absurd number")
        return self.last

    def take(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only before the end of the file."""
        chunk = self._raw.read(size)
        self._at += len(chunk)
        self._meter.add(len(chunk))
        return chunk


def _tar_members(raw: _Readable, meter: UnpackMeter, names: Names) -> Iterator[Member]:
    stream = _TarStream(raw, meter)
    opened = tarfile.TarFile(fileobj=stream, mode="r", encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
    while (info := opened.next()) is not None:
        _check_tar_member(info, meter.archive)
        meter.member = info.name
        path = names.take(info.name, is_folder=info.isdir())
        if path is None:
            continue
        chunks = iter(()) if info.isdir() else _tar_chunks(stream, info, meter.archive)
        yield Member(
            path=path, is_folder=info.isdir(), is_executable=bool(info.mode & stat.S_IXUSR), chunks=chunks
        )
        _drain(chunks)
    if stream.last.strip(b"\0"):
        # tarfile treats a broken header as the end and would silently lose the rest.
        raise tarfile.ReadError("a header in the middle is broken or cut short")
    while stream.take(CHUNK_BYTES):  # read everything, because gzip has its checksum last
        pass


def _check_tar_member(info: tarfile.TarInfo, archive: str) -> None:
    if info.issym() or info.islnk():
        raise _not_a_file(archive, info.name, "link")
    if info.issparse() or not (info.isreg() or info.isdir()):
        raise _not_a_file(archive, info.name, "sparse file" if info.issparse() else "device")
    if info.size < 0:
        raise tarfile.ReadError(f"member {info.name!r} has a negative size")
    if info.isreg():
        _check_privileges(info.mode, info.name, archive)


def _tar_chunks(stream: _TarStream, info: tarfile.TarInfo, archive: str) -> Iterator[bytes]:
    remaining = info.size
    while remaining > 0:
        with _foreign_errors(archive):
            chunk = stream.take(min(CHUNK_BYTES, remaining))
        if not chunk:
            raise ArchiveError(f"{archive}: member {info.name!r} is cut short: pack or send it again")
        remaining -= len(chunk)
        yield chunk


# --- both ---------------------------------------------------------------------------------------


def _not_a_file(archive: str, name: str, kind: str) -> ArchiveError:
    return ArchiveError(
        f"{archive}: member {name!r} is a {kind}, not a file or folder: put a copy of the file there"
    )


def _check_privileges(mode: int, name: str, archive: str) -> None:
    if mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISDIR(mode):
        raise ArchiveError(f"{archive}: member {name!r} is setuid or setgid: `chmod ug-s` it and pack again")


def _drain(chunks: Iterator[bytes]) -> None:
    for _ in chunks:
        pass
