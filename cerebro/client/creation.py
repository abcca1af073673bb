"""An experiment comes into being: what its locators name is looked at, then its name is taken.

Of an experiment that is there already nothing is looked at: its data may be preprocessed, and what they were made from
gone. One whose locators never led to a data set holds nothing worth its name, so it is given other ones.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from cerebro.client import visibility
from cerebro.client.connection import Connection
from cerebro.client.session import Session, author, check_project
from cerebro.commands.rules import may_relocate
from cerebro.contract.events import LocatorsChanged
from cerebro.contract.records import ExperimentRecord, Locators
from cerebro.errors import ConflictError, LocatorError, NotFoundError
from cerebro.usercode import archive


def created(
    connection: Connection,
    name: str,
    locators: Locators,
    given: Locators,
    packed: bytes | None,
    *,
    project: str = "",
) -> ExperimentRecord:
    """The experiment: made, found again, or found again and given these locators.

    Args:
        project: whose members steer it, where there are users; of one that is there already it stays as it is.
        given: the locators as the user wrote them: a relative path tells which machine was meant.
        packed: the archive of what user code may import, if there is one; it is stored.

    Raises:
        LocatorError: workers cannot see what a new locator names.
        ConflictError: it cannot have that name; or an experiment of this name has other locators, with which data were
            preprocessed, or other code.
    """
    kvs = connection.kvs
    sha256 = None
    if packed is not None:
        sha256 = hashlib.sha256(packed).hexdigest()
        kvs.put_archive(sha256, packed)
    record = _record(name, locators, sha256, project)
    known: ExperimentRecord | None = None
    with contextlib.suppress(NotFoundError):
        known = kvs.experiment(record.name)
    is_moved = known is not None and known.archive == record.archive and known.locators != record.locators
    if known is None or is_moved:
        _check_reach(connection, record.locators, given)
    if known is not None and is_moved:
        state = Session(connection, known).state()
        if may_relocate(state):
            event = LocatorsChanged(locators=record.locators, after=state.seq, by=record.author)
            kvs.append(record.name, event)
            return kvs.experiment(record.name)
    try:
        return kvs.create_experiment(record)
    except ConflictError as error:
        if is_moved:
            raise ConflictError(
                f"{error}. Locators can change only until the data have been preprocessed"
            ) from error
        raise


def _check_reach(connection: Connection, locators: Locators, given: Locators) -> None:
    shared = connection.volumes.shared
    if connection.is_local:
        visibility.check_here(locators)
    elif connection.is_outside:
        visibility.check_outside(given, connection.page)
    elif shared.is_dir():
        visibility.check_inside(locators, shared)


def _record(name: str, locators: Locators, sha256: str | None, project: str) -> ExperimentRecord:
    check_project(project)
    try:
        return ExperimentRecord(
            name=name, locators=locators, archive=sha256, author=author(), project=project
        )
    except ValueError as cause:
        raise ConflictError(
            f"{name!r} is not a valid name of an experiment: use at most 50 lower-case letters, digits and dashes"
        ) from cause


def packed_code(path: Path) -> bytes:
    """The archive of a folder, or the one that a file is; looked into.

    Raises:
        LocatorError: it cannot be read.
        ArchiveError: workers would not unpack it.
    """
    if path.is_dir():
        packed = archive.pack(path)
    else:
        try:
            packed = path.read_bytes()
        except OSError as cause:
            raise LocatorError(f"code {path} cannot be read: {cause.strerror}") from cause
    archive.inspect(packed)
    return packed
