"""Runs the sender's process while this controller leads and targets exist."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable

from cerebro.errors import CerebroError
from cerebro.runtime.isolation.parent_death import BACKGROUND, with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient

log = logging.getLogger(__name__)

_POLL_S = 3.0
"""Seconds between two checks of the targets and the process."""


class NotificationProcess:
    """Supervises the process in a daemon thread. The controller's death ends both.

    Args:
        term: returns the term that this controller certainly leads, else 0.
    """

    def __init__(self, kvs: KvsClient, term: Callable[[], int]) -> None:
        self._kvs, self._term = kvs, term
        self._process: subprocess.Popen[bytes] | None = None
        self._started_term = 0
        self.stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="notifications", daemon=True).start()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                self.reconcile()
            except CerebroError as error:
                log.warning("the notification targets cannot be read: %s", error)
            except Exception:
                log.exception("notifications are not sent")
            self.stop.wait(_POLL_S)
        self._end()

    def reconcile(self) -> None:
        """Start or end the process.

        Raises:
            CerebroError: the store is unavailable.
        """
        term = self._term()
        if not term and self._process is not None and self._process.poll() is None:
            return  # unknown leadership: the store refuses the process's writes if another controller leads
        is_wanted = bool(term) and bool(self._kvs.outbox().targets)
        if self._process is not None and (self._process.poll() is not None or term != self._started_term):
            self._end()
        if is_wanted and self._process is None:
            command = [sys.executable, "-P", "-m", "controller.notifications", str(term)]
            self._process = subprocess.Popen(
                with_parent_death_signal(command, BACKGROUND), start_new_session=True
            )
            self._started_term = term
        elif not is_wanted:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
