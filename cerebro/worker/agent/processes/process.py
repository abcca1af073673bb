"""Start, use and end a child process of the agent.

`ChildPool` starts a `ChildProcess` for a task's handler, interpreter, files and devices; the client's rebuild of
partitions starts one too. The program in it is `cerebro.worker.child.task_loop`. The child inherits no secrets. Its
failures are explained here, including kernel kills for lack of memory.

The kernel ends a child with the thread that forked it, so that thread must live as long as the agent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from cerebro.contract.base import Contract
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.processes import allocator
from cerebro.worker.agent.settings import SECRETS, Settings
from cerebro.worker.child import stacks
from cerebro.worker.child.fork_server import MARK, end_leftovers, is_stopped
from cerebro.worker.child.stacks import DumpTarget
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_CHILD, FreeMemory, FromChild, Preempt, Preload, Ranks, Run

_TAIL = 2000
"""Maximum bytes of a child's output in the failure of a child that did not start."""
_GRACE_S = 2.0
"""Seconds to wait for the exit of a child that has closed its connection."""
_CLAIM_S = 0.3
"""Seconds after a kernel kill until the agent knows that its process has ended."""
_GUESS = ": killed, possibly for lack of memory"


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """Settings of a child. Other settings need another child; other user code only another fork."""

    handler: str
    python: str
    archive: str
    """Folder with the user's files, or empty."""
    share: Share
    """Its compute resources."""


class KernelKills:
    """Attribution of the kernel's out-of-memory kills to attempts. Thread-safe.

    The kernel counts the kills of all the worker's processes. Several attempts may fail at the same time for
    other reasons, so each kill explains only one.
    """

    def __init__(self, memory: MemoryGroup) -> None:
        self._memory = memory
        self._changed = threading.Condition()
        self._explained: dict[int, bool] = {}
        """Number of a kill -> True if it ended the attempt's own process."""

    def count(self) -> int | None:
        """Return the number of kills, to be saved at an attempt's start; `None` if not counted."""
        return self._memory.kills()

    def claim(self, before: int | None, *, was_killed: bool) -> bool:
        """Attribute a kill after the first `before` to an attempt. Return True if one was available.

        Args:
            was_killed: True if SIGKILL ended the attempt's process. Otherwise one of its descendants may have
                been killed, and attempts with a killed process have priority.
        """
        now = self._memory.kills()
        if before is None or now is None:
            return False
        kills = range(before + 1, now + 1)

        def unexplained() -> list[int]:
            return [n for n in kills if n not in self._explained or (was_killed and not self._explained[n])]

        with self._changed:
            if not was_killed and unexplained():
                self._changed.wait_for(lambda: not unexplained(), _CLAIM_S)
            if not unexplained():
                return False
            self._explained[unexplained()[0]] = was_killed
            self._changed.notify_all()
        return True


class ChildProcess:
    """A running child.

    Args:
        kills: shared by all children of the worker.
    """

    def __init__(
        self, setting: ChildSpec, settings: Settings, memory: MemoryGroup, kills: KernelKills | None = None
    ) -> None:
        self.setting = setting
        self._memory, self._kills = memory, kills or KernelKills(memory)
        self._kills_before = self._kills.count()
        self.code = ""
        """Hash of the latest task's user code, the only code it is sure to have."""
        self._known: frozenset[str] = frozenset()
        """Hashes of all user code in the process of that task."""
        self.is_sandboxed = settings.sandbox.is_on
        """True if user code runs in the sandbox; then each experiment and data set also has its own fork."""
        self.tasks = 0
        """Number of started tasks."""
        self._task_log = Path()
        """Log of its latest task."""
        self.has_freed_memory = True
        self.used = time.monotonic()
        """End time of its latest task."""
        self.is_ready = False
        """True after it has finished imports and listens."""
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        environment |= settings.volumes.as_environment()
        environment["CEREBRO_ARCHIVE"] = setting.archive
        environment[MARK] = self._mark = uuid4().hex
        share = setting.share
        if share.visible_gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = share.visible_gpus
            # torch.cuda.is_available() at import would start CUDA, which works in no fork.
            environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        if share.threads < settings.cores:
            environment["OMP_NUM_THREADS"] = str(
                _fewer(environment.get("OMP_NUM_THREADS", ""), share.threads)
            )
        memory_bytes = memory.limit_bytes() or _machine_bytes()
        environment |= allocator.tuned(environment, memory_bytes * share.threads // settings.cores)
        self._log = log = settings.volumes.logs / f"{settings.worker}{_suffix(share.devices)}.child.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = _command(setting, settings, theirs.fileno())
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                with_parent_death_signal(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # Its own group, so that processes which user code starts end with it.
                start_new_session=True,
                cwd=setting.archive or None,
            )
        theirs.close()
        self.channel: Channel[FromChild] = Channel(ours, FROM_CHILD)
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)
        """Descriptor that is readable once the process has ended, even if its forks keep the channel open."""

    def run(
        self,
        body: TaskBody,
        attempt: int,
        codes: dict[str, str],
        log: Path,
        *,
        received_at: float,
        ranks: Ranks | None = None,
    ) -> None:
        """Start a task. The channel receives the answer.

        Args:
            codes, received_at, ranks: see `Run`.
        """
        self._kills_before, self._task_log = self._kills.count(), log
        self._known = frozenset(codes) | (self._known if self.code == body.code else frozenset())
        self.code, self.has_freed_memory, self.tasks = body.code, False, self.tasks + 1
        self.channel.send(
            Run(body=body, attempt=attempt, codes=codes, log=log, received_at=received_at, ranks=ranks)
        )

    def renew(self) -> None:
        """Forget known user code: the child has forked a new process after its latest task."""
        self.code, self._known = "", frozenset()

    def has_code(self, codes: frozenset[str]) -> bool:
        """True if the process for the next task has all this user code."""
        return codes <= self._known

    def preload(self, body: TaskBody) -> None:
        """Announce the next task."""
        self.channel.send(Preload(body=body))

    def free_memory(self) -> None:
        """Make it free rebuildable objects, once."""
        if not self.has_freed_memory:
            self.has_freed_memory = True
            with suppress(OSError):  # it has ended, as the next user will notice
                self.channel.send(FreeMemory())

    @property
    def description(self) -> str:
        """Its devices, for people."""
        return f"device {', '.join(map(str, self.setting.share.devices))}"

    def send(self, message: Contract) -> None:
        """Send a message unless the child has ended."""
        with suppress(OSError):  # it has ended, as `end` shows
            self.channel.send(message)

    def is_stopped(self) -> bool:
        """True if a signal has stopped it."""
        return is_stopped(self.pid)

    def is_alive(self) -> bool:
        """True while it runs."""
        return self.end >= 0 and self._process.poll() is None

    def preempt(self, reason: str, *, grace_s: float, member: int | None = None) -> None:
        """Ask the task, or one member of its fused group, to leave; see `Preempt`. The channel receives the answer."""
        self.send(Preempt(reason=reason, grace_s=grace_s, member=member))

    def describe_hang(self) -> tuple[str, int | None]:
        """Describe the outcome of its hang; a single process has no rank."""
        return "the process was ended", None

    def stacks(self) -> str:
        """Return its stacks; see `stacks.dump`."""
        return stacks.dump([self.dump_target])[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids for finding its processes."""
        return (self.pid,)

    def kernel_state(self) -> str:
        """Describe its kernel state, for people."""
        return stacks.states(self.pid)

    @property
    def dump_target(self) -> DumpTarget:
        """Process group and log for a stack dump."""
        return DumpTarget(self.pid, self._task_log)

    def reap(self) -> Failure:
        """Explain how it ended, and clean up."""
        self.channel.close()
        message = self._exit_reason()
        failure = self.explained(
            Failure(kind=FailureKind.CRASH, message=message),
            was_killed=self._process.returncode == -signal.SIGKILL,
        )
        self.kill()
        return failure

    def explained(self, failure: Failure, *, was_killed: bool = False) -> Failure:
        """Return the failure, or its cause: a kernel kill for memory since the task began."""
        may_be_kill = failure.kind.traits.may_be_kernel_kill
        if not may_be_kill or not self._kills.claim(self._kills_before, was_killed=was_killed):
            return failure
        limit = self._memory.limit_bytes()
        used_up = f"the limit of this worker, {limit / 2**30:.2f} GiB" if limit else "the machine's memory"
        message = (
            f"killed by the kernel for lack of memory: {used_up}, was used up. Use a smaller batch_size or model (ETL: "
            f"fewer CEREBRO_CORES), or raise the memory limit of the workers. Seen here: {failure.message}"
        )
        return failure.model_copy(
            update={"kind": FailureKind.OUT_OF_MEMORY, "message": message, "memory_kind": "host"}
        )

    def _exit_reason(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "the process closed its connection to the worker: user code closed a file it did not open"
        if code < 0:
            name = signal.Signals(-code).name
            is_unknown = name == "SIGKILL" and self._kills_before is None
            return f"the process ended by signal {name}{_GUESS if is_unknown else ''}"
        how = f"the process ended by itself with exit status {code}"
        if self.is_ready:
            return how
        # It ended before it redirected its output to a task's log.
        with self._log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL))
            said = log.read(_TAIL).decode(errors="replace")
        return f"{how} before it could begin: {said.strip()}"

    def end_processes(self) -> None:
        """Kill it and its descendants without waiting; `kill` must follow."""
        if self.end >= 0:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill it and its descendants. Calling twice is safe."""
        if self.end < 0:
            return
        self.end_processes()
        # Also end its fork for user code and all descendants, so that no process keeps writing.
        end_leftovers(self.pid, self._mark)
        self._process.wait()
        self.channel.close()
        os.close(self.end)
        self.end = -1


def _command(setting: ChildSpec, settings: Settings, channel: int) -> list[str]:
    """Return the command line of a child.

    Args:
        channel: descriptor of the child's end.
    """
    share = setting.share
    # -P: a file of the user's named like a module of the standard library must not replace it.
    command = [setting.python, "-P", "-m", "cerebro.worker.child.task_loop", "--channel", str(channel)]
    command += ["--handler", setting.handler, "--cores", str(share.threads)]
    if share.memory_bytes is not None:
        command += ["--memory-bytes", str(share.memory_bytes)]
    if share.visible_gpus:
        command.append("--has-gpu")
    if settings.savepoint_s is not None:
        command += ["--savepoint-s", str(settings.savepoint_s)]
    if settings.sandbox.is_on:
        command += ["--sandbox", *(f"--writable={path}" for path in settings.sandbox.writable_folders)]
    return command


def _fewer(threads: str, limit: int) -> int:
    """Return a variable's number, at most `limit`."""
    return min(int(threads), limit) if threads.isdecimal() and int(threads) else limit


def _suffix(devices: tuple[int, ...]) -> str:
    """Return a log name's suffix: concurrent children write to different logs."""
    return "".join(f".{number}" for number in devices if devices != (0,))


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
