"""Fused groups: the models that join a chosen sub-epoch as one stack. Pure.

The policy chooses one sub-epoch as always (`controller.sources.training`). If the model's parallel plan on that worker
is `fused`, other idle models of the same kind join that need the partition in the same epoch. A group takes at most
its share of the run's models, so that it leaves models for the other devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import Hyperparameters
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from cerebro.state import Run
from controller.decisions.fit_dispatch import FitDispatch


class _Kind(NamedTuple):
    """Models of one kind can train as one stack.

    Attributes:
        models: id of the inspection's group of similar models.
        saved_batch: batch of the sub-epoch's savepoint; 0 without one.
    """

    models: str
    parallel_plan: str
    priority: int
    saved_batch: int


_SHAPELESS = frozenset({"lr", "learning_rate", "weight_decay", "momentum", "betas", "eps", "seed"})
"""Hyperparameters that models of one kind may differ in, whatever the user's code does with the others."""


def _shape(hyperparams: Hyperparameters) -> str:
    return repr(sorted((name, value) for name, value in hyperparams.items() if name not in _SHAPELESS))


class FusedGroups:
    """Chooses the models that join a sub-epoch."""

    def __init__(self, fit: FitDispatch, run: Run) -> None:
        self._fit, self._run = fit, run
        inspection = run.trials.inspection
        self._groups = (
            {model: group.id for group in inspection.groups for model in group.models} if inspection else {}
        )
        self._of_hyperparams: dict[str, str] = {}
        """Hyperparameters that may determine the shape -> group, for models that were added later."""
        if len(self._groups) < len(run.models):
            for model, group in self._groups.items():
                self._of_hyperparams.setdefault(_shape(run.models[model].hyperparams), group)

    def partners(self, choice: Placement, parallel_plan: ParallelPlan) -> Iterator[Placement]:
        """Yield the sub-epochs that join a chosen one, which is not started yet."""
        state, kind = self._fit.dispatch_state, self._kind(choice, parallel_plan)
        most = min(parallel_plan.fused_models, self._share()) - 1
        if kind is None or most < 1:
            return
        alike = (
            model
            for model in sorted(range(len(state.open)), key=self._precedence)
            if model != choice.model
            and state.epoch[model] == state.epoch[choice.model]
            and self._is_free(choice._replace(model=model))
            and self._kind(choice._replace(model=model), parallel_plan) == kind
        )
        for model, _ in zip(alike, range(most), strict=False):
            yield Placement(choice.worker, model, choice.partition)

    def _share(self) -> int:
        """Return the number of unfinished models for each device."""
        state = self._fit.dispatch_state
        devices = sum(number for number, held in zip(state.gpus, state.holders.held, strict=True) if held)
        return math.ceil(sum(mask != 0 for mask in state.open) / max(1, devices))

    def _precedence(self, model: int) -> tuple[float, float, int]:
        state = self._fit.dispatch_state
        score = state.priority_score[model] if model < len(state.priority_score) else 0.0
        return -score, -state.work.model_left[model], model

    def _is_free(self, place: Placement) -> bool:
        """True if a model can start this sub-epoch now."""
        fit, state = self._fit, self._fit.dispatch_state
        interrupted = [
            (epoch, partition) for model, epoch, partition in fit.retries.interrupted if model == place.model
        ]
        return (
            place.model not in state.running
            and bool(state.open[place.model] >> place.partition & 1)
            and state.work.time[place.model][place.worker] != NEVER
            and place.model not in fit.retries.out_of_memory
            # An interrupted sub-epoch goes before others of its model.
            and all(each == (state.epoch[place.model], place.partition) for each in interrupted)
        )

    def _kind(self, place: Placement, parallel_plan: ParallelPlan) -> _Kind | None:
        """Return the kind of a model's next sub-epoch; `None` if it trains alone."""
        fit, name = self._fit, self._fit.names.models[place.model]
        model = self._run.models[name]
        group = self._groups.get(name) or self._of_hyperparams.get(_shape(model.hyperparams))
        is_alone = group is None or place.model in fit.retries.out_of_memory or model.configs.has_changed
        if is_alone or group is None or fit.parallel_plans.of(place.model, place.worker) != parallel_plan:
            return None
        savepoint = model.checkpoints.savepoint_of(str(fit.key(place)))
        return _Kind(
            group,
            parallel_plan.label,
            fit.dispatch_state.priority[place.model],
            savepoint.batch if savepoint is not None else 0,
        )
