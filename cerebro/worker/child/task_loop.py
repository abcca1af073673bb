"""The child process: runs user code through a handler, one task after another, and reports results.

The agent's `ChildProcess` starts this program with a socket and a handler module. To its agent it is one process. In
fact there are several: one imports modules and forks another for user code (`fork_server`), which forks one per task
(`task_processes`), except for handlers that keep their process. The child has neither a token nor a connection to the
store. Exceptions in user code become a typed `Failure` (`failure_of`); the agent reports a process that dies.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from cerebro import errors
from cerebro.contract.parallel_plans import MemoryKind
from cerebro.contract.tasks.bodies import MEASURING, EtlTask, FusedTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.keras.backend import CORES
from cerebro.runtime.isolation.metadata_guard import Supervisor
from cerebro.runtime.numeric_settings import frozen_cache_bytes
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.runtime.usage import memory
from cerebro.runtime.volume_errors import limits, lowered_limit, platform_error, volume_errors_named
from cerebro.runtime.volumes import Volumes
from cerebro.worker.child import fork_server, lost_access, stacks
from cerebro.worker.child.context import BaseHandler, Context
from cerebro.worker.child.memory_errors import refused_bytes, whose_memory
from cerebro.worker.child.sandbox import Sandbox
from cerebro.worker.child.task_processes import ForkHazards, TaskProcesses, has_children
from cerebro.worker.health.device_errors import Blame, blame
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import (
    TO_CHILD,
    AgentGone,
    Answer,
    Depth,
    Done,
    Failed,
    Forward,
    FreeMemory,
    GroupEnded,
    MemberEnded,
    NeedsOtherParent,
    Preempt,
    Preempted,
    Preload,
    Ready,
    Rendezvous,
    Run,
    TaskFinished,
    ToChild,
    ToTaskProcess,
)

_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (errors.NotApplicableError, FailureKind.NOT_APPLICABLE),
    (errors.CheckpointCorruptError, FailureKind.CHECKPOINT),
    (errors.StorageFullError, FailureKind.STORAGE_FULL),
    (errors.NonFiniteMetricError, FailureKind.NON_FINITE),
    (errors.ObjectStoreError, FailureKind.UNAVAILABLE),
    (errors.VolumeError, FailureKind.UNAVAILABLE),  # with the path: it does not count for the task
    (errors.ShardCorruptError, FailureKind.DATA),
    (errors.RowError, FailureKind.DATA),
    (errors.DataError, FailureKind.DATA),
    (errors.LocatorError, FailureKind.DATA),
    (errors.MetadataError, FailureKind.DATA),
    (errors.DeviceError, FailureKind.DEVICE),
    (errors.RetryableError, FailureKind.CRASH),
    (MemoryError, FailureKind.OUT_OF_MEMORY),
)
"""Failure kinds by exception. The first match counts; all others are errors of user code."""

_MAY_BE_OF_MEMORY = frozenset({FailureKind.USER_ERROR, FailureKind.OUT_OF_MEMORY})
_MAY_BE_OF_DEVICE = frozenset({FailureKind.USER_ERROR, FailureKind.DEVICE, FailureKind.NOT_APPLICABLE})
"""Kinds that `failure_of` corrects if the error shows exhausted memory or a faulty device."""


_NICE_END = 19
"""Niceness of a process that is freeing its memory."""


def failure_of(
    error: BaseException, *, has_gpu: bool = False, roots: Sequence[Path] = (), may_deny: bool = True
) -> Failure:
    """Convert any exception to a `Failure`, with only user code's frames if it has some.

    Args:
        has_gpu: True if the task has a GPU.
        roots, may_deny: see `platform_error`.
    """
    kind = next((kind for cause, kind in _KINDS if isinstance(error, cause)), FailureKind.USER_ERROR)
    if (
        kind is FailureKind.USER_ERROR
        and (found := platform_error(error, roots, may_deny=may_deny)) is not None
    ):
        return failure_of(found)
    message = _message(error)
    memory_kind = whose_memory(error) if kind in _MAY_BE_OF_MEMORY else None
    if memory_kind is not None:
        kind = FailureKind.OUT_OF_MEMORY
    fault = blame(error, has_gpu=has_gpu) if kind in _MAY_BE_OF_DEVICE else Blame.CODE
    if fault is Blame.DEVICE:
        kind = FailureKind.DEVICE
    needs = getattr(error, "needs_bytes", 0) if isinstance(error, errors.StorageFullError) else 0
    is_of_volume = isinstance(error, errors.StorageFullError | errors.VolumeError | errors.ShardCorruptError)
    volume = getattr(error, "path", "") if is_of_volume else ""
    if isinstance(error, errors.ShardCorruptError) and volume:
        kind = FailureKind.UNAVAILABLE  # another worker may have a good replica; otherwise the run pauses
    rows_failed = error.rows_failed if isinstance(error, errors.RowError) else 0
    return Failure(
        kind=kind,
        message=message,
        traceback=text_of(error),
        needs_bytes=needs,
        volume=volume,
        rows_failed=rows_failed,
        memory_kind=memory_kind,
        peak_bytes=_peak_bytes(error, memory_kind),
        may_be_device=kind is FailureKind.USER_ERROR and fault is Blame.UNSURE,
    )


def _peak_bytes(error: BaseException, memory_kind: MemoryKind | None) -> int:
    """Return the peak of the exhausted memory; for a device, as noted by its handler, with the refused request."""
    if memory_kind == "device":
        return int(getattr(error, "peak_gpu_bytes", 0)) + refused_bytes(error)
    return memory.peak_bytes() if memory_kind == "host" else 0


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"user code called exit({line_of(error).removeprefix('SystemExit').removeprefix(': ')})"
    if isinstance(error, Exception):
        return line_of(error)
    return f"{line_of(error)} (user code raised a BaseException, and is meant to end a program)"


class Child:
    """Serves an agent: several tasks with the same user code, or a single task.

    Args:
        code: hash of the user code; "" takes the first task's code.
    """

    def __init__(
        self,
        channel: Channel[ToChild],
        context: Context,
        handler: BaseHandler,
        sandbox: Sandbox,
        code: str = "",
    ) -> None:
        self._channel, self._context, self._handler = channel, context, handler
        self._sandbox, self._limits = sandbox, limits()
        context.on_preload = handler.preload
        self._code = code

    def serve(self) -> bytes:
        """Run tasks until one needs another process.

        Returns:
            Unread bytes for the next process, which runs other user code; empty after the agent has gone.
        """
        self._channel.send(Ready())
        while (message := self._next()) is not None:
            if (rejected := self._rejected(message)) is not None:
                return self._channel.take_unread(rejected)
            self._code = message.body.code
            self._channel.send(self._run(message))
        return b""

    def serve_one(self, parent: Channel[ToTaskProcess]) -> None:
        """Run one task, then notify the parent, which passes the agent's channel to the next fork."""
        message = self._next()
        if message is None:
            parent.send(AgentGone())
            return
        if (rejected := self._rejected(message)) is not None:
            parent.send(NeedsOtherParent(unread=self._channel.take_unread(rejected).decode()))
            return
        self._context.on_preload = lambda body: parent.send(Preload(body=body))
        answer = self._run(message)
        # The agent must receive this failure before other ranks report a lost peer.
        is_urgent = isinstance(answer, Failed) and self._context.ranks is not None
        # Report a measurement after its device is free, and a task after its processes have ended.
        is_reported_late = message.body.kind in MEASURING or has_children()
        if is_reported_late and not is_urgent:
            unread = self._channel.take_unread(Forward(answer=answer))
        else:
            self._channel.send(answer)
            unread = self._channel.take_unread()
        must_exit_first = is_reported_late or self._context.has_gpu
        parent.send(
            TaskFinished(
                unread=unread.decode(),
                log=message.log,
                codes=message.codes,
                must_exit_first=must_exit_first,
            )
        )
        if not must_exit_first:
            with suppress(OSError):
                os.nice(_NICE_END)  # the next task goes first

    def _next(self) -> Run | None:
        """Return the next request to run a task; `None` after the agent has gone."""
        while (message := self._channel.receive()) is not None:
            match message:
                case Run():
                    return message
                case Preload():
                    self._context.on_preload(message.body)
                case FreeMemory():
                    self._handler.free_memory()
                case Forward():
                    self._channel.send(message.answer)
                case Preempt() | Rendezvous():
                    pass  # for a task that has ended
        return None

    def _rejected(self, message: Run) -> Run | None:
        """Return the request for another process, or `None` if this one has its user code and sandbox."""
        if self._code not in ("", message.body.code):
            return message
        if self._sandbox.admits(message.body):
            return None
        # The agent assumes that this process has the code.
        return message.model_copy(update={"codes": self._context.user_code.codes | message.codes})

    def _run(self, message: Run) -> Answer:
        answer = self._answer(message)
        # User code may have turned the preemption into a result or another error.
        return Preempted() if self._context.preemption.has_raised else answer

    def _failure_of(self, error: BaseException) -> Failure:
        roots, is_sandboxed = self._context.volumes.roots, self._sandbox.is_on
        failure = failure_of(error, has_gpu=self._context.has_gpu, roots=roots, may_deny=not is_sandboxed)
        if failure.kind is FailureKind.UNAVAILABLE and (changed := lowered_limit(error, self._limits)):
            changes = {
                "kind": FailureKind.USER_ERROR,
                "volume": "",
                "message": f"{changed}: {failure.message}",
            }
            return failure.model_copy(update=changes)
        failure = self._sandbox.explain(failure)
        if restored := lost_access.restore(error, self._context.volumes.roots):
            return failure.model_copy(update={"kind": FailureKind.UNAVAILABLE, "message": restored})
        return failure

    def _answer(self, message: Run) -> Answer:
        self._context.begin(message.received_at, message.ranks)
        try:
            # Learn first: the agent assumes that the code is known, even if the rest fails.
            self._context.user_code.learn(message.codes)
            _redirect(message.log)
            self._sandbox.enter(message.body)
            body = message.body
            if isinstance(body, FusedTask):
                return self._group(body)
            is_counted = memory.reset_peak() and not (isinstance(body, EtlTask) and self._context.cores > 1)
            result = self._handler.handle(body, message.attempt)
            if is_counted:
                result = result.model_copy(update={"peak_bytes": memory.peak_bytes()})
            return Done(result=result)
        except errors.PreemptedError as error:
            _print(f"left in its middle: {line_of(error)}")
            if not self._context.preemption.has_raised:
                _print(text_of(error))
            return Preempted()
        except BaseException as error:  # noqa: BLE001 - outermost frame: any exception of user code becomes a failure
            at, failure = time.monotonic(), self._failure_of(error)
            _print(failure.text)
            return Failed(failure=failure, failed_at=at)
        finally:
            _flush()

    def _group(self, task: FusedTask) -> GroupEnded:
        """Run a fused group. Each member's answer is sent when it ends."""
        is_counted = memory.reset_peak()

        def end(number: int, answer: TaskResult | BaseException) -> None:
            sent: Done | Failed | Preempted
            if isinstance(answer, TaskResult):
                peak_bytes = memory.peak_bytes() if is_counted else 0
                sent = Done(result=answer.model_copy(update={"peak_bytes": peak_bytes}))
            elif isinstance(answer, errors.PreemptedError):
                sent = Preempted()
            else:
                failure = self._failure_of(answer)
                _print(f"{task.members[number].body.model}: {failure.text}")
                sent = Failed(failure=failure, failed_at=time.monotonic())
            self._channel.send(MemberEnded(member=number, answer=sent))

        self._context.members.begin(len(task.members), end)
        self._handler.handle_group(task)
        return GroupEnded()


def _task_processes(
    channel: Channel[ToChild],
    context: Context,
    make_handler: Callable[[Context], BaseHandler],
    sandbox: Sandbox,
) -> TaskProcesses:
    def run_one(parent: Channel[ToTaskProcess], code: str) -> None:
        context.start_up.forked_at = time.monotonic()
        handler = make_handler(context)
        while isinstance(message := parent.receive(), Preload):
            handler.preload(message.body)
        if message is None:
            return
        stacks.enable()
        context.user_code.learn(message.codes)
        channel.add_unread(message.unread.encode())
        Child(channel, context, handler, sandbox, code).serve_one(parent)

    def prepare(message: Run, depth: Depth) -> str:
        context.user_code.learn(message.codes)
        _redirect(message.log)
        sandbox.enter(message.body)
        if depth is Depth.NOTHING:
            return ""
        hazards = ForkHazards.now()
        with stacks.enabled():
            context.user_code.prepare(message.body, initialises=depth is Depth.INITIALISED)
        return hazards.added()

    return TaskProcesses(channel, context, prepare, run_one)


def _redirect(path: Path) -> None:
    """Send all output of user code, including native libraries, to the attempt's log.

    Raises:
        VolumeError, StorageFullError: the log cannot be written.
    """
    _flush()
    try:
        with volume_errors_named(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as cause:
        raise errors.VolumeError.at(
            f"the log of the attempt, {path}, cannot be written: {cause}", path
        ) from cause
    os.dup2(target, 1)
    os.dup2(target, 2)
    if target > 2:  # user code may have closed 1 or 2, which freed their numbers
        os.close(target)
    # Replace the streams: an earlier task's user code may have closed or replaced them. They accept any text.
    sys.stdout, sys.stderr = _text_to(1), _text_to(2)


def _text_to(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _print(text: str) -> None:
    """Print to the attempt's log unless user code has closed it."""
    with suppress(Exception):
        print(text, flush=True)  # noqa: T201


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def main() -> None:
    """Parse arguments and serve."""
    memory.offer_to_killer()
    gc.disable()  # until `fork_server.serve`: imports keep their objects, and collecting takes a fifth of import time
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--handler", required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--savepoint-s", type=float)
    parser.add_argument("--memory-bytes", type=int)
    parser.add_argument("--has-gpu", action="store_true")
    parser.add_argument("--sandbox", action="store_true")
    parser.add_argument("--writable", action="append", default=[], type=Path)
    arguments = parser.parse_args()
    os.environ[CORES] = str(arguments.cores)
    end = socket.socket(fileno=arguments.channel)
    # Uploaded files are importable; a notebook's own modules come after the standard library's.
    archive = os.environ.get("CEREBRO_ARCHIVE")
    if archive:
        sys.path.append(archive)
    module = importlib.import_module(arguments.handler)
    module.Handler.before_fork()

    supervisor = Supervisor() if arguments.sandbox else None

    def work(unread: bytes) -> bytes:
        channel = Channel(end, TO_CHILD, unread)
        volumes = Volumes.from_environment(os.environ)
        memory_bytes = arguments.memory_bytes
        context = Context(
            channel,
            volumes,
            arguments.cores,
            arguments.savepoint_s,
            memory_bytes,
            has_gpu=arguments.has_gpu,
            frozen_cache_bytes=frozen_cache_bytes(os.environ),
        )
        door = supervisor.door if supervisor is not None else None
        sandbox = Sandbox(volumes, is_on=arguments.sandbox, further=arguments.writable, door=door)
        if module.Handler.keeps_process:
            stacks.enable()
            return Child(channel, context, module.Handler(context), sandbox).serve()

        return _task_processes(channel, context, module.Handler, sandbox).serve()

    if supervisor is None:
        fork_server.serve(work)
    fork_server.serve(work, supervisor.attend)


if __name__ == "__main__":
    main()
