"""A fake handler whose hyperparameters select the behaviour of user code."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cerebro.contract.tasks.bodies import FusedMember, FusedTask, TaskBody, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.errors import NonFiniteMetricError, PreemptedError
from cerebro.worker.child.context import BaseHandler, Context

if _NOTES := os.environ.get("NOTES"):
    with Path(_NOTES, "handler").open("a") as notes:
        notes.write(f"{os.getpid()}\n")

KINDS = ("train", "fused")
HANDLER = "tests.worker.agent.fake_handler"

LOST_PEER = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:29351. This is typically caused by a remote worker crashing. Check the logs of the remote worker"
)
"""The message of gloo in torch 2.13."""

ECC = "CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"

LARGE_BYTES = 128 << 20
"""Memory that a "large" task uses for a moment."""


class UnprintableError(Exception):
    """An exception whose `str()` fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=_Nameless):
    """An exception whose type hides its name."""


class Beyond(BaseException):
    """A user-defined exception outside `Exception`."""


def _huge() -> None:
    raise ValueError("x" * 100_000_000)


def _raise(error: BaseException) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def _closed(*streams: int) -> None:
    sys.stdout.close()
    sys.stderr.close()
    for number in streams:
        os.close(number)
    raise ValueError("with closed streams")


def _replaced() -> None:
    sys.stdout = None
    raise ValueError("without stdout")


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False


def _babble(pieces: Iterable[bytes]) -> None:
    """Write noise to the agent's connection, like user code with a wrong descriptor, then fail."""
    number = next(number for number in range(3, 256) if _is_socket(number))
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[os.write(number, left) :]
    raise ValueError("after the babble")


HOSTILE: dict[str, Callable[[], None]] = {
    "surrogate": _raise(ValueError("caf\udce9 \x00\x1b[31m end")),
    "huge": _huge,
    "huge exit": lambda: sys.exit("y" * 100_000_000),
    "odd exit": lambda: sys.exit(("\ud800", 7)),  # type: ignore[arg-type]
    "interrupt": _raise(KeyboardInterrupt()),
    "generator exit": _raise(GeneratorExit("done")),
    "beyond": _raise(Beyond("away")),
    "unprintable": _raise(UnprintableError()),
    "nameless": _raise(NamelessError("who")),
    "closed": _closed,
    "closed descriptors": lambda: _closed(1, 2),
    "replaced": _replaced,
    "text": lambda: _babble([b"hello\n", b"half a line"]),
    "json": lambda: _babble(
        [
            b'[1]\n7\n{"type": "Done"}\n{"type": "Progress", "rows": "x"}\n{"no": 1}\n{"type": "No"}\n'
            + b"[" * 9999
            + b"\n"
        ]
    ),
    "binary": lambda: _babble([bytes(range(256)) * 64]),
    "long": lambda: _babble([b"z" * (100 << 20)]),
}
"""Behaviours that fail with an error of the same name."""

_BATCHES = ("batches", "careful", "greedy", "confused")


class Handler(BaseHandler):
    """See `BaseHandler`."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rank = 0

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Act as the hyperparameters say."""
        assert isinstance(body, TrainTask)
        ranks = self._context.ranks
        self._rank, size = (ranks.rank, ranks.size) if ranks else (0, 1)
        do = (str(body.hyperparams["do"]).split("|") * size)[self._rank]
        timings = Timings(start_s=self._context.start_up.finish())
        print(f"{do} attempt {attempt}")  # noqa: T201 - user code prints
        print(f"threads {self._context.cores} {os.environ.get('OMP_NUM_THREADS')}")  # noqa: T201
        if ranks:
            print(f"rank {ranks.rank} of {ranks.size} in {ranks.folder}")  # noqa: T201
        if do.startswith("write "):
            Path(do.removeprefix("write ")).write_text("user code's")
        if do.startswith("chmod "):
            Path(do.removeprefix("chmod ")).chmod(0o700)
        if do.startswith("mark "):
            os.setxattr(do.removeprefix("mark "), "user.mark", b"x")
        if do == "odd denial":
            text = "[Errno 13] Permission denied: '%s'"
            raise PermissionError("\n".join(text % name for name in ("x" * 100_000, "\0", "a/" * 5000)))
        if do.startswith("read "):
            print(Path(do.removeprefix("read ")).read_text())  # noqa: T201 - user code prints
        if do == "raise":
            raise ValueError("boom")
        if do == "lost":
            raise RuntimeError(LOST_PEER)
        if do == "large":
            bytearray(LARGE_BYTES)[:: 1 << 12] = b"x" * (LARGE_BYTES >> 12)
        if do == "hungry":
            hoard = [bytearray(b"x") * LARGE_BYTES]
            while True:
                hoard.append(bytearray(b"x") * LARGE_BYTES)
        if do == "memory":
            raise MemoryError("no more")
        if do == "nan":
            raise NonFiniteMetricError("loss became nan")
        if do == "exit":
            sys.exit(3)
        if do == "pid":
            print(f"process {os.getppid()}")  # noqa: T201 - it forks one for each task
        if do == "ecc":
            raise RuntimeError(ECC)
        if do == "illegal":
            raise RuntimeError(ILLEGAL)
        if do == "aborted by ecc":
            print(f"terminate called: {ECC}", flush=True)  # noqa: T201 - as a library's own thread does
            os.abort()
        if do == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if do.startswith("truncate "):
            _read_truncated(Path(do.removeprefix("truncate ")))
        if do in HOSTILE:
            HOSTILE[do]()
        if do == "flood":
            _babble(itertools.repeat(b"noise\n" * 1000))
        if do == "preempt":
            raise PreemptedError("user code's own")
        if do == "lie":
            self._context.preemption.has_raised = True
        if do == "spy":
            _spy()
        if do == "spec":
            self._context.user_code.spec(body.code, body.misc)
            timings = Timings(start_s=self._context.start_up.finish())
        if do in ("leave", "daemon"):
            left = subprocess.Popen(["sleep", "1000"], start_new_session=do == "daemon")
            Path(str(body.hyperparams["file"])).write_text(str(left.pid))
        if do == "hang":
            self._context.listen()
            threading.Event().wait()
        if do == "wait":
            self._wait(Path(str(body.hyperparams["file"])))
        if do in ("spin", "kernel"):
            self._hold_up(do, Path(str(body.hyperparams["file"])))
        if do == "prints":
            self._print(Path(str(body.hyperparams["file"])))
        if do in ("saves", "forges"):
            self._save(body, attempt if do == "saves" else attempt + 1)
        if do in _BATCHES:
            self._batches(do, Path(str(body.hyperparams["file"])))
        self._context.progress(rows=5, total_rows=5, values={"loss": 0.5}, final=True)
        return TaskResult(rows=5, metrics={"loss": 0.5}, timings=timings)

    def handle_group(self, task: FusedTask) -> None:
        """Train all members until the file of each exists. Each acts as its hyperparameters say."""
        members, batch = self._context.members, 0
        print(f"a group of {len(task.members)}")  # noqa: T201 - user code prints
        Path(str(task.first.hyperparams["file"])).with_suffix(".begun").write_text(str(os.getpid()))
        while members.open:
            batch += 1
            self._context.listen()
            exits, left_s = members.exits(), self._context.preemption.remaining_s
            for number in members.open:
                self._batch_of(task.members[number], number, batch, exits.get(number, left_s))
                if number in exits:
                    members.fail(number, PreemptedError("it was asked"))
            self._context.raise_if_ending()
            if all(
                Path(str(task.members[number].body.hyperparams["file"])).exists() for number in members.open
            ):
                break
            threading.Event().wait(0.01)
        for number in members.open:
            self._context.progress(rows=5, total_rows=5, values={"loss": 0.5}, final=True, member=number)
            members.finish(number, TaskResult(rows=5, metrics={"loss": float(number)}))

    def _batch_of(self, member: FusedMember, number: int, batch: int, left_s: float | None) -> None:
        do, model = member.body.hyperparams["do"], member.body.model
        if do == "nan":
            self._context.members.fail(number, NonFiniteMetricError("loss became nan"))
        elif do == "raise":
            self._context.members.fail(number, ValueError("boom"))
        elif do == "illegal":
            self._context.members.fail(number, RuntimeError(ILLEGAL))
        elif do == "ecc":
            raise RuntimeError(ECC)
        elif do == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "saves" and (batch == 2 or (left_s is not None and left_s > 2)):
            place = f"u00000-e001-p{member.body.partition:04d}-a{member.attempt}.s{batch:06d}.pt"
            reference = CheckpointRef(name=f"one/fit-1/{model}/{place}", checksum="-", size=1)
            self._context.saved(Savepoint(checkpoint=reference, batch=batch, rows=batch), member=number)

    def _save(self, body: TrainTask, attempt: int) -> None:
        """Train until a file exists, with a savepoint before batch 2 and at preemption if time permits."""
        file, batch = Path(str(body.hyperparams["file"])), 0
        file.with_suffix(".begun").write_text(str(os.getpid()))
        while not file.exists():
            batch += 1
            self._context.listen()
            left_s = self._context.preemption.remaining_s
            if batch == 2 or (left_s is not None and left_s > 2):
                name = f"one/fit-1/{body.model}/u00000-e001-p{body.partition:04d}-a{attempt}.s{batch:06d}.pt"
                reference = CheckpointRef(name=name, checksum="-", size=1)
                self._context.saved(Savepoint(checkpoint=reference, batch=batch, rows=batch))
            self._context.raise_if_ending()
            threading.Event().wait(0.01)

    def _batches(self, do: str, gate: Path) -> None:
        """Train until a file exists, and handle errors in different ways."""
        try:
            self._wait(gate, leaves=True)
        except Exception:
            print("taken for an error")  # noqa: T201 - user code prints
            if do != "careful":
                raise
        except BaseException:
            if do == "greedy":
                return
            if do == "confused":
                raise ValueError("in the middle of it") from None
            raise

    def _hold_up(self, do: str, gate: Path) -> None:
        """Report one batch and no more: compute until a file exists, or block in the kernel."""
        self._context.progress(rows=0, total_rows=5, batch=1, final=True)
        gate.with_suffix(".begun").write_text(str(os.getpid()))
        while do == "spin" and not gate.exists():
            sum(range(100_000))
        if do == "kernel" and ctypes.CDLL(None).vfork() == 0:
            # vfork blocks the parent uninterruptibly, like disk I/O: only SIGKILL ends it.
            while True:
                signal.pause()

    def _print(self, gate: Path) -> None:
        """Print continuously until a file exists."""
        gate.with_suffix(".begun").write_text(str(os.getpid()))
        while not gate.exists():
            print("many words\n" * 5000)  # noqa: T201 - user code prints
            self._context.progress(rows=0, total_rows=5, batch=1)
            threading.Event().wait(0.01)
        print("the last line")  # noqa: T201

    def _wait(self, gate: Path, *, leaves: bool = False) -> None:
        """Report progress until a file exists; each report is a batch boundary if `leaves`."""
        gate.with_suffix(f".begun{self._rank or ''}").write_text(str(os.getpid()))
        batch = 0
        while not gate.exists():
            batch += 1
            self._context.listen()
            self._context.progress(rows=0, total_rows=5, batch=batch, final=True)
            if leaves:
                self._context.raise_if_ending()
            threading.Event().wait(0.01)


def _read_truncated(path: Path) -> None:
    """Read a mapped file after it was truncated; the kernel sends SIGBUS, as after a disk error."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        file.truncate(0)
        print(mapped[0])  # noqa: T201


def _spy() -> None:
    """Search for the token in the /proc files of this process and its ancestors up to the agent."""
    has_token, process = "CEREBRO_TOKEN" in os.environ, os.getppid()
    for _ in range(3):
        with suppress(PermissionError):
            has_token |= b"CEREBRO_TOKEN" in Path(f"/proc/{process}/environ").read_bytes()
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    if has_token:
        raise ValueError("the token is open")
