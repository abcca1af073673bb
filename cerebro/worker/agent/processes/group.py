"""The rank group of one attempt, with the interface of a single child process.

`Execution` creates a `ChildGroup` for a parallel plan with several ranks; `AttemptRunner` follows it like a
`ChildProcess`. Each rank is a child on its own device and may have run sub-epochs alone. The agent talks to rank 0
during training and waits for the others' results. An attempt has a result when all ranks have one. The root cause among
the failed ranks ends the attempt (`root_cause.decisive`).

Ranks on one worker use a private folder as rendezvous: a port might be taken. In a gang some ranks are on other workers
(`cerebro.worker.agent.gangs`): rank 0 reports its rendezvous address, which is forwarded.
"""

from __future__ import annotations

import select
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.processes.group_channel import GroupChannel, Rank
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.child import stacks
from cerebro.worker.child.rank_page import PAGE, RankPage
from cerebro.worker.health.root_cause import RankEnd, decisive, is_lost_peer, who_is_behind
from cerebro.worker.protocol.messages import Answer, Done, Failed, Preempted, Ranks


class ChildGroup:
    """Children that train one model together, one attempt after another. Used by one thread.

    Args:
        children: by rank; all with one handler, each with its own device. The first is a process of this worker.
        rendezvous_root: folder for rendezvous folders, created if missing.
        address: this worker's address for a gang.

    Attributes:
        is_gang: True if some ranks are on other workers.
        end: never readable: the channel reports the end of a rank.
        is_ready: True if all have finished imports and listen.
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
        """Hash of the user code that all ranks have, or ""."""
        codes = {child.code for child in self.children}
        return codes.pop() if len(codes) == 1 else ""

    @property
    def tasks(self) -> int:
        """Number of tasks they have started, alone and together."""
        return sum(child.tasks for child in self.children)

    def has_code(self, codes: frozenset[str]) -> bool:
        """True if all ranks have this user code."""
        return all(child.has_code(codes) for child in self.children)

    def run(
        self, body: TaskBody, attempt: int, codes: dict[str, str], log: Path, *, received_at: float
    ) -> None:
        """Send all ranks a task; see `ChildProcess.run`. Each rank has its own log.

        Raises:
            StorageFullError: no space for the rendezvous folder; no rank was sent the task.
        """
        self.channel.begin()
        self.is_ready = all(child.is_ready for child in self.children)
        folder = self._rendezvous_folder()
        for rank, child in enumerate(self.children):
            rank_log = log if rank == 0 else log.with_suffix(f".rank{rank}.log")
            ranks = Ranks(rank=rank, size=len(self.children), folder=folder, address=self._address)
            child.run(body, attempt, codes, rank_log, received_at=received_at, ranks=ranks)

    def preload(self, body: TaskBody) -> None:
        """Announce the next task: rank 0 verifies its checkpoint for all."""
        self._first.preload(body)

    def preempt(self, reason: str, *, grace_s: float) -> None:
        """Ask rank 0, which makes all ranks leave at the same batch."""
        self.channel.may_leave = True
        self._first.preempt(reason, grace_s=grace_s)

    def is_alive(self) -> bool:
        """True if all ranks run."""
        return all(child.is_alive() for child in self.children)

    def reap(self) -> Failure:
        """Explain why a rank is unreachable, and kill all ranks."""
        self.channel.await_others()
        if not self.channel.ends:
            self.kill()
            return Failure(kind=FailureKind.CRASH, message="a process of the group could not be spoken to")
        failure = self._failure()
        self.kill()
        return failure

    def explained(self, failure: Failure) -> Failure:
        """Return the failure unchanged: the channel has explained it."""
        return failure

    def describe_hang(self) -> tuple[str, int | None]:
        """Describe the rank that blocks the others, and return its number if known."""
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
        """Dump the stacks of all local ranks at once."""
        here = [
            (rank, child.dump_target)
            for rank, child in enumerate(self.children)
            if isinstance(child, ChildProcess)
        ]
        found = stacks.dump([target for _, target in here])
        return "\n\n".join(
            f"rank {rank}:\n{text}" for (rank, _), text in zip(here, found, strict=True) if text
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the local ranks."""
        return tuple(child.pid for child in self.children if isinstance(child, ChildProcess))

    def kernel_state(self) -> str:
        """Describe the kernel state of the local ranks, for people."""
        here = (child for child in self.children if isinstance(child, ChildProcess))
        return "; ".join(f"{child.description}: {child.kernel_state()}" for child in here)

    def kill(self) -> None:
        """Kill all ranks and their descendants. Calling twice is safe."""
        for child in self.children:
            child.end_processes()
        for child in self.children:
            child.kill()
        self._part()

    def close(self) -> None:
        """Dissolve the group."""
        for child in self.children:
            if isinstance(child, RemoteRank):
                child.kill()
        self._part()
        self.channel.close()
        self.end.close()

    # --- meeting ---------------------------------------------------------------------------------

    def _rendezvous_folder(self) -> Path:
        self._part()
        # The worker's next process finds it here if this one is killed.
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

    def _conclusion(self) -> Answer:
        answers, ends = self.channel.answers, self.channel.ends
        if not ends:
            results = [answer for answer in answers.values() if answer is not None]
            if len(results) < len(self.children):
                return Preempted()
            return Done(result=self._result(answers[0], results))
        failure = self._failure()
        if not self.channel.is_over() or not all(map(_is_harmless, ends.values())):
            self.kill()
        # A draining worker of a gang may have exceeded its grace period.
        is_leaving = self.channel.leaving and failure.kind is not FailureKind.USER_ERROR
        if failure.kind is FailureKind.PREEMPTED or is_leaving:
            return Preempted()
        return Failed(failure=failure, failed_at=time.monotonic())

    def _result(self, first: TaskResult | None, results: Sequence[TaskResult]) -> TaskResult:
        """Return rank 0's result with the memory of all ranks."""
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
        return f"rank {rank} of {len(self.children)} ({self.children[rank].description})"


def _is_harmless(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.kind.traits.keeps_processes and not end.is_lost_peer
