"""Fused groups: the models that join a chosen sub-epoch as one stack. Pure.

The policy chooses one sub-epoch as always (`controller.sources.training`). If the model's parallel plan on that worker
is `fused`, other idle models of the same kind join that need the partition in the same epoch. A group takes at most
its share of the run's models, so that it leaves models for the other devices. If the user also named `single`, the
measured times decide the size (`cerebro.state.runs.parts.stack_times`).
"""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from cerebro.state import Run
from cerebro.state.runs.parts.stack_times import StackKey, size_class
from controller.decisions.fit_dispatch import FitDispatch


class _Kind(NamedTuple):
    """Models of one kind can train as one stack.

    Attributes:
        models: id of the inspection's group of similar models.
        saved_batch: batch of the sub-epoch's savepoint; 0 without one.
        seed: seed of a repeat, which determines the order of its batches; `None` for other models.
    """

    models: str
    parallel_plan: str
    priority: int
    saved_batch: int
    seed: int | None


class FusedGroups:
    """Chooses the models that join a sub-epoch."""

    def __init__(self, fit: FitDispatch, run: Run) -> None:
        self._fit, self._run = fit, run

    def partners(self, choice: Placement, parallel_plan: ParallelPlan) -> list[Placement]:
        """Return the sub-epochs that join a chosen one, which is not started yet."""
        state, kind = self._fit.dispatch_state, self._kind(choice, parallel_plan)
        if kind is None:
            return []
        key = StackKey(kind.models, self._fit.parallel_plans.device(choice.worker))
        most = self._size(key, min(parallel_plan.fused_models, self._share()))
        alike = (
            model
            for model in sorted(range(len(state.open)), key=self._precedence)
            if model != choice.model
            and state.epoch[model] == state.epoch[choice.model]
            and self._is_free(choice._replace(model=model))
            and self._kind(choice._replace(model=model), parallel_plan) == kind
        )
        found = [Placement(choice.worker, model, choice.partition) for model in islice(alike, most - 1)]
        return found if self._may_form_stack(key, 1 + len(found), most) else []

    def should_wait(self, choice: Placement, parallel_plan: ParallelPlan, models: int) -> bool:
        """True if a stack of this size should wait for the similar models that its worker trains now.

        Only if the run chooses: else the first stacks take all models.
        """
        kind = self._kind(choice, parallel_plan)
        if kind is None or not self._run.chooses_stacks:
            return False
        key = StackKey(kind.models, self._fit.parallel_plans.device(choice.worker))
        most = min(self._run.trials.stacks.chosen(key), parallel_plan.fused_models, self._share())
        return models < most and any(
            placement.worker == choice.worker and self._is_similar(model, key)
            for model, placement in self._fit.dispatch_state.running.items()
        )

    def _size(self, key: StackKey, most: int) -> int:
        """Return the largest size of a stack, up to `most`; the fastest one if the run chooses."""
        stacks = self._run.trials.stacks
        if not self._run.chooses_stacks:
            return most
        size = stacks.next_size(key, most)
        if size and not self._is_measuring(key, size):
            return min(size, most)
        return min(stacks.chosen(key), most)

    def _may_form_stack(self, key: StackKey, models: int, most: int) -> bool:
        """True if no measurement shows that a stack of this size is slower than separate training."""
        stacks = self._run.trials.stacks
        if not self._run.chooses_stacks:
            return True
        # The first stack measures a size that can be faster.
        is_full = size_class(models) == size_class(most)
        return (is_full or stacks.chosen(key) > 1) and not stacks.is_slower(key, models)

    def _is_measuring(self, key: StackKey, size: int) -> bool:
        """True if a stack of this size is training: one measures for all devices."""
        fit = self._fit
        return any(
            placement.group
            and size_class(placement.sharing) == size
            and fit.parallel_plans.device(placement.worker) == key.device
            and self._is_similar(model, key)
            for model, placement in fit.dispatch_state.running.items()
        )

    def _is_similar(self, model: int, key: StackKey) -> bool:
        return self._run.trials.similar_models(self._run.models[self._fit.names.models[model]]) == key.models

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
        group = self._run.trials.similar_models(model)
        is_alone = place.model in fit.retries.out_of_memory
        if is_alone or group is None or fit.parallel_plans.of(place.model, place.worker) != parallel_plan:
            return None
        savepoint = model.checkpoints.savepoint_of(str(fit.key(place)))
        return _Kind(
            group,
            parallel_plan.label,
            fit.dispatch_state.priority[place.model],
            savepoint.batch if savepoint is not None else 0,
            model.lineage.seed,
        )
