"""A writer for torch.save that omits tensors written in another way.

`checkpoint.save` uses it for weights in a base, `joint_write` for rows that other ranks write. Such a tensor has a
*placeholder*: untouched memory of the right size. When torch writes from it, the offset in the file is recorded. So no
torch format is imitated. Ranks fill in their rows later; frozen weights stay omitted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import torch
import xxhash

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import BasedFile, Layout, Range, base_written
from cerebro.data.files.durable import DurableFile, checksum, checksum_of
from cerebro.errors import CheckpointCorruptError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named
from cerebro.worker.training.checkpoints.base_tensors import BaseTensor, BaseTensors

Offsets = dict[int, int]
"""Number of a tensor that is written by rows -> its offset in the file."""


class PlaceholderWriter:
    """A sink for `checkpoint.put` that omits placeholders. Only the writing process creates it.

    Args:
        rows: placeholders of tensors that ranks write themselves.
        in_base: frozen weights that are in a base.

    Attributes:
        offsets: offset of each of `rows` in the file.
    """

    def __init__(
        self, file: DurableFile, rows: Sequence[torch.Tensor] = (), in_base: BaseTensors | None = None
    ) -> None:
        self._file, self._in_base = file, in_base
        weights = () if in_base is None else tuple(in_base)
        of_rows = [(each.data_ptr(), each.nbytes, number) for number, each in enumerate(rows)]
        of_weights = [
            (weight.placeholder.data_ptr(), weight.placeholder.nbytes, weight)
            for weight in weights
            if weight.placeholder is not None
        ]
        self._placeholders: list[tuple[int, int, int | BaseTensor]] = sorted(
            [*of_rows, *of_weights], key=itemgetter(0)
        )
        self.offsets: Offsets = {}
        self._position = 0
        """Position in the assembled file."""
        self._starts: dict[str, int] = {}
        is_known = in_base is not None and not rows and all(weight.is_whole for weight in weights)
        self._hash = xxhash.xxh3_64() if is_known else None

    def write(self, data: bytes | memoryview) -> int:
        """Pass on data that is not a placeholder."""
        view = memoryview(data)
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data if view.nbytes else 0
        at = bisect_right(self._placeholders, address, key=itemgetter(0)) - 1
        if at < 0 or address >= self._placeholders[at][0] + self._placeholders[at][1]:
            self._file.write(data)
            if self._hash is not None:
                self._hash.update(data)
        else:
            start, _, of = self._placeholders[at]
            self._leave(of, address - start, view.nbytes)  # torch may hand a tensor on in pieces
        self._position += view.nbytes
        return view.nbytes

    def _leave(self, of: int | BaseTensor, offset: int, num_bytes: int) -> None:
        if isinstance(of, int):
            self.offsets.setdefault(of, self._file.tell() - offset)
            self._file.leave(num_bytes)
            return
        self._starts.setdefault(of.name, self._position - offset)
        if self._hash is not None:
            self._hash.update(of.content[offset : offset + num_bytes])

    def commit(self, name: str) -> CheckpointRef:
        """Commit the file with its layout, after all rows are written. Return its reference.

        Raises:
            CheckpointCorruptError: the base has changed.
            StorageFullError: the volume is full.
        """
        if self._in_base is None:
            written = self._file.commit()
            return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes)
        weights = sorted(self._in_base, key=lambda weight: self._starts[weight.name])
        layout = Layout(
            base=self._in_base.base,
            size=self._position,
            ranges=tuple(
                Range(start=self._starts[each.name], size=each.size, at=each.at, name=each.name, digest=each.digest)
                for each in weights
            ),
            changing=self._in_base.changing,
        )  # fmt: skip
        self._file.write(layout.encoded())
        self._file.flush()
        found = self._checksum(layout)
        self._file.commit()
        return CheckpointRef(name=name, checksum=found, size=layout.size)

    def _checksum(self, layout: Layout) -> str:
        """Return the checksum of the assembled file, from the running hash or by reading."""
        if self._hash is not None:
            return f"xxh3_64:{self._hash.hexdigest()}"
        temporary, base = self._file.aside, self._file.aside.with_name(layout.base)
        try:
            with volume_errors_named(base.parent, also=NO_MEMORY):
                if checksum(base) != base_written(layout.base):
                    raise CheckpointCorruptError(f"{base} was damaged after it was written")
                with BasedFile(
                    temporary.open("rb", buffering=0), base.open("rb", buffering=0), layout
                ) as file:
                    return checksum_of(file).checksum
        except OSError as error:
            raise CheckpointCorruptError(f"{base} cannot be read: {error.strerror}") from error
