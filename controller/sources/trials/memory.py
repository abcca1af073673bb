"""Which ways cannot fit: what is certain of their memory. Never says so of one that would fit."""

from __future__ import annotations

from cerebro.contract.trials import KnownParallelPlan, ModelGroup
from controller.sources.trials.situation import Situation, is_like, outcome_of

FULL = 0.95
"""Of a memory; the rest is the driver's, and lost between what is allocated."""


def may_fit(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """Whether nothing that is known speaks against the way's memory."""
    device = situation.inspection.places[known.place].device
    is_told = known.device_bytes is not None and device.memory_bytes is not None
    if is_told and needed_bytes(situation, group, known) > FULL * (device.memory_bytes or 0):
        return False
    host = known.host_bytes
    return host is None or device.host_bytes is None or host <= FULL * device.host_bytes


def needed_bytes(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> float:
    """Bytes of a device that the way takes at least: by what its technique says of the model's state, and by what
    trials of the group have shown of the optimizer's state and of activations."""
    optimizer = activations = 0.0
    for other in group.parallel_plans:
        outcome = outcome_of(situation, group, other)
        if outcome is None or not outcome.is_usable:
            continue
        if outcome.state_bytes:
            optimizer = float(max(0, outcome.state_bytes - group.param_bytes - group.buffer_bytes))
        # What a bound has missed of the state is taken for activations. On more devices there is less of both, but on
        # fewer the state may be just as large: nothing is concluded from a trial on more.
        if (
            other.parallel_plan.size <= known.parallel_plan.size
            and other.place == known.place
            and other.per_activation_byte
        ):
            rest = outcome.device_bytes - (other.device_bytes or 0) - other.per_optimizer_byte * optimizer
            if outcome.device_bytes and rest > 0:
                found = rest / other.per_activation_byte
                activations = min(activations, found) if activations else found
    bound = known.device_bytes or 0
    return bound + known.per_optimizer_byte * optimizer + known.per_activation_byte * activations


def is_hopeless(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """Whether a trial of the same technique on other devices has shown that this one would come to nothing, too: its
    gradient is another one, it does not apply, or as many devices or more had too little memory."""
    for other in group.parallel_plans:
        outcome = outcome_of(situation, group, other) if is_like(other, known) else None
        if outcome is None or not outcome.reason:
            continue
        if outcome.cause in ("gradient", "not_applicable"):
            return True
        if outcome.cause == "device_memory" and other.parallel_plan.size >= known.parallel_plan.size:
            return True
    return False
