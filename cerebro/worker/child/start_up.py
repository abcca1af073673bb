"""Time that a task waits for its process, imports and initialisation.

`Context` starts it for each task, and handlers call `finish` when user code is ready. The result reports the seconds as
`Timings.start_s`, apart from training time.
"""

from __future__ import annotations

import time


class StartUp:
    """Start-up of the current task.

    Attributes:
        is_cold: True if the task waits for its process or for imports.
        forked_at: monotonic time of the fork of this task process; 0 in other processes.
        seconds: `Timings.start_s` of the current task, known after `finish`.
    """

    def __init__(self) -> None:
        self.is_cold = True
        self.forked_at = self.seconds = 0.0
        self._received_at = 0.0

    def begin(self, received_at: float) -> None:
        """Start a new task; see `Run`."""
        self._received_at, self.seconds = received_at, 0.0
        self.is_cold = self.is_cold or self.forked_at > received_at

    def finish(self) -> float:
        """Mark the end of start-up. Repeated calls have no effect.

        Returns:
            `Timings.start_s`: seconds since the agent received the task, or 0 if everything was ready.
        """
        if self.is_cold:
            self.is_cold, self.seconds = False, max(0.0, time.monotonic() - self._received_at)
        return self.seconds
