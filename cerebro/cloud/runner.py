"""The one place that starts executables: eksctl, kubectl, helm, aws.

No shell. Output of commands that change something is shown as it comes and kept in the journal; answers of commands
that only look go to the journal alone. In a dry run the former are shown instead of run.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro.cloud.journal import Journal
from cerebro.errors import ProvisionError

_LAST_LINES = 15
_PATIENCE_S = 30.0
"""How long an executable may take to end after Ctrl-C before it is killed."""
_LONGEST_LOOK_S = 120.0
NOT_RUN = 127


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
        last: deque[str] = deque(maxlen=_LAST_LINES)
        process = self._start(arguments, subprocess.STDOUT)
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
        if self.find(arguments[0]) is None:
            return Answer(status=NOT_RUN, output="", errors=f"{arguments[0]} is not on PATH")
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            process = self._start(arguments, errors.fileno())
            try:
                output, _ = process.communicate(timeout=_LONGEST_LOOK_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return Answer(status=NOT_RUN, output="", errors=f"no answer within {_LONGEST_LOOK_S:.0f} s")
            except KeyboardInterrupt:
                self._end(process)
                raise
            errors.seek(0)
            said = errors.read()
        self._journal.note(
            f"? {shlex.join(arguments)} -> status {process.returncode} {said.strip()[-500:]}".rstrip()
        )
        return Answer(status=process.returncode, output=output, errors=said)

    def _start(self, arguments: Sequence[str], errors: int) -> subprocess.Popen[str]:
        found = self.find(arguments[0])
        if found is None:
            raise ProvisionError(
                f"{arguments[0]} is not on PATH; `cerebro cluster create --dry-run` says what to install"
            )
        return subprocess.Popen(
            [str(found), *arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=self._environment,
            encoding="utf-8",
            errors="replace",
        )

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
