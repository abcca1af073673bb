"""The one place that starts executables: eksctl, kubectl, helm, aws; and the log of what was done.

No shell. Output of commands that change something is shown as it comes and kept in the journal; answers of commands
that only look go to the journal alone. In a dry run the former are shown instead of run.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cerebro.errors import ProvisionError

_LAST_LINES = 15
_PATIENCE_S = 30.0
"""How long an executable may take to end after Ctrl-C before it is killed."""
_LONGEST_LOOK_S = 120.0
NOT_RUN = 127


class Journal:
    """The log of a cluster's commands: what was run, what it printed, how it ended. The code never reads it."""

    def __init__(self, path: Path | None, now: Callable[[], datetime]) -> None:
        """No path: nothing is kept, as in a dry run."""
        self._path = path
        self._now = now

    def note(self, line: str) -> None:
        """Append a line with the time."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{self._now().isoformat(timespec='seconds')} {line}\n")


class CommandError(ProvisionError):
    """An executable ended with a status other than 0."""

    def __init__(self, arguments: Sequence[str], status: int, last_lines: Sequence[str]) -> None:
        """Keep what the user has to see: command, status, last lines."""
        self.command = shlex.join(arguments)
        self.status = status
        self.last_lines = tuple(last_lines)
        said = "".join(f"\n    {line}" for line in last_lines) or "\n    (it printed nothing)"
        super().__init__(f"{self.command}\n  ended with status {status}; its last lines:{said}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Of a command that only looks."""

    status: int
    output: str
    errors: str


class Runner:
    """Starts executables one at a time."""

    def __init__(
        self, *, environment: Mapping[str, str], journal: Journal, show: Callable[[str], None], is_dry: bool
    ) -> None:
        """`environment` is all that executables get; its PATH is where they are looked for."""
        self._environment = dict(environment)
        self._journal = journal
        self._show = show
        self.is_dry = is_dry

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
        self._show(f"$ {shlex.join(arguments)}")
        self._journal.note(f"$ {shlex.join(arguments)}")
        if self.is_dry:
            return
        found = self.find(arguments[0])
        if found is None:
            say = "`cerebro cluster create --dry-run` says what to install"
            raise ProvisionError(f"{arguments[0]} is not on PATH; {say}")
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
                    self._journal.note(f"  {last[-1]}")
        except KeyboardInterrupt:
            self._end(process)
            raise
        self._journal.note(f"  status {process.returncode}")
        if process.returncode != 0:
            raise CommandError(arguments, process.returncode, tuple(last))

    def look(self, *arguments: str) -> Answer:
        """Run a command that only looks, in a dry run as well; its status is the caller's to judge."""
        found = self.find(arguments[0])
        if found is None:
            return Answer(status=NOT_RUN, output="", errors=f"{arguments[0]} is not on PATH")
        try:
            ended = subprocess.run(
                [str(found), *arguments[1:]], env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=_LONGEST_LOOK_S, encoding="utf-8", errors="replace", check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(status=NOT_RUN, output="", errors=f"no answer within {_LONGEST_LOOK_S:.0f} s")
        said = ended.stderr.strip()[-500:]
        self._journal.note(f"? {shlex.join(arguments)} -> status {ended.returncode} {said}".rstrip())
        return Answer(status=ended.returncode, output=ended.stdout, errors=ended.stderr)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        # A terminal has sent SIGINT to it already; when only we were told, it learns of it here.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
