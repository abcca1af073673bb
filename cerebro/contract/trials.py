"""What is known of models before, and beside, training them: groups of models, the ways that each group has, and what
trials of these ways have shown.

Made by workers (`trial_runner`), because only they open user code; kept in the log of the run, so that everybody who
folds it knows the same.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from cerebro.contract.base import Contract, LateContract, Sha256
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import MAX_DEVICES, WorkerRecord
from cerebro.contract.texts import cleaned

GroupId = Annotated[str, StringConstraints(pattern=r"^g[0-9]{2,6}$")]

ParallelPlanId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.@-]{0,79}$")]
"""Of a way on one kind of devices, within a group: ``single``, ``fsdp-2``, ``fsdp.1-4@1`` (its second variant, on the
second kind of devices)."""

MAX_REASON = 1_000
_HOST_STEP = 1 << 30

Reason = Annotated[
    str, BeforeValidator(lambda value: cleaned(value, MAX_REASON) if isinstance(value, str) else value)
]


Cause = Literal["", "device_memory", "host_memory", "gradient", "not_applicable", "failure"]


class DeviceKind(Contract):
    """Devices that are alike: what is measured on one of them holds for all.

    Attributes:
        kind, name, memory_bytes: of each, as in `Device`.
        host_bytes: memory of the worker that they are part of; `None`: not known.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    memory_bytes: int | None = Field(default=None, ge=0)
    host_bytes: int | None = Field(default=None, ge=0)

    @classmethod
    def of(cls, record: WorkerRecord) -> DeviceKind | None:
        """That of a worker's devices; `None`: it has none registered, or they are not alike."""
        if len({(device.kind, device.name) for device in record.devices}) != 1:
            return None
        first = record.devices[0]
        memory = [device.memory_bytes for device in record.devices if device.memory_bytes is not None]
        host = record.memory_bytes
        return cls(
            kind=first.kind,
            name=first.name,
            memory_bytes=min(memory, default=None),
            # Machines of one type differ by what their kernels keep for themselves.
            host_bytes=None if host is None else host - host % (_HOST_STEP if host >= _HOST_STEP else 1),
        )


class DevicePlace(Contract):
    """Devices of one kind, and the most of them that a worker has."""

    device: DeviceKind
    most: int = Field(ge=1, le=MAX_DEVICES)


class KnownParallelPlan(Contract):
    """A way that a group of models could be trained by, on one kind of devices, as `inspect` sees it.

    Attributes:
        id: names it within its group.
        place: index of the kind of devices in `Inspection.places`.
        reason: why it is not applicable; empty: it is.
        device_bytes, host_bytes: memory that the model's state takes at least: of each device, and of the host for all
            ranks together; `None`: that cannot be told.
        per_optimizer_byte, per_activation_byte: how much `device_bytes` grows with each byte of the optimizer's state,
            and of the activations on one device, once a trial has shown those.
        is_automatic: it may be chosen without being named: it keeps the numbers of one device, and may help there.
        cache_key: what outcomes of its trials are kept under, for other runs; empty: they are not.
    """

    id: ParallelPlanId
    parallel_plan: ParallelPlan
    place: int = Field(default=0, ge=0)
    reason: Reason = ""
    device_bytes: int | None = Field(default=None, ge=0)
    host_bytes: int | None = Field(default=None, ge=0)
    per_optimizer_byte: float = Field(default=0.0, ge=0)
    per_activation_byte: float = Field(default=0.0, ge=0)
    is_automatic: bool = True
    cache_key: Sha256 | Literal[""] = ""


class ModelGroup(Contract):
    """Models that differ in nothing that time or memory depend on.

    Attributes:
        name: for people, such as the classes of its modules.
        signature: a hash; see `cerebro.worker.training.facts`.
        models: their ids.
        param_bytes, trainable_bytes, buffer_bytes, block_bytes, batch_size, layers: as in `ModelFacts`.
        ways: for each kind of devices; those of one device first, then by number of devices.
        problem: why nothing is known of them; empty: it is.
    """

    id: GroupId
    name: str = ""
    signature: str = ""
    models: tuple[str, ...]
    param_bytes: int = Field(default=0, ge=0)
    trainable_bytes: int = Field(default=0, ge=0)
    buffer_bytes: int = Field(default=0, ge=0)
    block_bytes: int = Field(default=0, ge=0)
    batch_size: int = Field(default=1, ge=1)
    layers: dict[str, int] = Field(default_factory=dict)
    parallel_plans: tuple[KnownParallelPlan, ...] = ()
    problem: Reason = ""

    def parallel_plan(self, identity: str) -> KnownParallelPlan | None:
        """The way of that id."""
        return next((known for known in self.parallel_plans if known.id == identity), None)


class Inspection(Contract):
    """All models of a run, without training any.

    Attributes:
        torch: version that it was made with.
        problem: why there are no groups, if the task itself failed.
    """

    groups: tuple[ModelGroup, ...] = ()
    places: tuple[DevicePlace, ...] = ()
    torch: str = ""
    problem: Reason = ""

    def group(self, identity: str) -> ModelGroup | None:
        """The group of that id."""
        return next((group for group in self.groups if group.id == identity), None)

    def group_of(self, model: str) -> ModelGroup | None:
        """The group that a model is in."""
        return next((group for group in self.groups if model in group.models), None)


class TrialOutcome(Contract):
    """What a trial of a way has shown.

    Attributes:
        reason: why the way is ruled out; empty: it can be used.
        cause: what kind of reason that is: memory of a device or of the host ran out, the gradient is another one than
            that of one device, the technique does not apply, or anything else (a crash, a hang).
        batch_s: seconds of a batch on average, at first the median of them; 0 where the way is ruled out.
        sigma: standard deviation of the logarithm of a sub-epoch's time over the one that `batch_s` says.
        batches: that were timed.
        load_s, save_s: seconds that reading and writing the model's state take, with frozen weights.
        start_s: seconds until a group of processes was ready to train; 0 for one process.
        device_bytes: most memory of a device that was in use at once; 0: it has none of its own, or not known.
        host_bytes: most memory that its processes had together.
        state_bytes: size of the model's state, as its checkpoints have it.
        is_verified: it computes the gradient of one device.
        unverified: why it is not known to, or that it does not; empty where `is_verified`.
        error: largest relative difference of a gradient, where that was compared.
        seconds: that the trial took, without the start of its processes.
        is_recalled: it is from an earlier run.
    """

    reason: Reason = ""
    cause: Cause = ""
    batch_s: float = Field(default=0.0, ge=0)
    sigma: float = Field(default=0.0, ge=0)
    batches: int = Field(default=0, ge=0)
    load_s: float = Field(default=0.0, ge=0)
    save_s: float = Field(default=0.0, ge=0)
    start_s: float = Field(default=0.0, ge=0)
    device_bytes: int = Field(default=0, ge=0)
    host_bytes: int = Field(default=0, ge=0)
    state_bytes: int = Field(default=0, ge=0)
    is_verified: bool = False
    unverified: Reason = ""
    error: float | None = None
    seconds: float = Field(default=0.0, ge=0)
    is_recalled: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether sub-epochs may be trained by it."""
        return not self.reason and self.batch_s > 0


class TrialRecord(LateContract):
    """The outcome of a trial, kept for other runs under all that it depends on (`KnownParallelPlan.cache_key`)."""

    key: Sha256
    outcome: TrialOutcome
    label: str = ""
    """Of the way, for people."""
    device: str = ""
    """Name of its devices, for people."""
    torch: str = ""
    experiment: str = ""
    run: str = ""
    """That it is from."""
