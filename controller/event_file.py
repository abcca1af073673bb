"""A TensorBoard event file that is continued where it was left, whatever tore it off.

Owns the format: records, checksums, the file's version record. Knows nothing of models, runs and logs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

FILE_NAME = "events.out.tfevents.0000000000.cerebro"


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value to draw: `step` counts units (``unit/``), epochs (``epoch/``, ``schedule/``) or rows (``live/``)."""

    tag: str
    step: int
    time: float
    value: float


class EventFile:
    """A TensorBoard event file that is written from where its complete records end.

    A record is: length (uint64), its masked checksum (uint32), data, the data's masked checksum (uint32).

    Args:
        passed: records that the caller does not write again.
    """

    def __init__(self, path: Path, passed: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        count, end = _complete_records(path)
        self._skip = max(0, count - passed)
        self.passed = passed
        self._file = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._records: Any = RecordWriter(self._file)
        if not passed:
            self._write(_version())

    def write(self, scalar: Scalar) -> None:
        """Append a value, unless the file has it from an earlier life of the process."""
        self._write(_event(scalar))

    def _write(self, event: Event) -> None:
        self.passed += 1
        if self._skip:
            self._skip -= 1
            return
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._records.flush()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def _complete_records(path: Path) -> tuple[int, int]:
    """(number of complete records, where the last one ends)."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    count = start = end = 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while end + 12 <= size:
            file.seek(end)
            header = file.read(12)
            length, checksum = struct.unpack("<QI", header)
            # Blocks that were allocated and not written read as zeros: a record of length 0 but for its checksum, or
            # the end of the last record.
            if end + 16 + length > size or masked_crc32c(header[:8]) != checksum:
                break
            start, end = end, end + 16 + length
            count += 1
        if count:
            file.seek(start + 12)
            data, checksum = file.read(end - start - 16), struct.unpack("<I", file.read(4))[0]
            if masked_crc32c(data) != checksum:
                return count - 1, start
    return count, end


def _version() -> Event:
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _event(scalar: Scalar) -> Event:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    value = summary_pb2.Summary.Value(tag=scalar.tag, simple_value=scalar.value)
    return event_pb2.Event(
        wall_time=scalar.time, step=scalar.step, summary=summary_pb2.Summary(value=[value])
    )
