"""Object stores: where the user's metadata, images and files lie. A folder, or a bucket of S3.

A store is a root, given as a path, ``file://`` or ``s3://bucket/prefix``, and the names of objects under it.
A name that would leave the root is refused. boto3 is imported when an ``s3://`` store is opened. What objects
mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cerebro.data.objects.folder import FolderStore, local_path
from cerebro.data.objects.s3 import S3Store, is_absent
from cerebro.data.objects.store import ObjectInfo, ObjectStore, object_name
from cerebro.errors import LocatorError

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "describe",
    "fetch_many",
    "fetch_uri",
    "is_absent",
    "local_path",
    "object_name",
    "open_store",
    "read_bytes",
    "split_uri",
]


def open_store(uri: str) -> ObjectStore:
    """The store with root ``uri``, not looked at yet; LocatorError for an address of an unknown kind."""
    if uri.startswith("s3://"):
        return S3Store(uri)
    return FolderStore(uri)


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


def fetch_many(store: ObjectStore, names: Iterable[str], folder: Path, *, concurrency: int = 8) -> list[Path]:
    """Copy objects to ``folder / name``, at most ``concurrency`` at a time; what is there already is skipped.

    Raises the first error, after the copies under way have ended. Safe to call again.
    """

    def fetch(name: str) -> Path:
        path = folder / object_name(name)
        if not path.exists():  # copies appear whole: what is there is complete
            store.fetch(name, path)
        return path

    with ThreadPoolExecutor(max_workers=max(1, concurrency), thread_name_prefix="cerebro-fetch") as pool:
        futures = [pool.submit(fetch, name) for name in dict.fromkeys(names)]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def split_uri(uri: str) -> tuple[str, str]:
    """The root and the name of a single object's address; LocatorError if it names none."""
    root, _, name = uri.rpartition("/")
    if uri.startswith("s3://"):
        if not name or root == "s3:/":
            raise LocatorError(f"{uri} names no object: expected s3://bucket/name")
        return root, name
    path = local_path(uri)
    if not path.name:
        raise LocatorError(f"{uri!r} names no file: expected a path, file:// or s3://bucket/name")
    return str(path.parent), path.name


def _opened(uri: str) -> tuple[ObjectStore, str]:
    root, name = split_uri(uri)
    return open_store(root), name
