"""A sub-epoch by a way: this process's place among those that train the model together, and what they do at its begin.

Imports what only ways need, so it is imported when the first of them comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.errors import NotApplicableError, SpecError
from cerebro.runtime.tracebacks import line_of
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, Technique, resolve
from cerebro.techniques.ranks import Alone, RankGroup
from cerebro.worker.agent.context import Context, Ranks
from cerebro.worker.agent.memory_errors import whose_memory
from cerebro.worker.training.checked import CheckedFile
from cerebro.worker.training.checkpoint import State
from cerebro.worker.training.grouped import GroupTrainee, prepare
from cerebro.worker.training.reading_together import Unchecked, load_together
from cerebro.worker.training.sub_epoch import Trainee

_SHORTEST_S, _LONGEST_S = 24 * 3600.0, 365 * 24 * 3600.0
"""Of a collective call. A hang is the agent's to find, which names the rank: torch only ends what nobody waits for."""

_NOTE_S = 0.5
"""Pause between two notes of how many operations of all ranks this one has begun."""


class Placed:
    """How this process trains one sub-epoch.

    Attributes:
        device: that the model is created and restored on.
    """

    def __init__(self, parallel_plan: ParallelPlan, technique: Technique, group: Group) -> None:
        self.parallel_plan, self.technique, self.group = parallel_plan, technique, group
        self.device = torch.device(technique.made_on(group, parallel_plan.params))

    def ready(self, spec: SubEpochSpec, trainee: Trainee) -> GroupTrainee:
        """The model, ready to train by the way. Collective.

        Raises:
            NotApplicableError: the technique cannot, or failed. Not for lack of memory, which is told as it is.
        """
        try:
            return prepare(spec, trainee, self.technique, self.parallel_plan.params, self.group)
        except (NotApplicableError, SpecError):
            raise
        except Exception as error:
            if whose_memory(error) is not None:
                raise
            raise NotApplicableError(
                f"{self.parallel_plan.label} failed to prepare the model: {line_of(error)}"
            ) from error

    def load(self, find: Callable[[], CheckedFile | Unchecked], *, is_optional: bool = False) -> State:
        """See `load_together`."""
        return load_together(find, self.group, self.device, is_optional=is_optional)


def placed_by(context: Context, parallel_plan: ParallelPlan, hang_timeout_s: float) -> Placed:
    """Join a sub-epoch's ranks, and wait until all have joined.

    Raises:
        NotApplicableError: the technique is unknown or refuses its parameters.
    """
    try:
        technique = resolve(parallel_plan, context.opened)
    except SpecError as error:
        raise NotApplicableError(str(error)) from error
    return Placed(parallel_plan, technique, _joined(context, parallel_plan, hang_timeout_s))


def _joined(context: Context, parallel_plan: ParallelPlan, hang_timeout_s: float) -> Group:
    ranks = context.ranks
    if ranks is None:
        gpus = torch.cuda.device_count()
        return Alone(
            tuple(f"cuda:{number}" for number in range(gpus)) if gpus else ("cpu",) * parallel_plan.size
        )
    group = _met(context, ranks, "cuda:0" if torch.cuda.is_available() else "cpu", hang_timeout_s)
    threading.Thread(target=_note, args=(context, group), name="operations", daemon=True).start()
    return group


def _met(context: Context, ranks: Ranks, device: str, hang_timeout_s: float) -> RankGroup:
    """Join a new group; wait for all ranks."""
    timeout_s = min(max(_SHORTEST_S, 2 * hang_timeout_s), _LONGEST_S)
    place: Any = {"rank": ranks.rank, "size": ranks.size, "device": device, "timeout_s": timeout_s}
    if not ranks.address:
        return RankGroup.join(ranks.folder, **place)
    group = RankGroup.join_several_workers(
        ranks.address, **place, say_where=context.say_where, hear_where=context.hear_where
    )
    context.vote = group.largest
    return group


def _note(context: Context, group: RankGroup) -> None:
    """Publish this rank's operation count regularly, so that the agent can name a rank that hangs."""
    while True:
        context.note_operations(group.operations())
        time.sleep(_NOTE_S)
