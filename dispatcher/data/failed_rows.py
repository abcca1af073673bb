"""Reads which rows preprocessing left out, as workers wrote it on the shared volume.

User code writes to that volume too, so nothing in it is trusted: neither where a path leads, nor how long a file is,
nor what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from cerebro.data.safe_open import open_below
from cerebro.errors import ClusterError
from cerebro.runtime.volumes import Volumes
from dispatcher.data.view import FailedRowsView, FailedRowView

MOST_BYTES = 8 << 20
"""Of one file: a worker tells of a hundred rows."""


class UnreadableError(ClusterError):
    """A file of a volume cannot be read, or is not what was to be there. The store has nothing to do with it."""


@dataclass(frozen=True)
class _File:
    rows: tuple[FailedRowView, ...]
    total: int


_FILE = TypeAdapter(_File)


def failed_rows(volumes: Volumes, dataset: str, split: str, partition: int) -> FailedRowsView:
    """The rows of a partition that were left out; none if its worker wrote nothing.

    Raises:
        UnreadableError: the volume cannot be read, or something else lies there.
    """
    path = volumes.failed_rows(dataset, split, partition)
    try:
        with open_below(volumes.shared, str(path.relative_to(volumes.shared))) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
        found = _FILE.validate_json(content)
    except FileNotFoundError:
        found = _File(rows=(), total=0)
    except (OSError, ValueError) as cause:
        raise UnreadableError(
            f"{path} cannot be read: {cause}; expected the rows that a worker left out, as it wrote them"
        ) from cause
    return FailedRowsView(
        dataset=dataset, split=split, partition=partition, rows=found.rows, total=found.total
    )
