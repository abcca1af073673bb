"""Object stores with the user's metadata, images and files: a folder, or an S3 bucket. Read-only.

ETL tasks, the controller, client and dispatcher read through them. A store has a root (a path, `file://` or
`s3://bucket/prefix`) and names of objects under it. Names that leave the root are refused. boto3 is imported when an
`s3://` store is opened.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.data.objects.folder import FolderStore, has_scheme, local_path
from cerebro.data.objects.s3 import S3Store, is_absent
from cerebro.data.objects.store import ObjectInfo, ObjectStore, object_name
from cerebro.errors import LocatorError

__all__ = [
    "ObjectStore",
    "describe",
    "fetch_uri",
    "has_scheme",
    "is_absent",
    "is_bucket",
    "local_path",
    "object_name",
    "open_store",
    "split_uri",
]


def open_store(uri: str) -> ObjectStore:
    """Return the store with root `uri`, without accessing it.

    Raises:
        LocatorError: the kind of address is unknown.
    """
    return S3Store(uri) if is_bucket(uri) else FolderStore(uri)


def is_bucket(uri: str) -> bool:
    """True if an address begins with ``s3://``."""
    return uri[:5].lower() == "s3://"


def fetch_uri(uri: str, path: Path) -> None:
    """Copy one object to `path`, atomically."""
    store, name = _opened(uri)
    store.fetch(name, path)


def describe(uri: str) -> ObjectInfo:
    """Return size and version of one object.

    Raises:
        LocatorError: the object is missing or unreadable.
    """
    store, name = _opened(uri)
    return ObjectInfo(uri=uri, num_bytes=store.size(name), version=store.version(name))


def split_uri(uri: str) -> tuple[str, str]:
    """Divide an object's address into the root and the name.

    Raises:
        LocatorError: the address names no object.
    """
    if is_bucket(uri):
        # The slash stays with the root: s3://bucket//name is the key "/name".
        root, slash, name = uri.rpartition("/")
        if not name or len(root) <= len("s3://"):
            raise LocatorError(f"{uri} names no object: expected s3://bucket/name")
        return root + slash, name
    path = local_path(uri)
    if not path.name:
        raise LocatorError(f"{uri!r} names no file: expected a path, file:// or s3://bucket/name")
    return str(path.parent), path.name


def _opened(uri: str) -> tuple[ObjectStore, str]:
    root, name = split_uri(uri)
    return open_store(root), name
