"""Creation of experiments: check that workers can read the data, then reserve the name.

Called by `Experiment` and for experiment files. Nothing is preprocessed or trained. For an existing experiment with the
same locators nothing is checked, because its data may be preprocessed and its sources deleted. Locators of an
experiment without a data set may be replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from cerebro.client import visibility
from cerebro.client.connection import Connection, author
from cerebro.client.session import Session, check_project
from cerebro.commands.rules import may_relocate
from cerebro.contract.events import LocatorsChanged
from cerebro.contract.records import ExperimentRecord, Locators
from cerebro.errors import ConflictError, LocatorError, NotFoundError
from cerebro.usercode import archive as archives


def open_or_create(
    connection: Connection,
    name: str,
    locators: Locators,
    original: Locators,
    archive: bytes | None,
    *,
    project: str = "",
) -> ExperimentRecord:
    """Create the experiment, or return the existing one, with new locators if allowed.

    Args:
        connection: connection to the cluster.
        name: name of the experiment.
        locators: locators with absolute paths.
        original: locators as the user wrote them; relative paths refer to this machine.
        archive: archive of importable files, stored first; `None` without code.
        project: project whose members may change the experiment. Ignored if it exists.

    Raises:
        LocatorError: workers cannot read the data.
        ConflictError: the name is invalid, or the experiment exists with other code, or with other locators and
            preprocessed data.
    """
    kvs = connection.kvs
    sha256 = None
    if archive is not None:
        sha256 = hashlib.sha256(archive).hexdigest()
        kvs.put_archive(sha256, archive)
    record = _record(name, locators, sha256, project)
    existing: ExperimentRecord | None = None
    with contextlib.suppress(NotFoundError):
        existing = kvs.experiment(record.name)
    is_moved = (
        existing is not None and existing.archive == record.archive and existing.locators != record.locators
    )
    if existing is None or is_moved:
        _check_visibility(connection, record.locators, original)
    if existing is not None and is_moved:
        state = Session(connection, existing).state()
        if may_relocate(state):
            event = LocatorsChanged(locators=record.locators, after=state.seq, by=record.author)
            kvs.append(record.name, event)
            return kvs.experiment(record.name)
    try:
        return kvs.create_experiment(record)
    except ConflictError as error:
        if is_moved:
            raise ConflictError(f"{error}. Locators cannot change after data were preprocessed") from error
        raise


def _check_visibility(connection: Connection, locators: Locators, original: Locators) -> None:
    shared = connection.volumes.shared
    if connection.is_local:
        visibility.check_here(locators)
    elif connection.is_remote:
        visibility.check_outside(original, connection.page)
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
            f"{name!r} is not a valid experiment name: use at most 50 lower-case letters, digits and dashes"
        ) from cause


def pack_code(path: Path) -> bytes:
    """Return the archive of a folder, or the content of an archive file, after inspection.

    Raises:
        LocatorError: `path` cannot be read.
        ArchiveError: workers would refuse to unpack it.
    """
    if path.is_dir():
        content = archives.pack(path)
    else:
        try:
            content = path.read_bytes()
        except OSError as cause:
            raise LocatorError(f"code {path} cannot be read: {cause.strerror}") from cause
    archives.inspect(content)
    return content
