"""Which ways a model could be trained by on some devices, and why it could not by others. Without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan, TechniqueChoice
from cerebro.contract.trials import DeviceKind, DevicePlace, KnownParallelPlan
from cerebro.techniques import ModelFacts, Params, Place, Technique

_MUCH = 1 << 30
"""Bytes."""


class Offer(NamedTuple):
    """A technique that a run may use, made with the parameters that the user has fixed, and how it was chosen."""

    technique: Technique
    choice: TechniqueChoice


def known_parallel_plans(
    facts: ModelFacts,
    offers: Sequence[Offer],
    places: Sequence[DevicePlace],
    *,
    gpus: Sequence[int] = (),
    keyed_by: Mapping[str, str] | None = None,
) -> tuple[KnownParallelPlan, ...]:
    """Each technique with each of its variants on each number of devices, by kind of devices, then by their number.

    What a technique says of several numbers of devices in the same words is told once.

    Args:
        gpus: numbers of devices to consider; none: 1, 2, 4 and so on, and all of a worker.
        keyed_by: what outcomes of trials depend on beside the signature, the way and the devices; `None`: they are
            not to be kept.
    """
    found: list[KnownParallelPlan] = []
    for number, place in enumerate(places):
        told: set[tuple[str, str]] = set()
        for size in sizes(place.most, gpus):
            for offer in offers:
                at = _At(device=place.device, number=number, size=size)
                for known in _of(facts, offer, at, keyed_by):
                    if known.reason and (offer.technique.name, known.reason) in told:
                        continue
                    told.add((offer.technique.name, known.reason))
                    found.append(known)
    return tuple(found)


def sizes(most: int, gpus: Sequence[int] = ()) -> list[int]:
    """Numbers of devices to consider where a worker has at most so many."""
    if gpus:
        return sorted({size for size in gpus if size <= most})
    return sorted({*(1 << power for power in range(most.bit_length())), most})


class _At(NamedTuple):
    """So many devices of one kind, and which of the kinds that is."""

    device: DeviceKind
    number: int
    size: int

    @property
    def place(self) -> Place:
        """As techniques are told of it."""
        device = self.device
        return Place(
            size=self.size,
            kind=device.kind,
            memory_bytes=device.memory_bytes,
            host_bytes=device.host_bytes,
        )

    @property
    def suffix(self) -> str:
        """Of the id of a way."""
        return (f"-{self.size}" if self.size > 1 else "") + (f"@{self.number}" if self.number else "")


def _of(
    facts: ModelFacts, offer: Offer, at: _At, keyed_by: Mapping[str, str] | None
) -> Iterator[KnownParallelPlan]:
    technique, choice, place = offer.technique, offer.choice, at.place
    if not max(technique.least, choice.least) <= at.size <= min(technique.most, choice.most):
        return
    for variant, params in enumerate(technique.considered(facts, place)):
        parallel_plan = ParallelPlan(
            technique=technique.name,
            version=technique.version,
            params=dict(params),
            size=at.size,
            processes=technique.processes,
            code=choice.code,
        )
        if parallel_plan.label == SINGLE.label and parallel_plan.code is None:
            parallel_plan = SINGLE
        barred = "" if parallel_plan == SINGLE else facts.only_single
        reason = barred or technique.is_applicable(facts, place, params)
        memory = technique.memory(facts, place, params) if not reason else None
        yield KnownParallelPlan(
            id=f"{technique.name}{f'.{variant}' if variant else ''}{at.suffix}",
            parallel_plan=parallel_plan,
            place=at.number,
            reason=reason,
            device_bytes=memory.device if memory else None,
            host_bytes=memory.host if memory else None,
            per_optimizer_byte=_growth(technique, facts, place, params, "optimizer_bytes") if memory else 0.0,
            per_activation_byte=_growth(technique, facts, place, params, "activation_bytes")
            if memory
            else 0.0,
            is_automatic=technique.is_exact(params) and technique.helps(place),
            cache_key=cache_key(facts.signature, parallel_plan, at.device, keyed_by)
            if keyed_by is not None
            else "",
        )


def _growth(technique: Technique, facts: ModelFacts, place: Place, params: Params, field: str) -> float:
    """How much of a device's memory each byte of something takes that is not known yet; asked by trying."""
    none = technique.memory(_with(facts, field, 0), place, params)
    much = technique.memory(_with(facts, field, _MUCH), place, params)
    return max(0.0, (much.device - none.device) / _MUCH) if none and much else 0.0


def _with(facts: ModelFacts, field: str, num_bytes: int) -> ModelFacts:
    if field == "optimizer_bytes":
        return replace(facts, optimizer_bytes=num_bytes)
    return replace(facts, activation_bytes=num_bytes)


def cache_key(
    signature: str, parallel_plan: ParallelPlan, device: DeviceKind, others: Mapping[str, str]
) -> str:
    """What the outcome of a trial is kept under: a hash of all that it depends on.

    Args:
        others: such as the version of torch, what the spec does, how rows are laid out.
    """
    facts = [signature, parallel_plan.model_dump(mode="json"), device.model_dump(mode="json"), dict(others)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
