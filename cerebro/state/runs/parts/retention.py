"""Sub-epochs and checkpoints that a run keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.state.models.compaction import COMPACT_AFTER
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model, ModelState


@dataclass(kw_only=True, slots=True)
class RunCompaction:
    """Compaction of a run's old sub-epochs (`cerebro.state.models.compaction`)."""

    threshold: int | None = COMPACT_AFTER
    """Number of sub-epochs above which old ones are compacted; `None`: never."""
    keeps_all: bool = False
    """True if compacted sub-epochs stay available, for readers of the full log."""
    until: float = 0.0
    """The state has every sub-epoch that ended later; 0 if nothing is compacted."""


@dataclass(kw_only=True, slots=True)
class RunCheckpoints:
    """Checkpoints that several models share, and removed ones."""

    young: dict[str, Model] = field(default_factory=dict)
    """Models with inherited weights and fewer than two own sub-epochs; they may reread the parent's checkpoint."""
    pruned: list[str] = field(default_factory=list)
    """Models that lost checkpoints since they last trained, in log order; may list a model twice."""

    def release_parent_checkpoint(
        self, young: Model, models: Mapping[str, Model], *, is_pruned: bool
    ) -> None:
        """Note that a model no longer reads its inherited checkpoint.

        Args:
            is_pruned: True if the run removes checkpoints of ended models.
        """
        del self.young[young.id]
        owner = parent_checkpoint_owner(young, models)
        if is_pruned and owner.state is not ModelState.ACTIVE:
            self.pruned.append(owner.id)  # the owner makes no commit that would remove it

    def parent_checkpoints_of(self, owner: Model, models: Mapping[str, Model]) -> Iterator[CompletedSubEpoch]:
        """Return sub-epochs of `owner` that other models start from and may reread; some may be compacted."""
        for young in self.young.values():
            if parent_checkpoint_owner(young, models) is owner:
                yield young.sub_epochs[young.lineage.sub_epochs - 1]


def parent_checkpoint_owner(young: Model, models: Mapping[str, Model]) -> Model:
    """Return the ancestor whose sub-epoch wrote the inherited checkpoint."""
    owner = models[young.lineage.parent]
    while young.lineage.sub_epochs <= owner.lineage.sub_epochs:
        owner = models[owner.lineage.parent]
    return owner
