"""Whether workers can see what dataset locators name, as far as this machine can tell before anything is sent.

Three cases: the workers run on this machine; this machine is in the workers' cluster and has its volumes mounted; the
cluster is elsewhere. What cannot be told here is left to the controller, which says it when a run begins.
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
from cerebro.data.table_files import table_files
from cerebro.errors import LocatorError, ObjectStoreError


def check_here(locators: Locators) -> None:
    """For workers of this machine: everything is there.

    Raises:
        LocatorError: a file, folder or object does not exist.
    """
    for where, uri, look in _looks(locators):
        _look(where, uri, look)


def check_inside(locators: Locators, shared: Path) -> None:
    """For a client in the cluster, which sees the shared volume as workers do, and folders of its own besides.

    Args:
        shared: where the shared volume is mounted, here and at the workers.

    Raises:
        LocatorError: a path is one that only this machine sees, or nothing is where it leads.
    """
    own = {_mount(place) for place in _own_places()} - {_mount(shared)}
    for where, uri, look in _looks(locators):
        if is_bucket(uri):
            _look(where, uri, look)
            continue
        path = local_path(uri)
        if path.is_relative_to(shared):
            _look(where, uri, look)
        elif _exists(path) and _mount(path) in own:
            raise LocatorError(
                f"{where}: {path} is on a file system of this machine alone, so workers do not see it: put it below "
                f"{shared}, the volume that they share with this machine, and give its path there; or put it into an "
                "object store (s3://...)"
            )


def check_outside(locators: Locators, cluster: str) -> None:
    """For a client elsewhere: say so where locators name files of its own machine.

    A relative path can only mean this machine. A full one that exists here may exist there too (a file system that
    both mount), so that is a warning.

    Args:
        locators: as the user wrote them.
        cluster: its address.

    Raises:
        LocatorError: names the path and what would be readable.
    """
    advice = "put it into an object store (s3://...), or on a volume that all workers mount and give its path there"
    addresses = [uri for _, uri, _ in _looks(locators)]
    local = [uri for uri in addresses if not has_scheme(uri.removeprefix("file://"))]
    for uri in local:
        path = uri.removeprefix("file://")
        if not Path(path).is_absolute():
            raise LocatorError(f"{path} is a path of this machine, and {cluster} is elsewhere: {advice}")
    here = [str(path) for path in map(local_path, local) if _exists(path)]
    if here:
        more = f" (and {len(here) - 1} more)" if len(here) > 1 else ""
        check = f"make sure that the workers of {cluster} see the same"
        warnings.warn(f"{here[0]}{more} exists on this machine; {check}, or {advice}", stacklevel=4)


def _own_places() -> Iterator[Path]:
    """Folders of a pod that no other pod sees, unless the shared volume is on the same file system."""
    yield from (Path("/"), Path(tempfile.gettempdir()))
    with contextlib.suppress(
        RuntimeError
    ):  # a container may run under a user id without a name, and without HOME
        yield Path.home()


_Look = Callable[[str], object]
"""Raises `LocatorError` unless what an address names is there."""


def _looks(locators: Locators) -> Iterator[tuple[str, str, _Look]]:
    """Every address: where it stands in the locators, the address, how to look."""
    for split, locator in locators.splits().items():
        yield f"metadata of {split!r}", locator.metadata, _look_at_tables
        if locator.objects:
            yield f"objects of {split!r}", locator.objects, lambda uri: open_store(uri).check()
    for uri in locators.misc:
        yield "misc", uri, describe


def _look_at_tables(uri: str) -> None:
    files = table_files(uri)
    if files.is_one:
        describe(uri)


def _look(where: str, uri: str, look: _Look) -> None:
    try:
        look(uri)
    except (ObjectStoreError, OSError):
        pass  # the controller may have more luck
    except LocatorError as error:
        # Other credentials, which the cluster may have, would not make a thing exist.
        if not is_bucket(uri) or is_absent(error):
            raise LocatorError(f"{where}: {error}") from error


def _exists(path: Path) -> bool:
    """Whether there is something, as far as this user may look."""
    try:
        return path.exists()
    except OSError:
        return False


def _mount(path: Path) -> Path:
    """Where the file system is mounted that a path is on, or would be."""
    place = path.absolute()
    while not (_exists(place) and os.path.ismount(place)):
        place = place.parent
    return place
