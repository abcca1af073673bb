"""The ranks of one attempt, which look to whoever follows it like one child process.

Each rank is a child of its own, on a device of its own, and may have done sub-epochs alone before. Rank 0 is the one
that is spoken to while they train; of the others the agent hears how they end. An attempt has a result when all ranks
have one. The first that fails, or whose process ends, ends it for all (`verdict`).

The ranks of one worker meet in a private folder: no port, which others might have by then. Of a gang some are on other
workers (`cerebro.worker.agent.gangs`): rank 0 says where it is to be met, and that is sent on.
"""

from __future__ import annotations

import select
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind, TaskResult
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.worker.agent import stacks
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.group_channel import GroupChannel, Message, Rank
from cerebro.worker.agent.process import ChildProcess
from cerebro.worker.agent.rank_page import PAGE, RankPage
from cerebro.worker.agent.verdict import RankEnd, decisive, is_lost_peer, who_is_behind

_HARMLESS = frozenset(
    {
        FailureKind.NOT_APPLICABLE,
        FailureKind.PREEMPTED,
        FailureKind.CHECKPOINT,
        FailureKind.STORAGE_FULL,
    }
)
"""Failures after which processes are as good as before, if all ranks had them."""


class ChildGroup:
    """Children that train one model together, one attempt after another. Used by one thread, as `ChildProcess` is.

    Args:
        children: by rank; all of one handler, each with a device of its own. The first is a process of this worker.
        rendezvous_root: folder for the one in which they meet, made if need be.
        address: of this worker, as others reach it; for a gang.

    Attributes:
        is_gang: whether some ranks are on other workers.
        end: never readable: the end of a rank is told by the channel.
        is_ready: whether all have imported what they need and listen.
    """

    def __init__(self, children: Sequence[Rank], rendezvous_root: Path, address: str = "") -> None:
        self.children, self._rendezvous_root, self._address = tuple(children), rendezvous_root, address
        first = self.children[0]
        assert isinstance(first, ChildProcess)
        self._first, self.setting, self.is_gang = first, first.setting, bool(address)
        self.is_ready = False
        self.channel = GroupChannel(self.children, self._conclusion)
        self.end = select.epoll()
        self._folder: Path | None = None
        self._page: RankPage | None = None

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
        """Ask all of them for a task; see `ChildProcess.run`. Rank 0 has the log, the others one each beside it.

        Raises:
            StorageFullError: there is no room for the folder in which they meet; none of them was asked.
        """
        self.channel.begin()
        self.is_ready = all(child.is_ready for child in self.children)
        folder = self._rendezvous_folder()
        for rank, child in enumerate(self.children):
            own_log = log if rank == 0 else log.with_suffix(f".rank{rank}.log")
            place = {"rank": rank, "size": len(self.children), "folder": str(folder)}
            place |= {"address": self._address} if self._address else {}
            child.run(body, attempt, codes, own_log, asked=asked, ranks=place)

    def preload(self, body: Any) -> None:
        """Hint at the next task: rank 0 checks its checkpoint for all."""
        self._first.preload(body)

    def ask_to_end(self, why: str, *, left_s: float) -> None:
        """Ask rank 0, which sees to it that all leave at the same batch."""
        self.channel.may_leave = True
        self._first.ask_to_end(why, left_s=left_s)

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
        stopped = [rank for rank, child in enumerate(self.children) if child.is_stopped()]
        if stopped:
            return f"{self._named(stopped[0])} is stopped by a signal; the processes were ended", stopped[0]
        page = self._page
        batches, operations = (page.batches(), page.operations()) if page else ([], [])
        for number, child in enumerate(self.children if page else ()):
            if isinstance(child, RemoteRank):
                batches[number], operations[number] = child.batch, child.operations
        rank, where = who_is_behind(batches, operations, self.channel.answers)
        if self.is_gang and not any(batches):
            where += ". No rank came to its first batch: can workers reach each other on all ports"
            where += " (worker.gangs.enabled of the chart, network policies)?"
        who = f"{self._named(rank)} " if rank is not None else ""
        return f"{who}{where}; the processes were ended", rank

    def stacks(self) -> str:
        """Where each of them is that is here; all are asked at once."""
        here = [
            (rank, child.asked) for rank, child in enumerate(self.children) if isinstance(child, ChildProcess)
        ]
        found = stacks.written([asked for _, asked in here])
        return "\n\n".join(
            f"rank {rank}:\n{text}" for (rank, _), text in zip(here, found, strict=True) if text
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """By which the processes are found that are here."""
        return tuple(child.pid for child in self.children if isinstance(child, ChildProcess))

    def doing(self) -> str:
        """What the kernel says of those that are here, for people."""
        here = (child for child in self.children if isinstance(child, ChildProcess))
        return "; ".join(f"{child.described}: {child.doing()}" for child in here)

    def kill(self) -> None:
        """End all of them and what they started, at once. Calling twice is safe."""
        for child in self.children:
            child.end_processes()
        for child in self.children:
            child.kill()
        self._part()

    def close(self) -> None:
        """These children are no group any more, or gone."""
        for child in self.children:
            if isinstance(child, RemoteRank):
                child.kill()
        self._part()
        self.channel.close()
        self.end.close()

    # --- meeting ---------------------------------------------------------------------------------

    def _rendezvous_folder(self) -> Path:
        """Make the folder where the ranks of an attempt meet. Each attempt needs a new one."""
        self._part()
        # Where the next process of this worker finds it, should this one be killed.
        with volume_errors_named(self._rendezvous_root):
            self._rendezvous_root.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._rendezvous_root))
            RankPage.make(self._folder / PAGE, len(self.children))
        self._page = RankPage(self._folder / PAGE, len(self.children))
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
            results = [answer for answer in answers.values() if answer is not None]
            if len(results) < len(self.children):
                return self._left()
            return {"is": "done", "result": self._result(answers[0], results).model_dump(mode="json")}
        failure = self._failure()
        if not self.channel.is_over() or not all(map(_is_harmless, ends.values())):
            self.kill()
        # A worker of a gang that had to end may have taken longer than it had.
        is_leaving = self.channel.leaving and failure.kind is not FailureKind.USER_ERROR
        if failure.kind is FailureKind.PREEMPTED or is_leaving:
            return self._left()
        return {"is": "failed", "failure": failure.model_dump(mode="json")}

    def _left(self) -> Message:
        return {"is": "preempted", "why": self.channel.leaving}

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
        return f"rank {rank} of {len(self.children)} ({self.children[rank].described})"


def _is_harmless(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.kind in _HARMLESS and not end.is_lost_peer
