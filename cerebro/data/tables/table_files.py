"""The files of a metadata locator: a single file, a folder's tables, or matches of a pattern such as ``*.csv``.

`locators` and the controller's preparation call `table_files`. It lists, copies and hashes files; `table_stream` reads
the tables. Folders inside the folder and compressed tables are refused, so that no row is missed.
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
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy")
_PATTERN = "*?["
_MAX_CHECKED = 1_000
"""Maximum number of inner folders, and of names in each, that are checked for unread tables."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """One file of a store."""

    store: ObjectStore
    name: str

    def __str__(self) -> str:
        return f"{self.store.uri.rstrip('/')}/{self.name}"

    @property
    def format(self) -> Format:
        """Format of the file; see `format_of`."""
        return format_of(self.name)

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self.store.size(self.name)

    @property
    def path(self) -> Path:
        """Path on this machine.

        Raises:
            LocatorError: the file is in an object store; call `TableFiles.fetched` first.
        """
        root = self.store.local_root()
        if root is None:
            raise LocatorError(f"{self} is in an object store: it has to be fetched first")
        return root / self.name


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files of one table, at least one, sorted by name.

    Attributes:
        uri: the locator.
        is_one: True if the locator names a single file.
    """

    uri: str
    files: tuple[TableFile, ...]
    is_one: bool

    @property
    def format(self) -> Format:
        """Format of all files."""
        return self.files[0].format

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files)

    def fetched(self, folder: Path) -> TableFiles:
        """Return the files on this machine, after copying them from an object store into `folder`.

        Raises:
            StorageFullError: the volume is full.
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
        """Return the SHA-256 of the local files' content, read in pieces.

        For several files it is the SHA-256 of their names and digests.
        """
        if self.is_one:
            return _sha256(self.files[0].path)
        listed = [[Path(file.name).name, _sha256(file.path)] for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def versions(self) -> list[str]:
        """Return texts that change with the files, without reading them."""
        return [file.store.version(file.name) for file in self.files]


def table_files(uri: str, opened: Callable[[str], ObjectStore] = open_store) -> TableFiles:
    """Return the files of a locator. A missing single file is reported when it is read.

    Args:
        uri: the locator.
        opened: opens the root of a store. Callers with restricted access pass another function than `open_store`.

    Raises:
        LocatorError: the folder has no table, the pattern matches no file, formats differ, or the folder has tables
            that would not be read.
        ObjectStoreError: the store did not answer.
    """
    root, name = split_uri(uri.removesuffix("/") if is_bucket(uri) else uri.rstrip("/"))
    store = opened(root)
    if not uri.endswith("/") and store.exists(name):
        return TableFiles(uri=uri, files=(TableFile(store=store, name=name),), is_one=True)
    if store.has_folder(name):
        names = [each for each in store.in_folder(name) if not _is_hidden(each)]
        listed = [each for each in names if _format(each)]
        _require_all(uri, store, name, names)
        missing = f"there is no table in the folder {uri}: expected files that end in {', '.join(_FORMATS)}"
    elif any(sign in name for sign in _PATTERN):
        listed = [each for each in store.in_folder("") if not _is_hidden(each) and fnmatchcase(each, name)]
        missing = f"no file in {root} has a name like {name}"
    else:  # missing, or neither file nor folder: reading it reports the error
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
    """Require that a folder has no compressed tables and no tables in its folders.

    Checks a limited number of names.

    Raises:
        LocatorError: some rows would not be read.
    """
    compressed = next((each for each in names if _is_compressed(each)), None)
    if compressed is not None:
        raise LocatorError(
            f"{uri} has a compressed table, {compressed}, which cannot be read: unpack it, write it as Parquet, or "
            "name the other files by a pattern such as *.csv"
        )
    for inner in islice(store.folders(folder), _MAX_CHECKED):
        if not _is_hidden(inner):
            inside = islice(store.in_folder(inner), _MAX_CHECKED)
            table = next((each for each in inside if _format(each) or _is_compressed(each)), None)
            if table is not None:
                raise LocatorError(
                    f"{uri} has tables in folders of its own, such as {table}, which are not read: put all files into "
                    "one folder, or name those of one folder by a pattern such as *.csv"
                )


def _is_compressed(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() in _COMPRESSED and _format(path.stem) is not None


def format_of(name: str) -> Format:
    """Return the format by the file name's extension; CSV if unknown."""
    return _format(name) or "CSV"


def _format(name: str) -> Format | None:
    return _FORMATS.get(Path(name).suffix.lower())


def _is_hidden(name: str) -> bool:
    """Return True for files such as `_SUCCESS`, which table writers add."""
    return Path(name).name.startswith((".", "_"))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with volume_errors_named(path, may_deny=False), path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise LocatorError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
