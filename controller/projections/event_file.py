"""A TensorBoard event file that continues after its last complete record.

`controller.projections.tensorboard` writes such files. This module owns the format: records, checksums, version record.
It knows nothing about models, runs and logs. Only the messages come from TensorBoard: importing its writer costs 25 MB
for numpy and object stores.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import google_crc32c
from pydantic import JsonValue

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

FILE_NAME = "events.out.tfevents.0000000000.cerebro"

_BEFORE_DATA, _AROUND_DATA = 12, 16
"""Bytes of a record before its data, and of all parts but the data."""

_LARGEST = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value of a chart.

    `step` counts sub-epochs (``sub_epoch/``), epochs (``epoch/``, ``schedule/``) or rows (``live/``).
    """

    tag: str
    step: int
    time: float
    value: float


@dataclass(frozen=True, kw_only=True)
class SessionStart:
    """A model with its hyperparameters, for the HParams plugin.

    Text, numbers and booleans stay; anything else becomes JSON, including integers beyond a double's range.
    """

    tag: ClassVar[str] = "_hparams_/session_start_info"
    time: float
    hyperparams: Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class SessionEnd:
    """A model has trained all of its epochs."""

    tag: ClassVar[str] = "_hparams_/session_end_info"
    time: float


Record = Scalar | SessionStart | SessionEnd


class EventFile:
    """A TensorBoard event file, appended after its complete records.

    A record is: length (uint64), its masked checksum (uint32), data, the data's masked checksum (uint32).

    Args:
        passed: number of records at the start of the file that the caller does not write again.
    """

    def __init__(self, path: Path, passed: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        starts, end = _complete_records(path)
        self._skip = max(0, len(starts) - passed)
        self.passed = passed
        os.truncate(path, end)
        self._file = path.open("ab")
        if not passed:
            self._write(_version())

    def write(self, records: Iterable[Record]) -> None:
        """Append records that the file lacks, and pass them to the operating system.

        Raises:
            OSError: the volume fails; some records may be in the file.
        """
        # Encode all before writing any: a failure then leaves no partial write.
        for event in [_event(record) for record in records]:
            self._write(event)
        self.flush()

    def _write(self, event: Event) -> None:
        self.passed += 1
        if self._skip:
            self._skip -= 1
            return
        data = event.SerializeToString()
        header = struct.pack("<Q", len(data))
        self._file.write(header + _checksum(header) + data + _checksum(data))

    def flush(self) -> None:
        """Pass written data to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Last(NamedTuple):
    """A record read from a file.

    Attributes:
        number: number of the record, from 1.
    """

    tag: str
    step: int
    time: float
    number: int


def last_record(path: Path, *, but: str) -> Last | None:
    """Return the last complete record with a tag not beginning with `but`, or `None`.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.exists():
        return None
    from tensorboard.compat.proto import event_pb2

    starts, end = _complete_records(path)
    with path.open("rb") as file:
        for number in range(len(starts), 0, -1):
            start = starts[number - 1]
            file.seek(start + _BEFORE_DATA)
            event = event_pb2.Event.FromString(file.read(end - start - _AROUND_DATA))
            end = start
            for value in event.summary.value:
                if not value.tag.startswith(but):
                    return Last(value.tag, event.step, event.wall_time, number)
    return None


def _complete_records(path: Path) -> tuple[array[int], int]:
    """Return the starts of all complete records, and the end of the last one."""
    starts, end = array("Q"), 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while end + _BEFORE_DATA <= size:
            file.seek(end)
            header = file.read(_BEFORE_DATA)
            (length,) = struct.unpack("<Q", header[:8])
            # Allocated but unwritten blocks read as zeros: a record of length 0 with a wrong checksum, or a
            # truncated last record.
            if end + _AROUND_DATA + length > size or _checksum(header[:8]) != header[8:]:
                break
            starts.append(end)
            end += _AROUND_DATA + length
        if starts:
            file.seek(starts[-1] + _BEFORE_DATA)
            data = file.read(end - starts[-1] - _AROUND_DATA)
            if _checksum(data) != file.read(4):
                end = starts.pop()
    return starts, end


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C: rotated by 15 bits plus a constant (TensorFlow's ``lib/hash/crc32c.h``, "Mask")."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _version() -> Event:
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _event(record: Record) -> Event:
    if isinstance(record, Scalar):
        return _scalar(record)
    return _start(record) if isinstance(record, SessionStart) else _end(record)


def _scalar(scalar: Scalar) -> Event:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    value = summary_pb2.Summary.Value(tag=scalar.tag, simple_value=_clamped(scalar.value))
    return event_pb2.Event(
        wall_time=scalar.time, step=scalar.step, summary=summary_pb2.Summary(value=[value])
    )


def _clamped(value: float) -> float:
    """Return the nearest 32-bit float: the field would turn larger values into infinity."""
    return max(-_LARGEST, min(_LARGEST, value))


def _start(start: SessionStart) -> Event:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(start_time_secs=start.time)
    for name, value in sorted(start.hyperparams.items()):
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
    return _session(start.tag, start.time, HParamsPluginData(session_start_info=info))


def _end(end: SessionEnd) -> Event:
    from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=end.time)
    return _session(end.tag, end.time, HParamsPluginData(session_end_info=info))


def _session(tag: str, time: float, data: HParamsPluginData) -> Event:
    """Put plugin data into the metadata of an empty tensor (HParams plugin, ``metadata.py``)."""
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=0)])
    # Maps are unordered, but a continued file must get the same bytes.
    content = data.SerializeToString(deterministic=True)
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    value = summary_pb2.Summary.Value(
        tag=tag,
        metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_shape=shape),
    )
    return event_pb2.Event(wall_time=time, summary=summary_pb2.Summary(value=[value]))
