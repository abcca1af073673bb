"""Limits of an archive: sizes, counts and safe names.

`packing`, `formats` and `unpacking` apply them. The module knows no archive format. `UnpackMeter` and `Names` are
updated while an archive is read and raise `ArchiveError` at the first violation, so a bomb costs only the memory and
time that the limits allow. Defaults: 32 MiB packed, 256 MiB unpacked, 5,000 members.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cerebro.errors import ArchiveError

MIB = 1024 * 1024

_MAX_NAME_BYTES = 1024
_MAX_PART_BYTES = 255  # the limit of Linux file systems
_MAX_DEPTH = 32
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """Bounds of one archive.

    Attributes:
        archive_bytes: bytes of the archive itself.
        unpacked_bytes: measured bytes of all its files.
        members: number of files and folders.
        ratio: unpacked bytes divided by packed bytes; applies above `ratio_free_bytes`.
        ratio_free_bytes: unpacked bytes that any archive may have: a small table of zeros is no bomb.
    """

    archive_bytes: int = 32 * MIB
    unpacked_bytes: int = 256 * MIB
    members: int = 5_000
    ratio: int = 100
    ratio_free_bytes: int = 8 * MIB


DEFAULT_LIMITS = ArchiveLimits()


def human_bytes(size: int) -> str:
    """Return a number of bytes with a binary unit: ``512 B``, ``1.5 KiB``, ``32 MiB``."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


@dataclass(kw_only=True)
class UnpackMeter:
    """Counts the unpacked bytes of an archive.

    Attributes:
        archive: name of the archive, for messages.
        packed_bytes: size of the archive.
        limits: the limits.
        member: name of the current member, for messages.
        unpacked_bytes: bytes unpacked until now.
    """

    archive: str
    packed_bytes: int
    limits: ArchiveLimits
    member: str = ""
    unpacked_bytes: int = 0

    def check_packed(self) -> None:
        """Require that the archive itself is small enough.

        Raises:
            ArchiveError: it is too large; the message has size and limit.
        """
        if self.packed_bytes > self.limits.archive_bytes:
            raise ArchiveError(
                f"{self.archive} is {human_bytes(self.packed_bytes)}, the limit is "
                f"{human_bytes(self.limits.archive_bytes)}: pack code only and name data by locators"
            )

    def add(self, num_bytes: int) -> None:
        """Count unpacked bytes.

        Raises:
            ArchiveError: the unpacked size, or its ratio to the archive's size, is above the limit.
        """
        self.unpacked_bytes += num_bytes
        if self.unpacked_bytes > self.limits.unpacked_bytes:
            raise ArchiveError(
                f"{self.archive} unpacks to more than {human_bytes(self.limits.unpacked_bytes)} "
                f"(reached in {self.member!r}): pack code only and name data by locators"
            )
        free, ratio = self.limits.ratio_free_bytes, self.limits.ratio
        if self.unpacked_bytes > free and self.unpacked_bytes > ratio * self.packed_bytes:
            raise ArchiveError(
                f"{self.archive} unpacks to more than {ratio} times its {human_bytes(self.packed_bytes)} "
                f"(reached in {self.member!r}), as a bomb does: leave out files that are mostly zeros"
            )


@dataclass(kw_only=True)
class Names:
    """The tree of member names; refuses names that leave the archive's folder or collide."""

    archive: str
    limits: ArchiveLimits
    members: int = 0
    _paths: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def take(self, name: str, *, is_folder: bool) -> PurePosixPath | None:
        """Add a member and return its relative path, or `None` for the archive's root (`./`).

        Raises:
            ArchiveError: the name is absolute, climbs, is not portable, or collides with an earlier member.
        """
        self.members += 1
        if self.members > self.limits.members:
            raise too_many_members(self.archive, self.limits)
        parts = self._parts(name)
        for depth in range(1, len(parts) + 1):
            self._place("/".join(parts[:depth]), is_folder or depth < len(parts), is_last=depth == len(parts))
        if not parts and not is_folder:
            raise self._refused(name, "has no name")
        return PurePosixPath(*parts) if parts else None

    def _parts(self, name: str) -> list[str]:
        try:
            encoded = name.encode("utf-8")
        except UnicodeEncodeError as cause:
            raise self._refused(name, "has a name that is not UTF-8: rename it and pack again") from cause
        if _CONTROL.search(name) or "\\" in name:
            raise self._refused(name, "has a backslash or control character in its name: rename it")
        if name.startswith("/") or _DRIVE.match(name):
            raise self._refused(name, "is an absolute path: pack the folder from inside, with relative names")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self._refused(name, "climbs out of its folder with '..': pack the folder from inside")
        if len(encoded) > _MAX_NAME_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
            limit = f"{_MAX_PART_BYTES} bytes a part, {_MAX_NAME_BYTES} in all"
            raise self._refused(name[:80] + "...", f"has a name longer than {limit}: shorten it")
        if len(parts) > _MAX_DEPTH:
            raise self._refused(
                name[:80] + "...", f"lies more than {_MAX_DEPTH} folders deep: flatten the tree"
            )
        return parts

    def _place(self, path: str, is_folder: bool, *, is_last: bool) -> None:
        # Compare like a file system that ignores case and Unicode form: an archive must unpack to the same files
        # everywhere, and members must not overwrite each other.
        key = unicodedata.normalize("NFC", path).casefold()
        earlier = self._paths.setdefault(key, (path, is_folder))
        if earlier[0] != path:
            raise self._refused(path, f"differs from {earlier[0]!r} only in case or accents: rename one")
        if earlier[1] != is_folder:
            raise self._refused(path, "is a file and a folder at once: pack again")
        if is_last and not is_folder and path in self._files:
            raise self._refused(path, "is there twice: pack again")
        if not is_folder:
            self._files.add(path)

    _files: set[str] = field(default_factory=set)

    def _refused(self, name: str, reason: str) -> ArchiveError:
        return ArchiveError(f"{self.archive}: member {name!r} {reason}")


def too_many_members(archive: str, limits: ArchiveLimits) -> ArchiveError:
    """Return the error for an archive with too many members."""
    return ArchiveError(
        f"{archive} has more than {limits.members:,} files and folders: leave out environments and data"
    )
