"""Preparations in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebro.contract.runs import EtlPlan


def prepared_by(
    prepare: Callable[..., EtlPlan], on_end: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """What stands in for `controller.preparation.process.Preparation`, with the function for its process.

    Args:
        on_end: called when it is ended.
    """

    class Prepared:
        def __init__(self, *given: Any) -> None:
            self._given = given

        def plan(self) -> EtlPlan:
            return prepare(*self._given)

        def end(self) -> None:
            on_end()

    return Prepared
