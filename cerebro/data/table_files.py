"""Which files a metadata locator names: one, those of a folder, or those whose names match a pattern.

What is in them is not known here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from cerebro.data.objects import ObjectStore, is_bucket, open_store, split_uri
from cerebro.errors import LocatorError
from cerebro.runtime.volume_errors import volume_errors_named

Format = Literal["CSV", "TSV", "Parquet"]

_FORMATS: dict[str, Format] = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".pq": "Parquet"}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy")
_PATTERN = "*?["
_LOOKED_AT = 1_000
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """One file, by its name in a store."""

    store: ObjectStore
    name: str

    def __str__(self) -> str:
        return f"{self.store.uri.rstrip('/')}/{self.name}"

    @property
    def format(self) -> Format:
        """See `format_of`."""
        return format_of(self.name)

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self.store.size(self.name)

    @property
    def path(self) -> Path:
        """Where it lies on this machine; LocatorError if it does not: see `TableFiles.fetched`."""
        root = self.store.local_root()
        if root is None:
            raise LocatorError(f"{self} is in an object store: it has to be fetched first")
        return root / self.name


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files that together are one table, at least one, in the order of their names.

    Attributes:
        uri: the locator.
        is_one: whether it names a file, and not a folder or a pattern.
    """

    uri: str
    files: tuple[TableFile, ...]
    is_one: bool

    @property
    def format(self) -> Format:
        """Of all of them."""
        return self.files[0].format

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(file.num_bytes for file in self.files)

    def fetched(self, folder: Path) -> TableFiles:
        """The same files on this machine: those of an object store are copied into a folder.

        Raises:
            StorageFullError: there is no room for them.
        """
        copies = []
        for number, file in enumerate(self.files):
            if file.store.local_root() is not None:
                copies.append(file)
                continue
            name = Path(file.name).name
            with volume_errors_named(folder):
                file.store.fetch(file.name, folder / f"{number:06d}" / name)
            copies.append(TableFile(store=open_store(str(folder / f"{number:06d}")), name=name))
        return replace(self, files=tuple(copies))

    def digest(self) -> str:
        """Of the content of files on this machine, which are read in pieces: the SHA-256 of one file; for several, that
        of their names and theirs."""
        if self.is_one:
            return _sha256(self.files[0].path)
        listed = [[Path(file.name).name, _sha256(file.path)] for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def versions(self) -> list[str]:
        """Change when any of the files does. Nothing is read."""
        return [file.store.version(file.name) for file in self.files]


def table_files(uri: str, opened: Callable[[str], ObjectStore] = open_store) -> TableFiles:
    """The files that a locator names. Whether a single file is there is found when it is read.

    Args:
        opened: opens the root of a store; other than `open_store` for who may not look everywhere.

    Raises:
        LocatorError: there is no table in the folder, no file of the pattern, or files of several formats; or the
            folder has tables that would not be read.
        ObjectStoreError: the store did not answer.
    """
    root, name = split_uri(uri.removesuffix("/") if is_bucket(uri) else uri.rstrip("/"))
    store = opened(root)
    if not uri.endswith("/") and store.exists(name):
        return TableFiles(uri=uri, files=(TableFile(store=store, name=name),), is_one=True)
    if store.has_folder(name):
        seen = [each for each in store.in_folder(name) if not _is_hidden(each)]
        listed = [each for each in seen if _format(each)]
        _require_all(uri, store, name, seen)
        missing = f"there is no table in the folder {uri}: expected files that end in {', '.join(_FORMATS)}"
    elif any(sign in name for sign in _PATTERN):
        listed = [each for each in store.in_folder("") if not _is_hidden(each) and fnmatchcase(each, name)]
        missing = f"no file in {root} has a name like {name}"
    else:  # nothing is there, or what is no data: who reads it says so
        return TableFiles(uri=uri, files=(TableFile(store=store, name=name),), is_one=True)
    if not listed:
        raise LocatorError(f"{missing}. Check the locator")
    files = tuple(TableFile(store=store, name=each) for each in listed)
    other = next((file for file in files if file.format != files[0].format), None)
    if other is not None:
        raise LocatorError(
            f"{uri} names files of several formats, {files[0].name} ({files[0].format}) and {other.name} "
            f"({other.format}): name those of one format by a pattern such as *.csv"
        )
    return TableFiles(uri=uri, files=files, is_one=False)


def _require_all(uri: str, store: ObjectStore, folder: str, names: list[str]) -> None:
    """Raise LocatorError if a folder has rows that would be left out: in compressed files, or in folders of its own, of
    which so many names are looked at."""
    packed = next((each for each in names if _is_packed(each)), None)
    if packed is not None:
        raise LocatorError(
            f"{uri} has a compressed table, {packed}, which cannot be read: unpack it, write it as Parquet, or name "
            "the other files by a pattern such as *.csv"
        )
    for inner in islice(store.folders(folder), _LOOKED_AT):
        if not _is_hidden(inner):
            inside = islice(store.in_folder(inner), _LOOKED_AT)
            table = next((each for each in inside if _format(each) or _is_packed(each)), None)
            if table is not None:
                raise LocatorError(
                    f"{uri} has tables in folders of its own, such as {table}, which are not read: put all files into "
                    "one folder, or name those of one folder by a pattern such as *.csv"
                )


def _is_packed(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() in _PACKED and _format(path.stem) is not None


def format_of(name: str) -> Format:
    """Of a file, by the ending of its name; CSV if that tells nothing."""
    return _format(name) or "CSV"


def _format(name: str) -> Format | None:
    return _FORMATS.get(Path(name).suffix.lower())


def _is_hidden(name: str) -> bool:
    """Whether programs that write tables keep their own notes in a file of this name, such as ``_SUCCESS``."""
    return Path(name).name.startswith((".", "_"))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise LocatorError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
