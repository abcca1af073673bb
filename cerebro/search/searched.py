"""State of each model of a search (`SearchedModel`), folded from reports. Procedures, stop rules and `Search` read it.

Each procedure and `Search` keep their own `SearchedModels`; the run's full state is in `cerebro.state.runs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters
from cerebro.search.procedure import (
    SEARCH,
    Added,
    Changed,
    Extended,
    Failed,
    Measured,
    Reached,
    Report,
    Resumed,
    Stopped,
)

_AboutOne = Measured | Reached | Failed | Stopped | Resumed | Extended | Changed


@dataclass(kw_only=True)
class SearchedModel:
    """A model of a search.

    Attributes:
        number: position in the order of addition.
        is_apart: True if a user started it with another model's weights; its values cannot be compared.
        resource: epochs it may train for in all.
        requested: resource requested by the search since a user last changed it; the action may still be pending.
        reached: largest resource used up, or the inherited epochs.
        values: epoch -> value of the run's metric.
        metrics: epoch -> all metrics, and measures in objectives and constraints.
        changed: last completed epoch when a user changed its hyperparameters; 0 without such a change.
        is_kept: True if a user resumed or extended it, so the search may not stop it.
    """

    id: str
    number: int
    hyperparams: Hyperparameters
    is_apart: bool
    resource: int
    requested: int = 0
    reached: int = 0
    values: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, Mapping[str, float]] = field(default_factory=dict)
    changed: int = 0
    is_failed: bool = False
    is_stopped: bool = False
    is_kept: bool = False

    @property
    def trained(self) -> int:
        """Last epoch known to be complete."""
        return max(self.reached, *self.values) if self.values else self.reached

    @property
    def has_ended(self) -> bool:
        """True if it failed or was stopped; a user may still resume it."""
        return self.is_failed or self.is_stopped

    @property
    def is_active(self) -> bool:
        """True if it has epochs left to train."""
        return not self.has_ended and self.reached < self.resource


class SearchedModels:
    """All models of a search, by id."""

    def __init__(self) -> None:
        self._models: dict[str, SearchedModel] = {}
        self._active: set[str] = set()

    def __getitem__(self, name: str) -> SearchedModel:
        return self._models[name]

    def __contains__(self, name: object) -> bool:
        return name in self._models

    def __iter__(self) -> Iterator[SearchedModel]:
        """Iterate in the order of addition."""
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    @property
    def num_active(self) -> int:
        """Number of active models."""
        return len(self._active)

    def apply(self, report: Report) -> None:
        """Update the state with a report.

        Raises:
            KeyError: the report names a model that was never added (a mistake of the caller).
        """
        if isinstance(report, Added):
            model = SearchedModel(
                id=report.model,
                number=len(self._models),
                hyperparams=report.hyperparams,
                is_apart=report.is_warm and report.by != SEARCH,
                resource=report.epochs,
                reached=report.trained,
            )
            self._models[report.model] = model
        elif isinstance(report, _AboutOne):
            model = self._models[report.model]
            _note(model, report)
        else:
            return
        self._refresh(model)

    def extend(self, name: str, epochs: int) -> None:
        """Record the search's request for a larger resource."""
        model = self._models[name]
        model.requested = max(model.requested, epochs)
        model.resource = max(model.resource, epochs)
        self._refresh(model)

    def _refresh(self, model: SearchedModel) -> None:
        if model.is_active:
            self._active.add(model.id)
        else:
            self._active.discard(model.id)


def _note(model: SearchedModel, report: _AboutOne) -> None:
    match report:
        case Measured():
            model.values[report.epoch] = report.value
            model.metrics[report.epoch] = report.metrics
        case Reached():
            model.reached = max(model.reached, report.epochs)
            model.resource = max(report.epochs, model.requested)
        case Failed():
            model.is_failed = True
        case Stopped():
            model.is_stopped = True
        case Changed():
            model.hyperparams, model.changed = report.hyperparams, model.trained
        case Resumed() | Extended():
            model.is_failed = model.is_stopped = False
            model.is_kept = True
            if report.epochs is not None:
                model.resource, model.requested = report.epochs, 0
            if model.trained >= model.resource:
                model.reached = max(model.reached, model.resource)
