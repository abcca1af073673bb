"""A trial of the technique `fused`: copies of one model train as a stack.

`trial_runner.handler` uses it in place of `Trial`. The gradient of the first copy is compared with a single device's.
The time of a batch is divided by the number of models, so that plans can be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cerebro.contract.trials import TrialOutcome
from cerebro.errors import NotApplicableError, PreemptedError
from cerebro.steps.spec import StepSpec
from cerebro.techniques import Group, Technique
from cerebro.techniques.fused import MODELS
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.fused.group import train_group
from cerebro.worker.training.fused.member import Member, MemberSavepoints, SharedBatches
from cerebro.worker.training.fused.structure import not_stackable
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured
from cerebro.worker.training.sub_epoch import create
from cerebro.worker.training.tracked_checkpoint import Checkpoint
from cerebro.worker.training.trainee import Trainee
from trial_runner.limited_loader import LimitedLoader
from trial_runner.train_observer import Observed, observe
from trial_runner.trial import Trial


class FusedTrial(Trial):
    """One trial of a stack."""

    def run(self, root: Path, name: str) -> TrialOutcome:
        """Run the trial; see `Trial.run`. The times of a batch and of a checkpoint are for one model."""
        if reason := not_stackable(self._spec):
            raise NotApplicableError(reason)
        self._num_models = int(self._body.parallel_plan.params[MODELS])  # type: ignore[arg-type]  # checked
        self._stacked: list[Trainee] = []
        outcome = super().run(root, name)
        return outcome.model_copy(update={"batch_s": outcome.batch_s / self._num_models})

    def _trainee(self, technique: Technique, group: Group) -> Trainee:
        if technique is not self._technique:
            return super()._trainee(technique, group)
        body, device = self._body, torch.device(group.device)
        self._stacked = [
            create(
                self._spec,
                body.hyperparams,
                seed=body.seed,
                model=f"{body.model}/{number}" if number else body.model,
                device=device,
            )
            for number in range(self._num_models)
        ]
        return self._stacked[0]

    def _observe(self, trainee: Trainee, *, permuted: int | None = None) -> Observed:
        if not self._is_stack(trainee):
            return super()._observe(trainee, permuted=permuted)
        modules = [module for each in self._stacked for module in each.modules]
        with observe(modules) as observed:
            loader = self._loader(trainee, observed.should_continue, self._comparison_batch_size)
            self._train_stack(loader, observed)
        return observed

    def _train(self, trainee: Trainee, loader: LimitedLoader) -> None:
        if self._is_stack(trainee):
            self._train_stack(loader)
        else:
            super()._train(trainee, loader)

    def _is_stack(self, trainee: Trainee) -> bool:
        return bool(self._stacked) and trainee is self._stacked[0]

    def _train_stack(self, loader: LimitedLoader, observed: Observed | None = None) -> None:
        shared, frozen_layers = SharedBatches(loader), FrozenLayers(loader, self._cache)
        members: list[Member] = []
        for number, trainee in enumerate(self._stacked):
            trainee.checkpoint = Checkpoint()
            savepoints = MemberSavepoints(trainee)
            feed = InstrumentedLoader(shared.for_member(), savepoints=savepoints)
            feed.frozen_layers = frozen_layers
            members.append(
                Member(
                    name=str(number),
                    trainee=trainee,
                    feed=feed,
                    savepoints=savepoints,
                    hyperparams=self._body.hyperparams,
                    seed=self._seed + number,
                    device=torch.device(self._group.device),
                )
            )

        def on_end(member: Member, found: Measured | Exception | PreemptedError) -> None:
            # The loader ends early, so metrics may be missing.
            if isinstance(found, BaseException) and not loader.has_ended:
                raise found

        def before_step(member: Member) -> None:
            if observed is not None and member is members[0]:
                observed.record(member.model.optimizer)

        spec: Any = self._spec
        assert isinstance(spec, StepSpec)
        train_group(spec, members, on_end, where="a trial", before_step=before_step if observed else None)
        self._device_memory.check()
