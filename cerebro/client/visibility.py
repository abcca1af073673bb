"""Check that workers can read the data of dataset locators, before `cerebro.client.requests.creation` stores them.

There are three cases: the workers run on this machine; this machine is inside the cluster, with mounted volumes; or the
cluster is elsewhere. Errors that cannot be detected here are reported by the controller when a run starts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from cerebro.contract.records import Locators
from cerebro.data.objects import describe, has_scheme, is_absent, is_bucket, local_path, open_store
from cerebro.data.tables.table_files import table_files
from cerebro.errors import LocatorError, ObjectStoreError


def check_here(locators: Locators) -> None:
    """Check locators for workers on this machine.

    Raises:
        LocatorError: a file, folder or object does not exist.
    """
    for place, uri, check in _addresses(locators):
        _check(place, uri, check)


def check_inside(locators: Locators, shared: Path) -> None:
    """Check locators inside the cluster, where this machine has the shared volume and private folders.

    Args:
        locators: locators with absolute paths.
        shared: mount point of the shared volume, the same on workers.

    Raises:
        LocatorError: a path is private to this machine, or does not exist.
    """
    private = {_mount(folder) for folder in _private_folders()} - {_mount(shared)}
    for place, uri, check in _addresses(locators):
        if is_bucket(uri):
            _check(place, uri, check)
            continue
        path = local_path(uri)
        if path.is_relative_to(shared):
            _check(place, uri, check)
        elif _exists(path) and _mount(path) in private:
            raise LocatorError(
                f"{place}: {path} is on a file system of this machine, so workers cannot read it: move it to the "
                f"shared volume {shared}, or to an object store (s3://...)"
            )


def check_outside(locators: Locators, cluster: str) -> None:
    """Check locators for a remote cluster.

    A relative path can only mean this machine, which is an error. An absolute path that exists here may exist there
    too, on a file system that both mount, so it causes a warning.

    Args:
        locators: locators as the user wrote them.
        cluster: address of the cluster.

    Raises:
        LocatorError: a path is relative.
    """
    advice = "use an object store (s3://...), or a path on a volume that all workers mount"
    addresses = [uri for _, uri, _ in _addresses(locators)]
    local = [uri for uri in addresses if not has_scheme(uri.removeprefix("file://"))]
    for uri in local:
        path = uri.removeprefix("file://")
        if not Path(path).is_absolute():
            raise LocatorError(f"{path} is a path of this machine, but {cluster} is elsewhere: {advice}")
    existing = [str(path) for path in map(local_path, local) if _exists(path)]
    if existing:
        more = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        request = f"make sure that the workers of {cluster} have the same files"
        warnings.warn(f"{existing[0]}{more} exists on this machine; {request}, or {advice}", stacklevel=4)


def _private_folders() -> Iterator[Path]:
    """Yield folders that no other pod sees, if they are not on the shared volume."""
    yield from (Path("/"), Path(tempfile.gettempdir()))
    with contextlib.suppress(RuntimeError):  # a user id without a name and without HOME, as in a container
        yield Path.home()


Check = Callable[[str], object]
"""Raises `LocatorError` if the address does not exist."""


def _addresses(locators: Locators) -> Iterator[tuple[str, str, Check]]:
    for split, locator in locators.splits().items():
        yield f"metadata of {split!r}", locator.metadata, _check_tables
        if locator.objects:
            yield f"objects of {split!r}", locator.objects, lambda uri: open_store(uri).check()
    for uri in locators.misc:
        yield "misc", uri, describe


def _check_tables(uri: str) -> None:
    files = table_files(uri)
    if files.is_one:
        describe(uri)


def _check(place: str, uri: str, check: Check) -> None:
    try:
        check(uri)
    except (ObjectStoreError, OSError):
        pass  # the controller may have access
    except LocatorError as error:
        # The cluster may have other credentials, so only report objects that do not exist.
        if not is_bucket(uri) or is_absent(error):
            raise LocatorError(f"{place}: {error}") from error


def _exists(path: Path) -> bool:
    """True if the path exists and this user can see it."""
    try:
        return path.exists()
    except OSError:
        return False


def _mount(path: Path) -> Path:
    """Return the mount point of a path, which may not exist."""
    folder = path.absolute()
    while not (_exists(folder) and os.path.ismount(folder)):
        folder = folder.parent
    return folder
