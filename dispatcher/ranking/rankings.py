"""Rankings, each computed once by a child process and kept in memory. A committed test never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pydantic import ValidationError

from cerebro.figures.ranking.results import RankingRequest
from cerebro.runtime.volumes import Volumes
from dispatcher.ranking.process import Job, Outcome
from dispatcher.sandbox.bounded_processes import BoundedProcesses
from dispatcher.sandbox.slots import BusyError

COMPUTE_S = 120.0
_MAX_KEPT = 20
"""Maximum number of rankings in memory: at most 4 MB with 1,000 models each."""


class Rankings:
    """Computes and keeps rankings. Safe for several threads; a thread lives as long as a computation."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._processes = BoundedProcesses("dispatcher.ranking.process", at_once=1)
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self._threads: dict[str, threading.Thread] = {}
        self._version = 0

    def version(self) -> int:
        """Return a number that increases with each computed ranking."""
        return self._version

    def find(self, request: RankingRequest, *, wait_s: float = 0.0) -> Outcome | None:
        """Return a ranking; `None` while it is being computed.

        Args:
            wait_s: maximum time to wait for it.
        """
        key = request.model_dump_json()
        with self._lock:
            if key in self._outcomes:
                self._outcomes.move_to_end(key)
                return self._outcomes[key]
            thread = self._threads.get(key)
            if thread is None:
                thread = threading.Thread(target=self._compute, args=(key, request), daemon=True)
                self._threads[key] = thread
                thread.start()
        if wait_s:
            thread.join(wait_s)
        with self._lock:
            return self._outcomes.get(key)

    def _compute(self, key: str, request: RankingRequest) -> None:
        job = Job(request=request, shared=str(self._volumes.shared), cpu_s=int(COMPUTE_S))
        outcome: Outcome | None = None
        try:
            result = self._processes.run(job.model_dump_json().encode(), timeout_s=COMPUTE_S)
            outcome = Outcome.model_validate_json(result.output)
        except BusyError:
            pass  # the next request for it computes again
        except ValidationError:
            took = "it took too long" if result.is_late else result.ending
            outcome = Outcome(reason=f"the ranking could not be computed: {took}")
        with self._lock:
            del self._threads[key]
            if outcome is not None:
                self._outcomes[key] = outcome
                self._version += 1
            while len(self._outcomes) > _MAX_KEPT:
                self._outcomes.popitem(last=False)
