"""The controller's helpers without processes; they answer in zero virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.planning.answering import PLAN_S, SOLVE_S, answer
from controller.sources.suggestions.child import reply


class InlinePlanner:
    """A planner in this process that answers at once (`BackgroundProcess`).

    Requests and answers pass through JSON, as between processes.
    """

    def __init__(self, *, plan_s: float = PLAN_S, solve_s: float = SOLVE_S) -> None:
        self._limits = {"plan_s": plan_s, "solve_s": solve_s}
        self.requests: list[str] = []
        """Requests in order."""
        self._answer: dict[str, Any] | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Compute the answer."""
        self.requests.append(message["request"])
        self._answer = json.loads(json.dumps(answer(json.loads(json.dumps(message)), **self._limits)))

    def answer(self) -> dict[str, Any] | None:
        """Return the answer once."""
        found, self._answer = self._answer, None
        return found

    def stop(self) -> None:
        """Forget the request."""
        self._answer = None


class InlineSampler:
    """A sampler in this process that answers searches at once (`BackgroundProcess`)."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Draw the values."""
        self._answer = json.loads(json.dumps(reply(json.dumps(message))))

    def answer(self) -> dict[str, Any] | None:
        """Return the values once."""
        found, self._answer = self._answer, None
        return found

    def stop(self) -> None:
        """Forget the request."""
        self._answer = None
