"""Lower bounds of memory: parallel plans that certainly do not fit. A fitting plan is never excluded."""

from __future__ import annotations

from cerebro.contract.trials import KnownParallelPlan, ModelGroup
from controller.sources.trials.situation import Situation, is_like, outcome_of

FULL = 0.95
"""Usable share of a memory; the rest is the driver's, or lost to fragmentation."""


def may_fit(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """True if no known bound exceeds the memory."""
    device = situation.inspection.device_kinds[known.device_kind].device
    is_measured = known.device_bytes is not None and device.memory_bytes is not None
    if is_measured and needed_bytes(situation, group, known) > FULL * (device.memory_bytes or 0):
        return False
    host = known.host_bytes
    return host is None or device.host_bytes is None or host <= FULL * device.host_bytes


def needed_bytes(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> float:
    """Return the minimum device bytes of a plan.

    The sum of the technique's bound for the model's state, and of optimizer state and activations as seen in
    the group's trials.
    """
    optimizer = activations = 0.0
    for other in group.parallel_plans:
        outcome = outcome_of(situation, group, other)
        if outcome is None or not outcome.is_usable:
            continue
        if outcome.state_bytes:
            optimizer = float(max(0, outcome.state_bytes - group.param_bytes - group.buffer_bytes))
        # State above the bound counts as activations. More devices need less of both, but with fewer the
        # state may be just as large, so a trial on more devices proves nothing.
        if (
            other.parallel_plan.size <= known.parallel_plan.size
            and other.device_kind == known.device_kind
            and other.per_activation_byte
        ):
            rest = outcome.device_bytes - (other.device_bytes or 0) - other.per_optimizer_byte * optimizer
            if outcome.device_bytes and rest > 0:
                found = rest / other.per_activation_byte
                activations = min(activations, found) if activations else found
    bound = known.device_bytes or 0
    return bound + known.per_optimizer_byte * optimizer + known.per_activation_byte * activations


def is_hopeless(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """True if a trial of the same technique on other devices proves that this plan fails too.

    Its gradient is wrong, it does not apply, or at least as many devices had too little memory.
    """
    for other in group.parallel_plans:
        outcome = outcome_of(situation, group, other) if is_like(other, known) else None
        if outcome is None or not outcome.reason:
            continue
        if outcome.cause in ("gradient", "not_applicable"):
            return True
        if outcome.cause == "device_memory" and other.parallel_plan.size >= known.parallel_plan.size:
            return True
    return False
