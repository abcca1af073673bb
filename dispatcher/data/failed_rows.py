"""Reader of failed rows, which workers write to the shared volume. Called by the tab Data and the read API.

User code writes to that volume too. So neither the path, nor the size (at most 8 MiB), nor the content of a file is
trusted. Rows are not cached.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from cerebro.data.files.safe_open import open_below
from cerebro.errors import ClusterError
from cerebro.runtime.volumes import Volumes
from dispatcher.data.view import FailedRowsView, FailedRowView

MAX_BYTES = 8 << 20
"""Maximum size of a file. A worker writes at most a hundred rows."""


class UnreadableError(ClusterError):
    """A file on a volume is unreadable or has unexpected content. Not an error of the store."""


@dataclass(frozen=True)
class _File:
    rows: tuple[FailedRowView, ...]
    total: int


_FILE = TypeAdapter(_File)


def failed_rows(volumes: Volumes, dataset: str, split: str, partition: int) -> FailedRowsView:
    """Return the failed rows of a partition. A missing file means that none failed.

    Raises:
        UnreadableError: the volume cannot be read, or the file has unexpected content.
    """
    path = volumes.failed_rows(dataset, split, partition)
    try:
        with open_below(volumes.shared, str(path.relative_to(volumes.shared))) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
        found = _FILE.validate_json(content)
    except FileNotFoundError:
        found = _File(rows=(), total=0)
    except (OSError, ValueError) as cause:
        raise UnreadableError(
            f"{path} cannot be read: {cause}; expected a file with failed rows that a worker wrote"
        ) from cause
    return FailedRowsView(
        dataset=dataset, split=split, partition=partition, rows=found.rows, total=found.total
    )
