"""Packing of user code: a folder, a single file, or an existing archive.

The client calls `pack` when it creates an experiment; nothing is uploaded here. The bytes depend only on names,
contents and executable bits. So equal code gives an equal archive, and a recreated experiment is recognised.
"""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cerebro.errors import ArchiveError
from cerebro.usercode.archive.rules import DEFAULT_LIMITS, MIB, ArchiveLimits, human_bytes, too_many_members
from cerebro.usercode.archive.unpacking import inspect

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
_ENVIRONMENT_MARK = "pyvenv.cfg"
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time of the format
_STORED_UP_TO_BYTES = 4 * MIB
_UNIX = 3


def pack(folder_or_file: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> bytes:
    """Return the bytes of a code archive.

    A folder becomes a zip of its files, sorted and with fixed times, without `__pycache__`, hidden files and folders,
    virtual environments and `node_modules`. A single file becomes a zip with one member. A file with an archive's
    suffix is checked and returned unchanged.

    Raises:
        ArchiveError: the code is missing, unreadable, empty or too large, or has links; the message names the file.
    """
    if folder_or_file.is_file():
        if folder_or_file.name.endswith(_ARCHIVE_SUFFIXES):
            content = _read(folder_or_file)
        else:
            content = _zip([(folder_or_file.name, folder_or_file)])
    elif folder_or_file.is_dir():
        content = _zip_folder(folder_or_file, limits)
    else:
        raise ArchiveError(f"code {str(folder_or_file)!r} is neither a folder nor a file: check the path")
    inspect(content, name=str(folder_or_file), limits=limits)
    return content


def _zip_folder(folder: Path, limits: ArchiveLimits) -> bytes:
    files: list[tuple[str, Path]] = []
    total_bytes = 0
    for path in _files(folder):
        files.append((path.relative_to(folder).as_posix(), path))
        total_bytes += path.stat().st_size
        if len(files) > limits.members:
            raise too_many_members(str(folder), limits)
        if total_bytes > limits.unpacked_bytes:
            largest = max((path for _, path in files), key=lambda path: path.stat().st_size)
            raise ArchiveError(
                f"{folder} holds more than {human_bytes(limits.unpacked_bytes)} (largest so far: {largest}, "
                f"{human_bytes(largest.stat().st_size)}): move data out of it and name it by locators"
            )
    return _zip(files)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _SKIPPED_FOLDERS:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            if not (path / _ENVIRONMENT_MARK).exists():
                yield from _files(path)
        elif stat.S_ISREG(mode):
            yield path
        else:
            # Following a link could include files from outside; skipping it would fail later, at the import.
            raise ArchiveError(
                f"{path} is a link or a device, which archives do not carry: copy the file, or move it"
            )


def _zip(files: list[tuple[str, Path]]) -> bytes:
    contents = [(name, path, _read(path)) for name, path in sorted(files)]
    # Deflate's output depends on the zlib version; storing small archives makes their hash independent.
    is_small = sum(len(content) for _, _, content in contents) <= _STORED_UP_TO_BYTES
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for name, path, content in contents:
            info = zipfile.ZipInfo(name, date_time=_FIXED_TIME)
            info.create_system = _UNIX
            info.external_attr = (
                stat.S_IFREG | (0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
            ) << 16
            info.compress_type = zipfile.ZIP_STORED if is_small else zipfile.ZIP_DEFLATED
            opened.writestr(info, content)
    return packed.getvalue()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ArchiveError(f"{path} cannot be read ({cause.strerror}): check its permissions") from cause
