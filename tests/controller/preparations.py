"""Run preparations in the test's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebro.contract.runs import EtlPlan


def prepared_by(
    prepare: Callable[..., EtlPlan], on_end: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """Return a replacement for `controller.preparation.process.Preparation` that calls `prepare`.

    `on_end` is called when the preparation ends.
    """

    class Prepared:
        def __init__(self, *given: Any) -> None:
            self._given = given

        def plan(self) -> EtlPlan:
            return prepare(*self._given)

        def end(self) -> None:
            on_end()

    return Prepared
