"""The interface of data derived from logs, and the object that the loop passes events to.

`RunHistory` and `TensorBoardFiles` implement it. They follow the logs; no decision about tasks waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cerebro.contract.events import Event
from cerebro.state import ExperimentState


class Projection(Protocol):
    """Data derived from the logs of experiments, such as TensorBoard's files.

    A projection has no snapshot. After a restart it continues from the snapshot of the log's fold, so that snapshot may
    only contain events whose data are stored (`is_settled`).
    """

    def begin(self, state: ExperimentState) -> None:
        """Continue a log from this fold; the data of its events are stored."""
        ...

    def apply(self, state: ExperimentState, event: Event) -> None:
        """Process `event`, which `state` has just applied; must return at once."""
        ...

    def is_settled(self, experiment: str, seq: int) -> bool:
        """True if the data of a log's first `seq` events are stored. Thread-safe."""
        ...

    def forget(self, experiment: str) -> None:
        """Stop writing for a deleted experiment until a new one has its name."""
        ...


class Projections:
    """All projections of the controller, as one."""

    def __init__(self, projections: Sequence[Projection]) -> None:
        self._projections = projections

    def begin(self, state: ExperimentState) -> None:
        """See `Projection`."""
        for projection in self._projections:
            projection.begin(state)

    def apply(self, state: ExperimentState, event: Event) -> None:
        """See `Projection`."""
        for projection in self._projections:
            projection.apply(state, event)

    def is_settled(self, experiment: str, seq: int) -> bool:
        """See `Projection`."""
        return all(projection.is_settled(experiment, seq) for projection in self._projections)

    def forget(self, experiment: str) -> None:
        """See `Projection`."""
        for projection in self._projections:
            projection.forget(experiment)
