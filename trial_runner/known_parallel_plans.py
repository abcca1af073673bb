"""The parallel plans that a worker's devices could run, and reasons against the other plans.

`trial_runner.inspection` calls `known_parallel_plans` for each group of similar models. The techniques' pure methods
(`cerebro.techniques.base`) decide; nothing is built or measured. The module works without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan, TechniqueChoice
from cerebro.contract.trials import AvailableDevices, DeviceKind, KnownParallelPlan
from cerebro.techniques import DeviceSet, ModelFacts, Params, Technique

_MUCH = 1 << 30
"""Bytes for probing how memory grows."""


class Offer(NamedTuple):
    """A technique that a run may use, with the user's fixed parameters, and the user's choice that named it."""

    technique: Technique
    choice: TechniqueChoice


def known_parallel_plans(
    facts: ModelFacts,
    offers: Sequence[Offer],
    device_kinds: Sequence[AvailableDevices],
    *,
    gpus: Sequence[int] = (),
    keyed_by: Mapping[str, str] | None = None,
) -> tuple[KnownParallelPlan, ...]:
    """List each technique with its variants on each number of devices.

    The order is by kind of device, then by number of devices. A technique's reason that is equal for several numbers
    appears once.

    Args:
        facts: the model.
        offers: techniques to consider.
        device_kinds: kinds of devices of the cluster.
        gpus: numbers of devices to consider. Default: 1, 2, 4 and so on, and all devices of a worker.
        keyed_by: facts that decide a trial's outcome besides signature, plan and devices; `None` disables the cache.
    """
    plans: list[KnownParallelPlan] = []
    for number, available in enumerate(device_kinds):
        reported: set[tuple[str, str]] = set()
        for size in sizes(available.max_devices, gpus):
            for offer in offers:
                devices = _Devices(device=available.device, number=number, size=size)
                for known in _plans_of(facts, offer, devices, keyed_by):
                    if known.reason and (offer.technique.name, known.reason) in reported:
                        continue
                    reported.add((offer.technique.name, known.reason))
                    plans.append(known)
    return tuple(plans)


def sizes(most: int, gpus: Sequence[int] = ()) -> list[int]:
    """Return the numbers of devices to consider on a worker with at most `most` devices."""
    if gpus:
        return sorted({size for size in gpus if size <= most})
    return sorted({*(1 << power for power in range(most.bit_length())), most})


class _Devices(NamedTuple):
    """A number of devices of one kind, and the index of that kind."""

    device: DeviceKind
    number: int
    size: int

    @property
    def as_set(self) -> DeviceSet:
        """The devices as techniques receive them."""
        device = self.device
        return DeviceSet(
            size=self.size,
            kind=device.kind,
            memory_bytes=device.memory_bytes,
            host_bytes=device.host_bytes,
        )

    @property
    def suffix(self) -> str:
        return (f"-{self.size}" if self.size > 1 else "") + (f"@{self.number}" if self.number else "")


def _plans_of(
    facts: ModelFacts, offer: Offer, devices: _Devices, keyed_by: Mapping[str, str] | None
) -> Iterator[KnownParallelPlan]:
    technique, choice, device_set = offer.technique, offer.choice, devices.as_set
    if not max(technique.least, choice.least) <= devices.size <= min(technique.most, choice.most):
        return
    for variant, params in enumerate(technique.considered(facts, device_set)):
        parallel_plan = ParallelPlan(
            technique=technique.name,
            version=technique.version,
            params=dict(params),
            size=devices.size,
            processes=technique.processes,
            code=choice.code,
        )
        if parallel_plan.label == SINGLE.label and parallel_plan.code is None:
            parallel_plan = SINGLE
        exclusion = "" if parallel_plan == SINGLE else facts.only_single
        reason = exclusion or technique.is_applicable(facts, device_set, params)
        memory = technique.memory(facts, device_set, params) if not reason else None
        yield KnownParallelPlan(
            id=f"{technique.name}{f'.{variant}' if variant else ''}{devices.suffix}",
            parallel_plan=parallel_plan,
            device_kind=devices.number,
            reason=reason,
            device_bytes=memory.device if memory else None,
            host_bytes=memory.host if memory else None,
            per_optimizer_byte=_growth(technique, facts, device_set, params, "optimizer_bytes")
            if memory
            else 0.0,
            per_activation_byte=_growth(technique, facts, device_set, params, "activation_bytes")
            if memory
            else 0.0,
            is_automatic=technique.is_exact(params) and technique.helps(device_set),
            cache_key=cache_key(facts.signature, parallel_plan, devices.device, keyed_by)
            if keyed_by is not None
            else "",
        )


def _growth(
    technique: Technique, facts: ModelFacts, device_set: DeviceSet, params: Params, field: str
) -> float:
    """Return the device bytes for each byte of an unknown quantity, by probing."""
    none = technique.memory(_with(facts, field, 0), device_set, params)
    much = technique.memory(_with(facts, field, _MUCH), device_set, params)
    return max(0.0, (much.device - none.device) / _MUCH) if none and much else 0.0


def _with(facts: ModelFacts, field: str, num_bytes: int) -> ModelFacts:
    if field == "optimizer_bytes":
        return replace(facts, optimizer_bytes=num_bytes)
    return replace(facts, activation_bytes=num_bytes)


def cache_key(
    signature: str, parallel_plan: ParallelPlan, device: DeviceKind, context: Mapping[str, str]
) -> str:
    """Return the cache key of a trial: a hash of everything that decides its outcome.

    Args:
        context: further facts, such as the version of torch, the spec and the layout of rows.
    """
    facts = [signature, parallel_plan.model_dump(mode="json"), device.model_dump(mode="json"), dict(context)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
