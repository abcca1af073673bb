"""A fold as bytes, and back: who reads a long log begins with the newest snapshot of its fold, and reads on from there.

A snapshot is no second truth. It is of use only to who would have folded the log to the very same: its *format* is a
fingerprint of the code that folds. After an upgrade logs are folded anew, once.

The bytes are a pickle that can only hold what a fold is made of: the classes of events, states and plans, and the
containers they use. Whatever else it names is refused, so who can write into the shared volume cannot have a service
run anything; and its checksum is in the database, out of reach.
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
"""Whose classes folds are made of."""

_BUILTINS: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
}
_LEVEL = 1
"""More compresses a tenth better, and takes five times as long."""

_Fold = TypeVar("_Fold", ExperimentState, ClusterState)


class DamagedSnapshotError(CerebroError):
    """The bytes are no snapshot, or hold what no fold does."""


class SnapshotStore(Protocol):
    """What is asked of the store, as `cerebro.runtime.kvs.KvsClient` does it."""

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """The newest fold of a log that was made by a format; of the cluster's, if no name is given."""
        ...


@cache
def snapshot_format() -> str:
    """Of snapshots that this program makes and reads: equal for equal code of the fold, and of what pickles it."""
    found = hashlib.sha256(f"{sys.version_info[:2]} {pydantic.VERSION} {pickle.HIGHEST_PROTOCOL}".encode())
    # All of the package: what folds imports from elsewhere in it.
    for path, content in sorted(_sources(resources.files("cerebro"), "")):
        found.update(path.encode() + b"\0" + content + b"\0")
    return found.hexdigest()[:32]


def packed(state: ExperimentState | ClusterState) -> bytes:
    """A fold as bytes. A state that is torn is none.

    Raises:
        ValueError: it is torn.
    """
    if isinstance(state, ExperimentState) and state.torn:
        raise ValueError(f"the fold of {state.name} is torn: {state.torn}")
    found = io.BytesIO()
    # Piece by piece: all of it at once would be most of what reading a fold takes.
    with gzip.GzipFile(fileobj=found, mode="wb", compresslevel=_LEVEL, mtime=0) as file:
        pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
        # Some versions of Python would have it be looked up as an attribute, by a function.
        pickler.dispatch_table = copyreg.dispatch_table | dict.fromkeys(_enums(Enum), _by_value)
        pickler.dump(state)
    return found.getvalue()


def unpacked(content: bytes, kind: type[_Fold]) -> _Fold:
    """The fold that was packed.

    Raises:
        DamagedSnapshotError: it is damaged, or no such fold.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = _Unpickler(file).load()
            if file.read(1):  # its end has been looked at then, with its checksum
                raise DamagedSnapshotError("something follows the fold")
    except DamagedSnapshotError:
        raise
    except Exception as cause:
        raise DamagedSnapshotError(f"it cannot be read: {type(cause).__name__}: {cause}") from cause
    if type(found) is not kind:
        raise DamagedSnapshotError(f"it holds a {type(found).__name__}, expected a {kind.__name__}")
    return found


def restored(store: SnapshotStore, name: str) -> ExperimentState:
    """The newest fold of an experiment that is kept, or the one of nothing: to be read on from its `seq`."""
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
    """The same of the cluster's log."""
    content = store.snapshot("", snapshot_format())
    try:
        return unpacked(content, ClusterState) if content is not None else ClusterState()
    except DamagedSnapshotError:
        return ClusterState()


def _enums(kind: type[Enum]) -> Iterator[type[Enum]]:
    """All that are derived from it, and are part of folds."""
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
    """Knows the classes that folds are made of, and no function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _BUILTINS:
            return _BUILTINS[module, name]
        is_plain = (module, name) in _PLAIN
        # A dotted name would be an attribute of something, and what a module has imported is not its own.
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
