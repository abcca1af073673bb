"""Object stores: where the user's metadata, images and files lie. A folder, or a bucket of S3.

A store is a root, given as a path, ``file://`` or ``s3://bucket/prefix``, and the names of objects under it.
A name that would leave the root is refused. boto3 is imported when an ``s3://`` store is opened. What objects
mean is not known here.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.data.objects.folder import FolderStore, has_scheme, local_path
from cerebro.data.objects.s3 import S3Store, is_absent
from cerebro.data.objects.store import ObjectInfo, ObjectStore, object_name
from cerebro.errors import LocatorError

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "describe",
    "fetch_uri",
    "has_scheme",
    "is_absent",
    "is_bucket",
    "local_path",
    "object_name",
    "open_store",
    "read_bytes",
    "split_uri",
]


def open_store(uri: str) -> ObjectStore:
    """The store with root ``uri``, not looked at yet; LocatorError for an address of an unknown kind."""
    return S3Store(uri) if is_bucket(uri) else FolderStore(uri)


def is_bucket(uri: str) -> bool:
    """True if an address begins with ``s3://``."""
    return uri[:5].lower() == "s3://"


def read_bytes(uri: str) -> bytes:
    """Content of a single object, such as a metadata file."""
    store, name = _opened(uri)
    return store.read(name)


def fetch_uri(uri: str, path: Path) -> None:
    """Copy a single object to ``path``, which appears whole or not at all."""
    store, name = _opened(uri)
    store.fetch(name, path)


def describe(uri: str) -> ObjectInfo:
    """Size and version of a single object; LocatorError unless it is there and may be read."""
    store, name = _opened(uri)
    return ObjectInfo(uri=uri, num_bytes=store.size(name), version=store.version(name))


def split_uri(uri: str) -> tuple[str, str]:
    """The root and the name of a single object's address; LocatorError if it names none."""
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
