"""The sandbox against accidents: file access of user code, limited by Landlock and seccomp.

The task loop enters a `Sandbox` before it runs user code, if the worker's setting is on; the agent calls `check` when
it starts. An experiment owns its checkpoints, predictions and logs; a data set owns its shards. Temporary folders and
caches are shared. Other files are readable unless other experiments own them. The sandbox prevents mistakes, not
attacks: users share a user id, caches and the network.

`rights_of` is pure. `Sandbox` applies the rights in a process with user code.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure
from cerebro.errors import ClusterError, RetryableError
from cerebro.runtime.isolation import landlock, metadata_guard
from cerebro.runtime.isolation.sandbox_settings import MODE, WRITABLE
from cerebro.runtime.volumes import Volumes

_log = logging.getLogger(__name__)

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_CACHES = (".cache", ".nv", ".triton", ".keras")
"""Caches of downloads and compilers in the user's home."""
_CREATED_CACHES = (".cache", ".triton")
"""Folders created if missing: a rule needs a folder, and their users fail without it."""
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
    "KERAS_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR",
)  # fmt: skip
_LOCAL_CLUSTER = "CEREBRO_SERVICE_OF"
"""Home of the local cluster of this worker: it has the cluster's token and the database's files."""
_DEVICES = (Path("/dev"), Path("/proc"))
_KINDS: Mapping[str, Literal["data", "search"]] = {"etl": "data", "fitting": "data", "search": "search"}
_DENIED = re.compile(r"\[Errno (?:13|18)\] [^:\n]+: '([^'\n]+)'(?: -> '([^'\n]+)')?")
"""Python's text for EACCES and EXDEV, Landlock's errors."""
_MAX_MESSAGE = 4000
"""Maximum characters of a message that the explanation follows; a longer message comes after it."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The purpose of a process. Another purpose needs another process.

    Attributes:
        work: kind of work: a data set, models, or a search, which has no files.
    """

    experiment: str
    dataset: str
    work: Literal["data", "models", "search"]

    @classmethod
    def of(cls, body: TaskBody) -> Scope:
        """Return the scope of a task."""
        return cls(experiment=body.experiment, dataset=body.dataset, work=_KINDS.get(body.kind, "models"))


@dataclass(frozen=True, kw_only=True)
class Rights:
    """Access rights to resolved paths and everything beneath them.

    Attributes:
        own_folders: folders of the experiment or data set, created if missing. Read and write.
        common: temporary folders, caches, and folders the administrator allows. Read and write.
        closed: folders of others: no access, except to `own_folders` and `opened` beneath.
        opened: read only.
    """

    own_folders: tuple[Path, ...]
    common: tuple[Path, ...]
    closed: tuple[Path, ...]
    opened: tuple[Path, ...]

    def may_write(self, path: Path) -> bool:
        """True if a file may be created, changed or removed. The path is absolute without links."""
        return any(path.is_relative_to(folder) for folder in (*self.own_folders, *self.common))

    def may_read(self, path: Path) -> bool:
        """True if a file may be read."""
        is_closed = any(path.is_relative_to(folder) for folder in self.closed)
        return not is_closed or self.may_write(path) or any(path.is_relative_to(p) for p in self.opened)


def common_folders(
    environment: Mapping[str, str], temporary: Path, further: Iterable[Path], volumes: Volumes
) -> tuple[Path, ...]:
    """Return folders writable for everyone: temporary folders, caches and `further`.

    Excludes folders that contain a volume, which would open it.

    Args:
        temporary: folder of this process's temporary files.
    """
    caches = [Path(environment[name]) for name in _CACHE_VARIABLES if environment.get(name)]
    if home := environment.get("HOME", ""):
        caches += [Path(home, name) for name in _CACHES]
    found = (temporary, *map(Path, TEMPORARY), *caches, *further)
    roots = [root.resolve() for root in _roots(volumes)]
    resolved = dict.fromkeys(path.resolve() for path in found if path.is_absolute())
    return tuple(path for path in resolved if not any(root.is_relative_to(path) for root in roots))


def rights_of(scope: Scope, volumes: Volumes, common: Sequence[Path]) -> Rights:
    """Return the rights of a process that works for `scope`.

    Args:
        common: see `common_folders`.
    """
    shards, shared, checkpoints = (
        path.resolve() for path in (volumes.shards, volumes.shared, volumes.checkpoints)
    )
    logs = volumes.logs.resolve() / "tasks" / scope.experiment
    data = tuple(root / "datasets" / scope.dataset for root in (shards, shared))
    downloads = shards / "downloads" / scope.dataset
    own_folders: tuple[Path, ...] = (logs,)
    opened: tuple[Path, ...] = ()
    if scope.work == "data":
        own_folders += (*data, downloads, shards / "misc")
    elif scope.work == "models":
        predictions = shared / "predictions" / scope.experiment
        own_folders += (checkpoints / scope.experiment, predictions, shards / "misc", shards / "ranks")
        own_folders += (volumes.frozen_outputs.resolve() / scope.dataset,)
        opened = (*data, downloads, volumes.registry.resolve())
    closed = (
        checkpoints,
        *(root / "datasets" for root in (shards, shared)),
        shared / "predictions",
        shards / "downloads",
        volumes.logs.resolve() / "tasks",
    )
    return Rights(own_folders=own_folders, common=tuple(common), closed=closed, opened=opened)


def outside(closed: Collection[Path], names: Callable[[Path], Iterable[Path]]) -> Iterator[Path]:
    """Yield the largest files and folders that contain nothing `closed`, together everything else.

    Args:
        closed: absolute paths without links.
        names: returns a folder's entries, without links.
    """
    ancestors = {parent for path in closed for parent in path.parents}

    def walk(path: Path) -> Iterator[Path]:
        if path in closed:
            return
        if path not in ancestors:
            yield path
            return
        for each in names(path):
            yield from walk(each)

    yield from walk(Path("/"))


def check(volumes: Volumes, further: Sequence[Path]) -> None:
    """Verify that the sandbox works. Call before a worker with a sandbox starts.

    Raises:
        ClusterError: the kernel refuses, or the volumes are in a folder that is writable for everyone.
    """
    if reason := metadata_guard.why_unavailable():
        _log.warning(
            "user code can change the mode, owner, times and attributes of other experiments' files here, which "
            "Landlock does not restrict: %s",
            reason,
        )
    if reason := landlock.why_not_enforced():
        raise ClusterError(
            f"{MODE} is on, but {reason}. Mend that, or set {MODE}=off (worker.sandbox of the chart)"
        )
    temporary = Path(tempfile.gettempdir()).resolve()
    if inside := [root for root in _roots(volumes) if root.resolve().is_relative_to(temporary)]:
        raise ClusterError(
            f"{MODE} is on, but the volume {inside[0]} lies in {temporary}, where all code may write: have the "
            "volumes elsewhere, or set TMPDIR to another folder"
        )
    for path in further:
        if inside := [root for root in _roots(volumes) if _overlap(root.resolve(), path.resolve())]:
            raise ClusterError(
                f"{WRITABLE} has {path}, and the volume {inside[0]} is there, with everybody's files: name folders "
                "beside the volumes"
            )


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _roots(volumes: Volumes) -> tuple[Path, ...]:
    """Return the folders with files of other experiments."""
    return (
        volumes.shards, volumes.shared, volumes.checkpoints, volumes.metrics, volumes.code, volumes.logs,
    )  # fmt: skip


def _temporary_folder() -> Path:
    """Return the folder for temporary files. Python names none if the volume is full."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR") or "/tmp")


class Sandbox:
    """The sandbox of a process with user code, entered once for one scope.

    Args:
        is_on: if False, every task is admitted without restrictions.
        further: more folders writable for everyone.
        door: socket of the supervisor that judges changes of files' modes (`cerebro.runtime.isolation.metadata_guard`).
    """

    def __init__(
        self,
        volumes: Volumes,
        *,
        is_on: bool,
        further: Sequence[Path] = (),
        door: socket.socket | None = None,
    ) -> None:
        self._volumes, self.is_on, self._further, self._door = volumes, is_on, further, door
        self._scope: Scope | None = None
        self._rights: Rights | None = None
        self._folders: dict[Path, tuple[int, int] | None] = {}

    def admits(self, body: TaskBody) -> bool:
        """True if this process may run a task with its present rights.

        To the kernel, folders that were removed and recreated, as after an experiment's deletion, are different.
        """
        if self._scope is None:
            return True
        return self._scope == Scope.of(body) and self._folders == _identities(self._folders)

    def enter(self, body: TaskBody) -> None:
        """Drop all rights that the task does not need. Does nothing the second time or if off.

        Raises:
            RetryableError: the kernel refused.
        """
        if not self.is_on or self._scope is not None:
            return
        scope = Scope.of(body)
        temporary = _temporary_folder()
        common = common_folders(os.environ, temporary, self._further, self._volumes)
        rights = rights_of(scope, self._volumes, common)
        if home := os.environ.get(_LOCAL_CLUSTER):
            private = tuple(Path(home, name).resolve() for name in ("run", "store"))
            rights = replace(rights, closed=(*rights.closed, *private))
        caches = (Path.home() / name for name in _CREATED_CACHES)
        for folder in (*rights.own_folders, *(cache for cache in caches if cache.resolve() in common)):
            with suppress(OSError):  # a volume that is not mounted here; a task that needs it reports that
                folder.mkdir(parents=True, exist_ok=True)
        try:
            landlock.restrict(
                read=(*outside(rights.closed, _names), *rights.opened),
                write=(*rights.own_folders, *rights.common),
                write_files=_DEVICES,
            )
        except OSError as cause:
            raise RetryableError(
                f"the sandbox of this worker cannot be made: {cause}. `cerebro doctor` there says more; "
                f"{MODE}=off (worker.sandbox of the chart) does without"
            ) from cause
        if self._door is not None:
            with self._door, suppress(OSError):  # unavailable here: the worker logged that at its start
                metadata_guard.enter(self._door, (*rights.own_folders, *rights.common))
        self._scope, self._rights = scope, rights
        self._folders = _identities((*rights.own_folders, *rights.opened))

    def explain(self, failure: Failure) -> Failure:
        """Return the failure, with an explanation if the sandbox has refused a path."""
        if (path := self._refused(failure.text)) is None or self._scope is None:
            return failure
        own_files = "data set" if self._scope.work == "data" else "checkpoints, predictions"
        sentence = (
            f"The sandbox of this worker refused {path}: code of experiment {self._scope.experiment!r} may change "
            f"its own {own_files} and logs, to temporary folders ({_temporary_folder()}, /dev/shm) and to caches, "
            "and cannot read others' data sets, checkpoints and predictions. Write there; or have the folder allowed "
            f"({WRITABLE}, worker.sandboxWritable of the chart), or the sandbox switched off ({MODE}=off, "
            "worker.sandbox)"
        )
        message = failure.message.rstrip(". \n")
        short = len(message) <= _MAX_MESSAGE and "\n" not in message
        return failure.model_copy(
            update={"message": f"{message}. {sentence}" if short else f"{sentence}.\n{message}"}
        )

    def _refused(self, text: str) -> Path | None:
        """Return the last path that an error text reports as denied by the sandbox."""
        if self._rights is None:
            return None
        for found in reversed(_DENIED.findall(text)):
            for name in filter(None, reversed(found)):
                # User code may have written the text: ignore paths that are too long or invalid.
                with suppress(OSError, ValueError):
                    path = Path(os.path.realpath(name))
                    if _is_denied(path, self._rights):
                        return path
        return None


def _is_denied(path: Path, rights: Rights) -> bool:
    there = next(each for each in (path, *path.parents) if each.exists())
    is_writing = not rights.may_write(path) and os.access(there, os.W_OK)
    return is_writing or not rights.may_read(path)


def _identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    found: dict[Path, tuple[int, int] | None] = dict.fromkeys(paths)
    for path in found:
        with suppress(OSError):
            facts = path.stat()
            found[path] = facts.st_dev, facts.st_ino
    return found


def _names(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if not entry.is_symlink()]
    return []
