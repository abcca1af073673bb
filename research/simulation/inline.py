"""The controller's helpers without processes: they answer in no virtual time, so that what they do can be studied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.planning.answering import PLAN_S, SOLVE_S, answer
from controller.sources.suggestions.child import reply


class InlineHelper:
    """A planner that answers at once, in this process (`controller.planning.planner_process.Helper`).

    Questions and answers go through JSON, as they do between processes.
    """

    def __init__(self, *, plan_s: float = PLAN_S, solve_s: float = SOLVE_S) -> None:
        self._limits = {"plan_s": plan_s, "solve_s": solve_s}
        self.asked: list[str] = []
        """What was asked, in order."""
        self._answer: dict[str, Any] | None = None

    def ask(self, message: Mapping[str, Any]) -> None:
        """Answer at once."""
        self.asked.append(message["ask"])
        self._answer = json.loads(json.dumps(answer(json.loads(json.dumps(message)), **self._limits)))

    def answer(self) -> dict[str, Any] | None:
        """The answer, once."""
        found, self._answer = self._answer, None
        return found

    def rest(self) -> None:
        """Forget the question."""
        self._answer = None


class InlineSampler:
    """Draws the values that searches ask for at once, in this process
    (`controller.planning.planner_process.Helper`)."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] | None = None

    def ask(self, message: Mapping[str, Any]) -> None:
        """Draw at once."""
        self._answer = json.loads(json.dumps(reply(json.dumps(message))))

    def answer(self) -> dict[str, Any] | None:
        """The values, once."""
        found, self._answer = self._answer, None
        return found

    def rest(self) -> None:
        """Forget the question."""
        self._answer = None
