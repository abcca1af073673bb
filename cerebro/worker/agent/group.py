"""The ranks of one attempt, which look to whoever follows it like one child process.

Each rank is a child of its own, on a device of its own, and may have done units alone before. Rank 0 is the one that
is spoken to while they train; of the others the agent hears how they end. An attempt has a result when all ranks have
one. The first that fails, or whose process ends, ends it for all (`verdict`).

The ranks meet in a private folder: no port, which others might have by then.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind, TaskResult
from cerebro.worker.agent.forking import is_stopped
from cerebro.worker.agent.process import ChildProcess
from cerebro.worker.agent.rank_page import PAGE, RankPage
from cerebro.worker.agent.verdict import RankEnd, decisive, is_lost_peer, who_is_behind

_SPEAK_S = 0.3
"""How long the others may take to say what they know, after the first has failed."""
_LOST_S = 0.4
"""And once more, where all that was heard is that a peer is lost: which one, is known in a moment."""

_HARMLESS = frozenset(
    {
        FailureKind.NOT_APPLICABLE,
        FailureKind.PREEMPTED,
        FailureKind.CHECKPOINT,
        FailureKind.STORAGE_FULL,
    }
)
"""Failures after which processes are as good as before, if all ranks had them."""

Message = dict[str, Any]


class GroupChannel:
    """What the ranks say, as if one child said it: see `Channel`.

    Args:
        children: by rank.
        conclude: called once in an attempt, when no more is to be heard; returns how it ended.

    Attributes:
        is_closed: never. A rank whose end is gone has failed, and that is told as a message.
        answers: by rank: a result, or `None` of one that was left between two batches.
        ends: by rank: how it failed.
        may_leave: whether the attempt was asked to end.
    """

    is_closed = False

    def __init__(self, children: Sequence[ChildProcess], conclude: Callable[[], Message]) -> None:
        self._children, self._conclude = children, conclude
        self._sources = select.epoll()
        for child in children:
            self._sources.register(child.channel.fileno(), select.EPOLLIN)
            self._sources.register(child.end, select.EPOLLIN)
        self.begin()

    def begin(self) -> None:
        """Another attempt begins."""
        self.answers: dict[int, TaskResult | None] = {}
        self.ends: dict[int, RankEnd] = {}
        self.may_leave = self._has_concluded = False

    def close(self) -> None:
        """Give the descriptor back."""
        self._sources.close()

    def fileno(self) -> int:
        """For a selector: readable when a rank has said something, or has ended."""
        return self._sources.fileno()

    @property
    def strays(self) -> int:
        """How many lines were no messages, from all ranks."""
        return sum(child.channel.strays for child in self._children)

    @property
    def stray(self) -> str:
        """One of these, for people."""
        return next((child.channel.stray for child in self._children if child.channel.stray), "")

    def drop(self, message: Message) -> None:
        """Count a message that was understood by nobody."""
        self._children[0].channel.drop(message)

    def pending(self) -> Message | None:
        """What one child would have said, if there is anything."""
        message = self._hear()
        if message is None and not self._has_concluded and (self.ends or self.is_over()):
            self.await_others()
            self._has_concluded = True
            message = self._conclude()
        return message

    def await_others(self) -> None:
        """After the first failure: let the others speak, but not for long."""
        began = time.monotonic()
        while not self.is_over():
            is_lost = all(end.is_lost_peer for end in self.ends.values())
            left_s = began + _SPEAK_S + _LOST_S * is_lost - time.monotonic()
            if left_s <= 0:
                return
            self._sources.poll(left_s)
            self._hear()

    def is_over(self) -> bool:
        """Whether all ranks have told how they ended."""
        return len(self.answers) + len(self.ends) == len(self._children)

    def _hear(self) -> Message | None:
        for rank, child in enumerate(self._children):
            # Asked first: what it said before it ended counts.
            is_gone = not child.is_alive()
            while (message := child.channel.pending()) is not None:
                try:
                    told = self._take(rank, message)
                except (LookupError, TypeError, ValueError):
                    child.channel.drop(message)
                    continue
                if told is not None:
                    return told
            if is_gone or child.channel.is_closed:
                if not self._has_ended(rank):
                    self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=None)
                self._forget(child)
        return None

    def _take(self, rank: int, message: Message) -> Message | None:
        what = message["is"]
        if what == "ready":
            self._children[rank].is_ready = True
            return message if all(child.is_ready for child in self._children) else None
        if self._has_ended(rank):
            raise ValueError(what)  # it has said all that it has to say
        if what == "failed":
            failure, at = Failure.model_validate(message["failure"]), float(message["at"])
            self.ends[rank] = RankEnd(rank=rank, at=at, failure=failure)
        elif what == "preempted" and self.may_leave:
            self.answers[rank] = None
        elif what == "preempted":
            # User code's own doing. Whoever follows the attempt says so.
            failure = Failure(kind=FailureKind.PREEMPTED, message="nobody asked it to end")
            self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=failure)
        elif what == "done":
            self.answers[rank] = TaskResult.model_validate(message["result"])
        elif rank == 0:
            return message
        else:
            raise ValueError(what)
        return None

    def _has_ended(self, rank: int) -> bool:
        return rank in self.answers or rank in self.ends

    def _forget(self, child: ChildProcess) -> None:
        """Its descriptors stay readable: no more is to be heard of it."""
        for descriptor in (child.channel.fileno(), child.end):
            with suppress(OSError, ValueError):  # it was forgotten before
                self._sources.unregister(descriptor)


class ChildGroup:
    """Children that train one model together, one attempt after another. Used by one thread, as `ChildProcess` is.

    Args:
        children: by rank; all of one handler, each with a device of its own.
        meeting_places: folder for the one in which they meet, made if need be.

    Attributes:
        end: never readable: the end of a rank is told by the channel.
        is_ready: whether all have imported what they need and listen.
    """

    def __init__(self, children: Sequence[ChildProcess], meeting_places: Path) -> None:
        self.children, self._meeting_places = tuple(children), meeting_places
        self.setting = self.children[0].setting
        self.is_ready = False
        self.channel = GroupChannel(self.children, self._conclusion)
        self.end = select.epoll()
        self._folder: Path | None = None
        self._page: RankPage | None = None
        self._tasks: tuple[int, ...] = ()
        """How many tasks each child had been given when the ranks last parted in peace."""

    @property
    def code(self) -> str:
        """Hash of the user code that all of them have; empty if there is none."""
        codes = {child.code for child in self.children}
        return codes.pop() if len(codes) == 1 else ""

    @property
    def tasks(self) -> int:
        """How many tasks they were given, alone and together."""
        return sum(child.tasks for child in self.children)

    def knows(self, codes: frozenset[str]) -> bool:
        """Whether all of them have this user code."""
        return all(child.knows(codes) for child in self.children)

    def run(self, body: Any, attempt: int, codes: dict[str, str], log: Path, *, asked: float) -> None:
        """Ask all of them for a task; see `ChildProcess.run`. Rank 0 has the log, the others one each beside it."""
        self.channel.begin()
        self.is_ready = all(child.is_ready for child in self.children)
        folder = self._meeting_place(body["code"])
        for rank, child in enumerate(self.children):
            own_log = log if rank == 0 else log.with_suffix(f".rank{rank}.log")
            place = {"rank": rank, "size": len(self.children), "folder": str(folder)}
            child.run(body, attempt, codes, own_log, asked=asked, ranks=place)

    def preload(self, body: Any) -> None:
        """Hint at the next task: rank 0 checks its checkpoint for all."""
        self.children[0].preload(body)

    def ask_to_end(self, why: str, *, left_s: float) -> None:
        """Ask rank 0, which sees to it that all leave at the same batch."""
        self.channel.may_leave = True
        self.children[0].ask_to_end(why, left_s=left_s)

    def is_alive(self) -> bool:
        """Whether all of them run."""
        return all(child.is_alive() for child in self.children)

    def reap(self) -> Failure:
        """How it came that one of them cannot be spoken to; nothing of any is left afterwards."""
        self.channel.await_others()
        if not self.channel.ends:
            self.kill()
            return Failure(kind=FailureKind.CRASH, message="a process of the group could not be spoken to")
        failure = self._failure()
        self.kill()
        return failure

    def explained(self, failure: Failure) -> Failure:
        """It is explained: what the channel tells of a failure is known by then."""
        return failure

    def stuck(self) -> tuple[str, int | None]:
        """Who keeps the others waiting, for people; and that rank, if it is known."""
        stopped = [rank for rank, child in enumerate(self.children) if is_stopped(child.pid)]
        if stopped:
            return f"{self._named(stopped[0])} is stopped by a signal; the processes were ended", stopped[0]
        page = self._page
        batches, operations = (page.batches(), page.operations()) if page else ([], [])
        rank, where = who_is_behind(batches, operations, self.channel.answers)
        who = f"{self._named(rank)} " if rank is not None else ""
        return f"{who}{where}; the processes were ended", rank

    def kill(self) -> None:
        """End all of them and what they started, at once. Calling twice is safe."""
        for child in self.children:
            if child.end >= 0:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        for child in self.children:
            child.kill()
        self._part()

    def close(self) -> None:
        """These children are no group any more, or gone."""
        self._part()
        self.channel.close()
        self.end.close()

    # --- meeting ---------------------------------------------------------------------------------

    def _meeting_place(self, code: str) -> Path:
        """The folder in which the ranks meet: the one where they did, if they have not parted since."""
        tasks = tuple(child.tasks for child in self.children)
        has_parted = any(child.is_resting for child in self.children) or (tasks, code) != (
            self._tasks,
            self.code,
        )
        if self._folder is None or self._page is None or has_parted:
            self._part()
            # Where the next process of this worker finds it, should this one be killed.
            self._meeting_places.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._meeting_places))
            RankPage.make(self._folder / PAGE, len(self.children))
            self._page = RankPage(self._folder / PAGE, len(self.children))
        self._page.clear()
        self._tasks = ()
        return self._folder

    def _part(self) -> None:
        if self._page is not None:
            self._page.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._page = self._folder = None

    # --- the end of an attempt -------------------------------------------------------------------

    def _conclusion(self) -> Message:
        answers, ends = self.channel.answers, self.channel.ends
        if not ends:
            self._tasks = tuple(child.tasks for child in self.children)
            results = [answer for answer in answers.values() if answer is not None]
            if len(results) < len(self.children):
                return {"is": "preempted"}
            return {"is": "done", "result": self._result(answers[0], results).model_dump(mode="json")}
        failure = self._failure()
        if not self.channel.is_over() or not all(map(_is_harmless, ends.values())):
            self.kill()
        if failure.kind is FailureKind.PREEMPTED:
            return {"is": "preempted"}
        return {"is": "failed", "failure": failure.model_dump(mode="json")}

    def _result(self, first: TaskResult | None, results: Sequence[TaskResult]) -> TaskResult:
        """Rank 0's, with the memory of all."""
        assert first is not None
        peaks = {name: [getattr(each, name) for each in results] for name in ("peak_bytes", "peak_gpu_bytes")}
        return first.model_copy(
            update={name: sum(found) if all(found) else 0 for name, found in peaks.items()}
        )

    def _failure(self) -> Failure:
        end = decisive(self.channel.ends.values())
        child = self.children[end.rank]
        failure = child.reap() if end.failure is None else child.explained(end.failure)
        kind, message = failure.kind, failure.message
        if is_lost_peer(failure):
            kind = FailureKind.CRASH
            message = f"it lost its connection to another rank, which did not say why: {message}"
        return failure.model_copy(
            update={
                "kind": kind,
                "message": f"{self._named(end.rank)}: {message}",
                "traceback": failure.traceback.rstrip().removesuffix(failure.message.rstrip()),
                "rank": end.rank,
            }
        )

    def _named(self, rank: int) -> str:
        devices = ", ".join(map(str, self.children[rank].setting.share.devices))
        return f"rank {rank} of {len(self.children)} (device {devices})"


def _is_harmless(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.kind in _HARMLESS and not end.is_lost_peer
