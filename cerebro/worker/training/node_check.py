"""A node check: a few seconds of work with known results, in its own process, without user code.

The agent's `health.machine_checks` starts ``python -m cerebro.worker.training.node_check``. It prints a JSON `Probe`
per line, immediately, so that findings survive if a later probe hangs. It checks arithmetic and memory (of its visible
GPU, otherwise of processor and host), a partition on the worker, and the checkpoint volume, where it writes and removes
a file of 64 MiB. It finds wrong results and hangs; the reader judges speed.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch

from cerebro.contract.stored.health import Probe

_SIDE = 1024
"""Side of the matrices. With integers up to 15, sums stay below 2^24 and exact in single precision."""
_MOST = 16
_SECONDS = 2.0
"""Seconds of repeated arithmetic: bit flips are rare, and more frequent on warm hardware."""
_PATTERN_BYTES = 256 << 20
_READ_BYTES = 256 << 20
_WRITE_BYTES = 64 << 20
_LOOPS = 2_000_000


def main() -> None:
    """Print all probes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--expects-gpu", action="store_true")
    arguments = parser.parse_args()
    for probe in probes(arguments.shards, arguments.checkpoints, expects_gpu=arguments.expects_gpu):
        sys.stdout.write(probe.model_dump_json() + "\n")
        sys.stdout.flush()


def probes(shards: Path, checkpoints: Path, *, expects_gpu: bool) -> Iterator[Probe]:
    """Yield all probes, one by one.

    Args:
        shards, checkpoints: volumes.
        expects_gpu: True if the worker has registered GPUs.
    """
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if expects_gpu and not number and torch.version.cuda is not None:
        yield Probe(name="device", problem="the worker registered GPUs, but torch finds none", seconds=0.0)
    for device in [torch.device("cuda", each) for each in range(number)] or [torch.device("cpu")]:
        where = f" of {torch.cuda.get_device_name(device)}, {device}" if number else ""
        yield _probe(f"arithmetic{where}", lambda device=device: arithmetic(device))  # type: ignore[misc]
        yield _probe(f"memory{where}", lambda device=device: memory(device))  # type: ignore[misc]
    yield _probe("processor", processor)
    yield _probe("partition", lambda: partition(shards))
    yield _probe("checkpoint volume", lambda: volume(checkpoints))


class _NothingToCheckError(Exception):
    """The worker has nothing for this probe to check."""


def _probe(name: str, probe: Callable[[], str | float]) -> Probe:
    began, rate = time.monotonic(), None
    try:
        found = probe()
        problem = found if isinstance(found, str) else ""
        rate = found if isinstance(found, float) else None
    except _NothingToCheckError as why:
        return Probe(name=name, note=str(why))
    except (torch.OutOfMemoryError, MemoryError) as why:
        # Other processes use the memory.
        return Probe(name=name, note=f"{type(why).__name__}: {why}"[:300])
    except Exception as error:  # noqa: BLE001 - any exception is the probe's finding
        problem = f"{type(error).__name__}: {error}"[:300]
    return Probe(name=name, problem=problem, seconds=time.monotonic() - began, rate=rate)


def arithmetic(device: torch.device, seconds: float = _SECONDS) -> str | float:
    """Multiply integer matrices repeatedly and compare with an exact sum of the product.

    The sum of all entries of A B is the sum over k of (column k of A) times (row k of B), computed in
    integers on the processor, which is an independent way.

    Returns:
        A description of the error, or the number of products per second.
    """
    generator = torch.Generator().manual_seed(7)
    first, second = (torch.randint(0, _MOST, (_SIDE, _SIDE), generator=generator) for _ in range(2))
    expected_rows = (first * second.sum(dim=1)[None, :]).sum(dim=1)
    a, b = first.to(device, torch.float32), second.to(device, torch.float32)
    rows = expected_rows.to(device)
    began, count = time.monotonic(), 0
    while not count or time.monotonic() < began + seconds:
        count += 1
        found = (a @ b).to(torch.int64).sum(dim=1)
        wrong = int((found != rows).sum())
        if wrong:
            return f"{wrong} of {_SIDE} rows of a product of whole numbers came out wrong"
    return count / (time.monotonic() - began)


def memory(device: torch.device, num_bytes: int = _PATTERN_BYTES) -> str:
    """Write and verify patterns. Uses less memory if not enough is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        num_bytes = min(num_bytes, free // 2)
    number = num_bytes // 8
    if not number:
        raise _NothingToCheckError("no memory is free: what runs there has it")
    for pattern in (0x5555555555555555, -0x5555555555555556):
        written = torch.full((number,), pattern, dtype=torch.int64, device=device)
        wrong = int((written != pattern).sum())
        if wrong:
            return f"{wrong} of {number} words read otherwise than they were written"
        del written
    return ""


def processor() -> str:
    """Run a loop with a known outcome. Return a description of the error, or ""."""
    value = 1
    for _ in range(_LOOPS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return "" if value == _EXPECTED else f"a loop of whole numbers came to {value}, expected {_EXPECTED}"


def _looped(times: int) -> int:
    """Return the loop's result in logarithmic time: x -> a x + c, doubled."""
    a, c, factor, addend, mask = 1_103_515_245, 12_345, 1, 0, 0x7FFFFFFF
    while times:
        if times & 1:
            factor, addend = factor * a & mask, (addend * a + c) & mask
        a, c = a * a & mask, (c * a + c) & mask
        times >>= 1
    return (factor + addend) & mask


_EXPECTED = _looped(_LOOPS)


def partition(shards: Path, num_bytes: int = _READ_BYTES) -> str:
    """Read part of the worker's shards; an error is raised."""
    files = sorted(shards.glob("datasets/*/train/partition-*/*.arrow"))
    if not files:
        raise _NothingToCheckError("it holds none")
    read = 0
    for path in files:
        if read >= num_bytes:
            break
        with (
            suppress(FileNotFoundError),
            path.open("rb", buffering=0) as file,
        ):  # it may be reclaimed in the meantime
            with suppress(OSError):  # from the disk, and not from memory, where the system can
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while read < num_bytes and (block := file.read(1 << 20)):
                read += len(block)
    return ""


def volume(checkpoints: Path, num_bytes: int = _WRITE_BYTES) -> str:
    """Write a file to the disk, and read it."""
    path = checkpoints / f".check-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    block = os.urandom(1 << 20)
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for _ in range(num_bytes >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            with suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with path.open("rb") as file:
            for number in range(num_bytes >> 20):
                if file.read(1 << 20) != block:
                    return f"MiB {number} of a file read otherwise than it was written"
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _NothingToCheckError("it is full, which is no fault of the machine") from error
        raise
    finally:
        path.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    main()
