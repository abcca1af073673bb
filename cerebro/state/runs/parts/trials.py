"""Measurements of a run's models and parallel plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters
from cerebro.contract.trials import Inspection, TrialOutcome
from cerebro.state.models.model import Model
from cerebro.state.runs.parts.stack_times import StackTimes

_SHAPELESS = frozenset({"lr", "learning_rate", "weight_decay", "momentum", "betas", "eps", "seed"})
"""Similar models may differ in these hyperparameters. Any other one may change the modules."""


def _shape(hyperparams: Hyperparameters) -> str:
    return repr(sorted((name, value) for name, value in hyperparams.items() if name not in _SHAPELESS))


@dataclass(kw_only=True, slots=True)
class RunTrials:
    """Inspection, trials and stacks of a fit."""

    inspection: Inspection | None = None
    """Groups of alike models and the available parallel plans; `None` without a choice."""
    outcomes: dict[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    """(group id, parallel plan id) of `inspection` -> trial outcome of this or an earlier run."""
    has_recalled: bool = False
    """True once the log says which trials of earlier runs apply."""
    stacks: StackTimes = field(default_factory=StackTimes)
    """Measured times of stacks, if the run chooses between them and separate training."""
    _groups: dict[str, str] = field(default_factory=dict)
    """Inspected model -> id of its group."""
    _of_hyperparams: dict[str, str] = field(default_factory=dict)
    """Hyperparameters that may determine the shape -> id of a group, for models that were added later."""

    def inspect(self, inspection: Inspection, models: Mapping[str, Model]) -> None:
        """Record the inspection of a run's models."""
        self.inspection = inspection
        for group in inspection.groups:
            for name in group.models:
                self._groups[name] = group.id
                if name in models:
                    self._of_hyperparams.setdefault(_shape(models[name].hyperparams), group.id)

    def similar_models(self, model: Model) -> str | None:
        """Return the id of the group of models with the same modules; `None` if it is unknown.

        Inspected models keep their group until their hyperparameters change.
        """
        inspected = None if model.configs.has_changed else self._groups.get(model.id)
        return inspected or self._of_hyperparams.get(_shape(model.hyperparams))
