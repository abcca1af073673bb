"""A model trained with a parallel plan: the user's own loop, adapted for ranks that read shares of the rows.

`model_hopper`, trials, replays and conformance checks call `prepare` on each rank. A `GroupTrainee` replaces the
`Trainee` of a single process. The technique changes the modules; this module weights gradients, gathers metrics and
saves jointly. All collective steps run in the same order on all ranks: `prepare`, then `train_sub_epoch`, then
`Trainee.state`::

    group = RankGroup.join(folder, rank=rank, size=size, device=device)
    technique = resolve(parallel_plan)
    device = technique.made_on(group, parallel_plan.params)
    trainee = create(spec, hyperparams, seed=seed, model=model, device=device)
    restore(trainee, state)  # of a file that was loaded to `device`
    trainee = prepare(spec, trainee, technique, parallel_plan.params, group)
    loader = PartitionLoader(rows, ..., device=group.device, share=trainee.share)
    feed = InstrumentedLoader(loader, ...)  # `loader.num_rows` is the sub-epoch's number of rows
    metrics = train_sub_epoch(spec, trainee, feed, ...)  # the group's metrics, equal on all ranks
    reference = trainee.save(root, name)  # each rank writes its rows; rank 0 returns the reference
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import NotApplicableError, SpecError
from cerebro.spec import DataLoader, Hints, SubEpochSpec
from cerebro.techniques.base import Group, Params, Technique
from cerebro.worker.training.checkpoints.base_tensors import BaseTensors
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.joint_write import first_row, save_together
from cerebro.worker.training.frameworks import only_single
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured, RankMetrics, of_ranks
from cerebro.worker.training.ranks.full_tensors import gather_full, require_same
from cerebro.worker.training.ranks.gradient_weights import weight, weighted
from cerebro.worker.training.ranks.sharded import cut, cut_named, cut_optimizer_states
from cerebro.worker.training.seeds import rank_seed
from cerebro.worker.training.trainee import Trainee


@dataclass(kw_only=True)
class GroupTrainee(Trainee):
    """One rank's part of a model. Created by `prepare`.

    Attributes:
        share: index and number of row shares of each batch.
    """

    technique: Technique
    params: Params
    group: Group
    hints: Hints = field(default_factory=Hints)

    @property
    def has_own_parameters(self) -> bool:
        """False: a technique may have replaced them by parts."""
        return False

    @property
    def share(self) -> tuple[int, int]:
        """Index and number of row shares of each batch, for `PartitionLoader`."""
        share = self.technique.share(self.group)
        return share.index, share.of

    @property
    def device(self) -> str:
        """Device of this rank; the first one if the process uses several."""
        return self.group.device

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of this process in its group."""
        return self.group.rank

    def full_state(self, state: State) -> State:
        """Return the state with full tensors on rank 0, and {} on others. Collective.

        Raises:
            RanksDifferError: ranks have different states: on all ranks.
        """
        return gather_full(state, self.group) or {}

    def write(self, root: Path, name: str, state: State, in_base: BaseTensors | None) -> CheckpointRef | None:
        """Write a state jointly, each rank its rows. Rank 0 returns the reference. Collective."""
        return save_together(root, name, state, self.group, in_base)

    def rows_here(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int] | None:
        """Return this rank's rows of a tensor and the first row's number."""
        if not isinstance(tensor, DTensor):
            return super().rows_here(tensor)
        # Ranks on several machines do not write jointly; see `own_rows`.
        if (
            self.group.is_of_several_workers
            or len(tensor.placements) > 1
            or not tensor.placements[0].is_shard(0)
        ):
            return None
        return tensor.to_local().detach(), first_row(tensor)

    def of_ranks(self, value: Any) -> list[Any]:
        """Return the values of all ranks. Collective."""
        return self.group.gathered(value)

    def part(self, tensor: Any, parameter: torch.nn.Parameter) -> Any:
        """Return this rank's part of a parameter's saved tensor."""
        return cut(tensor, parameter) if tensor is not None and isinstance(parameter, DTensor) else tensor

    def cut_kept(self) -> None:
        """Cut user code's entries named like sharded parameters."""
        cut_named(self.checkpoint, self.modules, except_for=self.checkpoint.initial_values)

    @contextmanager
    def running(self, feed: DataLoader, seed: int) -> Iterator[None]:
        """Wrap the user's `train`."""
        with ExitStack() as stack:
            index, of = self.share
            if of > 1:
                if not isinstance(feed, InstrumentedLoader):
                    raise SpecError("a rank reads its share of the rows from an InstrumentedLoader")
                _seed_rank(seed, index, self.group)
                stack.enter_context(self._shared(feed))
            stack.enter_context(cut_optimizer_states())
            stack.enter_context(self.technique.running(self.modules, feed, self.group, self.params))
            yield

    def agreed(self, metrics: Measured, feed: DataLoader) -> Measured:
        """Combine the ranks' metrics. Collective.

        Raises:
            RanksDifferError: ranks return different metrics: on all ranks.
        """
        if self.group.size == 1:
            return dict(metrics)
        rows = feed.shared_rows if isinstance(feed, InstrumentedLoader) else feed.num_rows
        return of_ranks(self.group.gathered(RankMetrics(metrics, rows, self.share[0])))

    @contextmanager
    def _shared(self, feed: InstrumentedLoader) -> Iterator[None]:
        """Weight the initial gradient of backward passes by the current batch."""
        factor = 1.0

        def handed(batch: tuple[Any, Any], own: int, rows: int) -> None:
            nonlocal factor
            terms: tuple[float, float] = own, rows
            if self.hints.terms is not None and self.hints.loss == "mean":
                counted = float(self.hints.terms(*batch)) if own else 0.0
                terms = counted, self.group.summed(counted)
            factor = weight(*terms, self.group.size, self.hints.loss)

        feed.on_handed = handed
        with weighted(lambda: factor):
            yield


def prepare(
    spec: SubEpochSpec, trainee: Trainee, technique: Technique, params: Params, group: Group
) -> GroupTrainee:
    """Make a created and restored model ready to train with a technique. Collective; changes its modules in place.

    Raises:
        NotApplicableError: the technique cannot train it, with the reason.
    """
    if reason := only_single(trainee.modules):
        raise NotApplicableError(f"{technique.name} cannot train this model: {reason}")
    hints: object = spec.hints(trainee.modules, dict(trainee.hyperparams))
    if not isinstance(hints, Hints):
        raise SpecError(f"hints() returned a {type(hints).__name__}, expected cerebro.Hints(...)")
    if trainee.is_new:
        # All ranks need equal initial weights. Weights from a file are equal.
        require_same({"models": [module.state_dict() for module in trainee.modules]}, group)
    names = _names(trainee.modules)
    technique.prepare(trainee.modules, group, params, hints)
    if changed := sorted(names ^ _names(trainee.modules)):
        raise NotApplicableError(
            f"prepare() of technique {technique.name!r} changed the names of tensors: {', '.join(changed[:4])}"
        )
    prepared = GroupTrainee(
        modules=trainee.modules,
        checkpoint=trainee.checkpoint,
        hyperparams=trainee.hyperparams,
        frozen=trainee.frozen,
        technique=technique,
        params=params,
        group=group,
        hints=hints,
    )
    prepared.cut_kept()
    return prepared


def _names(modules: Sequence[torch.nn.Module]) -> set[str]:
    return {f"{number}/{name}" for number, module in enumerate(modules) for name in module.state_dict()}


def _seed_rank(seed: int, rank: int, group: Group) -> None:
    """Seed a rank's own device generator, as for dropout.

    Python's and NumPy's generators stay equal on all ranks: decisions of user code must not differ.
    """
    if rank == 0:
        return
    if group.device.startswith("cuda"):
        torch.cuda.manual_seed(rank_seed(seed, rank))
    else:
        torch.manual_seed(rank_seed(seed, rank))
