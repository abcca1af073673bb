"""Snapshots: states as bytes. A reader of a long log starts from the newest one and applies the later events.

A snapshot is only a cache, valid for code that would compute the same state: its *format* is a fingerprint of the
folding code. After an upgrade every log is folded once again.

The bytes are a pickle restricted to events, states, plans and containers. The reader refuses any other name, so write
access to the shared volume does not allow code execution in a service. The checksum is in the database, out of reach.
"""

from __future__ import annotations

import copyreg
import gzip
import hashlib
import io
import pickle
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, Protocol, TypeVar

import pydantic

from cerebro.errors import CerebroError
from cerebro.state.cluster import ClusterState
from cerebro.state.experiment import ExperimentState

_ROOMS = ("cerebro.contract", "cerebro.search", "cerebro.state")
"""Packages with classes that a state may contain."""

_BUILTINS: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
}
_LEVEL = 1
"""Higher levels save 10 % and take five times as long."""

_Fold = TypeVar("_Fold", ExperimentState, ClusterState)


class DamagedSnapshotError(CerebroError):
    """The bytes are no snapshot, or contain other objects."""


class SnapshotStore(Protocol):
    """The part of `cerebro.runtime.kvs.client.KvsClient` in use."""

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return the newest snapshot of a log in this format; an empty name means the cluster log."""
        ...


@cache
def snapshot_format() -> str:
    """Return the fingerprint of the code that folds and pickles."""
    found = hashlib.sha256(f"{sys.version_info[:2]} {pydantic.VERSION} {pickle.HIGHEST_PROTOCOL}".encode())
    # The whole package, since the folding code imports from it.
    for path, content in sorted(_sources(resources.files("cerebro"), "")):
        found.update(path.encode() + b"\0" + content + b"\0")
    return found.hexdigest()[:32]


def packed(state: ExperimentState | ClusterState) -> bytes:
    """Return a state as bytes.

    Raises:
        ValueError: the state is torn.
    """
    if isinstance(state, ExperimentState) and state.torn:
        raise ValueError(f"the fold of {state.name} is torn: {state.torn}")
    found = io.BytesIO()
    # Streamed, to save memory.
    with gzip.GzipFile(fileobj=found, mode="wb", compresslevel=_LEVEL, mtime=0) as file:
        pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
        # Some Python versions pickle enum members as attribute look-ups by a function.
        pickler.dispatch_table = copyreg.dispatch_table | dict.fromkeys(_enums(Enum), _by_value)
        pickler.dump(state)
    return found.getvalue()


def unpacked(content: bytes, kind: type[_Fold]) -> _Fold:
    """Return the packed state.

    Raises:
        DamagedSnapshotError: it is damaged, or of another kind.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = _Unpickler(file).load()
            if file.read(1):  # reading past the last byte verifies the checksum
                raise DamagedSnapshotError("something follows the fold")
    except DamagedSnapshotError:
        raise
    except Exception as cause:
        raise DamagedSnapshotError(f"it cannot be read: {type(cause).__name__}: {cause}") from cause
    if type(found) is not kind:
        raise DamagedSnapshotError(f"it holds a {type(found).__name__}, expected a {kind.__name__}")
    return found


def restored(store: SnapshotStore, name: str) -> ExperimentState:
    """Return the newest snapshot of an experiment, or the empty state; read on from its `seq`."""
    content = store.snapshot(name, snapshot_format())
    if content is not None:
        try:
            found = unpacked(content, ExperimentState)
        except DamagedSnapshotError:
            return ExperimentState(name=name)
        if found.name == name:
            return found
    return ExperimentState(name=name)


def restored_cluster(store: SnapshotStore) -> ClusterState:
    """Return the newest snapshot of the cluster log, or the empty state."""
    content = store.snapshot("", snapshot_format())
    try:
        return unpacked(content, ClusterState) if content is not None else ClusterState()
    except DamagedSnapshotError:
        return ClusterState()


def _enums(kind: type[Enum]) -> Iterator[type[Enum]]:
    """Enum classes of states, derived from `kind`."""
    for found in kind.__subclasses__():
        if _is_ours(found.__module__):
            yield found
        yield from _enums(found)


def _by_value(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    return type(member), (member.value,)


def _sources(folder: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each module below a folder."""
    for file in folder.iterdir():
        if file.is_dir() and file.name != "__pycache__":
            yield from _sources(file, f"{path}{file.name}/")
        elif file.name.endswith(".py"):
            yield f"{path}{file.name}", file.read_bytes()


class _Unpickler(pickle.Unpickler):
    """Unpickler for the classes of states; it loads no functions."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _BUILTINS:
            return _BUILTINS[module, name]
        is_plain = (module, name) in _PLAIN
        # A dotted name is an attribute, and imported names are not a module's own.
        found = (
            super().find_class(module, name) if is_plain or (_is_ours(module) and "." not in name) else None
        )
        if isinstance(found, type) and (is_plain or (found.__module__ == module and _is_data(found))):
            return found
        raise DamagedSnapshotError(f"it names {module}.{name}, which no fold has")


_PLAIN = frozenset(
    {
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("datetime", "datetime"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
    }
)


def _is_ours(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in _ROOMS)


def _is_data(found: type) -> bool:
    is_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    return is_dataclass(found) or is_tuple or issubclass(found, (Enum, pydantic.BaseModel))
