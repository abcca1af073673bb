"""`Runner` starts executables (eksctl, kubectl, helm, aws) one at a time, and logs their use.

All changes to a cluster go through it (`Site.change`, `steps`).

No shell is used. The output of changing commands is shown as it comes and kept in the log. The output of reading
commands is not shown. A dry run shows changing commands and does not run them.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cerebro.errors import ProvisionError

_LAST_LINES = 15
_END_TIMEOUT_S = 30.0
"""Seconds for an executable to end after Ctrl-C before it is killed."""
_READ_TIMEOUT_S = 120.0
NOT_RUN = 127
"""Exit status of a command that is not on PATH or did not answer in time."""


class CommandError(ProvisionError):
    """An executable ended with a status other than 0."""

    def __init__(self, arguments: Sequence[str], status: int, last_lines: Sequence[str]) -> None:
        """Store the command, its status and its last lines."""
        self.status = status
        self.last_lines = tuple(last_lines)
        errors = "".join(f"\n    {line}" for line in last_lines) or "\n    (it printed nothing)"
        super().__init__(f"{shlex.join(arguments)}\n  ended with status {status}; its last lines:{errors}")


class Runner:
    """Starts executables one at a time."""

    def __init__(
        self, *, environment: Mapping[str, str], log: Path, show: Callable[[str], None], is_dry: bool
    ) -> None:
        """Create a runner.

        Args:
            environment: environment of the executables; PATH locates them.
            log: file for the commands and their output; not written in a dry run.
            show: receives each line for the user.
            is_dry: True to show changing commands without running them.
        """
        self._environment = dict(environment)
        self._log = log
        self._show = show
        self.is_dry = is_dry
        self.heading = ""
        """Line to show once, before the next change."""
        self.num_changes = 0
        """Number of changes; in a dry run, of changes shown."""

    def find(self, name: str) -> Path | None:
        """Return the path of an executable on PATH, or `None`."""
        found = shutil.which(name, path=self._environment.get("PATH", ""))
        return None if found is None else Path(found)

    def change(self, *arguments: str) -> None:
        """Run a changing command and show its output; in a dry run show the command only.

        Raises:
            CommandError: it ended with a status other than 0.
            KeyboardInterrupt: the user interrupted it, and it has ended.
        """
        self.num_changes += 1
        if self.heading:
            self._show(self.heading)
            self.heading = ""
        self._show(f"$ {shlex.join(arguments)}")
        self._note(f"$ {shlex.join(arguments)}")
        if self.is_dry:
            return
        found = self.find(arguments[0])
        if found is None:
            raise ProvisionError(f"{arguments[0]} is not on PATH; `create --dry-run` says what to install")
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        process = subprocess.Popen(
            [str(found), *arguments[1:]], env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    last_lines.append(line.rstrip("\n"))
                    self._show(f"  {last_lines[-1]}")
                    self._note(f"  {last_lines[-1]}")
        except KeyboardInterrupt:
            self._end(process)
            raise
        self._note(f"  status {process.returncode}")
        if process.returncode != 0:
            raise CommandError(arguments, process.returncode, tuple(last_lines))

    def read(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a reading command, also in a dry run; the caller checks the status."""
        found, ended = (
            self.find(arguments[0]),
            subprocess.CompletedProcess(arguments, NOT_RUN, "", "no answer"),
        )
        if found is not None:
            with suppress(subprocess.TimeoutExpired):
                ended = subprocess.run(
                    [str(found), *arguments[1:]], env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=_READ_TIMEOUT_S, encoding="utf-8", errors="replace", check=False,
                )  # fmt: skip
        errors = ended.stderr.strip()[-500:]
        self._note(f"? {shlex.join(arguments)} -> status {ended.returncode} {errors}".rstrip())
        return ended

    def _note(self, line: str) -> None:
        if not self.is_dry:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        # A terminal sends SIGINT to it as well; otherwise it gets the signal here.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
