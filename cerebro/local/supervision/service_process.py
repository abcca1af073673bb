"""One service over all its restarts: its process, its state, its probes and the backoff before the next start.

`Supervisor` decides when services start and stop, and calls `act` and `reap`; this class starts, probes, kills and
restarts the process and its group. It knows no other service. Callers pass the time (monotonic seconds), so only
the supervisor waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from enum import StrEnum
from pathlib import Path

from cerebro.local.home import ServiceInfo
from cerebro.local.logs import open_log
from cerebro.local.supervision.liveness import EVERY_S, MAX_MISSED_PROBES, Watch
from cerebro.local.supervision.processes import ProcessId, identify
from cerebro.local.supervision.services import Service
from cerebro.runtime.isolation.parent_death import with_parent_death_signal

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 10.0
"""Seconds before a restart. The pause doubles with each process that ended before it was stable."""
STABLE_S = 5.0
"""Seconds of readiness before the end of a process no longer counts as a failed start."""
FIRST_PROBE_S = 0.02
LONGEST_PROBE_S = 0.25
START_S = 120.0
"""Seconds before a starting process gets liveness probes: it may wait for another service, or hang."""


class ProcessState(StrEnum):
    """State of a service."""

    WAITING = "waiting"  # not started yet: services of an earlier stage are not ready
    STARTING = "starting"  # its process runs and has not been seen ready
    READY = "ready"  # its process was seen ready and still runs
    RESTARTING = "restarting"  # it has no process; it gets one when its backoff has passed
    STOPPED = "stopped"  # ended by request


class ServiceProcess:
    """A service and its process. All methods are for the supervisor's main thread."""

    def __init__(self, service: Service, *, log: Path, folder: Path) -> None:
        self.service = service
        self.state = ProcessState.WAITING
        self.starts = 0
        self.barren = 0
        """Processes in a row that ended before they were ready."""
        self.problem = ""
        self.due: float | None = None
        """Monotonic time of the next action; `None` if only an exit or a stop changes anything."""
        self._log, self._folder = log, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._id: ProcessId | None = None
        self._since = 0.0
        self._started = self._ready = self._pause_s = 0.0
        self._watch: Watch | None = None
        """Liveness probe of the current process."""
        self._is_hung = False
        """True if the process was killed because it did not answer."""
        self._brief = 0
        """Processes in a row that ended before they were stable."""

    def start(self, now: float) -> None:
        """Start the process. A failure to do so counts as a process that ended at once."""
        self.starts += 1
        self._started, self._since = now, time.time()
        try:
            log = open_log(self._log)
            try:
                self._process = subprocess.Popen(
                    with_parent_death_signal(self.service.command, self.service.niceness),
                    env=dict(self.service.environment),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # its own process group, so Ctrl-C reaches only the supervisor
                )
            finally:
                os.close(log)
        except OSError as cause:  # no memory, no free pid, or a full disk
            self._ended(now, f"could not be started: {cause}")
            return
        self._id = identify(self._process.pid)
        self.state = ProcessState.STARTING
        self._pause_s = FIRST_PROBE_S
        self.due = now + self._pause_s

    def act(self, now: float) -> None:
        """Perform the due action: probe readiness or liveness, or start a process after its backoff."""
        if self.due is None or now < self.due:
            return
        if self.state is ProcessState.RESTARTING:
            self.start(now)
        elif self.state is ProcessState.READY:
            self._check_liveness(now)
        elif self._process is not None and self.service.ready():
            self.state, self.due, self.problem = ProcessState.READY, None, ""
            self.barren, self._ready = 0, now
            self._check_liveness(now)
        else:
            self._pause_s = min(self._pause_s * 1.5, LONGEST_PROBE_S)
            self.due = now + self._pause_s
            if now - self._started > START_S:
                self._check_liveness(now)

    def _check_liveness(self, now: float) -> None:
        """Kill the process if it hangs; otherwise set the time of the next check."""
        if self.service.live is None or self._process is None:
            return
        self._watch = self._watch or Watch(self.service.live)
        if self._watch.check(now):
            # No SIGTERM: a hung process does not handle it. Its children are tied to it and end too.
            self._is_hung, self.due = True, None
            self._kill_group(self._process.pid)
        else:
            self.due = now + EVERY_S

    def reap(self, now: float) -> bool:
        """Record the end of the process and kill its group. Return True if the process has ended."""
        if self._process is None:
            return False
        pid = self._process.pid
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        # Signal before reaping the zombie: until then neither its pid nor its group number is reused.
        self._kill_group(pid)
        how = _how_it_ended(self._process.wait())
        self._ended(
            now, f"did not answer for {EVERY_S * MAX_MISSED_PROBES:g} s and {how}" if self._is_hung else how
        )
        return True

    def _ended(self, now: float, how: str) -> None:
        was_ready, stopped = self.state is ProcessState.READY, self.state is ProcessState.STOPPED
        self._process = self._id = None
        self._is_hung = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if stopped:
            self.due = None
            return
        self.barren = 0 if was_ready else self.barren + 1
        self._brief = 0 if was_ready and now - self._ready >= STABLE_S else self._brief + 1
        pause_s = 0.0
        if self._brief > 1:
            pause_s = min(FIRST_BACKOFF_S * 2 ** (self._brief - 2), LONGEST_BACKOFF_S)
        fruitless = f"{how} before it was ready, {self.barren} in a row"
        self.problem = how if was_ready else fruitless + self.service.explain()
        self.state, self.due = ProcessState.RESTARTING, now + pause_s

    @property
    def runs(self) -> bool:
        """True if the process exists."""
        return self._process is not None

    def renew(self, service: Service) -> None:
        """Replace the service's description. The present process gets SIGTERM; the next one uses the new one."""
        self.service = service
        if self._process is not None:
            self.state, self.due = ProcessState.RESTARTING, None
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM to the process, and start no other. `reap` records its end."""
        self.state, self.due = ProcessState.STOPPED, None
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group. `reap` records its end."""
        self.state, self.due = ProcessState.STOPPED, None
        if self._process is not None:
            self._kill_group(self._process.pid)

    def _kill_group(self, pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no process remains, or only programs that changed their user

    def info(self) -> ServiceInfo:
        """Return the state of the service, for the cluster's record."""
        return ServiceInfo(
            name=self.service.name,
            state=str(self.state),
            process=self._id,
            since=self._since,
            restarts=max(0, self.starts - 1),
            required=self.service.required,
            problem=self.problem,
        )


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
