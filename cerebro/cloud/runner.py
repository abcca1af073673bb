"""The one place that starts executables: eksctl, kubectl, helm, aws; and the log of what was done.

No shell. What commands that change something print is shown as it comes and kept in the log; answers of commands
that only look are not shown. In a dry run, commands that change something are shown instead of run.
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
"""How long an executable may take to end after Ctrl-C before it is killed."""
_LOOK_TIMEOUT_S = 120.0
NOT_RUN = 127


class CommandError(ProvisionError):
    """An executable ended with a status other than 0."""

    def __init__(self, arguments: Sequence[str], status: int, last_lines: Sequence[str]) -> None:
        """Keep what the user has to see: command, status, last lines."""
        self.status = status
        self.last_lines = tuple(last_lines)
        said = "".join(f"\n    {line}" for line in last_lines) or "\n    (it printed nothing)"
        super().__init__(f"{shlex.join(arguments)}\n  ended with status {status}; its last lines:{said}")


class Runner:
    """Starts executables one at a time."""

    def __init__(
        self, *, environment: Mapping[str, str], log: Path, show: Callable[[str], None], is_dry: bool
    ) -> None:
        """`environment` is all that executables get; its PATH is where they are looked for. A dry run keeps no log."""
        self._environment = dict(environment)
        self._log = log
        self._show = show
        self.is_dry = is_dry
        self.heading = ""
        """Shown before the next change, once."""
        self.num_changes = 0
        """How many changes were made; in a dry run, how many would be."""

    def find(self, name: str) -> Path | None:
        """Where an executable is, if it is on PATH."""
        found = shutil.which(name, path=self._environment.get("PATH", ""))
        return None if found is None else Path(found)

    def change(self, *arguments: str) -> None:
        """Run a command that changes something, its output shown as it comes; in a dry run only show it.

        Raises:
            CommandError: it ended with a status other than 0.
            KeyboardInterrupt: the executable has been told, and has ended.
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
        last: deque[str] = deque(maxlen=_LAST_LINES)
        process = subprocess.Popen(
            [str(found), *arguments[1:]], env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    last.append(line.rstrip("\n"))
                    self._show(f"  {last[-1]}")
                    self._note(f"  {last[-1]}")
        except KeyboardInterrupt:
            self._end(process)
            raise
        self._note(f"  status {process.returncode}")
        if process.returncode != 0:
            raise CommandError(arguments, process.returncode, tuple(last))

    def look(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that only looks, in a dry run as well; its status is the caller's to judge."""
        found, ended = (
            self.find(arguments[0]),
            subprocess.CompletedProcess(arguments, NOT_RUN, "", "no answer"),
        )
        if found is not None:
            with suppress(subprocess.TimeoutExpired):
                ended = subprocess.run(
                    [str(found), *arguments[1:]], env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=_LOOK_TIMEOUT_S, encoding="utf-8", errors="replace", check=False,
                )  # fmt: skip
        said = ended.stderr.strip()[-500:]
        self._note(f"? {shlex.join(arguments)} -> status {ended.returncode} {said}".rstrip())
        return ended

    def _note(self, line: str) -> None:
        if not self.is_dry:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        # A terminal has sent SIGINT to it already; when only we were told, it learns of it here.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
