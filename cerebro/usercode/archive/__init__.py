"""Code archives: how user code travels as one file, and how it is opened without trusting it.

    inspect(content)               what is in it, and that it is harmless
    pack(folder_or_file)           a folder as a zip, the same bytes for the same files
    extract(content, destination)  unpacked, all or nothing

Kinds: zip, tar, tar.gz. An archive comes from whoever can reach the web page, so nothing that it says of
    itself is believed: sizes are measured while unpacking, names are checked one by one, and only plain
    files and folders exist. Must not know experiments, the store, or where archives are kept. Nothing here
    runs or imports what it unpacks.
"""

from __future__ import annotations

from cerebro.usercode.archive.packing import pack
from cerebro.usercode.archive.rules import DEFAULT_LIMITS, ArchiveLimits, human_bytes
from cerebro.usercode.archive.unpacking import ArchiveListing, ArchiveMember, extract, inspect

__all__ = [
    "DEFAULT_LIMITS",
    "ArchiveLimits",
    "ArchiveListing",
    "ArchiveMember",
    "extract",
    "human_bytes",
    "inspect",
    "pack",
]
