"""Why a run is paused, or ended by an error."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.contract.events import RunPaused
from cerebro.contract.tasks.failures import Failure


@dataclass(kw_only=True, slots=True)
class Pause:
    """Reason of a run's pause."""

    reason: str = ""
    needs_bytes: int = 0
    volume: str = ""
    """Path of the volume that caused the pause."""
    volume_pauses: int = 0
    """Pauses for a volume since the last commit."""
    volume_failure: Failure | None = None
    """Failure of a volume that pauses the run; kept until it resumes."""

    def begin(self, event: RunPaused) -> None:
        """Record why the run pauses."""
        self.reason, self.needs_bytes, self.volume = event.reason, event.needs_bytes, event.volume
        self.volume_pauses += bool(event.volume)

    def clear(self) -> None:
        """Forget the reason, when the run changes its state."""
        self.reason, self.needs_bytes, self.volume, self.volume_failure = "", 0, "", None


@dataclass(kw_only=True, slots=True)
class RunFailures:
    """Errors of a run as a whole."""

    error: str = ""
    """Error that ended the run."""
    fatal: Failure | None = None
    """A failure that would end every task."""
    doubted: str = ""
    """Task repeated because user code raised an error that a broken device raises too.

    One at a time: no other task is repeated for this, unless another worker commits this one."""
