"""Rankings and rows, each computed once by a child process and kept in memory: files of a test never change."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict

from pydantic import ValidationError

from cerebro.runtime.volumes import Volumes
from dispatcher.ranking.outcomes import Job, Outcome, Request, Thumbnail
from dispatcher.sandbox.bounded_processes import BoundedProcesses
from dispatcher.sandbox.slots import BusyError

COMPUTE_S = 120.0
_MAX_KEPT = 20
"""Maximum number of outcomes in memory: 0.2 MB for a ranking of 1,000 models, 1 MB for rows with thumbnails."""
_RETRY_S = 60.0
"""Time until a computation is repeated after a temporary failure."""


class Rankings:
    """Computes and keeps rankings and rows. Safe for several threads; a thread lives as long as a computation.

    Args:
        is_local: True on the user's own machine, where objects of rows may be in any folder.
    """

    def __init__(self, volumes: Volumes, *, is_local: bool = False) -> None:
        self._volumes, self._is_local = volumes, is_local
        self._processes = BoundedProcesses("dispatcher.ranking.process", at_once=1)
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[str, tuple[Outcome, float]] = OrderedDict()
        """Key -> outcome, and the time after which a request computes it again."""
        self._threads: dict[str, threading.Thread] = {}
        self._retries: list[float] = []
        """Times from which failed computations are repeated."""
        self._version = 0

    def version(self) -> int:
        """Return a number that increases when a call of `find` may return or compute another outcome."""
        with self._lock:
            now = time.monotonic()
            expired = [until for until in self._retries if until <= now]
            for until in expired:
                self._retries.remove(until)
            self._version += len(expired)
            return self._version

    def find(self, request: Request, created: float, *, wait_s: float = 0.0) -> Outcome | None:
        """Return an outcome; `None` while it is being computed.

        Args:
            created: creation time of the experiment: another experiment of the same name has files of the same names.
            wait_s: maximum time to wait for it.
        """
        key = f"{created} {request.model_dump_json()}"
        with self._lock:
            if (found := self._find(key)) is not None:
                return found
            thread = self._threads.get(key)
            if thread is None:
                thread = threading.Thread(target=self._compute, args=(key, request), daemon=True)
                thread.start()
                self._threads[key] = thread
        if wait_s:
            thread.join(wait_s)
        with self._lock:
            return self._find(key) or self._earlier_rows(key)

    def thumbnail(self, name: str, created: float) -> Thumbnail | None:
        """Return a thumbnail of an experiment's rows; `None` if they are no longer in memory."""
        with self._lock:
            outcomes = [
                outcome for key, (outcome, _) in self._outcomes.items() if key.startswith(f"{created} ")
            ]
        return next((each.thumbnails[name] for each in outcomes if name in each.thumbnails), None)

    def _find(self, key: str) -> Outcome | None:
        outcome, until = self._outcomes.get(key, (None, 0.0))
        if outcome is None or time.monotonic() >= until:
            return None
        self._outcomes.move_to_end(key)
        return outcome

    def _earlier_rows(self, key: str) -> Outcome | None:
        """Return rows without all fields, which stay on the page while they are selected again."""
        outcome, _ = self._outcomes.get(key, (None, 0.0))
        return outcome if outcome is not None and outcome.rows is not None else None

    def _compute(self, key: str, request: Request) -> None:
        outcome: Outcome | None = None
        try:
            outcome = self._outcome(request)
        except BusyError:
            pass  # the next request for it computes again
        except OSError as error:  # no memory for a process
            outcome = _failed(str(error))
        finally:
            with self._lock:
                del self._threads[key]
                self._version += 1
                if outcome is not None:
                    until = time.monotonic() + _RETRY_S if outcome.is_temporary else math.inf
                    self._outcomes[key] = outcome, until
                    self._retries += [until] if outcome.is_temporary else []
                while len(self._outcomes) > _MAX_KEPT:
                    self._outcomes.popitem(last=False)

    def _outcome(self, request: Request) -> Outcome:
        job = Job(
            request=request,
            shared=str(self._volumes.shared),
            is_local=self._is_local,
            cpu_s=int(COMPUTE_S),
        )
        result = self._processes.run(job.model_dump_json().encode(), timeout_s=COMPUTE_S)
        try:
            return Outcome.model_validate_json(result.output)
        except ValidationError:
            return _failed("it took too long" if result.is_late else result.ending)


def _failed(cause: str) -> Outcome:
    return Outcome(reason=f"it could not be computed: {cause}", is_temporary=True)
