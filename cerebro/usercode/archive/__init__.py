"""Code archives: user code as one file, opened without trusting it.

    inspect(content)               list the content and check that it is harmless
    pack(folder_or_file)           a folder as a zip, with equal bytes for equal files
    extract(content, destination)  unpack, all or nothing

Kinds: zip, tar, tar.gz. Anyone who can reach the web page may send an archive, so its headers are not trusted: sizes
are measured while unpacking, every name is checked, and only plain files and folders are accepted. The package does not
know experiments, the store or the archives' locations, and it does not run or import their content.
"""

from __future__ import annotations

from cerebro.usercode.archive.packing import pack
from cerebro.usercode.archive.rules import DEFAULT_LIMITS, ArchiveLimits, human_bytes
from cerebro.usercode.archive.unpacking import ArchiveListing, extract, inspect

__all__ = [
    "DEFAULT_LIMITS",
    "ArchiveLimits",
    "ArchiveListing",
    "extract",
    "human_bytes",
    "inspect",
    "pack",
]
