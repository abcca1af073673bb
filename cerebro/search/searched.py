"""What is known of each model of a search, as reports have told it."""

from __future__ import annotations

from collections.abc import Iterator
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
        number: in the order in which models were added.
        is_apart: a user began it with another model's weights: its values compare with nobody's.
        granted: epochs that it may be trained for in all.
        ordered: the grant that the search has asked for since a user has changed it; perhaps not carried out yet.
        reached: the largest grant that it has used up, or what it has inherited.
        values: epoch -> value of the run's metric, as `Measured` has told it.
        changed: the last epoch that was over when a user gave it other hyper-parameters; 0: nobody has.
        is_kept: a user has resumed or extended it: the search does not stop it any more.
    """

    id: str
    number: int
    hyperparams: Hyperparameters
    is_apart: bool
    granted: int
    ordered: int = 0
    reached: int = 0
    values: dict[int, float] = field(default_factory=dict)
    changed: int = 0
    is_failed: bool = False
    is_stopped: bool = False
    is_kept: bool = False

    @property
    def trained(self) -> int:
        """The last epoch that is known to be over."""
        return max(self.reached, *self.values) if self.values else self.reached

    @property
    def has_ended(self) -> bool:
        """Whether it is not trained any more, short of its grant or at it; a user may still resume it."""
        return self.is_failed or self.is_stopped

    @property
    def is_active(self) -> bool:
        """Whether it has a grant that is not used up."""
        return not self.has_ended and self.reached < self.granted


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
        """In the order in which they were added."""
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    @property
    def num_active(self) -> int:
        """How many have a grant that is not used up."""
        return len(self._active)

    def told(self, report: Report) -> None:
        """Take note of a report; one about a model that nobody has added is an error of the caller (`KeyError`)."""
        if isinstance(report, Added):
            model = SearchedModel(
                id=report.model,
                number=len(self._models),
                hyperparams=report.hyperparams,
                is_apart=report.is_warm and report.by != SEARCH,
                granted=report.epochs,
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
        """The search has ordered a larger grant."""
        model = self._models[name]
        model.ordered = max(model.ordered, epochs)
        model.granted = max(model.granted, epochs)
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
        case Reached():
            model.reached = max(model.reached, report.epochs)
            model.granted = max(report.epochs, model.ordered)
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
                model.granted, model.ordered = report.epochs, 0
            if model.trained >= model.granted:
                model.reached = max(model.reached, model.granted)
