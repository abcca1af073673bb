"""Small fields and thumbnails of compared rows, from partitioned metadata, shards and objects.

Runs in the child process of `dispatcher.ranking`. A missing file leaves a note, not an error: the values of the
models are shown without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from cerebro.data.files.safe_open import ABSENT
from cerebro.data.objects import ObjectStore, is_bucket
from cerebro.data.row_lookup import metadata_rows, shard_rows
from cerebro.data.trees import RowId
from cerebro.errors import CerebroError, DataError
from cerebro.figures.ranking.rows import ComparedRow, ComparedRows, RowSource
from cerebro.runtime.volumes import metadata_file, partition_folder
from dispatcher.ranking.outcomes import Thumbnail
from dispatcher.rows.thumbnails import MAX_OBJECT_BYTES, from_array, from_object
from dispatcher.start.locator_process import size_of
from dispatcher.start.locator_sources import NotCheckedError, root_of

MAX_FIELDS, MAX_TEXT = 8, 60
"""Maximum number of fields of a row, and characters of each."""
MAX_IMAGE_BYTES = 1 << 20
"""Maximum size of all thumbnails together."""
_MAX_NAME = 1024

OpenFile = Callable[[str], BinaryIO]
Rows = dict[RowId, dict[str, Any]]
"""Id -> fields of a row."""


class Described(NamedTuple):
    """Rows with fields, and the thumbnails that they name.

    Attributes:
        is_complete: False if files were missing, so that a later attempt may find more.
    """

    rows: ComparedRows
    thumbnails: dict[str, Thumbnail]
    is_complete: bool


def describe(
    found: ComparedRows, source: RowSource, open_file: OpenFile, *, objects_below: Path | None
) -> Described:
    """Add fields and thumbnails to rows.

    Args:
        open_file: opens a file of the shared volume.
        objects_below: folder that objects must be in, the shared volume; `None` on the user's own machine.
    """
    ids = [*dict.fromkeys(row.id for row in (*found.hardest, *found.disagree))]
    lookup = _Lookup(source, open_file, ids)
    metadata, note = lookup.metadata()
    arrays, no_arrays = lookup.arrays()
    objects, no_objects = _objects(source.objects, metadata, objects_below)
    thumbnails: dict[str, Thumbnail] = {}
    names: dict[RowId, str] = {}
    num_bytes, is_cut = 0, ""
    for row_id in ids:
        image = objects(row_id) or next(filter(None, map(from_array, arrays.get(row_id, {}).values())), None)
        if image is None:
            continue
        num_bytes += 0 if image.name in thumbnails else len(image.content)
        if num_bytes > MAX_IMAGE_BYTES:
            is_cut = (
                f"all thumbnails together exceed {MAX_IMAGE_BYTES >> 20} MiB, so the last ones are missing"
            )
            break
        thumbnails[image.name], names[row_id] = image, image.name
    why = () if thumbnails else (no_arrays, no_objects)

    def described(row: ComparedRow) -> ComparedRow:
        fields = _texts(metadata.get(row.id, {}) | _numbers(arrays.get(row.id, {})))
        return row.model_copy(update={"fields": fields, "image": names.get(row.id, "")})

    rows = found.model_copy(
        update={
            "hardest": tuple(map(described, found.hardest)),
            "disagree": tuple(map(described, found.disagree)),
            "note": "; ".join(dict.fromkeys(filter(None, (note, is_cut, *why)))),
        }
    )
    return Described(rows, thumbnails, lookup.is_complete)


class _Lookup:
    """Reader of rows from the files of a data set.

    Attributes:
        is_complete: False if a file was missing or could not be read.
    """

    def __init__(self, source: RowSource, open_file: OpenFile, ids: list[RowId]) -> None:
        self._source, self._open_file, self._ids = source, open_file, ids
        self.is_complete = True

    def metadata(self) -> tuple[Rows, str]:
        """Return the metadata of the rows, and why some is missing."""

        def read(partition: int) -> Rows:
            name = metadata_file(self._source.dataset, self._source.split, partition)
            with self._open_file(name) as file:
                return metadata_rows(file, name, self._ids)

        return self._read(read, "metadata")

    def arrays(self) -> tuple[Rows, str]:
        """Return the arrays of the rows, and why some are missing."""
        if self._source.split == "train":
            return {}, "training rows stay on their workers, so this page cannot show their arrays"

        def read(partition: int) -> Rows:
            folder = partition_folder(self._source.dataset, self._source.split, partition)
            return shard_rows(self._open_file, folder, self._ids)

        return self._read(read, "a partition")

    def _read(self, read: Callable[[int], Rows], what: str) -> tuple[Rows, str]:
        found: Rows = {}
        why = ""
        for partition in self._source.partitions:
            if len(found) == len(self._ids):
                break
            try:
                found |= read(partition)
            except DataError as error:
                why = why or str(error)
            except OSError as error:
                where = f"{what} of the data set {self._source.dataset}"
                is_gone = error.errno in ABSENT
                why = why or (
                    f"{where} is gone, call run_etl() to make it again"
                    if is_gone
                    else f"{where} cannot be read: {error}"
                )
        self.is_complete = self.is_complete and not why
        return found, why


def _objects(uri: str, metadata: Rows, below: Path | None) -> tuple[Callable[[RowId], Thumbnail | None], str]:
    """Return a function from a row's id to its image object, and why there are none."""

    def nothing(_: RowId) -> None:
        return None

    if not uri:
        return nothing, ""
    if is_bucket(uri):
        return nothing, f"this page does not read the objects at {uri}, so they have no thumbnails"
    try:
        root = root_of(uri, below)
    except (NotCheckedError, CerebroError) as error:
        return nothing, str(error)
    column = _naming_column(root, metadata)
    if column is None:
        return nothing, f"no column of the rows names an object of {uri}"

    def image(row_id: RowId) -> Thumbnail | None:
        name = metadata.get(row_id, {}).get(column)
        return from_object(root, name) if isinstance(name, str) else None

    return image, f"the objects of these rows are no images of up to {MAX_OBJECT_BYTES >> 10} KiB"


def _naming_column(root: ObjectStore, metadata: Rows) -> str | None:
    """Return the column with names of objects: the first one with an existing object in the first rows."""
    candidates = ((name, value) for row in list(metadata.values())[:2] for name, value in row.items())
    return next((name for name, value in candidates if isinstance(value, str) and _exists(root, value)), None)


def _exists(root: ObjectStore, name: str) -> bool:
    try:
        return 0 < len(name) <= _MAX_NAME and size_of(root, name) is not None
    except (CerebroError, ValueError):
        return False


def _numbers(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: value.item() for name, value in arrays.items() if value.size == 1}


def _texts(values: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    shown = [
        (name, value) for name, value in values.items() if value is not None and not isinstance(value, bytes)
    ]
    return tuple((_cut(name), _cut(_text(value))) for name, value in shown[:MAX_FIELDS])


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    shown = "".join(each if each.isprintable() else " " for each in text[: MAX_TEXT + 1])
    return shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}..."
