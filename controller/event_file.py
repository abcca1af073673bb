"""A TensorBoard event file that is continued where it was left, whatever tore it off.

Owns the format: records, checksums, the file's version record. Knows nothing of models, runs and logs. Only the
messages are TensorBoard's: importing its writer brings in numpy and object stores, 25 MB for a function of two lines.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c

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
        data = event.SerializeToString()
        header = struct.pack("<Q", len(data))
        self._file.write(header + _checksum(header) + data + _checksum(data))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def _complete_records(path: Path) -> tuple[int, int]:
    """(number of complete records, where the last one ends)."""
    count = start = end = 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while end + 12 <= size:
            file.seek(end)
            header = file.read(12)
            (length,) = struct.unpack("<Q", header[:8])
            # Blocks that were allocated and not written read as zeros: a record of length 0 but for its checksum, or
            # the end of the last record.
            if end + 16 + length > size or _checksum(header[:8]) != header[8:]:
                break
            start, end = end, end + 16 + length
            count += 1
        if count:
            file.seek(start + 12)
            data = file.read(end - start - 16)
            if _checksum(data) != file.read(4):
                return count - 1, start
    return count, end


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated by 15 bits and moved by a constant, so that it may be stored beside what it covers (TensorFlow's
    ``lib/hash/crc32c.h``, "Mask")."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _version() -> Event:
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _event(scalar: Scalar) -> Event:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    value = summary_pb2.Summary.Value(tag=scalar.tag, simple_value=scalar.value)
    return event_pb2.Event(
        wall_time=scalar.time, step=scalar.step, summary=summary_pb2.Summary(value=[value])
    )
