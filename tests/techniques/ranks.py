"""Rank processes for a test session, which run functions in a process group."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from tests.waiting import HANG_S

_LIMIT_S = HANG_S
_LOST = (TimeoutError, ConnectionError)


class Ranks:
    """A context manager of rank processes, forked from a process with torch imported."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cerebro-ranks-")
        self._groups = 0
        self._members: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of ``work(group, *args)`` on each of `size` ranks.

        `work` must be a module-level function.

        Raises:
            Exception: a rank's exception, preferably the root cause rather than a lost peer.
        """
        return self.run_each(size, work, [args] * size)

    def run_each(self, size: int, work: Callable[..., Any], args: list[tuple[Any, ...]]) -> list[Any]:
        """Like `run`, with arguments for each rank."""
        while len(self._members) < max(size, 1):
            self._members.append(_start(len(self._members)))
        members = self._members[:size]
        self._groups += 1
        folder = Path(self._folder.name, str(self._groups))
        folder.mkdir()
        for rank, ((_, pipe), given) in enumerate(zip(members, args, strict=True)):
            pipe.send((str(folder), rank, size, work, given))
        answers = [self._answer(pipe) for _, pipe in members]
        errors = [answer for ok, answer in answers if not ok]
        if any(isinstance(error, _LOST) for error in errors):
            self._end()
        if errors:
            raise min(errors, key=_is_of_another)
        return [answer for _, answer in answers]

    def _answer(self, pipe: Connection) -> tuple[bool, Any]:
        with suppress(EOFError):
            if pipe.poll(_LIMIT_S):
                answer: tuple[bool, Any] = pipe.recv()
                return answer
            self._end()
            return False, TimeoutError(f"a rank did not answer within {_LIMIT_S} s")
        return False, ConnectionError("the process of a rank has ended")

    def _end(self) -> None:
        for process, _ in self._members:
            process.kill()
            process.join()
        self._members.clear()


def _is_of_another(error: Exception) -> bool:
    """Return True if a rank failed because another one had left the group."""
    return isinstance(error, _LOST) or "closed by peer" in str(error) or "reset by peer" in str(error)


def nothing(group: object) -> None:
    """Do nothing, so that the ranks start."""


def _start(number: int) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.techniques.ranks", "torch._dynamo", "tests.techniques.cases", "tests.trial_runner.sub_epochs"]
    )
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True, name=f"rank-{number}")
    process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection) -> None:
    import torch

    from cerebro.techniques.ranks import RankGroup

    torch.set_num_threads(1)
    gc.freeze()  # as in a worker's processes: garbage collection over torch's objects takes longer than training
    while True:
        try:
            folder, rank, size, work, args = pipe.recv()
        except EOFError:
            return
        group = RankGroup.join(Path(folder), rank=rank, size=size, device="cpu", timeout_s=_LIMIT_S)
        try:
            answer = True, work(group, *args)
        except Exception as error:  # noqa: BLE001 - it is the answer
            error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
            answer = False, error
        try:
            pipe.send(answer)
        except Exception as error:  # noqa: BLE001 - the answer cannot be pickled
            pipe.send((False, RuntimeError(f"{answer[1]!r}: {error}")))
        group.leave()
