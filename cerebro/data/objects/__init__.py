"""Object stores with the user's metadata, images and files: a folder, an S3 bucket, or a package's. Read-only.

ETL tasks, the controller, client and dispatcher read through them. A store has a root (a path, `file://` or
`s3://bucket/prefix`) and names of objects under it. Names that leave the root are refused. boto3 is imported when an
`s3://` store is opened. Other schemes come from installed packages (entry points `cerebro.stores`); each is imported
when an address has its scheme.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.data.objects.folder import FolderStore, has_scheme, local_path
from cerebro.data.objects.remote import Info, RemoteStore
from cerebro.data.objects.s3 import S3Store, is_absent
from cerebro.data.objects.store import ObjectInfo, ObjectStore, object_name
from cerebro.errors import LocatorError, PluginError
from cerebro.runtime import plugins

__all__ = [
    "Info",
    "ObjectStore",
    "RemoteStore",
    "describe",
    "fetch_uri",
    "has_scheme",
    "is_absent",
    "is_bucket",
    "is_s3",
    "local_path",
    "object_name",
    "open_store",
    "split_uri",
]


def open_store(uri: str) -> ObjectStore:
    """Return the store with root `uri`, without accessing it.

    Raises:
        LocatorError: no store has the address's scheme.
    """
    if is_s3(uri):
        return S3Store(uri)
    return _of_package(uri) if is_bucket(uri) else FolderStore(uri)


def is_s3(uri: str) -> bool:
    """True if an address begins with ``s3://``."""
    return uri[:5].lower() == "s3://"


def is_bucket(uri: str) -> bool:
    """True if an address begins with ``s3://``, or the scheme of a package: its characters stand for themselves."""
    return has_scheme(uri) and uri[:7].lower() != "file://"


def _of_package(uri: str) -> RemoteStore:
    scheme = uri.partition("://")[0].lower()
    try:
        plugin = plugins.find("stores", scheme)
        if plugin is None:
            raise LocatorError(
                f"{uri} is not an address that Cerebro knows: expected a path, file:// or s3://. A package with a "
                f"store for {scheme}:// must be installed where you start runs, on the workers, and, for metadata and "
                "`misc`, beside the controller"
            )
        expected = "a subclass of cerebro.data.objects.RemoteStore"
        store = plugin.load_callable(expected)(uri)
        if not isinstance(store, RemoteStore):
            raise LocatorError(f"{plugin.place} of the package {plugin.package} is not {expected}")
    except PluginError as problem:
        raise LocatorError(f"{uri}: {problem}") from problem
    return store


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
        scheme = uri.partition("://")[0]
        if not name or len(root) <= len(f"{scheme}://"):
            raise LocatorError(f"{uri} names no object: expected {scheme}://bucket/name")
        return root + slash, name
    path = local_path(uri)
    if not path.name:
        raise LocatorError(f"{uri!r} names no file: expected a path, file:// or s3://bucket/name")
    return str(path.parent), path.name


def _opened(uri: str) -> tuple[ObjectStore, str]:
    root, name = split_uri(uri)
    return open_store(root), name
