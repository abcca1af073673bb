"""Supervisor of a local cluster: start services in order, restart ended ones, and end them all.

`cerebro.local.__main__` runs it in the main thread. The list of services is data (`services`), one service is a
`ServiceProcess`. It writes the cluster's record, which other processes read, and obeys signals: SIGTERM, SIGINT and
SIGHUP stop the cluster, SIGUSR1 changes the number of workers. One thread sleeps until a signal (a child ended, or
stop) or the next due action. It must be one thread: the kernel sends the signal of `parent_death` when the thread that
started a child ends.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from types import FrameType

from cerebro.local.home import ClusterHome, ClusterInfo
from cerebro.local.supervision import processes
from cerebro.local.supervision.service_process import ProcessState, ServiceProcess
from cerebro.local.supervision.services import Service

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds for a service to end by itself."""
FRUITLESS_STARTS = 3
"""Failed starts in a row of one required service that make the start of a cluster fail."""
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_RECORD_AGAIN_S = 1.0


class ClusterState(StrEnum):
    """State of a local cluster."""

    STARTING = "starting"  # not all required services have been ready yet
    READY = "ready"  # all required services are ready
    RECOVERING = "recovering"  # it was ready; a required service is being restarted
    STOPPING = "stopping"  # services are being ended
    STOPPED = "stopped"  # ended by request
    FAILED = "failed"  # it ended because a service could not be started


ENDING = frozenset({ClusterState.STOPPING, ClusterState.STOPPED, ClusterState.FAILED})
"""Final states of a cluster, and stopping."""


class Supervisor:
    """Run services until stopped.

    Args:
        home: folder for logs and the record. The caller holds its lock.
        services: services to run.
        info: facts about the cluster; the supervisor fills in state, services and problem.
        on_record: called with each record after it is written.
        grace_s: seconds for a service to end by itself.
        for_workers: returns the services for a number of workers, with requested additions. At SIGUSR1 the
            supervisor reads ``run/size``, starts missing services and ends excess ones.
    """

    def __init__(
        self,
        home: ClusterHome,
        services: Sequence[Service],
        info: ClusterInfo,
        *,
        on_record: Callable[[ClusterInfo], None] = lambda info: None,
        grace_s: float = GRACE_S,
        for_workers: Callable[[int], Sequence[Service]] | None = None,
    ) -> None:
        self._home = home
        self._info = info
        self._on_record = on_record
        self._grace_s = grace_s
        self._for_workers = for_workers
        self._children = [
            self._child(service) for service in sorted(services, key=lambda service: service.stage)
        ]
        self._leaving: dict[ServiceProcess, float] = {}
        """Excess services -> monotonic time at which to kill them."""
        self._is_resized = False
        """True if another number of workers or another service was requested."""
        self._state = ClusterState.STARTING
        self._problem = ""
        self._orders = 0
        """Number of stop signals received; the second one ends the grace period."""
        self._recorded: ClusterInfo | None = None
        self._record_due: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wakeup = -1

    def run(self) -> ClusterState:
        """Run until SIGTERM, SIGINT or SIGHUP, or until the start has failed. Return the final state.

        Call it in the main thread of a process without other children.
        """
        with self._signals():
            while not self._orders and not self._problem:
                if self._is_resized:
                    self._resize(time.monotonic())
                self._advance(time.monotonic())
                self._dismiss(time.monotonic())
                self._record()
                self._wait()
            self._stop()
        return self._state

    # --- running ---------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        for child in self._children:
            previous_state, ran = child.state, child.info().process
            has_ended = child.reap(now)
            if has_ended:
                # Log before the restart: the next process has another pid.
                logger.warning(
                    "service %s pid=%s %s", child.service.name, ran.pid if ran else "-", child.problem
                )
                self._end_orphans()
            if child.state is ProcessState.WAITING and self._is_turn_of(child):
                child.start(now)
            child.act(time.monotonic())
            if child.state is not previous_state:
                self._log_state(child, has_ended=has_ended)
        if self._state is ClusterState.STARTING:
            self._problem = self._failure_to_start()
        if all(child.state is ProcessState.READY for child in self._children if child.service.required):
            self._state = ClusterState.READY
        elif self._state is ClusterState.READY:
            self._state = ClusterState.RECOVERING

    def _child(self, service: Service) -> ServiceProcess:
        return ServiceProcess(service, log=self._home.log(service.name), folder=self._home.path)

    def _resize(self, now: float) -> None:
        self._is_resized = False
        try:
            workers = int(self._home.size.read_text())
        except FileNotFoundError:
            workers = self._info.workers
        except (OSError, ValueError) as cause:
            logger.warning("no number of workers in %s: %s", self._home.size, cause)
            return
        if self._for_workers is None or workers < 1:
            return
        wanted = {service.name: service for service in self._for_workers(workers)}
        logger.info("%s workers instead of %s", workers, self._info.workers)
        self._info = replace(self._info, workers=workers)
        for child in [child for child in self._children if child.service.name not in wanted]:
            self._children.remove(child)
            self._leaving[child] = now + self._grace_s
            child.stop()
        for child in self._children:
            service = wanted[child.service.name]
            if service.renewed and service.environment != child.service.environment:
                child.renew(service)
        present = {child.service.name for child in self._children}
        self._children += [self._child(service) for name, service in wanted.items() if name not in present]

    def _dismiss(self, now: float) -> None:
        """Reap excess services, and kill them after their grace period."""
        for child, deadline in list(self._leaving.items()):
            child.reap(now)
            if not child.runs:
                del self._leaving[child]
            elif now >= deadline:
                child.kill()

    def _end_orphans(self) -> None:
        """End children of a killed service in other process groups, which its group signal does not reach."""
        orphans = processes.orphans(self._home.path, os.getpid())
        for process in orphans:
            logger.warning("ending process %s, which a service left behind", process.pid)
        processes.end(orphans, grace_s=0.0)

    def _is_turn_of(self, child: ServiceProcess) -> bool:
        earlier = (other for other in self._children if other.service.stage < child.service.stage)
        return all(other.state is ProcessState.READY for other in earlier if other.service.required)

    def _failure_to_start(self) -> str:
        for child in self._children:
            if child.service.required and child.barren >= FRUITLESS_STARTS:
                return f"{child.service.name} {child.problem}"
        return ""

    def _log_state(self, child: ServiceProcess, *, has_ended: bool) -> None:
        info = child.info()
        pid = info.process.pid if info.process else "-"
        # A running process no longer has the problem of its predecessor.
        problem = "" if info.process or has_ended else info.problem
        level = logging.WARNING if problem else logging.INFO
        logger.log(
            level, "service %s %s pid=%s%s", info.name, info.state, pid, f" {problem}" if problem else ""
        )

    # --- stopping --------------------------------------------------------------------------------

    def _stop(self) -> None:
        ended = ClusterState.FAILED if self._problem else ClusterState.STOPPED
        logger.info("stopping %s", self._problem)
        self._state = ClusterState.STOPPING
        self._children += self._leaving
        self._record()
        for stage in sorted({child.service.stage for child in self._children}, reverse=True):
            self._stop_stage([child for child in self._children if child.service.stage == stage])
        remaining = processes.end(processes.marked(self._home.path), grace_s=0.0)
        if remaining:
            logger.error("processes that could not be ended: %s", [process.pid for process in remaining])
        self._info.socket.unlink(missing_ok=True)  # a database that was killed leaves it
        self._state = ended
        self._record()
        logger.info("%s", ended)

    def _stop_stage(self, children: Sequence[ServiceProcess]) -> None:
        for child in children:
            child.stop()
        deadline = time.monotonic() + self._grace_s
        killed = False
        while any(child.runs for child in children):
            now = time.monotonic()
            for child in children:
                child.reap(now)
            if not killed and (now >= deadline or self._orders > 1):
                killed = True
                for child in children:
                    child.kill()
            if any(child.runs for child in children):
                self._sleep(None if killed else deadline - now)
        self._record()

    # --- waiting ---------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Receive signals as bytes in a pipe that `_sleep` waits on, so that none is missed between two sleeps."""
        self._wakeup, write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write, False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        previous_fd = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        handlers = {
            signum: signal.signal(signum, _ignore) for signum in (signal.SIGCHLD, signal.SIGUSR1, *_STOPPING)
        }
        try:
            yield
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(previous_fd)
            self._selector.close()
            os.close(self._wakeup)
            os.close(write)

    def _wait(self) -> None:
        due = [child.due for child in self._children if child.due is not None]
        if self._record_due is not None:
            due.append(self._record_due)
        due += self._leaving.values()
        self._sleep(min(due) - time.monotonic() if due else None)

    def _sleep(self, seconds: float | None) -> None:
        self._selector.select(None if seconds is None else max(0.0, seconds))
        try:
            received = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return
        self._orders += sum(signum in _STOPPING for signum in received)
        self._is_resized |= signal.SIGUSR1 in received

    # --- recording -------------------------------------------------------------------------------

    def _record(self) -> None:
        """Write a changed record. A full disk must not end a running cluster, so retry later."""
        now = replace(
            self._info,
            state=str(self._state),
            services=tuple(child.info() for child in (*self._children, *self._leaving)),
            problem=self._problem,
        )
        if now == self._recorded:
            self._record_due = None
            return
        try:
            self._home.write(now)
        except OSError as cause:
            logger.warning("cannot write %s: %s", self._home.record, cause)
            self._record_due = time.monotonic() + _RECORD_AGAIN_S
            return
        self._recorded, self._record_due = now, None
        self._on_record(now)


def _ignore(signum: int, frame: FrameType | None) -> None:
    """A handler must exist for the wakeup descriptor to be written; the work is done in the loop."""
