"""A checkpoint file that is verified once and read later, with the guarantee that both see the same bytes.

`checkpoint.check` creates a `CheckedFile` (also while an earlier sub-epoch trains), and `checkpoint.read` or
`joint_read` reads it. The file may be damaged, replaced or removed in between. A mapping would pass that on silently; a
copy in memory would take as much space as the model until its sub-epoch. So the verification keeps a digest per block,
and reading compares each block again while it is in the processor's cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import BasedFile, Layout, opened
from cerebro.data.files.durable import BLOCK_BYTES, Written, checksum_of, fill
from cerebro.data.files.seekable_reader import SeekableReader
from cerebro.errors import CheckpointCorruptError, VolumeError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named


class CheckedFile:
    """A file that was verified on creation, with its base. Holds 16 bytes per MiB and no descriptor.

    Attributes:
        layout: the file's layout if it has a base.

    Raises:
        CheckpointCorruptError: the file is missing, or its size or checksum is wrong.
        VolumeError: the volume cannot be read now, or is not mounted.
    """

    def __init__(self, path: Path, reference: CheckpointRef) -> None:
        self.path, self.num_bytes = path, reference.size
        self.digests = array("Q")
        self.layout: Layout | None = None
        with unreadable_named(path), opened(path) as file:
            if isinstance(file, BasedFile):
                self.layout = file.layout
            found = checksum_of(file, lambda block: self.digests.append(xxh3_64_intdigest(block)))
        require_saved(path, reference, found, self.layout)


def require_saved(path: Path, reference: CheckpointRef, found: Written, layout: Layout | None) -> None:
    """Raise CheckpointCorruptError unless a file, with its base, is the saved one."""
    if (found.checksum, found.num_bytes) != (reference.checksum, reference.size):
        base = f" with its base {layout.base}" if layout else ""
        raise CheckpointCorruptError(
            f"checkpoint {path}{base} has checksum {found.checksum} over {found.num_bytes} bytes, expected "
            f"{reference.checksum} over {reference.size}: it was damaged after it was written"
        )


class CheckedReader(SeekableReader):
    """Reads a `CheckedFile` and returns only verified bytes.

    Attributes:
        problem: first error; all later reads raise it.

    Raises:
        CheckpointCorruptError: on creation, the file is missing; on reading, it is unreadable or differs.
    """

    def __init__(self, checked: CheckedFile) -> None:
        super().__init__()
        self._checked = checked
        self.problem: CheckpointCorruptError | VolumeError | None = None
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._block, self._number = self._buffer[:0], -1
        """Checked block in the buffer, and its number; -1 without one."""
        with unreadable_named(checked.path):
            self._file = opened(checked.path)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()

    @property
    def size(self) -> int:
        """Bytes of the file, including its base."""
        return self._checked.num_bytes

    def readinto(self, into: Any) -> int:
        """Fill `into` with the file's next bytes, up to its end."""
        try:
            return self._readinto(memoryview(into).cast("B"))
        except (CheckpointCorruptError, VolumeError) as error:
            self.problem = error
            raise

    def _readinto(self, target: memoryview) -> int:
        count = min(len(target), max(0, self.size - self._position))
        done = 0
        while done < count:
            number, offset = divmod(self._position, BLOCK_BYTES)
            if offset == 0 and count - done >= BLOCK_BYTES:
                # A complete block needs no copy: verify it in the caller's buffer.
                part = self.block(number, target[done : done + BLOCK_BYTES])
            else:
                part = self._kept_block(number)[offset : offset + count - done]
                target[done : done + len(part)] = part
            done += len(part)
            self._position += len(part)
        return done

    def _kept_block(self, number: int) -> memoryview:
        if number != self._number:
            self._number = -1
            self._block = self.block(number, self._buffer)
            self._number = number
        return self._block

    def block(self, number: int, into: memoryview) -> memoryview:
        """Read a block into `into`, check it, and return the filled part of `into`."""
        if self.problem is not None:
            raise self.problem
        with unreadable_named(self._checked.path):
            self._file.seek(number * BLOCK_BYTES)
            block = fill(self._file, into)
        if xxh3_64_intdigest(block) != self._checked.digests[number]:
            place = f"between bytes {number * BLOCK_BYTES} and {(number + 1) * BLOCK_BYTES}"
            raise CheckpointCorruptError(
                f"checkpoint {self._checked.path} was damaged {place}, after it was checked and before it was used"
            )
        return block


@contextmanager
def unreadable_named(path: Path) -> Iterator[None]:
    """Turn errors of reading into `CheckpointCorruptError`, or `VolumeError` if the volume cannot be read now.

    Without the folder of its run, no checkpoint can be read: the volume is not mounted.
    """
    try:
        with volume_errors_named(path.parent, also=NO_MEMORY):
            yield
    except OSError as cause:
        run = path.parents[1]
        if isinstance(cause, FileNotFoundError) and not run.exists():
            raise VolumeError.at(
                f"{run}, the folder of the run's checkpoints, is missing. Check if the volume is mounted; the work is "
                "tried again. If the checkpoints are lost, make the folder: the models then repeat their sub-epochs",
                run,
            ) from cause
        raise CheckpointCorruptError(f"checkpoint {path} cannot be read: {cause.strerror}") from cause
