"""Setup of a sub-epoch with a parallel plan, on each rank.

`model_hopper.handler` calls `join_plan` to join the rank group, then `RankSetup.load` and `prepare_model`. Training
itself follows in the handler. Only parallel plans need these imports, so the handler imports the module at the first
such task.
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
from cerebro.worker.child.context import Context
from cerebro.worker.child.memory_errors import whose_memory
from cerebro.worker.protocol.messages import Ranks
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.joint_read import Unchecked, load_together
from cerebro.worker.training.checkpoints.verified_file import CheckedFile
from cerebro.worker.training.ranks.grouped import GroupTrainee, prepare
from cerebro.worker.training.trainee import Trainee

_SHORTEST_S, _LONGEST_S = 24 * 3600.0, 365 * 24 * 3600.0
"""Limits of a collective call's timeout. The agent detects hangs and names the rank; torch must not end a call
earlier."""

_PUBLISH_S = 0.5
"""Seconds between two published operation counts."""


class RankSetup:
    """This process's part in one sub-epoch.

    Attributes:
        device: device for creating and restoring the model.
    """

    def __init__(self, parallel_plan: ParallelPlan, technique: Technique, group: Group) -> None:
        self.parallel_plan, self.technique, self.group = parallel_plan, technique, group
        self.device = torch.device(technique.made_on(group, parallel_plan.params))

    def prepare_model(self, spec: SubEpochSpec, trainee: Trainee) -> GroupTrainee:
        """Prepare the model for training with the technique. Collective.

        Raises:
            NotApplicableError: the technique refused the model or failed. A lack of memory is raised unchanged.
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
        """Load the checkpoint on all ranks; see `load_together`."""
        return load_together(find, self.group, self.device, is_optional=is_optional)


def join_plan(context: Context, parallel_plan: ParallelPlan, hang_timeout_s: float) -> RankSetup:
    """Join the sub-epoch's ranks and wait until all have joined.

    Raises:
        NotApplicableError: the technique is unknown or refuses its parameters.
    """
    try:
        technique = resolve(parallel_plan, context.user_code.decode_once)
    except SpecError as error:
        raise NotApplicableError(str(error)) from error
    return RankSetup(parallel_plan, technique, _join_group(context, parallel_plan, hang_timeout_s))


def _join_group(context: Context, parallel_plan: ParallelPlan, hang_timeout_s: float) -> Group:
    ranks = context.ranks
    if ranks is None:
        gpus = torch.cuda.device_count()
        return Alone(
            tuple(f"cuda:{number}" for number in range(gpus)) if gpus else ("cpu",) * parallel_plan.size
        )
    group = _join_ranks(context, ranks, "cuda:0" if torch.cuda.is_available() else "cpu", hang_timeout_s)
    threading.Thread(
        target=_publish_operations, args=(context, group), name="operations", daemon=True
    ).start()
    return group


def _join_ranks(context: Context, ranks: Ranks, device: str, hang_timeout_s: float) -> RankGroup:
    timeout_s = min(max(_SHORTEST_S, 2 * hang_timeout_s), _LONGEST_S)
    arguments: Any = {"rank": ranks.rank, "size": ranks.size, "device": device, "timeout_s": timeout_s}
    if not ranks.address:
        return RankGroup.join(ranks.folder, **arguments)
    group = RankGroup.join_several_workers(
        ranks.address, **arguments, say_where=context.publish_address, hear_where=context.await_address
    )
    context.agreement.vote = group.largest
    return group


def _publish_operations(context: Context, group: RankGroup) -> None:
    """Publish this rank's operation count regularly, so that the agent can name a rank that hangs."""
    while True:
        context.agreement.note_operations(group.operations())
        time.sleep(_PUBLISH_S)
